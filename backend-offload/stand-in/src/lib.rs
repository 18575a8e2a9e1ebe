//! A CUDA driver and run-time compiler for machines without a GPU, loaded as `libcuda` and `libnvrtc`.
//!
//! It answers CubeCL's calls through cudarc; no program links it
//! (`the_stand_in_has_no_dependencies_and_no_member_links_it`). Device memory is host memory, and kernels run on the
//! calling thread. Work happens late or in unusual order, to find errors that a GPU may hide. README.md lists options,
//! findings and limits.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod driver;
mod exports;
mod failures;
mod fibers;
mod findings;
mod handles;
mod haste;
mod kernels;
mod memory;
mod prices;
mod races;
mod random;
mod report;
mod schedule;
mod segfault;
mod settings;
mod threads;
mod timeline;
