//! A program's requests to a pager. [`Pager::record`](crate::Pager::record) makes recordings; the crate `pager-replay`
//! replays them under any budget. Blocks are numbered by birth.
//!
//! The file is a magic number, then events: a byte for the kind, and varints of 7 bits a byte, low bits first. A block
//! is the count of births since its own, or 0 and its number: like parts have the same bytes. A
//! [kept](Recording::to_bytes) recording stores those once ([`repeats`](crate::repeats)). New kinds keep older files
//! valid.

use crate::block::{Arena, BlockId};
use crate::repeats::{REPEAT, Repeats};
use std::collections::HashSet;
use std::fmt;
use std::ops::Range;

const MAGIC: [u8; 8] = *b"spilled1";

/// One request to a pager.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The next block is inserted.
    Born {
        /// Its size.
        bytes: u64,
        /// Its arena.
        arena: Arena,
    },
    /// An operation over these [`operands`](Recording::operands).
    Operation {
        /// Index of the first operand.
        first: usize,
        /// Number of operands.
        count: usize,
        /// Floating-point operations; 0 if unknown.
        flops: u64,
    },
    /// The block changed outside any operation.
    Written(usize),
    /// Contents were put into the host tier.
    WrittenInTier(usize),
    /// The program dropped the block.
    Freed(usize),
    /// The program reads contents, and waits for a copy unless the host has them.
    Read {
        /// The block.
        block: usize,
        /// Bytes read.
        bytes: u64,
    },
    /// A step of the program ends.
    Step,
    /// The repeated step begins; earlier events only make its blocks.
    Begin,
    /// The step repeats from here, with the block `by` in place of the block `role`.
    Carried {
        /// A block at the step's beginning.
        role: usize,
        /// Its replacement in the next round.
        by: usize,
    },
}

/// One operand of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operand {
    /// The number of the block.
    pub block: usize,
    /// The operation changed it.
    pub written: bool,
}

/// The requests of a program.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recording {
    /// All events, in order.
    pub events: Vec<Event>,
    /// The operands of all operations.
    pub operands: Vec<Operand>,
}

/// The bytes are no recording, or no step repeats.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BadRecording {
    /// The magic number is missing.
    Foreign,
    /// The file ends within an event.
    Truncated,
    /// The event at this byte is invalid.
    Senseless {
        /// Its first byte.
        at: usize,
    },
    /// The event at this byte exceeds the limits of repeated events.
    TooLong {
        /// Its first byte.
        at: usize,
    },
    /// There are too few steps.
    TooShort {
        /// Marked steps found.
        steps: usize,
        /// Marked steps needed.
        needed: usize,
    },
    /// The step and the next one differ.
    Different {
        /// The first different event of the step.
        event: usize,
    },
}

impl fmt::Display for BadRecording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Foreign => write!(f, "this is no recording of a pager"),
            Self::Truncated => write!(f, "the recording ends in the middle of an event"),
            Self::Senseless { at } => write!(f, "the event at byte {at} makes no sense"),
            Self::TooLong { at } => {
                write!(f, "the repetition at byte {at} is longer than any that is recorded")
            }
            Self::TooShort { steps, needed } => {
                write!(f, "{steps} marked steps are recorded, and it takes {needed}")
            }
            Self::Different { event } => {
                write!(f, "the step and the next one differ in event {event}, so it does not repeat")
            }
        }
    }
}

impl std::error::Error for BadRecording {}

