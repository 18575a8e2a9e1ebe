//! Integration tests, in one binary.

mod adapters;
mod alone;
mod config;
mod continuous;
mod counting;
mod decoding;
mod dropout;
mod families;
mod fixtures;
mod footprint;
mod frozen;
mod gradients;
mod hostile;
mod kernels;
mod longest_match;
mod memory;
mod on_demand;
mod packed;
mod parameters;
mod parity;
mod peft;
mod published;
mod recompute;
mod sampling;
mod storage;
mod training;
