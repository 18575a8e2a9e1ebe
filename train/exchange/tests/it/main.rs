//! The public interface: in one process under faults, and over each installed MPI.

mod faults;
mod numbers;
#[cfg(target_os = "linux")]
mod over_mpi;
#[cfg(target_os = "linux")]
mod ranks;
mod routes;
