//! Shared by `bench` and `cargo xtask`: commands, the workspace, the table of measurements.

pub mod invocation;
pub mod readme_table;
pub mod workspace;

use std::process::ExitCode;

/// Reports an error in one line, without backtrace: it is no bug of ours.
pub fn exit_code(outcome: anyhow::Result<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
