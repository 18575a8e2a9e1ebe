//! Records: `benchmarks/runs/<date>-<device>/`, never overwritten.

pub(crate) mod bytes;
pub(crate) mod csv;
pub(crate) mod machine;
pub(crate) mod svg;

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

use xtask::{invocation::Invocation, workspace};

pub(crate) fn runs() -> PathBuf {
    workspace::root().join("benchmarks/runs")
}

/// UTC, as `2026-01-02`.
pub(crate) fn today() -> Result<String> {
    let date = Invocation::new("date").arguments(["-u", "+%F"]).output(Path::new("."))?;
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

pub(crate) fn claim(given: &Path, files: &[&str]) -> Result<PathBuf> {
    if files.iter().any(|name| given.join(name).exists()) {
        bail!(
            "{} holds a record already, and records are never overwritten; name another folder",
            given.display()
        );
    }
    fs::create_dir_all(given).with_context(|| format!("{} could not be made", given.display()))?;
    Ok(given.to_owned())
}

pub(crate) fn command() -> Invocation {
    let typed = env::args().skip(1).map(|argument| without_folders(&argument));
    Invocation::cargo("xtask").arguments(typed)
}

fn without_folders(argument: &str) -> String {
    let (option, path) =
        argument.split_once('=').filter(|_| argument.starts_with("--")).unwrap_or(("", argument));
    let path = Path::new(path);
    let Some(name) = path.file_name().filter(|_| path.is_absolute()) else { return argument.to_owned() };
    let equals = if option.is_empty() { "" } else { "=" };
    format!("{option}{equals}{}", name.to_string_lossy())
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
        let runs = env::temp_dir().join(format!("records-{}", std::process::id()));
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

    #[test]
    fn a_command_shows_no_folder_of_this_machine() {
        assert_eq!(without_folders("/somewhere/else/train"), "train");
        assert_eq!(without_folders("--out=/somewhere/record"), "--out=record");
        for kept in ["bench-vram", "--steps", "--set=a.b=c", "configs/mine.json"] {
            assert_eq!(without_folders(kept), kept);
        }
    }
}
