//! Transfers of several states' chunks: one is read while another is changed and a third written.
//!
//! Reads run ahead as far as buffers permit (`the_next_states_chunks_are_read_during_a_step_within_three_chunks`). The
//! thread that changes a chunk computes checksums: the disk does not wait. A failure affects its own state alone
//! (`a_failed_chunk_transfer_fails_its_own_state_and_no_other`).

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};

use backend_offload::{OffloadError, PageBuffer};

use super::{ChunkStore, SLABS, parts_of};
use crate::error::HostOptimError;
use crate::layout::PARTS;

#[derive(Debug, Default)]
pub(crate) struct Pipeline {
    /// `None` if no state is on disk.
    channels: Option<Channels>,
    threads: Vec<JoinHandle<()>>,
}

/// Dropping these channels stops the threads.
#[derive(Debug)]
struct Channels {
    to_read: Sender<PageBuffer>,
    filled: Receiver<ReadChunk>,
    to_write: Sender<WriteJob>,
}

#[derive(Debug)]
struct ReadChunk {
    state: Arc<ChunkStore>,
    chunk: usize,
    slab: PageBuffer,
    read: Result<(), OffloadError>,
}

enum WriteJob {
    Chunk {
        state: Arc<ChunkStore>,
        chunk: usize,
        slab: PageBuffer,
    },
    /// No chunk of this state follows.
    StateDone {
        state: Arc<ChunkStore>,
        then: Box<dyn FnOnce() + Send>,
    },
}

const UNTIL_DROPPED: &str = "the threads go on until the pipeline is dropped";

impl Pipeline {
    /// Takes host memory and starts to read. An error has changed no state.
    pub(crate) fn new(states: Vec<Arc<ChunkStore>>) -> Result<Self, HostOptimError> {
        let Some(first) = states.first() else { return Ok(Self::default()) };
        let chunks = states.iter().map(|state| state.ranges().len()).sum::<usize>();
        let largest = states.iter().map(|state| state.largest(0..PARTS)).max().unwrap_or_default();

        let (to_read, spare) = channel();
        let (to_change, filled) = channel();
        let (to_write, jobs) = channel();
        for _ in 0..chunks.min(SLABS) {
            let purpose = format_args!("chunks of the state of {}", first.name);
            to_read.send(first.disk.buffer(largest, purpose)?).expect("it is received below");
        }

        let mut pipeline = Self::default();
        let written = to_read.clone();
        pipeline.threads.push(spawn(move || write_all(jobs, &written))?);
        pipeline.channels = Some(Channels { to_read, filled, to_write });
        pipeline.threads.push(spawn(move || read_all(&states, &spare, &to_change))?);
        Ok(pipeline)
    }

    pub(super) fn write(&mut self, state: &Arc<ChunkStore>, chunk: usize, slab: PageBuffer) {
        state.pieces.seal(parts_of(chunk, 0..PARTS), &slab);
        self.send(WriteJob::Chunk { state: state.clone(), chunk, slab });
    }

    pub(super) fn when_written(&mut self, state: &Arc<ChunkStore>, then: impl FnOnce() + Send + 'static) {
        self.send(WriteJob::StateDone { state: state.clone(), then: Box::new(then) });
    }

    fn send(&self, job: WriteJob) {
        let channels = self.channels.as_ref().expect("the state is one of its own");
        assert!(channels.to_write.send(job).is_ok(), "{UNTIL_DROPPED}");
    }

    /// Verifies the checksum. Discards earlier states' unused chunks.
    pub(super) fn next_chunk(&mut self, state: &Arc<ChunkStore>) -> Result<PageBuffer, OffloadError> {
        let channels = self.channels.as_ref().expect("the state is one of its own");
        loop {
            let ReadChunk { state: source, chunk, slab, read } = channels.filled.recv().expect(UNTIL_DROPPED);
            let is_wanted = Arc::ptr_eq(&source, state);
            let verified = || state.pieces.verify(parts_of(chunk, 0..PARTS), &slab);
            let found = if is_wanted { read.and_then(|()| verified()) } else { Ok(()) };
            if is_wanted && found.is_ok() {
                return Ok(slab);
            }
            // Fails after the last chunk: the reading thread has ended.
            _ = channels.to_read.send(slab);
            found?;
        }
    }
}

impl Drop for Pipeline {
    /// Waits for all writes.
    fn drop(&mut self) {
        self.channels = None;
        for thread in self.threads.drain(..) {
            // After a panic, the thread's states stay torn.
            _ = thread.join();
        }
    }
}

fn read_all(states: &[Arc<ChunkStore>], spare: &Receiver<PageBuffer>, to_change: &Sender<ReadChunk>) {
    for state in states {
        for chunk in 0..state.ranges().len() {
            let Ok(mut slab) = spare.recv() else { return };
            let read = state.pieces.fetch(parts_of(chunk, 0..PARTS), &mut slab);
            let is_read = read.is_ok();
            if to_change.send(ReadChunk { state: state.clone(), chunk, slab, read }).is_err() {
                return;
            }
            if !is_read {
                break;
            }
        }
    }
}

fn write_all(jobs: Receiver<WriteJob>, written: &Sender<PageBuffer>) {
    for job in jobs {
        match job {
            WriteJob::Chunk { state, chunk, slab } => {
                state.write(chunk, &slab);
                _ = written.send(slab);
            }
            WriteJob::StateDone { state, then } => {
                if state.finish_writes() {
                    then();
                }
            }
        }
    }
}

fn spawn(work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, HostOptimError> {
    let thread = Builder::new().name("state on disk".to_owned()).spawn(work);
    thread.map_err(|error| HostOptimError::Updates { reason: format!("no thread for them: {error}") })
}
