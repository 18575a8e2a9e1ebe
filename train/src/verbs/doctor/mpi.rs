//! Open MPI's launcher and library.

use super::Finding;

const SUBJECT: &str = "Open MPI";
const REMEDY: &str = "only several processes need it: `apt-get install openmpi-bin libopenmpi3` (`libopenmpi40` on \
                      recent releases)";

/// Never missing: one process needs no MPI.
pub(super) fn finding() -> Finding {
    if exchange::launch::installed().is_err() {
        return Finding::note(SUBJECT, "no `mpirun` of Open MPI is in PATH", REMEDY);
    }
    #[cfg(unix)]
    return match exchange::open_mpi_version() {
        Ok(version) => Finding::fine(SUBJECT, version),
        Err(_) => Finding::note(SUBJECT, "`mpirun` is found, but the library libmpi.so.40 is not", REMEDY),
    };
    #[cfg(not(unix))]
    Finding::note(SUBJECT, "several processes run on Linux only", REMEDY)
}
