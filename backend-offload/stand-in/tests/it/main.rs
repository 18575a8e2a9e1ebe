//! The stand-in's C functions as a program calls them, each scenario in a process of its own.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod child;
mod cuda;
mod findings;
mod kernels;
mod library;
mod memory;
mod options;
mod order;
