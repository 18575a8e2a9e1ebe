//! The time a replayed program takes on a machine: its operations one after the other, and in parallel a copy
//! engine for each direction.
//!
//! An operation starts when its operands are there, and takes as long as the machine needs for their bytes. A copy off
//! the device starts when its engine is free; its memory is free when it ends. A copy onto the device likewise, into
//! memory that is free when it is queued. What the program reads is copied off the device, and waited for.
//!
//! Contents that the program makes in host memory are a parameter's next numbers, where its optimizer is there: the host steps
//! one parameter after another from the beginning of the program's step, and the program waits for the one it comes to.
//!
//! A disk below the host does one thing at a time, read or write. A block is spilled once all but its last few buffers
//! are written, and loaded once all its bytes are read; the program waits for both. It does not wait for writes and
//! loads ahead, which begin to pass a few buffers between two operations. States that the host steps may lie on the
//! disk, too: it reads and writes them in the time that blocks leave, and new contents are there once their states have
//! passed (`states_on_the_disk_pass_in_the_time_that_blocks_leave_and_are_waited_for_with_their_contents`).

use pager::{BlockId, Token};
use std::collections::{HashMap, VecDeque};

/// The speeds that a replay goes by, in bytes per second where nothing else is said. An operation takes the longer of the
/// times for its arithmetic and for its operands.
#[derive(Debug, Clone, Copy)]
pub struct Machine {
    /// Over the link, in each direction.
    pub link: f64,
    /// Operands that operations get through, whatever they compute.
    pub memory: f64,
    /// Floating-point operations per second, for operations whose arithmetic is on record.
    pub flops: f64,
    /// Contents that the program makes in host memory, by their own size.
    pub host: f64,
    /// To and from the disk below the host, both directions together.
    pub disk: f64,
    /// Bytes of states that are read from the disk and written to it, for each byte of contents that the program makes in host
    /// memory. No speed but a ratio: 0 where no states lie on the disk.
    pub states: f64,
}

impl Machine {
    /// A machine on which nothing takes time.
    pub const INSTANT: Self = Self {
        link: f64::INFINITY,
        memory: f64::INFINITY,
        flops: f64::INFINITY,
        host: f64::INFINITY,
        disk: f64::INFINITY,
        states: 0.0,
    };
}

/// Bytes that are still on their way to the disk when a block is spilled, at most: six buffers.
const BEHIND: f64 = 6.0 * (4 << 20) as f64;

/// How long one step of a program took, in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Elapsed {
    /// From its beginning to its end.
    pub step: f64,
    /// Operations alone.
    pub arithmetic: f64,
    /// The engine that copies off the device was busy.
    pub out: f64,
    /// The engine that copies onto the device was busy.
    pub back: f64,
    /// The host was busy making contents.
    pub host: f64,
    /// The disk was busy.
    pub disk: f64,
}

/// One step as it went, in seconds from its beginning. A copy may begin before the step, and end after it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StepTimeline {
    /// When operations began, and the bytes on the device then.
    pub resident: Vec<(f64, u64)>,
    /// Copies off the device, from and until.
    pub out: Vec<(f64, f64)>,
    /// Copies onto the device.
    pub back: Vec<(f64, f64)>,
    /// The program waited for copies.
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
    /// Copies off the device that have not landed, in the order in which they do.
    leaving: VecDeque<(Token, f64)>,
    arrivals: HashMap<BlockId, f64>,
    /// The time at which the bytes that a load ahead has begun to read are there.
    loaded: f64,
    step: OpenStep,
    pub steps: Vec<Elapsed>,
    /// The latest step that has ended.
    pub latest: StepTimeline,
}

/// Times at which the engines have done all that was queued.
#[derive(Debug, Default)]
struct Free {
    out: f64,
    back: f64,
    host: f64,
    disk: f64,
}

