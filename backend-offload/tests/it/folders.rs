//! Folders of child processes with autotune's results: a software device's timings must not reach a GPU's cache.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The temporary folder is often in memory.
pub fn target() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

#[cfg(feature = "cube")]
pub const SETTINGS: &str = "[autotune]\ncache = \"local\"\nlevel = \"minimal\"\n";

/// Locked until this process ends, for the next to find unchanged.
#[cfg(feature = "cube")]
pub struct LockedFolder {
    name: &'static str,
    folder: OnceLock<(PathBuf, File)>,
}

#[cfg(feature = "cube")]
impl LockedFolder {
    pub const fn new(name: &'static str) -> Self {
        Self { name, folder: OnceLock::new() }
    }

    pub fn path(&self) -> &Path {
        &self.folder.get_or_init(|| self.take()).0
    }

    pub fn within(&self, name: &str, settings: &str) -> PathBuf {
        let folder = self.path().join(name.replace(' ', "-"));
        fs::create_dir_all(&folder).expect("a folder below the target directory");
        fs::write(folder.join("cubecl.toml"), settings).expect("a file below the target directory");
        folder
    }

    #[cfg(feature = "wgpu")]
    pub fn emptied(&self, name: &str, settings: &str) -> PathBuf {
        if self.path().exists() {
            fs::remove_dir_all(self.path()).expect("a folder of ours");
        }
        self.within(name, settings)
    }

    fn take(&self) -> (PathBuf, File) {
        fs::create_dir_all(target()).expect("a folder below the target directory");
        let taken = (0..).find_map(|number| {
            let folder = target().join(format!("{}-{number}", self.name));
            let lock =
                File::create(folder.with_extension("lock")).expect("a file below the target directory");
            lock.try_lock().is_ok().then_some((folder, lock))
        });
        taken.expect("there are many numbers")
    }
}

#[cfg(feature = "cube")]
pub fn fresh(settings: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir_in(target()).expect("a folder below the target directory");
    fs::write(folder.path().join("cubecl.toml"), settings).expect("a file below the target directory");
    folder
}
