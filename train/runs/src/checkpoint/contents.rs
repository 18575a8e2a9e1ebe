//! Verifies a checkpoint's files piece by piece: memory does not grow with the model.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read},
    panic::resume_unwind,
    path::{Path, PathBuf},
    thread,
};

use durable::regular::{self, Unread};
use sha2::{Digest, Sha256};
use tokenizer::Fingerprint;

use super::error::Damage;
use super::manifest::{self, Entry, Manifest};

pub(super) const PIECE: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct Fault {
    pub(super) file: String,
    pub(super) damage: Damage,
}

impl Fault {
    pub(super) fn new(file: impl Into<String>, damage: Damage) -> Self {
        Self { file: file.into(), damage }
    }
}

pub(super) fn sync_and_list(folder: &Path) -> anyhow::Result<Vec<Entry>> {
    use anyhow::Context;
    let tree = Tree::walk(folder).map_err(|fault| anyhow::anyhow!("{} {}", fault.file, fault.damage))?;
    let entries = each_file(&Vec::from_iter(tree.files), |(name, path)| {
        let describe = || -> io::Result<Entry> {
            let file = File::open(path)?;
            file.sync_all()?;
            let bytes = file.metadata()?.len();
            Ok(Entry { name: name.clone(), bytes, sha256: digest(file)? })
        };
        describe().with_context(|| format!("syncing {name}"))
    })?;
    for path in tree.folders {
        durable::sync_folder(&path).with_context(|| format!("syncing {}", path.display()))?;
    }
    Ok(entries)
}

pub(super) fn read_manifest(folder: &Path) -> Result<Manifest, Fault> {
    let fault = |damage| Fault::new(manifest::FILE, damage);
    let text = regular::read(&folder.join(manifest::FILE), manifest::MAX_BYTES);
    let text = text.map_err(|unread| match unread {
        Unread::NotAFile => fault(Damage::NotAFile),
        unread => fault(unreadable(unread.into())),
    })?;
    Manifest::parse(&text).map_err(fault)
}

pub(super) fn verify(folder: &Path) -> Result<Manifest, Fault> {
    let manifest = read_manifest(folder)?;
    let mut there = Tree::walk(folder)?.files;
    there.remove(manifest::FILE);

    let mut listed = Vec::with_capacity(manifest.files.len());
    for entry in &manifest.files {
        let fault = |damage| Fault::new(&entry.name, damage);
        // A file listed twice is missing the second time.
        let path = there.remove(&entry.name).ok_or_else(|| fault(Damage::Missing))?;
        let found = fs::metadata(&path).map_err(|error| fault(unreadable(error)))?.len();
        if found != entry.bytes {
            return Err(fault(Damage::Size { expected: entry.bytes, found }));
        }
        listed.push((entry, path));
    }

    each_file(&listed, |(entry, path)| {
        let fault = |damage| Fault::new(&entry.name, damage);
        let found = File::open(path).and_then(digest).map_err(|error| fault(unreadable(error)))?;
        if found == entry.sha256 {
            Ok(())
        } else {
            Err(fault(Damage::Checksum { expected: entry.sha256, found }))
        }
    })?;
    match there.into_keys().next() {
        Some(extra) => Err(Fault::new(extra, Damage::Extra)),
        None => Ok(manifest),
    }
}

fn unreadable(error: io::Error) -> Damage {
    match error.kind() {
        io::ErrorKind::NotFound => Damage::Missing,
        _ => Damage::Unreadable(error),
    }
}

fn digest(mut file: File) -> io::Result<Fingerprint> {
    let mut piece = vec![0; PIECE];
    let mut digest = Sha256::new();
    loop {
        match file.read(&mut piece) {
            Ok(0) => return Ok(Fingerprint::finish(digest)),
            Ok(read) => digest.update(&piece[..read]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

const PARALLEL_FILES: usize = 4;

/// Runs `work` in parallel: one core hashes slower than a disk reads. Returns the first failure in file order.
fn each_file<F: Sync, T: Send, E: Send>(
    files: &[F],
    work: impl Fn(&F) -> Result<T, E> + Sync,
) -> Result<Vec<T>, E> {
    let mut done = Vec::with_capacity(files.len());
    for files in files.chunks(PARALLEL_FILES) {
        // No thread may outlive a failure and read an abandoned folder.
        let results: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> = files.iter().map(|file| scope.spawn(|| work(file))).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
                .collect()
        });
        for result in results {
            done.push(result?);
        }
    }
    Ok(done)
}

/// Refuses links, which point out of the checkpoint.
#[derive(Default)]
struct Tree {
    files: BTreeMap<String, PathBuf>,
    /// Inner before outer.
    folders: Vec<PathBuf>,
}

impl Tree {
    fn walk(folder: &Path) -> Result<Self, Fault> {
        let mut tree = Self::default();
        tree.descend(folder, "")?;
        Ok(tree)
    }

    fn descend(&mut self, folder: &Path, prefix: &str) -> Result<(), Fault> {
        let here = if prefix.is_empty() { "." } else { prefix };
        let fault = |error| Fault::new(here, unreadable(error));
        for entry in fs::read_dir(folder).map_err(fault)? {
            let entry = entry.map_err(fault)?;
            let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
            if entry.file_name().to_str().is_none() {
                return Err(Fault::new(name, Damage::Name));
            }
            let kind = entry.file_type().map_err(|error| Fault::new(&name, unreadable(error)))?;
            if kind.is_dir() {
                self.descend(&entry.path(), &format!("{name}/"))?;
            } else if kind.is_file() {
                self.files.insert(name, entry.path());
            } else {
                return Err(Fault::new(name, Damage::NotAFile));
            }
        }

        self.folders.push(folder.to_owned());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;

    #[test]
    fn files_are_hashed_in_parallel() {
        let (first, second) = (channel(), channel());
        let ends = [(first.0, second.1), (second.0, first.1)].map(std::sync::Mutex::new);
        let received = each_file(&ends, |ends| {
            let (sender, receiver) = &*ends.lock().expect("one thread each");
            sender.send(()).expect("the other thread receives");
            receiver.recv_timeout(Duration::from_mins(1))
        });
        assert_eq!(received, Ok(vec![(), ()]), "each waits for the other");
    }
}
