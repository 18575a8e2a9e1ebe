//! What this crate promises, in one binary.

mod config;
mod decoding;
mod fixtures;
mod footprint;
mod gradients;
mod kernels;
mod memory;
mod parity;
mod recompute;
mod sampling;
mod storage;
mod training;
