//! The stand-in's C functions, each scenario in a separate process.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod child;
mod cuda;
mod devices;
mod failures;
mod findings;
mod host;
mod instructions;
mod kernels;
mod library;
mod memory;
mod options;
mod order;
mod tensor_maps;
