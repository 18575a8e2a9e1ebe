//! A cache of measured speeds in the user's cache folder, one entry per key.
//!
//! The file saves half a second of a start and decides nothing: no problem with it ends a run
//! (`an_unwritable_cache_ends_no_run`). An unusable file is replaced (`an_unusable_cache_file_is_replaced`). Of two
//! concurrent writes the later stays, without the other's entry.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use std::{env, fmt, fs};

use durable::regular::{self, Unread};
use serde::{Deserialize, Serialize};
use tracing::debug;

use super::key::Key;
use crate::figures::si;
use crate::plan::Measurement;

/// Older entries are dropped.
const MOST: usize = 256;

const MOST_BYTES: u64 = 4 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Measuring {
    /// Only without a cached measurement.
    IfUnknown,
    Always,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(clippy::struct_field_names, reason = "the unit belongs to the names in the file")]
pub(super) struct Speeds {
    pub(super) flops_per_second: Option<f64>,
    pub(super) link_bytes_per_second: Option<f64>,
    /// Writing, then reading.
    pub(super) disk_bytes_per_second: Option<[f64; 2]>,
}

impl Speeds {
    /// Of one of several equal processes that use the machine together. A device is one process's own, unless it is the
    /// host.
    pub(super) fn of_one(self, processes: f64, shares_host: bool) -> Self {
        let own = |speed: Option<f64>| speed.map(|speed| if shares_host { speed / processes } else { speed });
        Self {
            flops_per_second: own(self.flops_per_second),
            link_bytes_per_second: own(self.link_bytes_per_second),
            disk_bytes_per_second: self.disk_bytes_per_second.map(|ways| ways.map(|speed| speed / processes)),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    key: Key,
    /// Seconds since 1970.
    measured: u64,
    speeds: Speeds,
}

#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SpeedCache {
    entries: Vec<Entry>,
}

/// `None` in unit tests.
pub(super) fn file() -> Option<PathBuf> {
    cache_folder().filter(|_| !cfg!(test)).map(|folder| folder.join("speeds.json"))
}

pub(crate) fn cache_folder() -> Option<PathBuf> {
    let named = env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|folder| folder.is_absolute());
    Some(named.or_else(dirs::cache_dir)?.join("spillway"))
}

/// The speeds for `key` from `file`. Without an entry, or if `measuring` asks for it, calls `measure` and stores the
/// result.
pub(super) fn speeds(
    file: Option<&Path>,
    key: Option<Key>,
    measuring: Measuring,
    measure: impl FnOnce() -> Speeds,
) -> (Speeds, Option<Measurement>) {
    let known = file.zip(key);
    if measuring == Measuring::IfUnknown
        && let Some((file, key)) = &known
        && let Some(entry) = SpeedCache::read(file).entry(key)
    {
        return (entry.speeds, Some(Measurement { at: entry.measured, kept: true }));
    }

    let speeds = measure();
    let at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let entry = |key| Entry { key, measured: at, speeds };
    let kept = known.map(|(file, key)| (file, entry(key))).filter(|(_, entry)| entry.is_whole());
    let kept = kept.map(|(file, entry)| (file.display(), store(file, entry)));
    let (has_failed, note) = match kept {
        Some((file, Ok(()))) => (false, format!("kept in {file}")),
        Some((file, Err(error))) => {
            (true, format!("not kept, so the next start measures again: writing {file}: {error}"))
        }
        None => (false, "not kept".to_owned()),
    };
    if has_failed || measuring == Measuring::Always {
        eprintln!("measured {speeds}; {note}");
    } else {
        debug!("measured {speeds}; {note}");
    }
    let found = speeds != Speeds::default();
    (speeds, found.then_some(Measurement { at, kept: false }))
}

/// Keeps entries that other processes have added.
fn store(file: &Path, entry: Entry) -> io::Result<()> {
    SpeedCache::read(file).with(entry).write(file)
}

impl SpeedCache {
    fn read(file: &Path) -> Self {
        let text = match regular::read_text(file, MOST_BYTES) {
            Ok(text) => text,
            Err(Unread::System(error)) if error.kind() == io::ErrorKind::NotFound => return Self::default(),
            Err(error) => {
                debug!("{} is not used: {error}", file.display());
                return Self::default();
            }
        };
        serde_json::from_str(&text).unwrap_or_else(|error| {
            debug!("{} is not used: {error}", file.display());
            Self::default()
        })
    }

    fn entry(&self, key: &Key) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.key == *key && entry.is_whole())
    }

    fn with(mut self, entry: Entry) -> Self {
        self.entries.retain(|other| other.key != entry.key);
        self.entries.push(entry);
        let excess = self.entries.len().saturating_sub(MOST);
        self.entries.drain(..excess);
        self
    }

    fn write(&self, file: &Path) -> io::Result<()> {
        let folder = file.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder)?;
        let text = serde_json::to_string_pretty(self)? + "\n";
        let mut aside =
            tempfile::Builder::new().prefix("speeds").suffix(durable::ASIDE).tempfile_in(folder)?;
        aside.write_all(text.as_bytes())?;
        aside.as_file().sync_all()?;
        aside.persist(file)?;
        durable::sync_folder(folder)
    }
}

