//! Kernels: from the CUDA C++ that a program gives to NVRTC to a function that runs on the CPU.
//!
//! `canonical` gives each kernel one text, and `translate` turns it into C++. `compile` compiles that once and keeps
//! the shared object in `cache`. `object` loads the object, and `launch` runs it over a grid.

mod cache;
mod canonical;
mod compile;
mod launch;
mod object;
mod translate;

pub(crate) use compile::compile;
pub(crate) use launch::Launch;
pub(crate) use object::{Image, Kernel, Parameter};

/// The most dynamic shared memory of a block.
pub(crate) const SHARED_BYTES: usize = 256 << 10;
