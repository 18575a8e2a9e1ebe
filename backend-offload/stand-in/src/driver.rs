//! The driver's state behind one lock.

use std::{
    ops::Range,
    sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError},
};

use crate::{
    failures::{CopyFailed, Failures},
    fibers::Fibers,
    findings::{Fault, require},
    handles::{Handles, Record},
    haste::Haste,
    kernels::Launch,
    memory::{DeviceMemory, FRESH, PinnedMemory, Rows, copy, fill},
    races::{Access, Clock, KnownOrder, Moment, Races},
    report, schedule,
    schedule::{Goal, StreamId},
    segfault::{self, RunningKernel},
    settings::{Settings, settings},
    threads::{Hosts, Threads},
    timeline::Timeline,
};

#[derive(Debug)]
pub(crate) enum Work {
    Poison(Range<u64>),
    Release(u64),
    Copy(Copy),
    Fill(Rows, u8),
    Launch(Launch),
}

#[derive(Debug)]
pub(crate) struct Copy {
    pub(crate) actor: &'static str,
    pub(crate) to: CopyEnd,
    pub(crate) from: CopyEnd,
    /// A failing copy moves nothing, and a wait for it returns an error.
    pub(crate) fails: bool,
}

#[derive(Debug)]
pub(crate) enum CopyEnd {
    Device(Rows),
    Pinned(Rows),
    Pageable(Rows),
    /// Pageable memory, read at the call.
    Staged {
        bytes: Vec<u8>,
        rows: Rows,
    },
}

#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) settings: &'static Settings,
    pub(crate) device: DeviceMemory,
    pub(crate) pinned: PinnedMemory,
    pub(crate) schedule: schedule::Schedule<Work>,
    pub(crate) order: KnownOrder,
    pub(crate) timeline: Timeline,
    threads: Threads,
    pub(crate) handles: Handles,
    pub(crate) failures: Failures,
    races: Races,
    fibers: Fibers,
    haste: Haste,
}

pub(crate) static WORK_DONE: Condvar = Condvar::new();

static DRIVER: LazyLock<Mutex<Driver>> = LazyLock::new(|| Mutex::new(Driver::new(settings())));

pub(crate) fn driver() -> MutexGuard<'static, Driver> {
    DRIVER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// At exit, unless another thread holds the lock.
pub(crate) fn check_all_guards() {
    if let Ok(driver) = DRIVER.try_lock() {
        require(driver.device.check_guards(None, "the end of the process"));
    }
}

impl Driver {
    fn new(settings: &'static Settings) -> Self {
        let mut schedule = schedule::Schedule::new(settings.order.mode, settings.order.seed);
        let legacy = schedule.create_stream();
        Self {
            settings,
            device: DeviceMemory::new(&settings.memory),
            pinned: PinnedMemory::new(settings.memory.pinned, settings.device.computes),
            schedule,
            order: KnownOrder::default(),
            timeline: Timeline::new(settings),
            threads: Threads::named(&settings.waiters),
            handles: Handles::new(legacy),
            failures: Failures::new(settings.faults),
            races: Races::default(),
            fibers: Fibers::default(),
            haste: Haste::new(settings.device.haste),
        }
    }

    /// Precedes a thread's use of the lock.
    pub(crate) fn host_calls(&mut self) {
        let timeline = &mut self.timeline;
        if self.threads.begin_to_wait(|known| timeline.begin_waiter(known)) {
            report::count(|counters| counters.host.other_hosts += 1);
        }
        let hosts = self.threads.calling();
        self.timeline.host_calls(hosts.time);
        self.order.host_calls(hosts.order);
    }

    /// Before a wait: others may hand over what they waited for to a thread that submits nothing.
    pub(crate) fn host_meets_waiters(&mut self) {
        if self.threads.only_asks() {
            self.timeline.host_meets(self.threads.waiting());
        }
    }

    pub(crate) fn host_creates_stream(&mut self, device: usize) {
        if self.threads.creates_stream(device) {
            let hosts = Hosts { order: self.order.begin_host(), time: self.timeline.begin_host() };
            self.threads.set_apart(hosts);
            self.host_calls();
            report::count(|counters| counters.host.other_hosts += 1);
        }
    }

