//! The driver's state behind one lock, and carrying out queued work. Calls come from few threads; what they let
//! happen, kernels included, happens on the calling thread while it holds the lock.

use std::{
    collections::HashMap,
    ops::Range,
    sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError},
    thread::ThreadId,
};

use crate::{
    fibers::Fibers,
    findings::{Fault, require},
    kernels::{Kernel, Launch},
    memory::{DeviceMemory, FRESH, PinnedMemory, Rows, copy, fill},
    races::{Access, Clock, Moment, Order, Races},
    report, schedule,
    schedule::{Goal, Mark, StreamId},
    segfault::{self, Suspect},
    settings::{Settings, settings},
    timeline::Timeline,
};

/// One unit of work on a stream.
#[derive(Debug)]
pub(crate) enum Work {
    /// Fills fresh memory with a pattern that shows it was never written.
    Poison(Range<u64>),
    Release(u64),
    Copy(Copy),
    Fill(Rows, u8),
    Launch(Launch),
}

#[derive(Debug)]
pub(crate) struct Copy {
    /// The call that asked for it.
    pub(crate) who: &'static str,
    pub(crate) to: Place,
    pub(crate) from: Place,
}

/// One end of a copy.
#[derive(Debug)]
pub(crate) enum Place {
    Device(Rows),
    Pinned(Rows),
    Pageable(Rows),
    /// Pageable memory that was read at the call.
    Staged {
        bytes: Vec<u8>,
        rows: Rows,
    },
}

#[derive(Debug, Default)]
pub(crate) struct Event {
    pub(crate) record: Option<Record>,
}

#[derive(Debug, Clone)]
pub(crate) struct Record {
    pub(crate) mark: Mark,
    pub(crate) clock: Clock,
    /// Simulated time of the record.
    pub(crate) time: f64,
    pub(crate) recorder: ThreadId,
}

#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) settings: &'static Settings,
    pub(crate) device: DeviceMemory,
    pub(crate) pinned: PinnedMemory,
    pub(crate) schedule: schedule::Schedule<Work>,
    pub(crate) order: Order,
    pub(crate) timeline: Timeline,
    /// Streams by handle. Handles are never used again.
    pub(crate) streams: HashMap<u64, Stream>,
    pub(crate) events: HashMap<u64, Event>,
    pub(crate) modules: HashMap<u64, Arc<Kernel>>,
    pub(crate) allocations_asked_for: u64,
    /// CUDA's stream without a handle.
    pub(crate) legacy: StreamId,
    next_handle: u64,
    races: Races,
    fibers: Fibers,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Stream {
    pub(crate) id: StreamId,
    /// Whether the stream waits for the default stream, and the default stream for it.
    pub(crate) blocking: bool,
}

/// Tells threads that are kept waiting that work has happened.
pub(crate) static HAPPENED: Condvar = Condvar::new();

static DRIVER: LazyLock<Mutex<Driver>> = LazyLock::new(|| Mutex::new(Driver::new(settings())));

pub(crate) fn driver() -> MutexGuard<'static, Driver> {
    DRIVER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The last look at memory, at the end of the process. Skipped where another thread is still at work.
pub(crate) fn check_all_guards() {
    if let Ok(driver) = DRIVER.try_lock() {
        require(driver.device.check_guards(None, "the end of the process"));
    }
}

impl Driver {
    fn new(settings: &'static Settings) -> Self {
        let mut schedule = schedule::Schedule::new(settings.mode, settings.seed);
        let legacy = schedule.create_stream();
        Self {
            settings,
            device: DeviceMemory::new(settings.memory),
            pinned: PinnedMemory::new(),
            schedule,
            order: Order::default(),
            timeline: Timeline::new(settings),
            streams: HashMap::new(),
            events: HashMap::new(),
            modules: HashMap::new(),
            allocations_asked_for: 0,
            legacy,
            next_handle: 0,
            races: Races::default(),
            fibers: Fibers::default(),
        }
    }

    pub(crate) fn handle(&mut self) -> u64 {
        // Multiples of sixteen, as pointers would be.
        self.next_handle += 16;
        self.next_handle
    }

    /// A piece of work is given to the stream; says when, for the detector of races.
    pub(crate) fn begin(&mut self, stream: StreamId) -> Moment {
        for other in self.implied_waits(stream) {
            let clock = self.order.of(other).clone();
            let time = self.timeline.end_of(other);
            self.stream_waits(
                stream,
                &Record {
                    mark: self.schedule.mark(other),
                    clock,
                    time,
                    recorder: std::thread::current().id(),
                },
            );
        }
        self.order.begin(stream)
    }

    /// The stream without a handle and blocking streams wait for each other.
    fn implied_waits(&self, stream: StreamId) -> Vec<StreamId> {
        let blocking = self.streams.values().filter(|stream| stream.blocking).map(|stream| stream.id);
        if stream == self.legacy {
            blocking.collect()
        } else if blocking.into_iter().any(|id| id == stream) {
            vec![self.legacy]
        } else {
            Vec::new()
        }
    }

    pub(crate) fn push(&mut self, stream: StreamId, work: Work) {
        self.schedule.push(stream, work);
        self.run(Goal::Leisure);
    }

    pub(crate) fn stream_waits(&mut self, stream: StreamId, record: &Record) {
        self.schedule.wait(stream, record.mark);
        self.order.stream_waits(stream, &record.clock);
        self.timeline.stream_waits(stream, record.time);
    }

