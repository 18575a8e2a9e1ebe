//! Lays the folder to carry: the stripped release binary, the script that runs it, the commit it was built from.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use crate::{invocation::Invocation, workspace, workspace::Workspace};

const BINARY: &str = "gpu_check";
const RUN: &str = include_str!("run.sh");

pub(super) fn lay() -> Result<PathBuf> {
    let root = workspace::root();
    let target = Workspace::read()?.target;
    let commit = workspace::commit()?;
    Invocation::cargo("build --release --package examples --features cuda --bin")
        .arguments([BINARY])
        .run(root)?;

    let folder = target.join("gpu-check");
    fs::create_dir_all(&folder).with_context(|| format!("{} could not be made", folder.display()))?;
    let binary = folder.join(BINARY);
    fs::copy(target.join("release").join(BINARY), &binary)
        .with_context(|| format!("{BINARY} could not be copied to {}", folder.display()))?;
    // Not by the profile: another profile would build all of Burn once more.
    Invocation::new("strip").arguments([binary.to_string_lossy()]).run(root)?;
    lay_script(&folder, &commit)?;
    let bytes = fs::metadata(&binary)?.len();
    println!("{}: {} MiB", binary.display(), bytes.div_ceil(1 << 20));
    Ok(folder)
}

fn lay_script(folder: &Path, commit: &str) -> Result<()> {
    let run = folder.join("run");
    fs::write(folder.join("commit"), commit)?;
    fs::write(&run, RUN)?;
    make_executable(&run)
}

#[cfg(unix)]
fn make_executable(path: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
        .with_context(|| format!("{} could not be made executable", path.display()))
}

#[cfg(not(unix))]
fn make_executable(path: &Path) -> Result<()> {
    anyhow::bail!("{} is a script for Linux: run this command there", path.display())
}

#[cfg(all(test, unix))]
mod tests {
    use super::{super::run::Run, *};

    #[test]
    fn the_script_runs_what_lies_beside_it_and_leaves_a_run_that_can_be_recorded() {
        let folder = std::env::temp_dir().join(format!("gpu-check-carried-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        lay_script(&folder, "abc\n").unwrap();
        let binary = "#!/bin/sh\n\
            echo \"{\\\"program\\\": \\\"$*\\\", \\\"verdict\\\": \\\"pass\\\"}\"\n\
            echo '{\"bandwidth\": 1}'\nexit 7\n";
        fs::write(folder.join(BINARY), binary).unwrap();
        make_executable(&folder.join(BINARY)).unwrap();

        let ran = Invocation::new(folder.join("run").to_string_lossy()).run(&folder);
        let run = Run::parse(&fs::read_to_string(folder.join("raw.jsonl")).unwrap()).unwrap();
        fs::remove_dir_all(&folder).unwrap();

        assert!(ran.is_err(), "the binary's own failure must reach the caller");
        assert_eq!((run.commit.as_str(), run.shortcoming()), ("abc", None));
        assert_eq!(run.verdicts[0].cells[0], "--budgets 100%,50%,25% --json");
        assert_eq!(run.command, "gpu_check --budgets 100%,50%,25% --json");
    }
}
