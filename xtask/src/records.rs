//! Where measurements are kept: `benchmarks/runs/<date>-<device>/`. A record is never overwritten.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use crate::{invocation::Invocation, workspace};

pub(crate) fn runs() -> PathBuf {
    workspace::root().join("benchmarks/runs")
}

/// The date in UTC, as `2026-01-02`.
pub(crate) fn today() -> Result<String> {
    let date = Invocation::new("date").arguments(["-u", "+%F"]).output(workspace::root())?;
    Ok(date.trim().to_owned())
}

/// A second record of the same day gets a number.
pub(crate) fn fresh_folder(runs: &Path, date: &str, device: &str) -> Result<PathBuf> {
    let name = format!("{date}-{}", slug(device));
    let numbered = (2..).map(|number| format!("{name}-{number}"));
    let folder = std::iter::once(name.clone())
        .chain(numbered)
        .map(|name| runs.join(name))
        .find(|folder| !folder.exists())
        .expect("numbers do not run out");
    fs::create_dir_all(&folder).with_context(|| format!("{} could not be made", folder.display()))?;
    Ok(folder)
}

fn slug(device: &str) -> String {
    let lower = device.to_lowercase();
    let words = lower.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_run_of_the_day_leaves_the_first_record_alone() {
        let runs = std::env::temp_dir().join(format!("records-{}", std::process::id()));
        let names: Vec<_> = (0..3)
            .map(|_| fresh_folder(&runs, "2026-01-02", "NVIDIA H200 (NVL)").unwrap())
            .map(|folder| folder.file_name().unwrap().to_string_lossy().into_owned())
            .collect();
        fs::remove_dir_all(&runs).unwrap();
        assert_eq!(
            names,
            ["2026-01-02-nvidia-h200-nvl", "2026-01-02-nvidia-h200-nvl-2", "2026-01-02-nvidia-h200-nvl-3"]
        );
    }
}
