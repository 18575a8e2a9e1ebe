//! A run's start: locks its directory, writes its configuration last, and undoes its work on failure.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf, absolute},
};

use anyhow::Context;

use super::RunDirectory;
use crate::BadInput;
use crate::checkpoint::{self, CONFIG, Checkpoints, LastSave, TOKENIZER};
use crate::config::Config;

const PREPARED: [&str; 2] = [TOKENIZER, "data"];
/// A run's results, written when it ends.
pub const SUMMARY: &str = "summary.json";
const LOCK: &str = "lock";
/// Names the checkpoint of another run that this one began with.
const ORIGIN: &str = "began-with";

/// A run directory in preparation: [`commit`](Self::commit) makes it a run, a drop undoes it.
#[derive(Debug)]
pub struct Start<'r> {
    directory: &'r RunDirectory,
    lock: Option<File>,
    fresh: bool,
    made: Vec<PathBuf>,
}

/// What a run directory held before this process locked it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) is_run: bool,
    pub(super) last_save: Option<LastSave>,
}

/// Locks a run directory during training.
#[derive(Debug)]
pub struct Lock(#[expect(dead_code, reason = "the lock lives as long as the open file")] Option<File>);

impl Seen {
    /// Call it before a checkpoint is chosen. What cannot be read fails where it is used.
    pub(super) fn of(run: &Path) -> Self {
        let last_save = Checkpoints::in_run(run).last_save().ok().flatten();
        Self { is_run: run.join(CONFIG).exists(), last_save }
    }

    /// Verifying a checkpoint takes minutes, in which another process may train in `run` and end.
    fn refuse_changes(self, run: &Path) -> Result<(), BadInput> {
        let now = Self::of(run);
        if now == self {
            return Ok(());
        }
        let done = match now.last_save.filter(|last| Some(*last) != self.last_save) {
            Some(last) => format!("saved step {} in", last.step),
            None if now.is_run && !self.is_run => "begun a run in".to_owned(),
            None => "changed".to_owned(),
        };
        Err(BadInput(format!(
            "another process has {done} {} since this one looked; start again",
            run.display()
        )))
    }
}

impl RunDirectory {
    /// Makes the directory and locks it. Fails if another process has trained in it since it was found.
    pub fn start(&self) -> anyhow::Result<Start<'_>> {
        let is_run = self.path.join(CONFIG).exists();
        // With a lock but no run, a killed start left them.
        let foreign = PREPARED.iter().find(|name| self.path.join(name).exists());
        if let Some(name) = foreign.filter(|_| !is_run && !self.path.join(LOCK).exists()) {
            let path = self.path.display();
            return Err(BadInput(format!("{path} holds `{name}` but no run; choose another --out")).into());
        }
        let folders = self.path.ancestors().filter(|folder| !folder.as_os_str().is_empty());
        let made = folders.take_while(|folder| !folder.exists()).map(Path::to_owned).collect();
        fs::create_dir_all(&self.path).with_context(|| format!("making {}", self.path.display()))?;
        let lock = Some(self.lock()?);
        self.seen.refuse_changes(&self.path)?;
        let start = Start { directory: self, lock, fresh: !self.seen.is_run, made };
        if start.fresh {
            start.clear()?;
        }
        Ok(start)
    }

    /// Without its own first checkpoint, such a run would resume from random weights.
    pub(super) fn refuse_lost_beginning(run: &Path) -> anyhow::Result<()> {
        let path = run.join(ORIGIN);
        match fs::read_to_string(&path) {
            Ok(origin) => Err(BadInput(format!(
                "{} began with the weights of {origin} and has no checkpoint of its own yet; begin it again in another \
                 --out",
                run.display()
            ))
            .into()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error).with_context(|| format!("reading {}", path.display())),
        }
    }

    /// The checkpoint of another run that this one begins with.
    fn origin(&self) -> Option<&Path> {
        if let Some(pretrained) = &self.pretrained {
            return Some(pretrained.path());
        }
        let from = &self.from.as_ref()?.path;
        let is_own = Checkpoints::run_of(from) == absolute(&self.path).ok();
        (!is_own).then_some(from)
    }

    fn lock(&self) -> anyhow::Result<File> {
        let path = self.path.join(LOCK);
        // Untruncated: a foreign run may have a link of this name.
        let file = File::options().write(true).create(true).truncate(false).open(&path);
        let file = file.with_context(|| format!("making {}", path.display()))?;
        if durable::is_ours(file.try_lock()).with_context(|| format!("locking {}", path.display()))? {
            return Ok(file);
        }
        let path = self.path.display();
        Err(BadInput(format!("another process is training in {path}; wait for it or choose another --out"))
            .into())
    }
}

fn clear(path: &Path, remove: fn(&Path) -> io::Result<()>) -> anyhow::Result<()> {
    match remove(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", path.display()))
        }
        _ => Ok(()),
    }
}

impl Start<'_> {
    /// Writes the complete configuration, which makes it a run.
    pub fn commit(mut self, config: &Config) -> anyhow::Result<Lock> {
        let run = &self.directory.path;
        if let Some(origin) = self.directory.origin().filter(|_| self.fresh) {
            let path = run.join(ORIGIN);
            durable::write(&path, origin.display().to_string().as_bytes())
                .with_context(|| format!("writing {}", path.display()))?;
        }
        let path = run.join(CONFIG);
        durable::write(&path, config.to_json().as_bytes())
            .with_context(|| format!("writing {}", path.display()))?;
        self.fresh = false;
        // An earlier attempt's results.
        clear(&run.join(SUMMARY), |path| fs::remove_file(path))?;
        Ok(Lock(self.lock.take()))
    }

    fn clear(&self) -> anyhow::Result<()> {
        clear(&self.directory.path.join(ORIGIN), |path| fs::remove_file(path))?;
        PREPARED
            .iter()
            .try_for_each(|name| clear(&self.directory.path.join(name), |path| fs::remove_dir_all(path)))
    }
}

