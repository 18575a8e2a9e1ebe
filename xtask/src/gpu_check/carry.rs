//! Lays the folder to carry: the stripped release binary, the script that runs it, the commit it was built from.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use super::stand_in;
use crate::{invocation::Invocation, workspace, workspace::Workspace};

const BINARY: &str = "gpu_check";
const RUN: &str = include_str!("run.sh");

pub(super) fn lay() -> Result<PathBuf> {
    let root = workspace::root();
    let target = Workspace::read()?.target;
    let commit = workspace::commit()?;
    Invocation::cargo("build --release --package examples --features cuda --bin")
        .arguments([BINARY])
        .withhold(stand_in::withheld_from_the_build(|name| env::var_os(name)))
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
        let folder = env::temp_dir().join(format!("gpu-check-carried-{}", std::process::id()));
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
    #[test]
    fn where_programs_would_load_the_stand_in_the_run_names_it_and_keeps_its_tuning_apart() {
        let folder = env::temp_dir().join(format!("gpu-check-stand-in-{}", std::process::id()));
        fs::create_dir_all(folder.join("lib")).unwrap();
        fs::write(folder.join("lib/libcuda.so.1"), b"\0\x7fELF\0CUDA stand-in\0").unwrap();
        lay_script(&folder, "abc\n").unwrap();
        // Fails without settings for autotune where it is started.
        let binary =
            "#!/bin/sh\ngrep -q local cubecl.toml && echo '{\"program\": \"mlp\", \"verdict\": \"pass\"}'\n";
        fs::write(folder.join(BINARY), binary).unwrap();
        make_executable(&folder.join(BINARY)).unwrap();

        let run = |libraries: &str| {
            let script = Invocation::new(folder.join("run").to_string_lossy());
            let status = script.command(&folder).env("LD_LIBRARY_PATH", libraries).status().unwrap();
            (status.success(), fs::read_to_string(folder.join("raw.jsonl")).unwrap())
        };
        let (passed, raw) = run(&format!("/no-such-folder:{}", folder.join("lib").display()));
        let (passed_elsewhere, elsewhere) = run("/no-such-folder");
        fs::remove_dir_all(&folder).unwrap();

        let on_the_stand_in = Run::parse(&raw).unwrap();
        assert!(passed && stand_in::played_the_device(&on_the_stand_in), "{raw}");
        assert!(!passed_elsewhere && !elsewhere.contains("CUDA stand-in"), "{elsewhere}");
    }
}
