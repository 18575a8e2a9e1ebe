//! The crate through its public face: in one process under faults, and over the MPI that is installed.

mod faults;
mod numbers;
#[cfg(target_os = "linux")]
mod over_mpi;
#[cfg(target_os = "linux")]
mod ranks;
