//! The time a replayed program takes on a machine: its operations one after the other, and a copy engine for each
//! direction beside them.
//!
//! An operation starts when its operands are there, and takes as long as the machine needs for their bytes. A copy off
//! the device starts when its engine is free; its memory is free when it ends. A copy onto the device likewise, into
//! memory that is free when it is queued.

use crate::block::{BlockId, Token};
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
}

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
}

#[derive(Debug)]
pub(crate) struct Timeline {
    machine: Machine,
    now: f64,
    out_free: f64,
    back_free: f64,
    /// Copies off the device that have not landed, in the order in which they do.
    leaving: VecDeque<(Token, f64)>,
    arrivals: HashMap<BlockId, f64>,
    step: Elapsed,
    step_began: f64,
    pub steps: Vec<Elapsed>,
}

impl Timeline {
    pub fn new(machine: Machine) -> Self {
        Self {
            machine,
            now: 0.0,
            out_free: 0.0,
            back_free: 0.0,
            leaving: VecDeque::new(),
            arrivals: HashMap::new(),
            step: Elapsed::default(),
            step_began: 0.0,
            steps: Vec::new(),
        }
    }

    pub fn starts_out(&mut self, token: Token, bytes: u64) {
        let takes = bytes as f64 / self.machine.link;
        self.out_free = self.out_free.max(self.now) + takes;
        self.step.out += takes;
        self.leaving.push_back((token, self.out_free));
    }

    pub fn starts_back(&mut self, block: BlockId, bytes: u64) {
        let takes = bytes as f64 / self.machine.link;
        self.back_free = self.back_free.max(self.now) + takes;
        self.step.back += takes;
        self.arrivals.insert(block, self.back_free);
    }

    /// A copy off the device that has landed by now.
    pub fn landed(&mut self) -> Option<Token> {
        self.leaving.pop_front_if(|(_, end)| *end <= self.now).map(|(token, _)| token)
    }

    /// The program waits for the oldest copy off the device.
    pub fn waits(&mut self) {
        if let Some((_, end)) = self.leaving.front() {
            self.now = self.now.max(*end);
        }
    }

    /// The program waits for operands that are on their way.
    pub fn waits_for(&mut self, operands: &[BlockId]) {
        for id in operands {
            if let Some(arrival) = self.arrivals.remove(id) {
                self.now = self.now.max(arrival);
            }
        }
    }

    pub fn operates(&mut self, flops: u64, bytes: u64) {
        let takes = (flops as f64 / self.machine.flops).max(bytes as f64 / self.machine.memory);
        self.now += takes;
        self.step.arithmetic += takes;
    }

    pub fn ends_step(&mut self) {
        self.step.step = self.now - std::mem::replace(&mut self.step_began, self.now);
        self.steps.push(std::mem::take(&mut self.step));
    }
}
