//! A CUDA driver and run-time compiler for machines without a GPU.
//!
//! The shared object answers the calls that CubeCL makes through cudarc. Symbolic links present it as `libcuda` and
//! `libnvrtc`. No program links it (`the_stand_in_has_no_dependencies_and_no_member_links_it`), so tests run the
//! program that runs on a GPU. Device memory is host memory, the system's C++ compiler compiles kernels, and everything
//! runs on the calling thread.
//!
//! It looks for errors that a GPU may hide by luck. Work happens as late, or in as unusual an order, as streams and
//! events permit, and guards surround all memory. README.md lists options, findings and limits.
//!
//! | file | content |
//! |---|---|
//! | `settings` | the environment variables |
//! | `driver` | the state behind one lock; executes queued work |
//! | `schedule` | when queued work happens; pure |
//! | `memory` | device and page-locked memory, guards, written ranges |
//! | `races` | accesses that nothing orders; pure |
//! | `timeline` | a simulated clock; pure except for its file |
//! | `fibers` | a block whose threads wait for each other |
//! | `kernels` | from CUDA C++ to a function that runs |
//! | `findings`, `report` | errors of the program, and counters |
//! | `exports` | the C functions |
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod driver;
mod exports;
mod fibers;
mod findings;
mod kernels;
mod memory;
mod races;
mod random;
mod report;
mod schedule;
mod segfault;
mod settings;
mod timeline;
