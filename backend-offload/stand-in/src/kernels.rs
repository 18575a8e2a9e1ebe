//! Kernels: from the CUDA C++ that a program hands to NVRTC to a function that runs on the CPU.
//!
//! `canonical` gives one kernel one text, `translate` turns it into C++ for the system's compiler, `compile` does so
//! once and keeps the shared object in `cache`, `object` loads it, and `launch` runs it over a grid.

mod cache;
mod canonical;
mod compile;
mod launch;
mod object;
mod translate;

pub(crate) use compile::compile;
pub(crate) use launch::Launch;
pub(crate) use object::{Image, Kernel, Parameter};

/// The most dynamic shared memory a block may have.
pub(crate) const SHARED_BYTES: usize = 256 << 10;
