//! Open MPI's launcher and library.

use super::Finding;

const SUBJECT: &str = "Open MPI";
const REMEDY: &str = "only several processes need it: `apt-get install openmpi-bin libopenmpi3` (`libopenmpi40` on \
                      recent releases)";

/// Never missing: one process needs no MPI.
pub(super) fn finding() -> Finding {
    #[cfg(unix)]
    return described(exchange::launch::installed().is_ok(), || exchange::open_mpi_version().ok());
    #[cfg(not(unix))]
    Finding::note(SUBJECT, "several processes run on Linux only", REMEDY)
}

#[cfg(unix)]
fn described(has_launcher: bool, version: impl FnOnce() -> Option<String>) -> Finding {
    if !has_launcher {
        return Finding::note(SUBJECT, "no `mpirun` of Open MPI is in PATH", REMEDY);
    }
    match version() {
        Some(version) => Finding::fine(SUBJECT, version),
        None => Finding::note(SUBJECT, "`mpirun` is found, but the library libmpi.so.40 is not", REMEDY),
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_missing_launcher_and_a_missing_library_of_open_mpi_are_distinguished() {
        insta::assert_snapshot!(described(true, || Some("Open MPI v5.0.3".to_owned())), @"fine     Open MPI           Open MPI v5.0.3");
        insta::assert_snapshot!(described(true, || None), @"note     Open MPI           `mpirun` is found, but the library libmpi.so.40 is not; only several processes need it: `apt-get install openmpi-bin libopenmpi3` (`libopenmpi40` on recent releases)");
        insta::assert_snapshot!(described(false, || None), @"note     Open MPI           no `mpirun` of Open MPI is in PATH; only several processes need it: `apt-get install openmpi-bin libopenmpi3` (`libopenmpi40` on recent releases)");
    }
}
