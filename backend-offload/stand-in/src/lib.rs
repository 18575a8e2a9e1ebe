//! A CUDA driver and run-time compiler for machines without a GPU, loaded as `libcuda` and `libnvrtc`.
//!
//! It answers the calls that CubeCL makes through cudarc. No program links it
//! (`the_stand_in_has_no_dependencies_and_no_member_links_it`). Device memory is host memory, and kernels run on the
//! calling thread. To find errors that a GPU may hide, work happens late or in unusual order, between guards. README.md
//! lists options, findings and limits.
//!
//! | file | content |
//! |---|---|
//! | `settings` | environment variables |
//! | `driver` | state behind one lock; executes queued work |
//! | `handles` | streams, events and modules |
//! | `schedule` | when queued work happens; pure |
//! | `memory` | device and page-locked memory, guards, written ranges |
//! | `races` | unordered accesses; pure |
//! | `timeline` | simulated clock; pure except for its file and counts |
//! | `prices` | what calls, copies and kernels take on that clock |
//! | `fibers` | a block whose threads wait for each other |
//! | `kernels` | from CUDA C++ to a function |
//! | `failures` | failures that options ask for |
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
mod timeline;
