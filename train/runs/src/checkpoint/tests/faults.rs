//! Failed saves change no checkpoint and leave no other file.

use suite::Need;

use super::*;

fn all_files(checkpoints: &Checkpoints) -> Vec<(String, Vec<u8>)> {
    let mut files = Vec::new();
    let mut folders = vec![checkpoints.folder.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder").flatten() {
            if entry.path().is_dir() {
                folders.push(entry.path());
            } else {
                files.push((entry.path().display().to_string(), fs::read(entry.path()).expect("a file")));
            }
        }
    }
    files.sort();
    files
}

fn assert_nothing_changes(checkpoints: &Checkpoints, attempt: impl FnOnce() -> CheckpointError) -> String {
    let before = all_files(checkpoints);
    let error = attempt().to_string();
    assert!(all_files(checkpoints) == before, "{error}");
    error
}

#[test]
fn a_write_that_fails_half_way_leaves_the_store_as_it_was() {
    let (_run, checkpoints) = store();
    save(&checkpoints, 1);
    for step in [1, 2] {
        let error = assert_nothing_changes(&checkpoints, || {
            let failing = |folder: &Path| {
                write_files(folder, 9)?;
                anyhow::bail!("the tensor wte cannot be read")
            };
            checkpoints.save(step, 0, failing).expect_err("it fails")
        });
        assert!(
            error.contains("the tensor wte cannot be read. Earlier checkpoints are as they were"),
            "{error}"
        );
    }
}

#[test]
fn a_checkpoint_that_cannot_be_sealed_leaves_the_store_as_it_was() {
    let (_run, checkpoints) = store();
    save(&checkpoints, 1);
    for step in [1, 2] {
        let error = assert_nothing_changes(&checkpoints, || {
            let unsealed =
                checkpoints.write(step, 0, |folder| write_files(folder, 9)).expect("nothing hinders");
            let partial = checkpoints.folder.join(format!("step-0000000{step}.partial"));
            fs::create_dir(partial.join(manifest::FILE)).expect("made");
            unsealed.seal().expect_err("a folder has the manifest's name")
        });
        assert!(error.contains("writing its manifest"), "{error}");
    }
}

#[test]
fn too_little_space_is_reported_before_anything_is_written() {
    let (_run, checkpoints) = store();
    save(&checkpoints, 1);
    let error = assert_nothing_changes(&checkpoints, || {
        checkpoints.save(2, 1 << 62, |_| panic!("nothing is written")).expect_err("no disk is that large")
    });
    assert!(error.contains("4611686018427387904 bytes (4194304.00 TiB) are needed"), "{error}");
}

#[test]
fn a_failed_first_save_leaves_no_checkpoint() {
    let (_run, checkpoints) = store();
    checkpoints.save(1, 0, |_| anyhow::bail!("no")).expect_err("it fails");
    assert_eq!(names(&checkpoints.folder), [""; 0]);
    assert!(checkpoints.find(Which::Latest).is_err());
}

#[cfg(target_os = "linux")]
mod full_disk {
    use std::{
        io::Write,
        process::{Command, Output},
    };

    use super::*;

    #[test]
    fn a_full_disk_is_reported_with_the_way_out() {
        let (_run, checkpoints) = store();
        save(&checkpoints, 1);
        let error = assert_nothing_changes(&checkpoints, || {
            let full =
                |_: &Path| Ok(fs::File::options().write(true).open("/dev/full")?.write_all(b"weights")?);
            checkpoints.save(2, 0, full).expect_err("the device is full")
        });
        assert!(error.contains("No space left on device"), "{error}");
        assert!(error.ends_with("make room or keep fewer checkpoints"), "{error}");
    }

    const STORE: &str = "SPILLWAY_TEST_STORE";

    fn store_of_the_parent() -> Checkpoints {
        Checkpoints::in_run(Path::new(&std::env::var_os(STORE).expect("the parent names it")))
    }

    fn in_a_shell(shell: &mut Command, preparation: &str, name: &str, run: &Path) -> Output {
        let module = module_path!().split_once("::").expect("a module of the crate").1;
        let script = format!("{preparation} && exec \"$0\" {module}::{name} --exact --ignored --nocapture");
        shell.args(["-c", &script]).arg(std::env::current_exe().expect("this test's own path"));
        shell.env(STORE, run).output().expect("a shell")
    }

    fn assert_passed(output: &Output) {
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
        assert!(said.contains("1 passed"), "{said}");
    }

    #[test]
    fn a_limit_on_file_sizes_leaves_the_store_as_it_was() {
        let run = tempfile::tempdir().expect("a folder");
        // Blocks of 512 or 1024 bytes. Untrapped, the signal ends the process.
        let limit = "trap '' XFSZ; ulimit -f 1000";
        assert_passed(&in_a_shell(&mut Command::new("sh"), limit, "saves_under_a_limit", run.path()));
    }

    #[test]
    #[ignore = "is run by another test, under a limit"]
    fn saves_under_a_limit() {
        let checkpoints = store_of_the_parent();
        checkpoints.save(1, 0, |folder| Ok(fs::write(folder.join("model"), "small")?)).expect("it fits");
        let error = assert_nothing_changes(&checkpoints, || {
            checkpoints.save(2, 0, |folder| write_files(folder, 2)).expect_err("model exceeds the limit")
        });
        assert!(error.contains("writing model: File too large") && error.contains("make room"), "{error}");
    }

    #[test]
    fn a_disk_that_fills_up_anywhere_in_a_save_leaves_the_store_as_it_was() {
        let run = tempfile::tempdir().expect("a folder");
        let mount = format!("mount -t tmpfs -o size=256k tmpfs '{}'", run.path().display());
        let private = || {
            let mut unshare = Command::new("unshare");
            unshare.args(["--user", "--map-root-user", "--mount", "sh"]);
            unshare
        };
        let can = private().args(["-c", &mount]).output().is_ok_and(|output| output.status.success());
        if !Need::Mounts.is_met((!can).then_some("a test may not mount a file system of its own")) {
            return;
        }
        assert_passed(&in_a_shell(&mut private(), &mount, "fills_the_disk", run.path()));
    }

    #[test]
    #[ignore = "is run by another test, on a small file system of its own"]
    fn fills_the_disk() {
        let checkpoints = store_of_the_parent();
        let run = checkpoints.folder.parent().expect("a run").to_owned();
        let write = |folder: &Path| Ok(fs::write(folder.join("model"), "weights")?);
        checkpoints.save(1, 0, write).expect("it fits");
        let page = rustix::fs::statvfs(&run).expect("a file system").f_frsize;
        let mut errors = Vec::new();

        for pages_left in 0.. {
            let mut ballast = fs::File::create(run.join("ballast")).expect("a file");
            while ballast.write_all(&[1; 64]).is_ok() {}
            let filled = ballast.metadata().expect("a file").len() / page * page;
            ballast.set_len(filled - pages_left * page).expect("cut");
            match checkpoints.save(2, 0, write) {
                Ok(_) => break,
                Err(error) => errors.push(error.to_string()),
            }
            assert_eq!(names(&checkpoints.folder), ["latest", "step-00000001"]);
            assert_eq!(checkpoints.find(Which::Latest).expect("it is whole").step, 1);
        }

        let during = ["No space", "writing its manifest: No space", "writing the pointer to it: No space"];
        assert_eq!(errors.len(), during.len(), "{errors:?}");
        assert!(errors.iter().zip(during).all(|(error, during)| error.contains(during)), "{errors:?}");
        assert_eq!(checkpoints.find(Which::Latest).expect("it is whole").step, 2);
    }
}
