//! `train report` and `train compare`: pages about runs, at any time.

use std::path::PathBuf;

use crate::report;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A run's directory; the run may go on, or have been killed.
    run: PathBuf,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Compare {
    /// Directories of runs.
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// The page.
    #[arg(long, value_name = "FILE", default_value = "compare.html")]
    out: PathBuf,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    println!("{}", report::write(&args.run)?.display());
    Ok(())
}

pub(crate) fn compare(args: &Compare) -> anyhow::Result<()> {
    report::compare(&args.runs, &args.out)?;
    println!("{}", args.out.display());
    Ok(())
}
