//! The crate through its public face, in one process, under faults.

mod faults;
mod numbers;
