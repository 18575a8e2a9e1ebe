//! The time of a replayed program: serial operations, and one parallel copy engine per direction.
//!
//! A copy off the device frees memory at its end; one onto it takes memory when queued. Large reads, of gradients, pass
//! beside the program until its step ends. It waits for operands, small reads, new parameters of the host optimizer,
//! loads from disk, all but the last buffers of spills, and the driver, which takes spare memory back. A disk does one
//! transfer at a time. Optimizer states use its idle time
//! (`states_on_the_disk_pass_in_the_time_that_blocks_leave_and_are_waited_for_with_their_contents`).

use pager::{BlockId, Token};
use std::collections::{HashMap, VecDeque};

/// Speeds in bytes per second unless stated otherwise. An operation takes the longer of its times for arithmetic and
/// operands.
#[derive(Debug, Clone, Copy)]
pub struct Machine {
    /// Over the link, in each direction.
    pub link: f64,
    /// Operands of operations.
    pub memory: f64,
    /// Floating-point operations per second, where arithmetic is known.
    pub flops: f64,
    /// Contents made in host memory, by their own size.
    pub host: f64,
    /// To and from the disk, both directions together.
    pub disk: f64,
    /// Bytes of states to and from the disk per byte made in host memory; 0 without states on disk.
    pub states: f64,
    /// Seconds in which spare memory goes back to the driver, each time.
    pub trim: f64,
}

impl Machine {
    /// A machine that takes no time.
    pub const INSTANT: Self = Self {
        link: f64::INFINITY,
        memory: f64::INFINITY,
        flops: f64::INFINITY,
        host: f64::INFINITY,
        disk: f64::INFINITY,
        states: 0.0,
        trim: 0.0,
    };
}

/// Unwritten bytes of a spill that counts as done: six buffers.
const BEHIND: f64 = 6.0 * (4 << 20) as f64;

/// Bytes. A program waits for smaller reads, whose values it looks at.
const LARGE: u64 = 64 << 10;

/// Times of one step, in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Elapsed {
    /// From its beginning to its end.
    pub step: f64,
    /// Operations alone.
    pub arithmetic: f64,
    /// The copy engine off the device.
    pub out: f64,
    /// The copy engine onto the device.
    pub back: f64,
    /// The host, making contents.
    pub host: f64,
    /// The disk.
    pub disk: f64,
}

/// Times of a step, in seconds from its beginning. Copies may cross its ends.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StepTimeline {
    /// Begin of operations, and bytes on the device then.
    pub resident: Vec<(f64, u64)>,
    /// Begin and end of copies off the device.
    pub out: Vec<(f64, f64)>,
    /// Copies onto the device.
    pub back: Vec<(f64, f64)>,
    /// Waits for copies, the host and the driver.
    pub waited: Vec<(f64, f64)>,
}

impl StepTimeline {
    fn begin_at(&mut self, began: f64) {
        self.resident.iter_mut().for_each(|(at, _)| *at -= began);
        for (from, until) in [&mut self.out, &mut self.back, &mut self.waited].into_iter().flatten() {
            *from -= began;
            *until -= began;
        }
    }
}

#[derive(Debug)]
pub(crate) struct Timeline {
    machine: Machine,
    now: f64,
    free: Free,
    leaving: VecDeque<(Token, f64)>,
    arrivals: HashMap<BlockId, f64>,
    reading: HashMap<BlockId, f64>,
    /// When the latest large read ends.
    read: f64,
    loaded: f64,
    step: OpenStep,
    pub steps: Vec<Elapsed>,
    pub latest: StepTimeline,
}

/// When engines finish their queues.
#[derive(Debug, Default)]
struct Free {
    out: f64,
    back: f64,
    host: f64,
    disk: f64,
}

#[derive(Debug, Default)]
struct OpenStep {
    began: f64,
    elapsed: Elapsed,
    timeline: StepTimeline,
}

impl Timeline {
    pub fn new(machine: Machine) -> Self {
        Self {
            machine,
            now: 0.0,
            free: Free::default(),
            leaving: VecDeque::new(),
            arrivals: HashMap::new(),
            reading: HashMap::new(),
            read: 0.0,
            loaded: 0.0,
            step: OpenStep::default(),
            steps: Vec::new(),
            latest: StepTimeline::default(),
        }
    }

    pub fn starts_out(&mut self, token: Token, bytes: u64) {
        let end = self.copies_out(bytes);
        self.leaving.push_back((token, end));
    }

    /// Returns when the copy ends.
    fn copies_out(&mut self, bytes: u64) -> f64 {
        let takes = bytes as f64 / self.machine.link;
        let begins = self.free.out.max(self.now);
        self.free.out = begins + takes;
        self.step.timeline.out.push((begins, self.free.out));
        self.step.elapsed.out += takes;
        self.free.out
    }

    pub fn starts_back(&mut self, block: BlockId, bytes: u64) {
        let takes = bytes as f64 / self.machine.link;
        let begins = self.free.back.max(self.now);
        self.free.back = begins + takes;
        self.step.timeline.back.push((begins, self.free.back));
        self.step.elapsed.back += takes;
        self.arrivals.insert(block, self.free.back);
    }