    pub(crate) fn begin_work(&mut self, stream: StreamId) -> Moment {
        for other in self.handles.implied_waits(stream) {
            let clock = self.order.clock(other).clone();
            let time = self.timeline.end_of(other);
            self.stream_waits(
                stream,
                &Record {
                    mark: self.schedule.mark(other),
                    clock,
                    time,
                    called: self.timeline.now(),
                    recorder: std::thread::current().id(),
                },
            );
        }
        self.order.begin_work(stream)
    }

    pub(crate) fn push(&mut self, stream: StreamId, work: Work) {
        self.schedule.push(stream, work);
        self.run(Goal::Optional);
    }

    pub(crate) fn stream_waits(&mut self, stream: StreamId, record: &Record) {
        self.schedule.wait(stream, record.mark);
        self.order.stream_waits(stream, &record.clock);
        self.timeline.stream_waits(stream, record.time);
    }

    pub(crate) fn host_waits(&mut self, stream: StreamId, call: &'static str) -> Result<(), CopyFailed> {
        self.run(Goal::Stream(stream));
        let end = self.timeline.end_of(stream);
        self.timeline.host_waits(end, call);
        let clock = self.order.clock(stream).clone();
        self.host_knows(&clock)
    }

    pub(crate) fn host_knows(&mut self, clock: &Clock) -> Result<(), CopyFailed> {
        self.order.host_waits(clock);
        self.unmap_unused();
        self.failures.after_wait(&self.order)
    }

    fn unmap_unused(&mut self) {
        let bytes = self.device.after_host_wait();
        self.charge_for_unmapping(bytes);
    }

    pub(crate) fn charge_for_unmapping(&mut self, bytes: u64) {
        if bytes > 0 {
            self.timeline.charge_bytes(bytes, |memory| memory.unmap);
        }
    }

    pub(crate) fn host_waits_for_all(&mut self, call: &'static str) -> Result<(), CopyFailed> {
        self.run(Goal::Everything);
        self.order.host_waits_for_all();
        self.wait_in_time(call);
        self.failures.after_wait(&self.order)
    }

    /// Takes as long as a wait for all work, but runs and orders none.
    pub(crate) fn time_passes_for_all(&mut self, call: &'static str) -> Result<(), CopyFailed> {
        self.wait_in_time(call);
        self.failures.after_all()
    }

    fn wait_in_time(&mut self, call: &'static str) {
        let ends: Vec<f64> = self.handles.stream_ids().map(|id| self.timeline.end_of(id)).collect();
        self.timeline.host_waits(ends.into_iter().fold(0.0, f64::max), call);
        self.unmap_unused();
    }

    /// Requires live device memory. Looks for races, if enabled.
    pub(crate) fn touch(&mut self, range: Range<u64>, writes: bool, when: Moment, actor: &str) {
        if range.is_empty() {
            return;
        }
        let block = require(self.device.check(&range, actor));
        let access = Access { range, writes, actor: actor.to_owned(), on_host: false };
        self.check_races(block.start, access, when);
    }

    /// Looks for races of copies through page-locked memory, but not of rows with gaps: others may lie between.
    pub(crate) fn touch_pinned(&mut self, end: &CopyEnd, writes: bool, when: Moment, actor: &str) {
        let CopyEnd::Pinned(rows) = end else { return };
        let range = rows.extent();
        if range.is_empty() || range.end - range.start != rows.bytes() {
            return;
        }
        let block = self.pinned.start_of(range.start);
        self.check_races(block, Access { range, writes, actor: actor.to_owned(), on_host: true }, when);
    }

    pub(crate) fn release_pinned(&mut self, start: u64) {
        self.pinned.release(start);
        self.races.forget(start);
    }

    pub(crate) fn check_races(&mut self, block: u64, access: Access, when: Moment) {
        if self.settings.checks.races {
            for race in self.races.touch(block, access, when, &self.order) {
                Fault::new(crate::findings::Finding::MissingWait, race).report();
            }
        }
    }

    pub(crate) fn run(&mut self, goal: Goal) {
        while let Some(work) = self.schedule.next(goal) {
            self.execute(work);
            WORK_DONE.notify_all();
            if matches!(goal, Goal::Progress(_)) {
                return;
            }
        }
    }

