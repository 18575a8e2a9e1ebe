//! The folder of compiled kernels. Processes may share it: files appear complete, and only equal ones replace them.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process,
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    },
};

/// FNV-1a of all inputs; no defence against adversaries.
#[derive(Debug, Clone, Copy)]
pub(super) struct Key(u128);

impl Key {
    pub(super) fn new<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Self {
        const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
        let hash = |hash: u128, byte: &u8| (hash ^ u128::from(*byte)).wrapping_mul(PRIME);
        let part = |key: u128, part: &[u8]| {
            // Different lists must give different bytes.
            part.iter().fold(part.len().to_le_bytes().iter().fold(key, hash), hash)
        };
        Self(parts.into_iter().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, part))
    }

    pub(super) fn path(self, folder: &Path, extension: &str) -> PathBuf {
        folder.join(format!("{:032x}.{extension}", self.0))
    }
}

pub(super) fn temporary_path(path: &Path) -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    path.with_extension(format!("{}-{count}.part", process::id()))
}

pub(super) fn write(path: &Path, contents: &str) -> io::Result<()> {
    let part = temporary_path(path);
    fs::write(&part, contents)?;
    fs::rename(part, path)
}

/// Includes features, because `-march=native` depends on them.
pub(super) fn processor() -> &'static str {
    static PROCESSOR: LazyLock<String> = LazyLock::new(|| {
        let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let first = text.split("\n\n").next().unwrap_or_default();
        first.lines().filter(|line| line.starts_with("model name") || line.starts_with("flags")).collect()
    });
    &PROCESSOR
}

pub(super) fn texts_below(folder: &Path) -> io::Result<Vec<String>> {
    let mut entries = fs::read_dir(folder)?.collect::<io::Result<Vec<_>>>()?;
    entries.sort_by_key(fs::DirEntry::path);
    let mut texts = Vec::new();
    for path in entries.into_iter().map(|entry| entry.path()) {
        if path.is_dir() {
            texts.extend(texts_below(&path)?);
        } else {
            texts.push(fs::read_to_string(&path)?);
        }
    }
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_depend_on_parts_their_order_and_their_ends() {
        let path =
            |parts: &[&str]| Key::new(parts.iter().map(|part| part.as_bytes())).path(Path::new("c"), "so");
        assert_eq!(path(&["a", "b"]), path(&["a", "b"]));
        assert_ne!(path(&["a", "b"]), path(&["ab", ""]));
        assert_ne!(path(&["a", "b"]), path(&["b", "a"]));
        assert_eq!(path(&[]).to_string_lossy().len(), "c/".len() + 32 + ".so".len());
    }

    #[test]
    fn a_file_read_during_writes_is_whole_and_no_temporary_file_remains() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kernel.cu");
        let text = "text ".repeat(10_000);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..50).for_each(|_| write(&path, &text).unwrap()));
            }
            for _ in 0..200 {
                match fs::read_to_string(&path) {
                    Ok(found) => assert!(found == text, "{} bytes of {}", found.len(), text.len()),
                    Err(error) => assert_eq!(error.kind(), io::ErrorKind::NotFound),
                }
            }
        });
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
