//! Chunks on their way through host memory: one is read while another is changed and the one before it is written, from each
//! state on the disk to the next one in line.
//!
//! A thread reads all chunks in the order of the states, as far ahead as there are slabs, and another one writes them in the order in
//! which they were changed. Checksums are taken and compared by the thread that changes chunks, so that the disk does not wait for them.
//! A failure stays with its state: chunks that were read for a step that is not taken are passed over, chunks that are to be written
//! behind one that could not be are not, and the next state goes on.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};

use backend_offload::{OffloadError, PageBuffer};

use super::{SLABS, Stored, parts_of};
use crate::error::HostOptimError;
use crate::kept::Kept;
use crate::layout::PARTS;

/// The states whose steps are taken one after another, as far as they are on the disk.
#[derive(Debug, Default)]
pub(crate) struct Pipeline {
    /// None where no state is on the disk.
    ends: Option<Ends>,
    threads: Vec<JoinHandle<()>>,
}

/// Channels that tell the threads what to do. They stop without them.
#[derive(Debug)]
struct Ends {
    to_read: Sender<PageBuffer>,
    filled: Receiver<Filled>,
    to_write: Sender<Changed>,
}

/// A chunk that was read, or could not be.
#[derive(Debug)]
struct Filled {
    state: Arc<Stored>,
    chunk: usize,
    slab: PageBuffer,
    read: Result<(), OffloadError>,
}

enum Changed {
    Chunk {
        state: Arc<Stored>,
        chunk: usize,
        slab: PageBuffer,
    },
    /// There are no more chunks of the state.
    All {
        state: Arc<Stored>,
        then: Box<dyn FnOnce() + Send>,
    },
}

const UNTIL_DROPPED: &str = "the threads go on until the pipeline is dropped";

impl Pipeline {
    /// Takes host memory for chunks of these states, and reads the first ones.
    ///
    /// # Errors
    /// If there is no room, or the system refuses a thread. No state has changed.
    pub(crate) fn over<'k>(kept: impl IntoIterator<Item = &'k Kept>) -> Result<Self, HostOptimError> {
        let states: Vec<_> = kept.into_iter().filter_map(Kept::stored).cloned().collect();
        let Some(first) = states.first() else { return Ok(Self::default()) };
        let chunks = states.iter().map(|state| state.ranges().len()).sum::<usize>();
        let largest = states.iter().map(|state| state.largest(0..PARTS)).max().unwrap_or_default();
        let (to_read, spare) = channel();
        let (to_change, filled) = channel();
        let (to_write, changed) = channel();
        for _ in 0..chunks.min(SLABS) {
            let purpose = format_args!("chunks of the state of {}", first.name);
            to_read.send(first.disk.buffer(largest, purpose)?).expect("it is received below");
        }
        let mut pipeline = Self::default();
        let written = to_read.clone();
        pipeline.threads.push(beside(move || write_all(changed, &written))?);
        pipeline.ends = Some(Ends { to_read, filled, to_write });
        pipeline.threads.push(beside(move || read_all(&states, &spare, &to_change))?);
        Ok(pipeline)
    }

    /// Writes the chunk.
    pub(super) fn write(&mut self, state: &Arc<Stored>, chunk: usize, slab: PageBuffer) {
        state.pieces.seal(parts_of(chunk, 0..PARTS), &slab);
        self.tell(Changed::Chunk { state: state.clone(), chunk, slab });
    }

    /// Runs `then` once the chunks of `state` are written; never if one could not be.
    pub(super) fn when_written(&mut self, state: &Arc<Stored>, then: impl FnOnce() + Send + 'static) {
        self.tell(Changed::All { state: state.clone(), then: Box::new(then) });
    }

    fn tell(&self, changed: Changed) {
        let ends = self.ends.as_ref().expect("the state is one of its own");
        assert!(ends.to_write.send(changed).is_ok(), "{UNTIL_DROPPED}");
    }

    /// The next chunk of `state`. Chunks of states before it that nobody came for are passed over.
    ///
    /// # Errors
    /// If it cannot be read, or is not what was written.
    pub(super) fn next_of(&mut self, state: &Arc<Stored>) -> Result<PageBuffer, OffloadError> {
        let ends = self.ends.as_ref().expect("the state is one of its own");
        loop {
            let Filled { state: of, chunk, slab, read } = ends.filled.recv().expect(UNTIL_DROPPED);
            let is_wanted = Arc::ptr_eq(&of, state);
            let verified = || state.pieces.verify(parts_of(chunk, 0..PARTS), &slab);
            let found = if is_wanted { read.and_then(|()| verified()) } else { Ok(()) };
            if is_wanted && found.is_ok() {
                return Ok(slab);
            }
            // Nobody reads any more behind the last chunks.
            _ = ends.to_read.send(slab);
            found?;
        }
    }
}

impl Drop for Pipeline {
    /// Waits until all that was changed is written.
    fn drop(&mut self) {
        self.ends = None;
        for thread in self.threads.drain(..) {
            // Its states are torn then, which they tell.
            _ = thread.join();
        }
    }
}

fn read_all(states: &[Arc<Stored>], spare: &Receiver<PageBuffer>, to_change: &Sender<Filled>) {
    for state in states {
        for chunk in 0..state.ranges().len() {
            let Ok(mut slab) = spare.recv() else { return };
            let read = state.pieces.fetch(parts_of(chunk, 0..PARTS), &mut slab);
            let is_read = read.is_ok();
            if to_change.send(Filled { state: state.clone(), chunk, slab, read }).is_err() {
                return;
            }
            if !is_read {
                break;
            }
        }
    }
}

fn write_all(changed: Receiver<Changed>, written: &Sender<PageBuffer>) {
    for changed in changed {
        match changed {
            Changed::Chunk { state, chunk, slab } => {
                state.write(chunk, &slab);
                // As above.
                _ = written.send(slab);
            }
            Changed::All { state, then } => {
                if state.ends_whole() {
                    then();
                }
            }
        }
    }
}

fn beside(work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, HostOptimError> {
    let thread = Builder::new().name("state on disk".to_owned()).spawn(work);
    thread.map_err(|error| HostOptimError::Updates { reason: format!("no thread for them: {error}") })
}