    fn execute(&mut self, work: Work) {
        match work {
            Work::Release(start) => {
                require(self.device.release(start));
                self.races.forget(start);
            }
            work if !self.settings.device.computes => Self::answer_uncomputed(&work),
            Work::Poison(range) => {
                self.fill(Rows::plain(range.start, range.end - range.start), FRESH, "the allocation");
            }
            Work::Copy(copy) => self.copy(&copy),
            Work::Fill(rows, value) => {
                self.fill(rows, value, "cuMemsetD8");
                self.device.note_written(rows);
            }
            Work::Launch(launch) => self.launch(launch),
        }
    }

    /// Small downloads, which programs look into, read zeros.
    fn answer_uncomputed(work: &Work) {
        const SMALL: u64 = 64 << 10;
        if let Work::Copy(Copy { to: CopyEnd::Pinned(rows) | CopyEnd::Pageable(rows), .. }) = work
            && rows.bytes() <= SMALL
        {
            // SAFETY: the owner of host memory waits for the copy.
            unsafe { fill(*rows, 0) }
        }
    }

    fn fill(&self, rows: Rows, value: u8, actor: &str) {
        require(self.device.check_pending(&rows.extent(), actor));
        // SAFETY: live device memory is accessible.
        unsafe { fill(rows, value) }
    }

    fn copy(&mut self, work: &Copy) {
        let [to, from] = [&work.to, &work.from].map(|place| self.resolve(place, work.actor));
        if work.fails {
            return;
        }
        match (&work.to, &work.from) {
            (CopyEnd::Device(_), CopyEnd::Device(_)) => self.device.note_copied(to, from),
            (CopyEnd::Device(_), _) => self.device.note_written(to),
            (_, CopyEnd::Device(_)) => self.check_written(&work.to, from, work.actor),
            _ => {}
        }
        // SAFETY: both ends were checked just now. The owner of pageable memory waits.
        unsafe { copy(to, from) }
    }

    /// A copy into pageable memory reads values. One into pinned memory may spill an unwritten tensor: it is counted.
    fn check_written(&mut self, to: &CopyEnd, from: Rows, actor: &str) {
        match self.device.check_written(from, actor) {
            Err(_) if matches!(to, CopyEnd::Pinned(_)) => {
                report::count(|counters| counters.copies.unwritten_to_pinned.add(from.bytes()));
            }
            Err(unwritten) => unwritten.report(),
            Ok(()) => {}
        }
    }

    fn resolve(&self, place: &CopyEnd, actor: &str) -> Rows {
        match place {
            CopyEnd::Device(rows) => {
                require(self.device.check_pending(&rows.extent(), actor));
                *rows
            }
            CopyEnd::Pinned(rows) => {
                require(self.pinned.check(&rows.extent(), actor));
                *rows
            }
            CopyEnd::Pageable(rows) => *rows,
            CopyEnd::Staged { bytes, rows } => Rows { start: bytes.as_ptr() as u64, ..*rows },
        }
    }

    fn launch(&mut self, mut launch: Launch) {
        let operands: Vec<(u64, bool)> = launch.operands().collect();
        let kernel = Arc::clone(&launch.kernel);
        let shape = [launch.grid, launch.block];
        let actor = format!("kernel {}", kernel.name);
        let holding = |(address, _): &(u64, bool)| {
            require(self.device.check_pending(&(*address..*address + 1), &actor))
        };
        let allocations = operands.iter().map(holding).collect();
        let running = RunningKernel { kernel: kernel.name.clone(), allocations };
        let fibers = &mut self.fibers;
        let compute = || segfault::with_running_kernel(&running, || launch.run(fibers));
        self.haste.run(&kernel, shape, compute);
        let written: Vec<u64> =
            operands.into_iter().filter(|(_, writes)| *writes).map(|(address, _)| address).collect();
        for address in &written {
            self.device.note_kernel(*address);
        }
        require(self.device.check_guards(Some(&written), &actor));
    }

    /// Runs queued work that may free memory, unless `size` bytes fit.
    pub(crate) fn make_room(&mut self, size: u64, device: usize) {
        if !self.device.fits(size, device) {
            self.run(Goal::Everything);
        }
    }

    pub(crate) fn count_peaks(&self) {
        let device = (0..4).map(|device| self.device.used(device)).max().unwrap_or_default();
        let pinned = self.pinned.used();
        report::count(|counters| {
            counters.device.peak_bytes = counters.device.peak_bytes.max(device);
            counters.pinned.peak_bytes = counters.pinned.peak_bytes.max(pinned);
        });
    }
}
