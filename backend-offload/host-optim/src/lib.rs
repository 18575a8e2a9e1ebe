//! AdamW on host memory, for Burn programs whose optimizer state does not fit the device or its link.
//!
//! AdamW on the device reads and writes three tensors of a parameter's size and needs a fourth. Where they spill, each
//! step moves up to 40 bytes per parameter over the link. Here the master weights and both moments never leave the host:
//! a gradient goes out once, the updated weights come in when they are next used, in the type the device computes in.
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
//! | [`Format`] | bytes per parameter on the host | beside them, with bf16 weights and gradients |
//! |---|---|---|
//! | `F32` | 12: master weight and both moments | 16 in all |
//! | `Bf16Moments` | 8: master weight, moments rounded to bf16 | 12 in all |
//! | `Compact` | 4: 16 bits that complete a bf16 weight to an f32 master, moments of 8 bits with a base per 256 | 8 in all |
//!
//! `F32` computes what Burn's own AdamW computes on the CPU, operation by operation. Moments in the other two formats are
//! rounded at random, from a counter, so that small changes survive on average and every run repeats. Over 1,000 steps of a
//! character model their validation loss stays within 0.0006 (`Bf16Moments`, `benchmarks/runs/2026-11-23-cpu-state-formats`) and
//! 0.0022 (`Compact`, `benchmarks/runs/2026-11-24-cpu-host-step`) of `F32`'s.
//!
//! States that are stepped by [`Sgd`] keep a velocity instead of two moments: 8 bytes per parameter in `F32`, and 6 in
//! `Bf16Moments`. `Compact` is kept as `Bf16Moments` there.
//!
//! [`HostRows`] keeps a matrix of which a step reads few rows, such as an embedding: rows are stepped when they are named, to the
//! bits of rows that are stepped in time.
//!
//! A state whose memory is a [`DiskMemory`](backend_offload::DiskMemory) lies on the disk below the host. A step reads it, changes it
//! and writes it in chunks, three of which are in host memory at a time, to the bits of a state that is there. [`Updates`] read the next
//! parameter's first chunks while the last ones of the parameter before are stepped and written. [`HostAdamWConfig::init`] takes such a
//! memory, too, and steps one parameter after another.
//!
//! # Promises
//!
//! - **Threads and instruction sets change no number.** Each parameter element is computed alone, sums of squares in pieces of
//!   fixed length, and no operation is contracted or reordered.
//! - **Memory is taken from the host tier** of the device, under its one budget, before anything is computed. A refusal is an
//!   error with sizes and leaves the state as it was.
//! - **What a disk damages is never taken for a number.** A chunk is compared with its checksum whenever it is read; a transfer that
//!   fails is an error with the parameter, the folder and the place, and leaves NaN for its weights.

#![expect(
    clippy::inline_always,
    reason = "what is not inlined into a vectorised loop is compiled for the oldest processor"
)]

mod adamw;
mod arrivals;
mod chunks;
mod codes;
mod compact;
mod elsewhere;
mod error;
#[cfg(feature = "test-util")]
mod faults;
mod format;
mod gradient;
mod kept;
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
mod tensors;
mod tiles;
mod updates;

pub use adamw::{AdamW, Stride};
pub use arrivals::{Arrivals, Arriving};
pub use chunks::DiskBytes;
pub use error::HostOptimError;
pub use format::Format;
pub use kept::StateMemory;
pub use numbers::{Values, ValuesMut};
pub use optimizer::{HostAdamW, HostAdamWConfig};
pub use record::HostAdamWRecord;
pub use rows::HostRows;
pub use rule::Rule;
pub use saved::Saved;
pub use sgd::Sgd;
pub use state::HostState;
pub use tensors::{Incoming, TileTensors, decoded_by_kernel, read, tile_tensors};
pub use tiles::{Code, TILE, decode as decode_tiles, encode as encode_tiles, tile_bytes, tiles};
pub use updates::{Update, Updated, Updates};