impl Entry {
    /// Whether each requested speed is positive and finite.
    fn is_whole(&self) -> bool {
        let Speeds { flops_per_second, link_bytes_per_second, disk_bytes_per_second } = self.speeds;
        let is_speed = |speed: f64| speed.is_finite() && speed > 0.0;
        let disk_is_known = disk_bytes_per_second.map(|speeds| speeds.into_iter().all(is_speed));
        flops_per_second.is_some_and(is_speed)
            && link_bytes_per_second.is_some_and(is_speed)
            && disk_is_known.unwrap_or(self.key.work.disk.is_none())
    }
}

impl fmt::Display for Speeds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = |speed: Option<f64>, unit: &str| {
            speed.map_or("an unknown speed".to_owned(), |speed| si(speed, unit))
        };
        write!(
            f,
            "{} in products and {} over the link",
            known(self.flops_per_second, "FLOP/s"),
            known(self.link_bytes_per_second, "B/s")
        )?;
        match self.disk_bytes_per_second {
            Some([write, read]) => {
                write!(f, ", {} to the disk and {} from it", si(write, "B/s"), si(read, "B/s"))
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::super::key::tests::keys;
    use super::*;

    const SPEEDS: Speeds = Speeds {
        flops_per_second: Some(2e12),
        link_bytes_per_second: Some(25e9),
        disk_bytes_per_second: None,
    };

    fn entry(key: Key) -> Entry {
        Entry { key, measured: 7, speeds: SPEEDS }
    }

    #[test]
    fn processes_on_one_machine_share_its_cores_and_disk_but_each_has_its_card() {
        let all = Speeds {
            flops_per_second: Some(8.0),
            link_bytes_per_second: Some(4.0),
            disk_bytes_per_second: Some([2.0, 6.0]),
        };
        let [on_cpu, on_cards] = [true, false].map(|shares_host| all.of_one(2.0, shares_host));
        let disk = Some([1.0, 3.0]);
        let own = |flops, link| Speeds {
            flops_per_second: Some(flops),
            link_bytes_per_second: Some(link),
            disk_bytes_per_second: disk,
        };
        assert_eq!((on_cpu, on_cards), (own(4.0, 2.0), own(8.0, 4.0)));
    }

    #[test]
    fn a_measurement_holds_for_its_own_machine_program_device_and_work() {
        let (key, others) = keys();
        let kept = SpeedCache::default().with(entry(key.clone()));
        assert_eq!(kept.entry(&key), Some(&entry(key.clone())));
        for other in others {
            assert_eq!(kept.entry(&other), None, "{other:?}");
        }
    }

    #[test]
    fn an_incomplete_or_unusable_measurement_is_not_used() {
        let (key, _) = keys();
        let used = |speeds: Speeds| {
            let entry = Entry { speeds, ..entry(key.clone()) };
            SpeedCache::default().with(entry).entry(&key).is_some()
        };
        assert!(used(SPEEDS));

        for speed in [None, Some(0.0), Some(-1.0), Some(f64::INFINITY)] {
            assert!(!used(Speeds { flops_per_second: speed, ..SPEEDS }), "{speed:?}");
            assert!(!used(Speeds { link_bytes_per_second: speed, ..SPEEDS }), "{speed:?}");
        }

        let mut above_a_disk = key.clone();
        above_a_disk.work.disk = Some("/".to_owned());
        let used = |disk| {
            let speeds = Speeds { disk_bytes_per_second: disk, ..SPEEDS };
            SpeedCache::default()
                .with(Entry { speeds, ..entry(above_a_disk.clone()) })
                .entry(&above_a_disk)
                .is_some()
        };
        assert_eq!([used(Some([1e9, 2e9])), used(Some([1e9, 0.0])), used(None)], [true, false, false]);
    }

    #[test]
    fn the_oldest_measurements_are_dropped() {
        let (key, _) = keys();
        let numbered = |n: usize| {
            let mut key = key.clone();
            key.work.copied = n;
            key
        };
        let kept = (0..MOST + 2).fold(SpeedCache::default(), |kept, n| kept.with(entry(numbered(n))));
        let there = |n| kept.entry(&numbered(n)).is_some();
        assert_eq!(kept.entries.len(), MOST);
        assert_eq!([there(0), there(1), there(2), there(MOST + 1)], [false, false, true, true]);
    }

    #[test]
    fn concurrent_writers_leave_one_whole_file_and_nothing_else() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("below/speeds.json");
        let (_, keys) = keys();

        thread::scope(|scope| {
            for key in &keys {
                scope.spawn(|| {
                    for _ in 0..20 {
                        store(&file, entry(key.clone())).expect("written");
                        let text = fs::read_to_string(&file).expect("it is there");
                        let kept: SpeedCache = serde_json::from_str(&text).expect("it is whole");
                        assert!(
                            !kept.entries.is_empty()
                                && kept.entries.iter().all(|entry| entry.speeds == SPEEDS)
                        );
                    }
                });
            }
        });
        assert_eq!(fs::read_dir(file.parent().expect("a folder")).expect("readable").count(), 1);
    }

    #[test]
    fn unmeasured_speeds_are_not_stored() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("speeds.json");
        let (key, _) = keys();
        let lacking = Speeds { flops_per_second: None, ..SPEEDS };
        let (found, measurement) = speeds(Some(&file), Some(key), Measuring::IfUnknown, || lacking);
        assert!(found == lacking && measurement.is_some_and(|measurement| !measurement.kept));
        assert!(!file.exists());
    }
}
