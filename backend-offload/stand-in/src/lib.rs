//! A CUDA driver and run-time compiler for machines without a GPU.
//!
//! The shared object answers the calls that CubeCL makes through cudarc: it serves as `libcuda` and as `libnvrtc`
//! where symbolic links give it those names. Device memory is host memory, kernels are compiled by the system's C++
//! compiler, and everything runs on the thread that calls. What the program under test could get away with on a
//! GPU by luck is looked for: work happens as late, or in as odd an order, as streams and events permit, and memory
//! that is not the program's to read or write is guarded. README.md lists options, findings and limits.
//!
//! | file | what it owns |
//! |---|---|
//! | `settings` | the environment variables |
//! | `driver` | the state behind one lock, and carrying out queued work |
//! | `schedule` | when queued work happens; pure |
//! | `memory` | device and page-locked memory, guards, what was written |
//! | `races` | accesses that nothing orders; pure |
//! | `timeline` | a simulated clock; pure but for its file |
//! | `fibers` | a block whose threads wait for each other |
//! | `kernels` | from CUDA C++ to a function that runs |
//! | `findings`, `report` | what the program must not do, and what was counted |
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