    /// Resets the times at the program's beginning.
    pub fn begins(&mut self) {
        (self.free.host, self.free.disk, self.loaded, self.now) = (0.0, 0.0, 0.0, 0.0);
        (self.step.elapsed.host, self.step.elapsed.disk) = (0.0, 0.0);
        self.step.timeline.waited.clear();
        self.reading.clear();
        self.read = 0.0;
    }

    pub fn reads(&mut self, block: BlockId, bytes: u64) {
        let end = self.copies_out(bytes);
        if bytes < LARGE {
            self.wait_until(end);
        } else {
            self.reading.insert(block, end);
            self.read = end;
        }
    }

    /// When a read of the block ends that is under way.
    pub fn read_under_way(&mut self, block: BlockId) -> Option<f64> {
        self.ends_reading(block).filter(|end| *end > self.now)
    }

    /// Hashes nothing while no read is under way, as most of the time.
    fn ends_reading(&mut self, block: BlockId) -> Option<f64> {
        if self.reading.is_empty() { None } else { self.reading.remove(&block) }
    }

    /// A block that is gone takes memory until `end`.
    pub fn leaves(&mut self, token: Token, end: f64) {
        let at = self.leaving.partition_point(|(_, other)| *other <= end);
        self.leaving.insert(at, (token, end));
    }

    /// Waits for contents made on the host.
    pub fn is_given(&mut self, bytes: u64) {
        let takes = bytes as f64 / self.machine.host;
        self.free.host = self.free.host.max(self.step.began) + takes;
        self.step.elapsed.host += takes;
        self.wait_until(self.free.host);
        let passes = bytes as f64 * self.machine.states / self.machine.disk;
        if passes > 0.0 {
            // The disk was busy with blocks, or with blocks and earlier states.
            self.step.elapsed.disk += passes;
            self.wait_until(self.step.began + self.step.elapsed.disk);
        }
    }

    pub fn spills(&mut self, bytes: u64) {
        self.moves_on_disk(bytes);
        self.wait_until(self.free.disk - BEHIND / self.machine.disk);
    }

    /// Begins to write as much as free buffers hold.
    pub fn writes_ahead(&mut self, bytes: u64) -> u64 {
        self.begins_ahead(bytes)
    }

    /// Begins to read as much as free buffers hold.
    pub fn loads_ahead(&mut self, bytes: u64) -> u64 {
        let begins = self.begins_ahead(bytes);
        if begins > 0 {
            self.loaded = self.free.disk;
        }
        begins
    }

    pub fn has_loaded(&self) -> bool {
        self.loaded <= self.now
    }

    fn begins_ahead(&mut self, bytes: u64) -> u64 {
        let busy = self.free.disk - self.now;
        let free = if busy > 0.0 { BEHIND - busy * self.machine.disk } else { BEHIND };
        let begins = bytes.min(free.max(0.0) as u64);
        self.moves_on_disk(begins);
        begins
    }

    /// Waits for `bytes` from the disk; with 0, for those read ahead.
    pub fn loads(&mut self, bytes: u64) {
        self.moves_on_disk(bytes);
        self.wait_until(if bytes > 0 { self.free.disk } else { self.loaded });
    }

    fn moves_on_disk(&mut self, bytes: u64) {
        let takes = bytes as f64 / self.machine.disk;
        self.free.disk = self.free.disk.max(self.now) + takes;
        self.step.elapsed.disk += takes;
    }

    /// Gives spare memory back to the driver. Copies go on.
    pub fn trims(&mut self) {
        self.wait_until(self.now + self.machine.trim);
    }

    /// A copy off the device that has ended.
    pub fn landed(&mut self) -> Option<Token> {
        self.leaving.pop_front_if(|(_, end)| *end <= self.now).map(|(token, _)| token)
    }

    /// Waits for the oldest copy off the device.
    pub fn waits(&mut self) {
        if let Some((_, end)) = self.leaving.front().copied() {
            self.wait_until(end);
        }
    }

    fn wait_until(&mut self, end: f64) {
        if end > self.now {
            self.step.timeline.waited.push((self.now, end));
            self.now = end;
        }
    }

    pub fn waits_for(&mut self, operands: &[BlockId]) {
        for id in operands {
            for end in [self.arrivals.remove(id), self.ends_reading(*id)].into_iter().flatten() {
                self.wait_until(end);
            }
        }
    }

    /// Runs an operation over `bytes` of operands while `resident` bytes are on the device.
    pub fn operates(&mut self, flops: u64, bytes: u64, resident: u64) {
        self.step.timeline.resident.push((self.now, resident));
        let takes = (flops as f64 / self.machine.flops).max(bytes as f64 / self.machine.memory);
        self.now += takes;
        self.step.elapsed.arithmetic += takes;
    }

    pub fn ends_step(&mut self) {
        self.wait_until(self.read);
        let next = OpenStep { began: self.now, ..OpenStep::default() };
        let OpenStep { began, mut elapsed, timeline } = std::mem::replace(&mut self.step, next);
        elapsed.step = self.now - began;
        self.steps.push(elapsed);
        self.latest = timeline;
        self.latest.begin_at(began);
    }
}
