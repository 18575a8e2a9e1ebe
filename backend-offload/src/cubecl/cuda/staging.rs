//! Copies of ordinary host memory, by a thread per direction through page-locked buffers. The driver would hold up
//! launches (`copies_of_ordinary_memory_hold_up_no_launch`).

use super::stream::{Event, EventPool, Stream, copy_error, copy_out};
use super::worker::{Ticket, Worker};
use crate::cubecl::copy_streams::Rows;
use crate::tiers::{STAGING_BUFFERS, StagingBuffer, StagingSource};
use cudarc::driver::{DriverError, result};
use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::Arc;

#[derive(Debug)]
pub(super) struct Staging {
    source: StagingSource,
    /// Both begin at the first copy: later, the host may be full. `None` if refused: the driver copies.
    lanes: Option<[Option<Lane>; 2]>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    Out,
    Back,
}

#[derive(Debug)]
struct Lane {
    worker: Worker<Job, Event>,
    piece: usize,
}

#[derive(Debug)]
pub(super) struct Job {
    /// Precedes the copy.
    pub turn: Event,
    pub device: u64,
    pub rows: Rows,
    pub host: NonNull<u8>,
}

// SAFETY: nothing else touches the memories until the job's end.
unsafe impl Send for Job {}

impl Staging {
    pub fn new(source: StagingSource) -> Self {
        Self { source, lanes: None }
    }

    /// The caller's context is the device's.
    pub fn serves(&mut self, direction: Direction, rows: Rows, events: &Arc<EventPool>) -> bool {
        let begin = |direction| Lane::start(&self.source, direction, events);
        let lanes = self.lanes.get_or_insert_with(|| [Direction::Out, Direction::Back].map(begin));
        lanes[direction as usize].as_ref().is_some_and(|lane| !rows.has_gaps() || rows.row <= lane.piece)
    }

    /// `None` unless the direction [serves](Self::serves).
    ///
    /// # Safety
    /// Both memories stay until the end.
    pub unsafe fn copy(&self, direction: Direction, job: Job) -> Option<Ticket<Event>> {
        let lane = self.lanes.as_ref()?[direction as usize].as_ref()?;
        Some(lane.worker.submit(job))
    }
}

impl Lane {
    fn start(source: &StagingSource, direction: Direction, events: &Arc<EventPool>) -> Option<Self> {
        let context = result::ctx::get_current().ok()??.expose_provenance();
        let (buffers, events) = (source.take()?, events.clone());
        let piece = buffers[0].len();
        let begin = move || {
            // SAFETY: the runtime's context lives until the process exits.
            unsafe { result::ctx::set_current(std::ptr::with_exposed_provenance_mut(context)) }.ok()?;
            let stream = Stream::create().ok()?;
            let mut copier = Copier { direction, stream, events, buffers, next: 0, flying: VecDeque::new() };
            Some(move |job: Job| copier.copy(&job))
        };
        let worker = Worker::start("staging", begin)?;
        Some(Self { worker, piece })
    }
}

struct Copier {
    direction: Direction,
    stream: Stream,
    events: Arc<EventPool>,
    buffers: [StagingBuffer; STAGING_BUFFERS],
    next: usize,
    /// Oldest first.
    flying: VecDeque<Flying>,
}

struct Flying {
    end: Event,
    buffer: usize,
    /// Host memory, outward.
    target: Option<NonNull<[u8]>>,
}

impl Copier {
    fn copy(&mut self, job: &Job) -> Result<Event, String> {
        self.copy_pieces(job).map_err(|error| {
            // Pieces may use memory about to be freed.
            let _idle = self.stream.synchronize();
            self.flying.clear();
            copy_error(error)
        })
    }

    /// Outward, the host has all bytes at the return.
    fn copy_pieces(&mut self, job: &Job) -> Result<Event, DriverError> {
        job.turn.delay(self.stream)?;
        let mut host = job.host;
        for piece in job.rows.pieces(self.buffers[0].len()) {
            if self.flying.len() == STAGING_BUFFERS {
                self.land()?;
            }
            let part = NonNull::slice_from_raw_parts(host, piece.bytes());
            // SAFETY: the job's host memory holds all pieces.
            host = unsafe { host.add(piece.bytes()) };
            let buffer = &mut self.buffers[self.next].bytes_mut()[..piece.bytes()];
            let target = match self.direction {
                Direction::Out => {
                    // SAFETY: the job keeps the device memory; the buffer is idle.
                    unsafe { copy_out(piece, job.device, buffer, self.stream) }?;
                    Some(part)
                }
                Direction::Back => {
                    // SAFETY: nothing writes to the job's bytes.
                    buffer.copy_from_slice(unsafe { part.as_ref() });
                    // SAFETY: as above.
                    unsafe {
                        result::memcpy_htod_async(job.device + piece.start as u64, buffer, self.stream.0)
                    }?;
                    None
                }
            };
            let end = self.events.record(self.stream)?;
            self.flying.push_back(Flying { end, buffer: self.next, target });
            self.next = (self.next + 1) % STAGING_BUFFERS;
        }
        while self.direction == Direction::Out && !self.flying.is_empty() {
            self.land()?;
        }
        self.events.record(self.stream)
    }

    fn land(&mut self) -> Result<(), DriverError> {
        let Some(Flying { end, buffer, target }) = self.flying.pop_front() else { return Ok(()) };
        end.wait()?;
        if let Some(mut target) = target {
            let bytes = self.buffers[buffer].bytes_mut();
            // SAFETY: nothing else touches the job's host memory.
            let target = unsafe { target.as_mut() };
            target.copy_from_slice(&bytes[..target.len()]);
        }
        Ok(())
    }
}

impl Drop for Copier {
    fn drop(&mut self) {
        // Pieces use the buffers.
        let _idle = self.stream.synchronize();
        // SAFETY: destroyed once.
        let _gone = unsafe { result::stream::destroy(self.stream.0) };
    }
}
