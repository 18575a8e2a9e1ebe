//! Raw measurements in CSV files, and their medians.

use std::fs::File;
use std::io::Write;
use std::time::Duration;

use anyhow::Context;

use super::Args;

/// In the folder of `--out`; without it, rows are discarded.
pub(crate) struct Csv(Option<File>);

impl Csv {
    pub(crate) fn new(args: &Args, name: &str, header: &str) -> anyhow::Result<Self> {
        let Some(folder) = &args.out else { return Ok(Self(None)) };
        std::fs::create_dir_all(folder)?;
        let path = folder.join(name);
        let file = File::create(&path).with_context(|| format!("making {}", path.display()))?;
        let mut csv = Self(Some(file));
        csv.row(header)?;
        Ok(csv)
    }

    pub(crate) fn row(&mut self, row: &str) -> anyhow::Result<()> {
        self.0.as_mut().map_or(Ok(()), |file| writeln!(file, "{row}")).context("writing a row")
    }
}

/// In milliseconds.
pub(crate) fn median_and_max(mut times: Vec<Duration>) -> [f64; 2] {
    times.sort_unstable();
    let at = |at: usize| times.get(at).map_or(f64::NAN, |time| time.as_secs_f64() * 1e3);
    [at(times.len() / 2), at(times.len().saturating_sub(1))]
}