/// The step under way.
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
            loaded: 0.0,
            step: OpenStep::default(),
            steps: Vec::new(),
            latest: StepTimeline::default(),
        }
    }

    pub fn starts_out(&mut self, token: Token, bytes: u64) {
        let takes = bytes as f64 / self.machine.link;
        let begins = self.free.out.max(self.now);
        self.free.out = begins + takes;
        self.step.timeline.out.push((begins, self.free.out));
        self.step.elapsed.out += takes;
        self.leaving.push_back((token, self.free.out));
    }

    pub fn starts_back(&mut self, block: BlockId, bytes: u64) {
        let takes = bytes as f64 / self.machine.link;
        let begins = self.free.back.max(self.now);
        self.free.back = begins + takes;
        self.step.timeline.back.push((begins, self.free.back));
        self.step.elapsed.back += takes;
        self.arrivals.insert(block, self.free.back);
    }

    /// The program begins, whatever was made before.
    pub fn begins(&mut self) {
        (self.free.host, self.free.disk, self.loaded, self.now) = (0.0, 0.0, 0.0, 0.0);
        (self.step.elapsed.host, self.step.elapsed.disk) = (0.0, 0.0);
        self.step.timeline.waited.clear();
    }

    /// The program reads so many bytes off the device, and waits for them.
    pub fn reads(&mut self, bytes: u64) {
        let takes = bytes as f64 / self.machine.link;
        let begins = self.free.out.max(self.now);
        self.free.out = begins + takes;
        self.step.timeline.out.push((begins, self.free.out));
        self.step.elapsed.out += takes;
        self.wait_until(self.free.out);
    }

    /// The program comes to contents that the host makes, and waits for them.
    pub fn is_given(&mut self, bytes: u64) {
        let takes = bytes as f64 / self.machine.host;
        self.free.host = self.free.host.max(self.step.began) + takes;
        self.step.elapsed.host += takes;
        self.wait_until(self.free.host);
        let passes = bytes as f64 * self.machine.states / self.machine.disk;
        if passes > 0.0 {
            // Since the step began the disk was busy with blocks, or with these states and those before them.
            self.step.elapsed.disk += passes;
            self.wait_until(self.step.began + self.step.elapsed.disk);
        }
    }

    /// `bytes` are spilled to disk. The program waits for most of them.
    pub fn spills(&mut self, bytes: u64) {
        self.moves_on_disk(bytes);
        self.wait_until(self.free.disk - BEHIND / self.machine.disk);
    }

    /// Begins to write as many of the bytes as there are buffers for. The program does not wait.
    pub fn writes_ahead(&mut self, bytes: u64) -> u64 {
        self.begins_ahead(bytes)
    }

    /// Begins to read as many of the bytes as there are buffers for. The program does not wait.
    pub fn loads_ahead(&mut self, bytes: u64) -> u64 {
        let begins = self.begins_ahead(bytes);
        if begins > 0 {
            self.loaded = self.free.disk;
        }
        begins
    }

    /// Whether all bytes that a load ahead has begun to read are there.
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

    /// The program waits for so many bytes from the disk; for none, it waits for those that a load ahead has begun to read.
    pub fn loads(&mut self, bytes: u64) {
        self.moves_on_disk(bytes);
        self.wait_until(if bytes > 0 { self.free.disk } else { self.loaded });
    }

    fn moves_on_disk(&mut self, bytes: u64) {
        let takes = bytes as f64 / self.machine.disk;
        self.free.disk = self.free.disk.max(self.now) + takes;
        self.step.elapsed.disk += takes;
    }

    /// A copy off the device that has landed by now.
    pub fn landed(&mut self) -> Option<Token> {
        self.leaving.pop_front_if(|(_, end)| *end <= self.now).map(|(token, _)| token)
    }

    /// The program waits for the oldest copy off the device.
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

    /// The program waits for operands that are on their way.
    pub fn waits_for(&mut self, operands: &[BlockId]) {
        for id in operands {
            if let Some(arrival) = self.arrivals.remove(id) {
                self.wait_until(arrival);
            }
        }
    }

    /// An operation runs over so many `bytes` of operands, while as many are `resident`.
    pub fn operates(&mut self, flops: u64, bytes: u64, resident: u64) {
        self.step.timeline.resident.push((self.now, resident));
        let takes = (flops as f64 / self.machine.flops).max(bytes as f64 / self.machine.memory);
        self.now += takes;
        self.step.elapsed.arithmetic += takes;
    }

    pub fn ends_step(&mut self) {
        let next = OpenStep { began: self.now, ..OpenStep::default() };
        let OpenStep { began, mut elapsed, timeline } = std::mem::replace(&mut self.step, next);
        elapsed.step = self.now - began;
        self.steps.push(elapsed);
        self.latest = timeline;
        self.latest.begin_at(began);
    }
}
