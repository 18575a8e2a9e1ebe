//! Kernels: from NVRTC's CUDA C++ to a function on the CPU.
//!
//! The order is `canonical`, `translate`, `compile` with its `cache`, `object`, `launch`.

mod cache;
mod canonical;
mod compile;
mod launch;
mod lockstep;
mod object;
mod ptx;
mod translate;

pub(crate) use compile::compile;
pub(crate) use launch::{Launch, Line};
pub(crate) use object::{Image, Kernel, Parameter};

/// No card offers more.
const SHARED_BYTES: usize = 256 << 10;
