//! Devices that are configured or started, and their one host pool.

use crate::bytes::Budget;
use crate::config::{DEFAULT_HOST_SHARE, DEFAULT_PINNED_SHARE, OffloadConfig};
use crate::error::OffloadError;
use crate::faults::Injector;
use crate::paging::PagingSettings;
use crate::tiers::{Disk, HostPool, available_memory};
use crate::trace_file::TraceFile;
use pager::{Limit, Oversized};
use std::any::TypeId;
use std::cell::Cell;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Debug, Clone)]
pub struct Settings {
    pub paging: PagingSettings,
    pub smallest_block: u64,
    pub max_bindings: Option<u32>,
    pub exact_f32: bool,
    /// If the runtime supports it.
    #[cfg_attr(
        not(any(feature = "cube", feature = "adapter")),
        expect(dead_code, reason = "no other adapter copies in parallel")
    )]
    pub overlap: bool,
    /// Bytes, if the device reports it.
    pub device_memory: Option<u64>,
    pub(crate) injector: Injector,
    #[cfg(feature = "test-util")]
    pub watch_runtime: bool,
}

/// Facts about an unstarted device, from [`probe`](crate::probe).
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct DeviceFacts {
    /// The device's name, for messages.
    pub name: String,
    /// The hardware's name, if the driver reports it.
    pub model: Option<String>,
    /// `None` if the device does not report its memory.
    pub memory: Option<DeviceMemory>,
    /// If neither configuration nor environment sets one.
    pub default_budget: Budget,
    /// Missing optional parts and their sources; the device is slower without them.
    pub lacking: Option<String>,
    /// Simulated in ordinary memory, so that it can compute nothing.
    pub simulated: bool,
}

impl DeviceFacts {
    /// A device that reports nothing of its memory.
    #[must_use]
    pub fn unmeasured(name: String) -> Self {
        let default_budget = Budget::Unlimited;
        Self { name, model: None, memory: None, default_budget, lacking: None, simulated: false }
    }
}

/// As the driver reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Free bytes.
    pub free: u64,
    /// Total bytes.
    pub total: u64,
}

/// The adapter's type separates devices of one number, a type and an index.
pub type DeviceKey = (TypeId, [u16; 2]);

enum Entry {
    Installed(Box<Settings>),
    Started,
}

#[derive(Default)]
struct Registry {
    devices: HashMap<DeviceKey, Entry>,
    host: Option<InstalledHost>,
    disk: Option<InstalledDisk>,
    traces: u32,
}

#[derive(Clone)]
struct InstalledHost {
    pool: Arc<HostPool>,
    /// A share's bytes change with each start of a device.
    named: [Option<Budget>; 2],
}

#[derive(Clone)]
struct InstalledDisk {
    disk: Arc<Disk>,
    named: (PathBuf, Budget),
}

static REGISTRY: Mutex<Option<Registry>> = Mutex::new(None);

fn registry() -> MutexGuard<'static, Option<Registry>> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

const SMALLEST_BLOCK: u64 = 64 << 10;

pub fn install(key: DeviceKey, config: OffloadConfig, facts: &DeviceFacts) -> Result<(), OffloadError> {
    let mut guard = registry();
    let registry = guard.get_or_insert_default();
    if let Some(Entry::Started) = registry.devices.get(&key) {
        return Err(OffloadError::AlreadyStarted { device: facts.name.clone() });
    }
    let settings = registry.resolve(config, facts)?;
    registry.devices.insert(key, Entry::Installed(Box::new(settings)));
    Ok(())
}

/// Settings come from the environment if none are installed. Each new tensor asks: without a lock, unless the thread's
/// last device was another.
pub fn prepare(
    key: DeviceKey,
    facts: impl FnOnce() -> Result<DeviceFacts, OffloadError>,
) -> Result<(), OffloadError> {
    thread_local! {
        /// Devices are never removed.
        static LAST: Cell<Option<DeviceKey>> = const { Cell::new(None) };
    }
    if LAST.get() == Some(key) {
        return Ok(());
    }

    let mut guard = registry();
    let registry = guard.get_or_insert_default();
    if !registry.devices.contains_key(&key) {
        let settings = registry.resolve(OffloadConfig::new(), &facts()?)?;
        registry.devices.insert(key, Entry::Installed(Box::new(settings)));
    }
    LAST.set(Some(key));
    Ok(())
}

/// `None` if unprepared. Later calls of `install` are refused.
pub fn start(key: DeviceKey) -> Option<Settings> {
    let mut guard = registry();
    match guard.get_or_insert_default().devices.insert(key, Entry::Started) {
        Some(Entry::Installed(settings)) => Some(*settings),
        _ => None,
    }
}