impl Recording {
    /// Reads a recording.
    ///
    /// # Errors
    /// If the bytes are invalid. Allocates in proportion to their length, and at most a gigabyte for repeated events,
    /// which are limited.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, BadRecording> {
        let rest = bytes.strip_prefix(&MAGIC).ok_or(BadRecording::Foreign)?;
        let mut reader = Reader { bytes: rest, at: 0, born: 0 };
        let mut recording = Self::default();
        let mut repeats = Repeats::default();
        while reader.at < rest.len() {
            let at = reader.at;
            let senseless = BadRecording::Senseless { at: at + MAGIC.len() };
            if rest[at] != REPEAT {
                let event = reader.event(&mut recording.operands)?.ok_or(senseless)?;
                recording.events.push(event);
                repeats.written_at(at);
                continue;
            }
            reader.at += 1;
            let (ago, count) = (reader.varint()?, reader.varint()?);
            let (behind, too_long) = (reader.at, BadRecording::TooLong { at: at + MAGIC.len() });
            if !repeats.allow(count) {
                return Err(too_long);
            }
            for _ in 0..count {
                let from = repeats.again(ago).ok_or(senseless.clone())?;
                reader.at = from;
                let event = reader.event(&mut recording.operands)?.ok_or(senseless.clone())?;
                recording.events.push(event);
                if !repeats.allow_bytes(reader.at - from) {
                    return Err(too_long);
                }
            }
            reader.at = behind;
        }
        Ok(recording)
    }

    /// The recording as a file; repeated stretches are written once.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        let events: Vec<Range<usize>> = self
            .events
            .iter()
            .map(|event| {
                let from = writer.bytes.len();
                writer.event(*event, &self.operands);
                from..writer.bytes.len()
            })
            .collect();
        let alike = Repeats::found(&writer.bytes, &events);
        let mut file = Writer::new();
        let mut next = 0;
        for repeat in alike {
            file.bytes.extend(events[next..repeat.at].iter().flat_map(|event| &writer.bytes[event.clone()]));
            file.bytes.push(REPEAT);
            file.varint(repeat.ago as u64);
            file.varint(repeat.count as u64);
            next = repeat.at + repeat.count;
        }
        file.bytes.extend(events[next..].iter().flat_map(|event| &writer.bytes[event.clone()]));
        file.bytes
    }

    /// Whether this is one repeating step.
    pub fn repeats(&self) -> bool {
        self.events.contains(&Event::Begin)
    }
}

#[derive(Debug)]
struct Writer {
    bytes: Vec<u8>,
    born: usize,
    /// Blocks that go by number: made before the repeated step, or on the host. Weights are, which each micro-batch
    /// names. `None` before the step.
    numbered: Option<HashSet<usize>>,
}

impl Writer {
    fn new() -> Self {
        Self { bytes: MAGIC.to_vec(), born: 0, numbered: None }
    }

    fn event(&mut self, event: Event, operands: &[Operand]) {
        let kind = match event {
            Event::Born { .. } => 0,
            Event::Operation { flops: 0, .. } => 1,
            Event::Written(_) => 2,
            Event::WrittenInTier(_) => 3,
            Event::Freed(_) => 4,
            Event::Step => 5,
            Event::Begin => 6,
            Event::Carried { .. } => 7,
            Event::Operation { .. } => 8,
            Event::Read { .. } => 9,
        };
        self.bytes.push(kind);
        match event {
            Event::Born { bytes, arena } => {
                self.varint(bytes);
                self.varint(u64::from(arena.0.wrapping_add(1)));
                self.born += 1;
            }
            Event::Operation { first, count, flops } => {
                if flops > 0 {
                    self.varint(flops);
                }
                self.varint(count as u64);
                for Operand { block, written } in &operands[first..first + count] {
                    let (ago, number) = self.name(*block);
                    self.varint(ago << 1 | u64::from(*written));
                    if let Some(number) = number {
                        self.varint(number);
                    }
                }
            }
            Event::WrittenInTier(block) => {
                self.block(block);
                if let Some(numbered) = &mut self.numbered {
                    numbered.insert(block);
                }
            }
            Event::Written(block) | Event::Freed(block) => self.block(block),
            Event::Read { block, bytes } => {
                self.block(block);
                self.varint(bytes);
            }
            Event::Step => {}
            Event::Begin => self.numbered = Some((0..self.born).collect()),
            Event::Carried { role, by } => {
                self.block(role);
                self.block(by);
            }
        }
    }

    fn block(&mut self, block: usize) {
        let (ago, number) = self.name(block);
        self.varint(ago);
        if let Some(number) = number {
            self.varint(number);
        }
    }

    /// Births since its own, or 0 and its number.
    fn name(&self, block: usize) -> (u64, Option<u64>) {
        let goes_by_number = self.numbered.as_ref().is_some_and(|numbered| numbered.contains(&block));
        if goes_by_number { (0, Some(block as u64)) } else { ((self.born - block) as u64, None) }
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }
}

struct Reader<'b> {
    bytes: &'b [u8],
    at: usize,
    born: usize,
}

