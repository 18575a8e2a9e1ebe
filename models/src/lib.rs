//! GPT models that train in little memory, sample fast, and match their references.
//!
//! Read `gpt.rs` first: [`Gpt`] takes [`Kernels`], [`Plain`] on any backend or [`Lean`] under autodiff. [`Lean`] and
//! [`recompute`] save memory that Burn 0.21 wastes. The crate knows no offloading, training loops, tokenizers, or files
//! other than weights (`models_depend_on_spilling_only_in_tests`).
//!
//! ```
//! use std::ops::ControlFlow;
//!
//! use burn::backend::Autodiff;
//! use burn::module::AutodiffModule;
//! use burn::optim::{AdamWConfig, Optimizer};
//! use burn::tensor::Tensor;
//! use burn_flex::{Flex, FlexDevice};
//! use models::{Batch, Gpt, GptConfig, Lean, PassOptions, Request, Sampling, generate, recompute};
//!
//! let description = r#"{"preset": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 16, "n_positions": 8, "vocab_size": 5}"#;
//! let config = GptConfig::from_json(description)?;
//! let mut model = Gpt::<Autodiff<Flex>>::new(&config, 1, &FlexDevice)?;
//! let mut optimizer = AdamWConfig::new().init();
//! for _step in 0..60 {
//!     let batch = Batch {
//!         inputs: Tensor::from_ints([[0, 1, 2, 3]], &FlexDevice).into(),
//!         targets: Tensor::from_ints([[1, 2, 3, 4]], &FlexDevice),
//!         mask: None,
//!     };
//!     // One block at a time is recomputed; `model.loss(..)` and `backward` would keep them all.
//!     let (_loss, grads) =
//!         recompute::loss_and_gradients(&model, batch, &PassOptions::default(), Lean::default(), 1);
//!     model = optimizer.step(1e-2, model, grads);
//! }
//! let prompts = [vec![0], vec![2, 3]];
//! let request = Request { sampling: Sampling::greedy(), ..Request::new(&prompts, 2) };
//! let completions = generate(&model.valid(), &request, |_piece| ControlFlow::Continue(()))?;
//! assert_eq!(completions[0].tokens, [1, 2]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod activation;
mod adapter;
mod adjustment;
pub mod attention;
mod block;
mod config;
mod continuous;
mod decode;
pub mod dropout;
mod error;
mod footprint;
mod generate;
mod gpt;
mod group;
pub mod init;
mod input;
mod kernels;
pub mod layers;
mod lookup;
pub mod loss;
mod norm;
mod on_demand;
mod packed;
mod parameters;
mod precision;
pub mod presets;
pub mod ragged;
pub mod random;
mod reader;
pub mod recompute;
mod rotary;
pub mod rows;
mod sample;
pub mod stage;
mod stop;
mod tape;
pub mod tiles;
mod vocabulary;
pub mod weights;

pub use adapter::{Adapter, LoraConfig, LoraError, Projection};
pub use adjustment::Adjustment;
pub use block::{Attention, Block};
pub use config::{
    ALIASES, Activation, Family, GptConfig, NormPlacement, Positions, REQUIRED_KEYS, nearest_key,
};
pub use continuous::{Chosen, Constraint, Continuation, Continuing, Continuous, Likelihood, PromptRead};
pub use decode::{Decoder, DecoderFull};
pub use error::ConfigError;
pub use footprint::Footprint;
pub use generate::{Completion, Finish, GenerateError, Overflow, Piece, Request, generate, generate_by};
pub use gpt::{Batch, Gpt, PassOptions};
pub use group::{ParameterGroup, UnknownGroup, frozen_blocks};
pub use input::Input;
pub use kernels::{Chunks, Kernels, Lean, Plain};
pub use lookup::{Lookup, Matching, Stretch};
pub use norm::NormKind;
pub use on_demand::OnDemand;
pub use packed::{BaseForm, Packed};
pub use parameters::{ParameterInfo, Part};
pub use precision::{Compute, InputForm};
pub use reader::{Reader, WholeReader};
pub use rotary::{RopeScaling, Rotary};
pub use sample::{Sampling, SamplingError};
pub use stop::Stop;
