//! A CUDA driver and run-time compiler for machines without a GPU, loaded as `libcuda` and `libnvrtc`.
//!
//! It answers CubeCL's calls through cudarc; no program links it
//! (`the_stand_in_has_no_dependencies_and_no_member_links_it`). Device memory is host memory, and kernels run on the
//! calling thread. Work happens late or in unusual order, to find errors that a GPU may hide. README.md lists options,
//! findings and limits.
//!
//! | file | content |
//! |---|---|
//! | `settings` | environment variables |
//! | `driver` | state behind one lock; executes queued work |
//! | `handles` | streams, events and modules |
//! | `schedule` | when queued work happens; pure |
//! | `memory` | device and page-locked memory, guards, written ranges |
//! | `races` | unordered accesses; pure |
//! | `threads` | which host threads share a time |
//! | `timeline` | simulated clock; pure except for its file and counts |
//! | `prices` | times of calls, copies and kernels |
//! | `fibers` | threads of a block that wait for each other |
//! | `kernels` | from CUDA C++ to a function |
//! | `failures` | failures on request |
//! | `findings`, `report` | errors of the program, and counters |
//! | `exports` | C functions |
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod driver;
mod exports;
mod failures;
mod fibers;
mod findings;
mod handles;
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
