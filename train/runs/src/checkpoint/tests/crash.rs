//! Saves killed at any moment: the latest whole checkpoint is at least as new as the last completed save.

use std::{
    fs::File,
    io::Write,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use super::*;

const STORE: &str = "SPILLWAY_TEST_STORE";
/// If set, a process waits for the kill amid its second save.
const STOPS: &str = "SPILLWAY_TEST_STOPS";

/// So many that making, renaming and removing take similar time.
const SMALL_FILES: u64 = 40;

/// A folder in memory: on a disk, nearly every kill would hit a sync.
fn run_directory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a folder")
}

fn write_small_files(folder: &Path, step: u64) -> anyhow::Result<()> {
    if let Some(stopped) = std::env::var_os(STOPS).filter(|_| step == 2) {
        fs::write(folder.join("0"), step.to_string())?;
        fs::write(stopped, "")?;
        loop {
            thread::park();
        }
    }
    (0..SMALL_FILES).try_for_each(|file| Ok(fs::write(folder.join(file.to_string()), step.to_string())?))
}

#[test]
fn a_process_killed_at_any_moment_leaves_whole_checkpoints_only() {
    let run = run_directory();
    let checkpoints = Checkpoints::in_run(run.path());
    let promised = run.path().join("promised");
    let module = module_path!().split_once("::").expect("a module of the crate").1;
    let mut in_the_middle = 0;
    for kill in 0..suite::size().pick(15, 60, 300) {
        let stopped = (kill == 0).then(|| run.path().join("stopped"));
        File::create(&promised).expect("a file");
        let mut child = Command::new(std::env::current_exe().expect("this test's own path"))
            .args([&format!("{module}::saves_until_it_is_killed"), "--exact", "--ignored", "--nocapture"])
            .env(STORE, run.path())
            .envs(stopped.iter().map(|file| (STOPS, file)))
            .stdout(Stdio::null())
            .spawn()
            .expect("a child process");
        while fs::read(&promised).expect("a file").is_empty()
            || stopped.as_ref().is_some_and(|file| !file.exists())
        {
            assert!(child.try_wait().expect("a child").is_none(), "it ended by itself");
            thread::sleep(Duration::from_millis(1));
        }
        thread::sleep(Duration::from_micros(kill * 7919 % 20_000));
        child.kill().expect("it runs");
        child.wait().expect("it ended");

        in_the_middle += u64::from(names(&checkpoints.folder).iter().any(|name| name.ends_with(".partial")));
        let latest = checkpoints.find(Which::Latest).expect("there is a whole one");
        let text = fs::read_to_string(&promised).expect("a file");
        let promised: u64 = text.split_terminator('\n').next_back().expect("a line").parse().expect("a step");
        assert!(latest.step >= promised, "step {promised} was saved, {latest:?} is found");
        for candidate in checkpoints.candidates().expect("a folder") {
            let whole =
                Checkpoints::open(&candidate.path).expect("whatever has a checkpoint's name is whole");
            assert_eq!(fs::read_to_string(whole.path.join("7")).expect("a file"), whole.step.to_string());
        }
    }
    assert!(in_the_middle > 0, "no save was cut off");
}

#[test]
#[ignore = "is started and killed by another test"]
fn saves_until_it_is_killed() {
    let run = std::env::var_os(STORE).expect("the parent names it");
    let checkpoints = Checkpoints::in_run(Path::new(&run));
    let mut promised =
        File::options().append(true).open(Path::new(&run).join("promised")).expect("it is there");
    let latest = checkpoints.find(Which::Latest).map_or(0, |latest| latest.step);
    for step in latest + 1.. {
        let save =
            || checkpoints.save(step, 0, |folder| write_small_files(folder, step)).expect("nothing hinders");
        save();
        writeln!(promised, "{step}").expect("written");
        save();
        if step.is_multiple_of(3) {
            checkpoints.mark_best(step).expect("it is there");
        }
        checkpoints.prune(1, None).expect("nothing hinders");
    }
}

#[test]
fn a_checkpoint_being_replaced_counts_until_the_other_is_in_place() {
    let (_run, checkpoints) = store();
    let path = save(&checkpoints, 1).path;
    let aside = checkpoints.folder.join("step-00000001.replaced");
    fs::rename(&path, &aside).expect("stepped aside");
    write_files(&checkpoints.folder, 9).expect("files that are not ours");
    let latest = checkpoints.find(Which::Latest).expect("it is whole");
    assert_eq!(latest.path, aside);
    assert_holds(&latest, 1);
    save(&checkpoints, 2);
    assert_holds(&checkpoints.find(Which::Step(1)).expect("it is whole"), 1);
    save(&checkpoints, 1);
    assert!(!aside.exists());
    assert_eq!(checkpoints.find(Which::Latest).expect("it is whole").path, path);
}

#[test]
fn a_partial_checkpoint_is_never_used_and_soon_removed() {
    let (_run, checkpoints) = store();
    let path = save(&checkpoints, 1).path;
    let partial = checkpoints.folder.join("step-00000002.partial");
    fs::rename(save(&checkpoints, 2).path, &partial).expect("as before the first rename");
    fs::write(checkpoints.folder.join("latest"), "step-00000001\n").expect("written");
    fs::write(checkpoints.folder.join("latest.partial"), "step-000").expect("written");
    assert_eq!(checkpoints.find(Which::Latest).expect("it is whole").path, path);
    save(&checkpoints, 3);
    assert_eq!(names(&checkpoints.folder), ["latest", "step-00000001", "step-00000003"]);
}