impl Registry {
    fn resolve(&mut self, config: OffloadConfig, facts: &DeviceFacts) -> Result<Settings, OffloadError> {
        let config = config.or_environment()?;
        let smallest_block = config.smallest_block.unwrap_or(SMALLEST_BLOCK);
        let device_budget = device_budget(&config, facts, smallest_block)?;
        let dry_run = config.dry_run.unwrap_or(false);
        if dry_run && !facts.simulated {
            return Err(OffloadError::Unsupported {
                operation: "a dry run".to_owned(),
                backend: "a device with memory of its own",
                reason: "the memory that its kernels take is known only by running them; use the CPU adapter, or the \
                         stand-in for CUDA with `STAND_IN_COMPUTE=0`",
            });
        }

        let host = self.host([config.host_budget, config.pinned_budget])?;
        if dry_run {
            host.run_dry();
        }
        let trace = config.trace.map(|path| TraceFile::create(path, self.traces)).transpose()?;

        // Last: a later refusal would leave the disk space taken.
        let disk = self.disk(config.disk_folder, config.disk_budget)?;
        #[cfg(feature = "test-util")]
        if let (Some(disk), Some(fault)) = (&disk, config.faults.break_disk_every) {
            disk.break_every(fault);
        }

        self.traces += u32::from(trace.is_some());
        let paging = PagingSettings {
            device_budget,
            policy: config.policy,
            oversized: config.oversized,
            host,
            disk,
            paranoid: config.paranoid.unwrap_or(false),
            dry_run,
            trace,
        };
        Ok(Settings {
            paging,
            smallest_block,
            max_bindings: config.max_bindings,
            exact_f32: config.exact_f32,
            overlap: config.overlap.unwrap_or(true),
            device_memory: facts.memory.map(|memory| memory.total),
            #[cfg(feature = "test-util")]
            injector: Injector::new(config.faults),
            #[cfg(not(feature = "test-util"))]
            injector: Injector::default(),
            #[cfg(feature = "test-util")]
            watch_runtime: config.watch_runtime,
        })
    }

    fn disk(
        &mut self,
        folder: Option<PathBuf>,
        budget: Option<Budget>,
    ) -> Result<Option<Arc<Disk>>, OffloadError> {
        let Some(folder) = folder else {
            return Ok(self.disk.as_ref().map(|installed| installed.disk.clone()));
        };

        let refused = |reason: &str| OffloadError::Disk {
            attempted: "taking space".to_owned(),
            folder: folder.display().to_string(),
            reason: reason.to_owned(),
        };
        let budget = budget.ok_or_else(|| refused("no disk budget says how much of it may be taken"))?;
        budget.checked()?;

        // A disk without devices is closed.
        self.disk.take_if(|installed| Arc::strong_count(&installed.disk) == 1);
        if let Some(installed) = &self.disk {
            if installed.named != (folder.clone(), budget) {
                return Err(refused("all devices of a process share one disk, and another one is in use"));
            }
            return Ok(Some(installed.disk.clone()));
        }

        let limit = budget.resolve(crate::tiers::free_on(&folder)).and_then(Limit::get);
        let len = limit.ok_or_else(|| refused("give its budget in bytes (\"100GiB\") or as a share"))?;
        let disk = Disk::open(&folder, len)?;
        self.disk = Some(InstalledDisk { disk: disk.clone(), named: (folder, budget) });
        Ok(Some(disk))
    }

    fn host(&mut self, wanted: [Option<Budget>; 2]) -> Result<Arc<HostPool>, OffloadError> {
        let installed = match &self.host {
            Some(host)
                if wanted
                    .iter()
                    .zip(&host.named)
                    .all(|(wanted, named)| wanted.is_none() || wanted == named) =>
            {
                return Ok(host.pool.clone());
            }
            installed => installed.clone(),
        };

        let mut named = wanted;
        for (wanted, before) in named.iter_mut().zip(installed.iter().flat_map(|host| host.named)) {
            if let (Some(wanted), Some(before)) = (*wanted, before)
                && wanted != before
            {
                let (wanted, installed) = (wanted.to_string(), before.to_string());
                return Err(OffloadError::HostBudgetConflict { wanted, installed });
            }
            *wanted = wanted.or(before);
        }

        let [host, pinned] = host_limits(named, available_memory())?;
        let pool = installed.map_or_else(|| HostPool::new(host, pinned), |installed| installed.pool);
        pool.set_limits(host, pinned);
        self.host = Some(InstalledHost { pool: pool.clone(), named });
        Ok(pool)
    }
}

