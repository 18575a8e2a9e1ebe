//! Fills the folder to carry: three stripped binaries, the script that runs them, PyTorch's models, the commit.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use super::stand_in;
use xtask::{invocation::Invocation, workspace, workspace::Workspace};

use crate::vram::{CARRIED_PEER, PEER};

const BINARY: &str = "gpu_check";
const TRAINER: &str = "train";
const RUN: &str = include_str!("run.sh");

pub(super) fn fill_folder() -> Result<PathBuf> {
    let root = workspace::root();
    let target = Workspace::read()?.target;
    let commit = workspace::commit()?;
    Invocation::cargo("build --release --package examples --package train --features cuda")
        .arguments(["--bin", BINARY, "--bin", TRAINER])
        .withhold(stand_in::withheld_from_the_build(|name| env::var_os(name)))
        .run(root)?;

    let folder = target.join("gpu-check");
    fs::create_dir_all(&folder).with_context(|| format!("{} could not be made", folder.display()))?;
    let release = target.join("release");
    let measuring = env::current_exe().context("this program does not know where it is")?;
    for (name, built) in
        [(BINARY, release.join(BINARY)), (TRAINER, release.join(TRAINER)), ("xtask", measuring)]
    {
        let binary = folder.join(name);
        fs::copy(built, &binary)
            .with_context(|| format!("{name} could not be copied to {}", folder.display()))?;
        // Another profile would build all of Burn once more.
        Invocation::new("strip").arguments([binary.to_string_lossy()]).run(root)?;
        println!("{}: {} MiB", binary.display(), fs::metadata(&binary)?.len().div_ceil(1 << 20));
    }
    write_script(&folder, &commit)?;
    Ok(folder)
}

