//! Removal of unmeasured times from autotune's results on disk.
//!
//! CubeCL keeps one file per tuner and device, one JSON object per line. Processes append under a lock file, and read
//! on where they stopped. So lines become spaces, which JSON ignores, and readers keep their place.

use crate::journal::TARGET;
use cubecl_common::device::DeviceId;
use std::fs::{self, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

/// Longer than any kernel takes, and unique.
pub(super) const UNMEASURED: Duration = Duration::new(3600, 271_828_182);

const MARK: &[u8] = br#""secs":3600,"nanos":271828182"#;

/// CubeCL holds the lock for one line.
const PATIENCE: Duration = Duration::from_secs(2);

/// Returns the number of lines; failures are logged.
pub(super) fn remove_lines(root: &Path, device: DeviceId) -> usize {
    let struck = |file: PathBuf| {
        strike_lines(&file).unwrap_or_else(|error| {
            let file = file.display();
            tracing::warn!(target: TARGET, "unmeasured autotune results stay in {file}: {error}");
            0
        })
    };
    files(root, device).into_iter().map(struck).sum()
}

/// CubeCL's files: `autotune/VERSION/device-TYPE-INDEX-RUNTIME/TUNER.json.log`.
fn files(root: &Path, device: DeviceId) -> Vec<PathBuf> {
    let within = |folder: PathBuf| fs::read_dir(folder).into_iter().flatten().flatten();
    let ours = format!("device-{}-{}-", device.type_id, device.index_id);
    within(root.join("autotune"))
        .flat_map(|version| within(version.path()))
        .filter(|folder| folder.file_name().to_string_lossy().starts_with(&ours))
        .flat_map(|folder| within(folder.path()))
        .filter(|file| file.file_name().to_string_lossy().ends_with(".json.log"))
        .map(|file| file.path())
        .collect()
}

fn strike_lines(path: &Path) -> io::Result<usize> {
    if marked(&fs::read(path)?).is_empty() {
        return Ok(0);
    }
    let _locked = Lock::take(path)?;
    let lines = marked(&fs::read(path)?);
    let mut file = OpenOptions::new().write(true).open(path)?;
    for line in &lines {
        file.seek(SeekFrom::Start(line.start as u64))?;
        file.write_all(&vec![b' '; line.len()])?;
    }
    Ok(lines.len())
}

fn marked(text: &[u8]) -> Vec<Range<usize>> {
    let mut start = 0;
    let mut lines = Vec::new();
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        let range = start..start + line.len();
        start = range.end;
        if line.windows(MARK.len()).any(|window| window == MARK) {
            lines.push(range);
        }
    }
    lines
}

/// CubeCL's lock: a neighbouring file that holds its time of creation.
struct Lock(PathBuf);

impl Lock {
    fn take(path: &Path) -> io::Result<Self> {
        let mut name = path.as_os_str().to_owned();
        name.push(".lock");
        let asked = Instant::now();
        loop {
            match OpenOptions::new().create_new(true).write(true).open(&name) {
                Ok(mut file) => {
                    let lock = Self(name.into());
                    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
                    let (secs, nanos) = (now.as_secs(), now.subsec_nanos());
                    write!(file, r#"{{"secs_since_epoch":{secs},"nanos_since_epoch":{nanos}}}"#)?;
                    return Ok(lock);
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && asked.elapsed() < PATIENCE => {
                    sleep(Duration::from_millis(10));
                }
                Err(error) => return Err(error),
            }
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let _gone = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cubecl_common::cache::{Cache, CacheOption};

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("offload-{name}-{}", std::process::id()));
        let _old = fs::remove_dir_all(&folder);
        folder
    }

    fn cache(root: &Path, device: &str) -> Cache<String, Vec<Duration>> {
        Cache::new(format!("{device}/a-tuner"), CacheOption::default().root(root).name("autotune"))
    }

    #[test]
    fn lines_with_an_unmeasured_time_are_struck_and_all_others_stay() {
        let root = folder("struck");
        let device = DeviceId::new(4, 1);
        let time = Duration::from_millis(3);
        let mut ours = cache(&root, "device-4-1-cuda");
        let mut other = cache(&root, "device-4-10-cuda");
        for (key, times) in [("a", vec![time]), ("b", vec![time, UNMEASURED]), ("c", vec![time])] {
            ours.insert(key.to_owned(), times.clone()).expect("a new key");
            other.insert(key.to_owned(), times).expect("a new key");
        }
        ours.insert("d".to_owned(), vec![UNMEASURED]).expect("a new key");

        assert_eq!(remove_lines(&root, device), 2);
        assert_eq!(remove_lines(&root, device), 0);

        ours.insert("e".to_owned(), vec![time]).expect("a new key");
        let read = cache(&root, "device-4-1-cuda");
        let found = |key: &str| read.get(&key.to_owned()).is_some();
        assert_eq!(["a", "b", "c", "d", "e"].map(found), [true, false, true, false, true]);
        assert_eq!(cache(&root, "device-4-10-cuda").len(), 3, "another device's");
        fs::remove_dir_all(&root).expect("our folder");
    }

    #[test]
    fn a_file_that_another_process_holds_is_left_alone() {
        let root = folder("held");
        let mut cache = cache(&root, "device-0-0-cuda");
        cache.insert("a".to_owned(), vec![UNMEASURED]).expect("a new key");
        let file = files(&root, DeviceId::new(0, 0)).remove(0);
        let held = Lock::take(&file).expect("the lock is free");
        assert_eq!(remove_lines(&root, DeviceId::new(0, 0)), 0);
        drop(held);
        assert_eq!(remove_lines(&root, DeviceId::new(0, 0)), 1);
        fs::remove_dir_all(&root).expect("our folder");
    }
}