impl Drop for Start<'_> {
    fn drop(&mut self) {
        if !self.fresh {
            return;
        }
        // The next start removes leftovers. The lock marks them as ours: it goes last.
        if self.clear().is_ok() && fs::remove_file(self.directory.path.join(LOCK)).is_ok() {
            let checkpoints = self.directory.path.join(checkpoint::FOLDER);
            for folder in [&checkpoints].into_iter().chain(&self.made) {
                let _ = fs::remove_dir(folder);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::{Beginning, Resume};

    fn directory(path: &Path) -> RunDirectory {
        RunDirectory::find(Some("toy"), &[], Some(path), Beginning::default()).expect("nothing is there")
    }

    fn prepare(path: &Path) {
        for name in PREPARED {
            fs::create_dir(path.join(name)).expect("making");
            fs::write(path.join(name).join("part"), "words").expect("writing");
        }
    }

    #[test]
    fn a_start_that_fails_leaves_nothing_and_the_next_one_works() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("runs/toy");
        let mut run = directory(&path);
        let start = run.start().expect("it is free");
        prepare(&path);
        fs::create_dir(path.join(checkpoint::FOLDER)).expect("making");
        assert!(!path.join(CONFIG).exists(), "it is no run yet");
        drop(start);
        assert!(!folder.path().join("runs").exists());
        run.start().expect("nothing is in the way").commit(&run.config).expect("written");
        assert!(path.join(CONFIG).exists());
        prepare(&path);
        run.look_again();
        drop(run.start().expect("it is not locked"));
        assert!(path.join(CONFIG).exists() && path.join("data/part").exists());
    }

    #[test]
    fn a_run_that_another_process_has_begun_meanwhile_is_left_as_it_is() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("run");
        let [first, second] = [directory(&path), directory(&path)];
        drop(first.start().expect("it is free").commit(&first.config).expect("written"));
        prepare(&path);
        let said = second.start().expect_err("there is a run").to_string();
        assert!(said.contains("another process has begun a run in"), "{said}");
        assert!(PREPARED.iter().all(|name| path.join(name).join("part").exists()));
    }

    #[test]
    fn no_run_goes_on_from_before_a_checkpoint_that_another_process_has_saved_meanwhile() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("run");
        let run = directory(&path);
        drop(run.start().expect("it is free").commit(&run.config).expect("written"));
        let checkpoints = Checkpoints::in_run(&path);
        let text = run.config.to_json();
        let save = |step| {
            let saved = checkpoints.save(step, 0, |folder| Ok(fs::write(folder.join(CONFIG), &text)?));
            saved.expect("nothing hinders");
        };
        let find = |from: PathBuf| {
            let resume = Resume::From(from);
            let beginning = Beginning { resume: Some(&resume), ..Beginning::default() };
            RunDirectory::find(None, &[], None, beginning).expect("it is whole")
        };

        save(2);
        for step in [4, 2] {
            let found = find(path.clone());
            save(step);
            let said = found.start().expect_err("it would go back").to_string();
            assert!(said.contains(&format!("another process has saved step {step} in")), "{said}");
        }
        let earlier = find(checkpoints.path_of(4));
        assert_eq!(earlier.from.as_ref().map(|from| from.step), Some(4));
        drop(earlier.start().expect("a named checkpoint need not be the last"));
    }

    #[cfg(unix)]
    #[test]
    fn a_folder_whose_name_is_not_utf_8_is_refused_by_name() {
        use std::ffi::OsStr;
        use std::os::unix::ffi::OsStrExt;

        let path = Path::new(OsStr::from_bytes(b"runs/caf\xe9"));
        let found = RunDirectory::find(Some("toy"), &[], Some(path), Beginning::default());
        let said = found.expect_err("no text").to_string();
        assert!(said.contains("runs/caf") && said.contains("is not UTF-8"), "{said}");
    }

    #[test]
    fn files_of_a_killed_start_are_not_mixed_into_the_next_run() {
        let folder = tempfile::tempdir().expect("a folder");
        prepare(folder.path());
        fs::write(folder.path().join(LOCK), "").expect("writing");
        let run = directory(folder.path());
        let _start = run.start().expect("it is not locked");
        assert!(PREPARED.iter().all(|name| !folder.path().join(name).exists()));
    }

    #[cfg(unix)]
    #[test]
    fn a_lock_that_is_a_link_leaves_its_target_as_it_was() {
        let folder = tempfile::tempdir().expect("a folder");
        let target = folder.path().join("target");
        fs::write(&target, "mine").expect("writing");
        let path = folder.path().join("run");
        fs::create_dir(&path).expect("making");
        std::os::unix::fs::symlink(&target, path.join(LOCK)).expect("linked");
        drop(directory(&path).start().expect("it is not locked"));
        assert_eq!(fs::read_to_string(&target).expect("still there"), "mine");
    }

    #[test]
    fn the_users_own_folders_are_neither_used_nor_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        prepare(folder.path());
        let run = directory(folder.path());
        let said = run.start().expect_err("it holds something else").to_string();
        assert!(said.ends_with("holds `tokenizer` but no run; choose another --out"), "{said}");
        assert!(PREPARED.iter().all(|name| folder.path().join(name).join("part").exists()));
        assert!(!folder.path().join(LOCK).exists());
    }
}
