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
mod gradients;
mod hostile;
mod kernels;
mod longest_match;
mod memory;
mod on_demand;
mod parameters;
mod parity;
mod published;
mod recompute;
mod sampling;
mod storage;
mod training;
