//! AdamW in host memory, for Burn programs whose optimizer state does not fit the device or its link.
//!
//! AdamW on the device touches four tensors of a parameter's size. If they spill, a step moves up to 40 bytes per
//! parameter over the link. Here master weights and moments stay on the host: the device sends a gradient once and
//! receives weights at their next use.
//!
//! ```
//! use backend_offload::{Offload, host_memory};
//! use burn::backend::{Autodiff, Flex, flex::FlexDevice};
//! use burn::module::Module;
//! use burn::nn::{Linear, LinearConfig};
//! use burn::optim::{GradientsParams, Optimizer};
//! use burn::tensor::Tensor;
//! use host_optim::HostAdamWConfig;
//!
//! type B = Autodiff<Offload<Flex>>; // Autodiff<Offload<Cuda>> on a machine with a GPU
//!
//! let device = FlexDevice;
//! let mut optimizer = HostAdamWConfig::new().init(host_memory::<Flex>(&device));
//! let mut model: Linear<B> = LinearConfig::new(4, 2).init(&device);
//! let loss = model.forward(Tensor::<B, 2>::ones([1, 4], &device)).sum();
//! let gradients = GradientsParams::from_grads(loss.backward(), &model);
//! model = optimizer.step(1e-3, model, gradients);
//! assert_eq!(optimizer.host_bytes(), (4 * 2 + 2) * 12);
//! ```
//!
//! # Formats
//!
//! | [`Format`] | bytes per parameter on the host | with bf16 weights and gradients |
//! |---|---|---|
//! | `F32` | 12: master weight and both moments | 16 in all |
//! | `Bf16Moments` | 8: master weight, moments rounded to bf16 | 12 in all |
//! | `Compact` | 4: 16 bits that complete a bf16 weight to an f32 master, moments of 8 bits with a base per 256 | 8 in all |
//!
//! `F32` computes the bits of Burn's AdamW on the CPU (`two_hundred_steps_end_with_the_bits_of_burns_own_optimizer`).
//! The others round moments at random, repeatably. After 1,000 steps of a character model, validation loss differs from
//! `F32`'s by at most 0.0006 (`Bf16Moments`, `benchmarks/runs/2026-11-23-cpu-state-formats`) and 0.0022 (`Compact`,
//! `benchmarks/runs/2026-11-24-cpu-host-step`).
//!
//! With [`Sgd`], a state has one velocity: 8 bytes per parameter in `F32`, 6 in `Bf16Moments`, which replaces
//! `Compact`.
//!
//! [`HostRows`] holds a matrix of which a step reads few rows, such as an embedding. It delays unused rows' steps
//! without changing bits.
//!
//! States made with [`DiskMemory`](backend_offload::DiskMemory) stay on disk and step in chunks, to the same bits. At
//! most three chunks are in host memory; [`Updates`] reads the next state's during a step.
//!
//! # Promises
//!
//! - **Threads and instruction sets change no number** (`the_number_of_threads_changes_no_bit`).
//! - **Memory comes from the device's host tier**, before any computation. A refusal is an error with sizes and leaves
//!   the state unchanged.
//! - **Damaged disk data is never used.** Every read verifies a checksum. A failed transfer is an error that names
//!   parameter, folder and offset; its weights become NaN
//!   (`a_step_whose_disk_fails_leaves_nan_and_one_error_with_the_parameter_the_folder_and_the_place`).

#![expect(
    clippy::inline_always,
    reason = "a function not inlined into a vectorised loop is compiled for the oldest processor"
)]

mod adamw;
mod arrivals;
mod chunks;
mod codes;
mod compact;
mod error;
#[cfg(feature = "test-util")]
mod faults;
mod format;
mod gradient;
mod gradient_only;
mod layout;
mod noise;
mod numbers;
mod optimizer;
mod pieces;
mod record;
mod row_gradient;
mod rows;
mod rule;
mod saved;
mod sgd;
mod state;
mod storage;
mod tensors;
mod tiles;
mod updates;

pub use adamw::{AdamW, Stride};
pub use arrivals::{Arrivals, Arriving};
pub use chunks::DiskBytes;
pub use error::HostOptimError;
pub use format::Format;
pub use layout::Moments;
pub use numbers::{Values, ValuesMut};
pub use optimizer::{HostAdamW, HostAdamWConfig};
pub use record::HostAdamWRecord;
pub use rows::HostRows;
pub use rule::Rule;
pub use saved::Saved;
pub use sgd::Sgd;
pub use state::HostState;
pub use storage::StateMemory;
pub use tensors::{Incoming, TileTensors, decoded_by_kernel, read, tile_tensors};
pub use tiles::{Code, TILE, decode as decode_tiles, encode as encode_tiles, tile_bytes, tiles};
pub use updates::{Update, Updated, Updates};