impl Reader<'_> {
    /// `None` for an invalid event.
    fn event(&mut self, operands: &mut Vec<Operand>) -> Result<Option<Event>, BadRecording> {
        Ok(match self.byte()? {
            0 => {
                let (bytes, arena) = (self.varint()?, self.varint()?);
                self.born += 1;
                u32::try_from(arena)
                    .ok()
                    .map(|arena| Event::Born { bytes, arena: Arena(arena.wrapping_sub(1)) })
            }
            kind @ (1 | 8) => {
                let flops = if kind == 8 { self.varint()? } else { 0 };
                let (first, count) = (operands.len(), self.varint()?);
                for _ in 0..count {
                    let operand = self.varint()?;
                    let Some(block) = self.number(operand >> 1)? else { return Ok(None) };
                    operands.push(Operand { block, written: operand & 1 == 1 });
                }
                Some(Event::Operation { first, count: operands.len() - first, flops })
            }
            2 => self.block()?.map(Event::Written),
            3 => self.block()?.map(Event::WrittenInTier),
            4 => self.block()?.map(Event::Freed),
            5 => Some(Event::Step),
            6 => Some(Event::Begin),
            7 => {
                let (role, by) = (self.block()?, self.block()?);
                role.zip(by).map(|(role, by)| Event::Carried { role, by })
            }
            9 => {
                let (block, bytes) = (self.block()?, self.varint()?);
                block.map(|block| Event::Read { block, bytes })
            }
            _ => None,
        })
    }

    fn block(&mut self) -> Result<Option<usize>, BadRecording> {
        let ago = self.varint()?;
        self.number(ago)
    }

    fn number(&mut self, ago: u64) -> Result<Option<usize>, BadRecording> {
        if ago == 0 {
            let number = usize::try_from(self.varint()?).ok();
            return Ok(number.filter(|number| *number < self.born));
        }
        Ok(usize::try_from(ago).ok().and_then(|ago| self.born.checked_sub(ago)))
    }

    fn byte(&mut self) -> Result<u8, BadRecording> {
        let byte = *self.bytes.get(self.at).ok_or(BadRecording::Truncated)?;
        self.at += 1;
        Ok(byte)
    }

    fn varint(&mut self) -> Result<u64, BadRecording> {
        let (mut value, mut shift) = (0u64, 0);
        loop {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            if byte < 0x80 {
                return Ok(value);
            }
            shift += 7;
        }
    }
}

/// Records the requests of a program.
#[derive(Debug)]
pub struct Recorder {
    writer: Writer,
    numbers: Vec<usize>,
    /// The latest operation's operands, whose writes are known only afterwards, and its flops.
    open: Option<(Vec<Operand>, u64)>,
}

impl Recorder {
    pub(crate) fn new() -> Self {
        Self { writer: Writer::new(), numbers: Vec::new(), open: None }
    }

    /// Takes the bytes since the last call.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.writer.bytes)
    }

    /// Bytes not taken yet.
    pub fn pending(&self) -> usize {
        self.writer.bytes.len()
    }

    pub(crate) fn born(&mut self, index: u32, bytes: u64, arena: Arena) {
        self.close();
        let index = index as usize;
        if self.numbers.len() <= index {
            self.numbers.resize(index + 1, 0);
        }
        self.numbers[index] = self.writer.born;
        self.writer.event(Event::Born { bytes, arena }, &[]);
    }

    pub(crate) fn operation(&mut self, indices: impl Iterator<Item = u32>) {
        self.close();
        let operand = |index: u32| Operand { block: self.numbers[index as usize], written: false };
        self.open = Some((indices.map(operand).collect(), 0));
    }

    /// Adds floating-point operations to the latest one.
    pub fn takes(&mut self, flops: u64) {
        if let Some((_, sum)) = &mut self.open {
            *sum = flops;
        }
    }

    pub(crate) fn wrote(&mut self, index: u32) {
        let block = self.numbers[index as usize];
        let open = self.open.iter_mut().flat_map(|(operands, _)| operands);
        let open = open.into_iter().find(|operand| operand.block == block);
        match open {
            Some(operand) => operand.written = true,
            None => self.tell(Event::Written(block)),
        }
    }

    pub(crate) fn wrote_in_tier(&mut self, index: u32) {
        self.tell(Event::WrittenInTier(self.numbers[index as usize]));
    }

    /// Records a read of this many bytes, in any tier.
    pub fn reads(&mut self, block: BlockId, bytes: u64) {
        let Some(block) = self.numbers.get(block.index as usize).copied() else { return };
        self.tell(Event::Read { block, bytes });
    }

    pub(crate) fn freed(&mut self, index: u32) {
        self.tell(Event::Freed(self.numbers[index as usize]));
    }

    pub(crate) fn step(&mut self) {
        self.tell(Event::Step);
    }

    fn tell(&mut self, event: Event) {
        self.close();
        self.writer.event(event, &[]);
    }

    fn close(&mut self) {
        if let Some((operands, flops)) = self.open.take() {
            self.writer.event(Event::Operation { first: 0, count: operands.len(), flops }, &operands);
        }
    }
}
