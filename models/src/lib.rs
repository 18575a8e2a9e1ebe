//! The GPT family: a network that trains in little memory, samples fast, and matches the references number for number.
//!
//! [`gpt`] is the network, read it first. The forward pass takes a [`Kernels`] value: [`Plain`] on any backend, [`Lean`]
//! under autodiff, where [`attention`], [`loss`] and [`recompute`] close three holes through which Burn 0.21 loses
//! training memory. Knows nothing of offloading, training loops, tokenizers, or files other than weights.

pub mod attention;
pub mod config;
pub mod decode;
pub mod dropout;
pub mod error;
pub mod footprint;
pub mod generate;
pub mod gpt;
pub mod init;
pub mod kernels;
pub mod layers;
pub mod loss;
pub mod precision;
pub mod presets;
pub mod random;
pub mod recompute;
pub mod sample;
pub mod stop;
pub mod weights;

pub use config::GptConfig;
pub use decode::{Decoder, DecoderFull};
pub use dropout::DropoutKey;
pub use error::ConfigError;
pub use footprint::Footprint;
pub use generate::{Completion, Finish, GenerateError, Overflow, Piece, Request, generate};
pub use gpt::{Batch, Gpt, PassOptions};
pub use kernels::{Chunks, Kernels, Lean, Plain};
pub use precision::Compute;
pub use sample::Sampling;
pub use stop::Stop;