/// For the host and for page-locked memory.
fn host_limits(
    [host, pinned]: [Option<Budget>; 2],
    available: Option<u64>,
) -> Result<[Limit; 2], OffloadError> {
    if available.is_none() && host.is_none() {
        tracing::warn!(
            target: "backend_offload",
            "no host budget: this system does not report its free memory, so host memory has no limit; set OFFLOAD_HOST_BUDGET"
        );
    }

    let limit = |wanted: Option<Budget>, default: Budget| {
        let Some(budget) = wanted else { return Ok(default.resolve(available).unwrap_or(Limit::NONE)) };
        budget.checked()?;
        budget.resolve(available).ok_or_else(|| OffloadError::UnknownShare {
            share: budget.to_string(),
            tier: "this machine".to_owned(),
        })
    };
    Ok([limit(host, DEFAULT_HOST_SHARE)?, limit(pinned, DEFAULT_PINNED_SHARE)?])
}

pub(crate) fn resolved(budget: Budget, facts: &DeviceFacts) -> Result<Limit, OffloadError> {
    budget.checked()?;
    budget
        .resolve(facts.memory.map(|memory| memory.free))
        .ok_or_else(|| OffloadError::UnknownShare { share: budget.to_string(), tier: facts.name.clone() })
}

fn device_budget(config: &OffloadConfig, facts: &DeviceFacts, smallest: u64) -> Result<Limit, OffloadError> {
    let wanted = config.device_budget.unwrap_or_else(|| {
        if facts.default_budget == Budget::Unlimited {
            tracing::info!(
                target: "backend_offload",
                device = facts.name,
                "no device budget: this device cannot be asked how much memory is free, so nothing spills; set OFFLOAD_DEVICE_BUDGET"
            );
        }
        facts.default_budget
    });

    let limit = resolved(wanted, facts)?;
    let Some(budget) = limit.get() else { return Ok(limit) };
    // Only oversized operations that run alone can use less than one block.
    if budget == 0 || (budget < smallest && config.oversized == Oversized::Refuse) {
        return Err(OffloadError::BudgetTooSmall { budget, smallest });
    }

    if let Some(DeviceMemory { free, total }) = facts.memory
        && budget > total
    {
        return Err(OffloadError::BudgetAboveDevice { device: facts.name.clone(), budget, total, free });
    }
    Ok(limit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Barrier, mpsc};
    use std::thread;
    use std::time::Duration;

    struct SomeAdapter;

    fn key(index: u16) -> DeviceKey {
        (TypeId::of::<SomeAdapter>(), [7, index])
    }

    fn facts(memory: Option<DeviceMemory>) -> DeviceFacts {
        DeviceFacts { memory, ..DeviceFacts::unmeasured("a device".to_owned()) }
    }

    fn budget(text: &str) -> OffloadConfig {
        OffloadConfig::new().device_budget(text.parse().expect("a budget"))
    }

    const GIB: u64 = 1 << 30;
    const CARD: Option<DeviceMemory> = Some(DeviceMemory { free: 6 * GIB, total: 8 * GIB });

    #[test]
    fn installing_after_the_start_is_refused() {
        install(key(0), budget("1GiB"), &facts(None)).expect("not started yet");
        assert_eq!(start(key(0)).expect("installed").paging.device_budget, Limit::bytes(GIB));
        let error = install(key(0), budget("2GiB"), &facts(None)).expect_err("started");
        assert!(error.to_string().contains("already started"), "{error}");
    }

    #[test]
    fn a_device_without_configuration_gets_its_default() {
        prepare(key(1), || Ok(facts(None))).expect("defaults");
        assert_eq!(start(key(1)).expect("prepared").paging.device_budget, Limit::NONE);
    }

    #[test]
    fn a_thread_asks_for_its_device_again_without_the_lock_of_all_devices() {
        let (begun, locked) = (Barrier::new(2), Barrier::new(2));
        let (sender, ended) = mpsc::channel();
        let prepare = || prepare(key(8), || Ok(facts(None))).expect("defaults");
        thread::scope(|scope| {
            scope.spawn(|| {
                prepare();
                begun.wait();
                locked.wait();
                prepare();
                sender.send(()).expect("the other thread waits");
            });
            begun.wait();
            let guard = registry();
            locked.wait();
            let in_time = ended.recv_timeout(Duration::from_secs(20));
            drop(guard);
            in_time.expect("the second call waits for nobody");
        });
    }

    #[test]
    fn a_share_refers_to_free_memory_and_is_refused_if_that_is_unknown() {
        install(key(2), budget("50%"), &facts(CARD)).expect("the card reports its memory");
        assert_eq!(start(key(2)).expect("installed").paging.device_budget, Limit::bytes(3 * GIB));
        let error = install(key(3), budget("50%"), &facts(None)).expect_err("free memory is unknown");
        assert!(matches!(error, OffloadError::UnknownShare { .. }), "{error}");
    }

    #[test]
    fn budgets_that_cannot_work_are_refused_before_the_device_starts() {
        let zero = install(key(4), budget("0"), &facts(CARD)).expect_err("zero");
        let tiny = install(key(4), budget("1KiB"), &facts(CARD)).expect_err("below one block");
        let huge = install(key(4), budget("9GiB"), &facts(CARD)).expect_err("above the device");
        assert!(matches!(zero, OffloadError::BudgetTooSmall { budget: 0, .. }), "{zero}");
        assert!(matches!(tiny, OffloadError::BudgetTooSmall { .. }), "{tiny}");
        assert!(matches!(huge, OffloadError::BudgetAboveDevice { .. }), "{huge}");
    }

    #[test]
    fn a_second_device_with_the_same_host_share_keeps_the_pool() {
        let mut registry = Registry::default();
        let share = Some(Budget::Share(0.5));
        let pool = registry.host([share, None]).expect("the first device");
        pool.set_limits(Limit::bytes(7), Limit::bytes(7));
        assert!(Arc::ptr_eq(&pool, &registry.host([share, None]).expect("the second")));
        assert_eq!(pool.usage().limit, Limit::bytes(7), "and does not change what is in force");
        let other = registry.host([Some(Budget::Bytes(3)), None]).expect_err("another budget");
        assert!(other.to_string().contains("50 %"), "{other}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn host_memory_without_a_limit_is_reported_where_free_memory_is_unknown() {
        use crate::tiers::lines::Lines;
        let lines = Lines::default();
        let none = Limit::NONE;
        tracing::subscriber::with_default(lines.clone(), || {
            let limits = |host, available| host_limits([host, None], available).expect("budgets");
            assert_eq!(limits(None, Some(100)), [Limit::bytes(80), Limit::bytes(40)]);
            assert_eq!(limits(Some(Budget::Bytes(7)), None), [Limit::bytes(7), none]);
            assert_eq!(limits(Some(Budget::Unlimited), None), [none, none]);
            assert!(lines.recorded().is_empty(), "{:?}", lines.recorded());
            assert_eq!(limits(None, None), [none, none]);
        });
        let lines = lines.recorded();
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].contains("WARN") && lines[0].contains("OFFLOAD_HOST_BUDGET"), "{lines:?}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn one_disk_serves_all_devices_and_only_on_request() {
        let mut registry = Registry::default();
        let folder = tempfile::tempdir().expect("a folder");
        let named = |bytes| (Some(folder.path().to_owned()), Some(Budget::Bytes(bytes)));
        assert!(registry.disk(None, None).expect("no disk is configured").is_none());
        let (path, budget) = named(1 << 20);
        let message = registry.disk(path.clone(), None).expect_err("how much of it?").to_string();
        assert!(message.contains("no disk budget"), "{message}");
        assert!(registry.disk(path.clone(), Some(Budget::Unlimited)).is_err());
        let disk = registry.disk(path.clone(), budget).expect("there is room").expect("a disk");
        assert_eq!(disk.usage().len, 1 << 20);
        for again in [(path, budget), (None, None)] {
            let second = registry.disk(again.0, again.1).expect("the same").expect("a disk");
            assert!(Arc::ptr_eq(&disk, &second));
        }
        let (path, budget) = named(2 << 20);
        let message = registry.disk(path.clone(), budget).expect_err("another").to_string();
        assert!(message.contains("share one disk"), "{message}");
        drop(disk);
        let next = registry.disk(path, budget).expect("no device uses the first one").expect("a disk");
        assert_eq!(next.usage().len, 2 << 20);
    }

    #[test]
    fn invalid_shares_are_refused() {
        for share in [f64::NAN, -0.5, 0.0, 1.5, f64::INFINITY] {
            let config = OffloadConfig::new().device_budget(Budget::Share(share));
            let error = install(key(6), config, &facts(CARD)).expect_err("no share");
            assert!(matches!(error, OffloadError::Budget(_)), "{error}");
        }
    }

    #[test]
    fn one_byte_is_a_budget_when_operations_may_run_alone() {
        let config = budget("1").oversized(Oversized::RunAlone);
        install(key(5), config, &facts(CARD)).expect("a wish, not a wall");
    }
}