fn write_script(folder: &Path, commit: &str) -> Result<()> {
    let run = folder.join("run");
    let peer = workspace::root().join(PEER);
    fs::copy(&peer, folder.join(CARRIED_PEER))
        .with_context(|| format!("{} could not be copied to {}", peer.display(), folder.display()))?;
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
    fn the_script_runs_its_folder_and_leaves_a_run_that_can_be_recorded() {
        let folder = env::temp_dir().join(format!("gpu-check-carried-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        write_script(&folder, "abc\n").unwrap();
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
        assert_eq!(run.verdicts[0].cells[0], "--budgets 100%,50%,25%,floor --json --seconds 240");
        assert_eq!(run.command, "gpu_check --budgets 100%,50%,25%,floor --json --seconds 240");
    }

    #[test]
    fn the_trainer_is_measured_after_the_check_and_either_failure_is_reported() {
        let folder = env::temp_dir().join(format!("gpu-check-measured-{}", std::process::id()));
        fs::create_dir_all(folder.join("bench-vram")).unwrap();
        fs::write(folder.join("bench-vram/cells.csv"), "of an earlier run").unwrap();
        write_script(&folder, "abc\n").unwrap();
        let outcomes = [("0", "0"), ("7", "0"), ("0", "7")].map(|(checked, measured)| {
            fs::write(folder.join(BINARY), format!("#!/bin/sh\necho '{{\"bandwidth\": 1}}'\nexit {checked}\n")).unwrap();
            let measuring = format!(
                "#!/bin/sh\n[ $1 = bench-vram ] || exit 0\n\
                 for out; do :; done\n[ ! -e $out ] && mkdir $out && echo \"$*\" > $out/asked; exit {measured}\n"
            );
            fs::write(folder.join("xtask"), measuring).unwrap();
            make_executable(&folder.join(BINARY)).unwrap();
            make_executable(&folder.join("xtask")).unwrap();
            let ran = Invocation::new(folder.join("run").to_string_lossy()).run(&folder).is_ok();
            (ran, fs::read_to_string(folder.join("bench-vram/asked")).unwrap())
        });
        let place = folder.display().to_string();
        fs::remove_dir_all(&folder).unwrap();

        assert_eq!(outcomes.clone().map(|(ran, _)| ran), [true, false, false]);
        assert_eq!(without_time(&outcomes[0].1.replace(&place, "FOLDER")), MODELS);
    }

    const MODELS: &str = "bench-vram --device cuda --seconds LEFT --seconds-per-cell 120 --steps 6 \
                          --optimizer device,host --budgets 50% --train FOLDER/train --out FOLDER/bench-vram\n";

    /// With `LEFT` for the seconds that remain after fakes that take nearly none.
    fn without_time(asked: &str) -> String {
        let (before, after) = asked.split_once("--seconds ").unwrap();
        let (seconds, after) = after.split_once(' ').unwrap();
        let total = seconds_of("total");
        let left: u64 = seconds.parse().unwrap();
        assert!((total - 60..=total).contains(&left), "{left} of {total} s");
        format!("{before}--seconds LEFT {after}")
    }

    fn seconds_of(part: &str) -> u64 {
        let value = RUN.lines().find_map(|line| line.strip_prefix(part)?.strip_prefix('='));
        value.unwrap().parse().unwrap()
    }

    #[test]
    fn all_parts_take_at_most_eight_minutes_and_models_get_time_after_the_slowest_programs() {
        let [total, programs, guard, copies] = ["total", "programs", "guard", "copies"].map(seconds_of);
        assert!(total + 20 <= 8 * 60, "a rest is for the verdict");
        assert!(programs + 20 <= guard, "the last program ends, and the bandwidth is measured");
        assert!(total >= guard + copies + 160, "models have {} s", total - guard - copies);
    }

    /// The measuring program's arguments with `python`, and whether the peer was carried.
    fn measured_where(python: &str, test: &str) -> (String, bool) {
        let folder = env::temp_dir().join(format!("gpu-check-{test}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        write_script(&folder, "abc\n").unwrap();
        let asked = folder.join("asked");
        for (name, does) in [
            (BINARY, "echo '{\"bandwidth\": 1}'".to_owned()),
            ("xtask", format!("echo \"$*\" >>{}", asked.display())),
            ("python3", python.to_owned()),
        ] {
            fs::write(folder.join(name), format!("#!/bin/sh\n{does}\n")).unwrap();
            make_executable(&folder.join(name)).unwrap();
        }
        let path = format!("{}:{}", folder.display(), env::var("PATH").unwrap());
        let run = Invocation::new(folder.join("run").to_string_lossy()).environment("PATH", path);
        run.run(&folder).unwrap();
        let is_there = folder.join(CARRIED_PEER).is_file();
        let asked = fs::read_to_string(asked).unwrap().replace(&folder.display().to_string(), "FOLDER");
        fs::remove_dir_all(&folder).unwrap();
        (asked, is_there)
    }

    #[test]
    fn pytorch_is_compared_in_the_same_time_if_it_sees_the_gpu() {
        let framed =
            |models: &str| format!("gpu-check --link\n{models}gpu-check --verdict FOLDER/raw.jsonl\n");
        let (asked, is_there) = measured_where("exit 0", "peer");
        assert!(is_there, "the script is carried");
        let beside = MODELS.replace('\n', " --peer pytorch --ways memory,fsdp --rounds 1\n");
        assert_eq!(without_time(&asked), framed(&beside));
        let (asked, _) = measured_where("exit 1", "no-peer");
        assert_eq!(without_time(&asked), framed(MODELS));
    }

    #[test]
    fn plain_copies_leave_their_line_in_the_runs_file() {
        let folder = env::temp_dir().join(format!("gpu-check-link-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        write_script(&folder, "abc\n").unwrap();
        let link = "#!/bin/sh\n[ \"$2\" = --link ] || exit 0\necho '{\"link\": {\"both\": 7}}'\nexit 1\n";
        for (name, text) in [(BINARY, "#!/bin/sh\nexit 1\n"), ("xtask", link)] {
            fs::write(folder.join(name), text).unwrap();
            make_executable(&folder.join(name)).unwrap();
        }
        let ran = Invocation::new(folder.join("run").to_string_lossy()).run(&folder);
        let run = Run::parse(&fs::read_to_string(folder.join("raw.jsonl")).unwrap()).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        assert!(ran.is_err(), "a failed part reaches the caller");
        assert_eq!(run.link.as_ref().map(|link| &link["both"]), Some(&7.into()));
        assert!(run.shortcoming().unwrap().contains("no program left a verdict"));
    }

    /// The digest is `one` for a single process, `several` for ranks.
    fn outcome_of_ranks(gpus: &str, [one, several]: [&str; 2]) -> (bool, String) {
        let name = format!("gpu-check-ranks-{gpus}-{one}-{several}-{}", std::process::id());
        let folder = env::temp_dir().join(name);
        fs::create_dir_all(folder.join("bin")).unwrap();
        write_script(&folder, "abc\n").unwrap();
        let digests =
            "echo \"{\\\"losses_sha256\\\": \\\"0a\\\", \\\"weights_sha256\\\": \\\"$weights\\\"}\"";
        let train = format!(
            "#!/bin/sh\nweights={one}\ncase \"$*\" in *--ranks\\ {gpus}*) weights={several};; esac\n{digests}\n"
        );
        let programs = [
            (BINARY, "#!/bin/sh\necho '{\"bandwidth\": 1}'\n".to_owned()),
            (TRAINER, train),
            ("bin/mpirun", "#!/bin/sh\n".to_owned()),
            ("bin/nvidia-smi", format!("#!/bin/sh\necho {gpus}\n")),
        ];
        for (program, text) in programs {
            fs::write(folder.join(program), text).unwrap();
            make_executable(&folder.join(program)).unwrap();
        }
        let path = format!("{}:{}", folder.join("bin").display(), env::var("PATH").unwrap());
        let script = Invocation::new(folder.join("run").to_string_lossy());
        let passed = script.command(&folder).env("PATH", path).status().unwrap().success();
        let raw = fs::read_to_string(folder.join("raw.jsonl")).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        (passed, Run::parse(&raw).unwrap().verdicts[0].cells[..5].join(" "))
    }

    #[test]
    fn one_rank_per_gpu_passes_with_the_bits_of_one_process_and_needs_two_gpus() {
        let outcome = |gpus, weights| outcome_of_ranks(gpus, weights);
        assert_eq!(outcome("2", ["ab", "ab"]), (true, "ranks 2 GPUs pass true true".to_owned()));
        assert_eq!(outcome("4", ["ab", "ac"]), (false, "ranks 4 GPUs fail n/a n/a".to_owned()));
        assert_eq!(outcome("1", ["ab", "ab"]), (true, "ranks 1 GPUs skipped n/a n/a".to_owned()));
    }

    #[test]
    fn a_run_on_the_stand_in_names_it_and_keeps_its_tuning_apart() {
        let folder = env::temp_dir().join(format!("gpu-check-stand-in-{}", std::process::id()));
        fs::create_dir_all(folder.join("lib")).unwrap();
        fs::write(folder.join("lib/libcuda.so.1"), b"\0\x7fELF\0CUDA stand-in\0").unwrap();
        write_script(&folder, "abc\n").unwrap();
        // Fails without autotune settings, or choices that were made in haste.
        let binary = "#!/bin/sh\ngrep -q local cubecl.toml || exit 1\n\
            [ \"$1\" = tune ] && { echo $STAND_IN_HASTE >chosen; exit; }\n\
            [ \"$STAND_IN_HASTE\" ] && exit 1\n\
            grep -q 16 chosen && echo '{\"program\": \"mlp\", \"verdict\": \"pass\"}'\n";
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
        assert!(passed && stand_in::ran_on_the_stand_in(&on_the_stand_in), "{raw}");
        assert!(raw.contains("\"driver\":\"compute capability 70\""), "{raw}");
        assert!(!passed_elsewhere && !elsewhere.contains("CUDA stand-in"), "{elsewhere}");
    }
}