    /// The host waits until the stream has done all that it was given.
    pub(crate) fn host_waits(&mut self, stream: StreamId) {
        self.run(Goal::Stream(stream));
        self.host_saw(stream);
    }

    /// The host knows that the stream is idle.
    pub(crate) fn host_saw(&mut self, stream: StreamId) {
        let clock = self.order.of(stream).clone();
        self.order.host_waits(&clock);
        let time = self.timeline.end_of(stream);
        self.timeline.host_waits(time);
        self.device.waited_for();
    }

    pub(crate) fn host_waits_for_all(&mut self) {
        self.run(Goal::Everything);
        self.order.host_waits_for_all();
        for id in self.streams.values().map(|stream| stream.id).chain([self.legacy]) {
            let time = self.timeline.end_of(id);
            self.timeline.host_waits(time);
        }
        self.device.waited_for();
    }

    /// Device memory that a piece of work names must be live; races are looked for where they were asked for.
    pub(crate) fn touch(&mut self, range: Range<u64>, writes: bool, when: Moment, who: &str) {
        if range.is_empty() {
            return;
        }
        let block = require(self.device.check(&range, who));
        self.watch(block.start, Access { range, writes, who: who.to_owned() }, when);
    }

    pub(crate) fn watch(&mut self, block: u64, access: Access, when: Moment) {
        if self.settings.races {
            for race in self.races.touch(block, access, when, &self.order) {
                Fault::new(crate::findings::Finding::MissingWait, race).report();
            }
        }
    }

    pub(crate) fn run(&mut self, goal: Goal) {
        while let Some(work) = self.schedule.next(goal) {
            self.carry_out(work);
            HAPPENED.notify_all();
            if matches!(goal, Goal::Progress(_)) {
                return;
            }
        }
    }

    fn carry_out(&mut self, work: Work) {
        match work {
            Work::Poison(range) => {
                self.fill(Rows::plain(range.start, range.end - range.start), FRESH, "the allocation");
            }
            Work::Release(start) => {
                require(self.device.release(start));
                self.races.forget(start);
            }
            Work::Copy(copy) => self.copy(&copy),
            Work::Fill(rows, value) => {
                self.fill(rows, value, "cuMemsetD8");
                self.device.note_written(rows);
            }
            Work::Launch(launch) => self.launch(launch),
        }
    }

    fn fill(&self, rows: Rows, value: u8, who: &str) {
        require(self.device.check_pending(&rows.extent(), who));
        // SAFETY: the pages of live device memory are accessible.
        unsafe { fill(rows, value) }
    }

    fn copy(&mut self, work: &Copy) {
        let [to, from] = [&work.to, &work.from].map(|place| self.open(place, work.who));
        match (&work.to, &work.from) {
            (Place::Device(_), Place::Device(_)) => self.device.note_copied(to, from),
            (Place::Device(_), _) => self.device.note_written(to),
            (_, Place::Device(_)) => self.check_written(&work.to, from, work.who),
            _ => {}
        }
        // SAFETY: both ends were checked just now; pageable memory is the caller's, who still waits for its copy.
        unsafe { copy(to, from) }
    }

    /// Pageable memory is where a program wants values. Pinned memory is where it moves them, too: a tensor that is
    /// spilled before its first write is no fault, so its bytes are only counted.
    fn check_written(&mut self, to: &Place, from: Rows, who: &str) {
        match self.device.check_written(from, who) {
            Err(_) if matches!(to, Place::Pinned(_)) => {
                report::count(|counters| counters.unwritten_to_pinned.add(from.bytes()));
            }
            Err(unwritten) => unwritten.report(),
            Ok(()) => {}
        }
    }

    /// The rows of a place, whose memory must still be there.
    fn open(&self, place: &Place, who: &str) -> Rows {
        match place {
            Place::Device(rows) => {
                require(self.device.check_pending(&rows.extent(), who));
                *rows
            }
            Place::Pinned(rows) => {
                require(self.pinned.check(&rows.extent(), who));
                *rows
            }
            Place::Pageable(rows) => *rows,
            Place::Staged { bytes, rows } => Rows { start: bytes.as_ptr() as u64, ..*rows },
        }
    }

    fn launch(&mut self, mut launch: Launch) {
        let operands: Vec<(u64, bool)> = launch.operands().collect();
        let kernel = Arc::clone(&launch.kernel);
        let who = format!("kernel {}", kernel.name);
        let holding =
            |(address, _): &(u64, bool)| require(self.device.check_pending(&(*address..*address + 1), &who));
        let allocations = operands.iter().map(holding).collect();
        let suspect = Suspect { kernel: kernel.name.clone(), allocations };
        let fibers = &mut self.fibers;
        segfault::with_suspect(&suspect, || launch.run(fibers));
        let written: Vec<u64> =
            operands.into_iter().filter(|(_, writes)| *writes).map(|(address, _)| address).collect();
        for address in &written {
            self.device.note_kernel(*address);
        }
        require(self.device.check_guards(Some(&written), &who));
    }

    /// Room for so many bytes on a device: work that is queued may give some back.
    pub(crate) fn make_room(&mut self, size: u64, device: usize) {
        if !self.device.fits(size, device) {
            self.run(Goal::Everything);
        }
    }

    pub(crate) fn count_peaks(&self) {
        let device = (0..4).map(|device| self.device.used(device)).max().unwrap_or_default();
        let pinned = self.pinned.used();
        report::count(|counters| {
            counters.peak_device_bytes = counters.peak_device_bytes.max(device);
            counters.peak_pinned_bytes = counters.peak_pinned_bytes.max(pinned);
        });
    }
}
