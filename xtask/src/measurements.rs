//! Measuring commands, such as `cargo xtask bench-vram`: they start package `bench`.

use std::{ffi::OsString, process::ExitCode};

use anyhow::{Context, Result};
use clap::Args;
use xtask::invocation::Invocation;

/// Arguments for the measuring program, `--help` included.
#[derive(Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Measurement {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

impl Measurement {
    /// Runs in the current folder. Ends as the program does.
    pub(crate) fn run(self, command: &str) -> Result<ExitCode> {
        let program = Invocation::cargo("run --quiet --release --package bench --").arguments([command]);
        let mut started = program.command(".".as_ref());
        let status = started.args(self.arguments).status();
        let status = status.with_context(|| format!("`{program}` could not be started"))?;
        Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        measurement: Measurement,
    }

    #[test]
    fn options_and_help_reach_the_measuring_program() {
        let typed = ["--help", "--simulate", "a.trace", "--set", "a=b", "--", "-x"];
        let line = Line::parse_from([&["bench-vram"], &typed[..]].concat());
        assert_eq!(line.measurement.arguments, typed);
    }
}
