//! Transfers by threads, without `io_uring`.

use super::transfer::{BUFFERS, Direction, move_all};
use std::fs::File;
use std::io;
use std::ptr::NonNull;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

/// Enough to keep the disk busy while one wakes up.
const THREADS: usize = 3;

/// Started by the first piece; a drop ends them.
#[derive(Default)]
pub(super) struct Threads {
    running: Option<Running>,
}

struct Running {
    jobs: Sender<Job>,
    ends: Arc<Ends>,
    handles: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Ends {
    by_slot: Mutex<[Option<io::Result<()>>; BUFFERS]>,
    changed: Condvar,
}

struct Job {
    slot: usize,
    file: Arc<File>,
    direction: Direction,
    piece: NonNull<[u8]>,
    place: u64,
}

// SAFETY: the sender does not touch the piece until the job has ended.
unsafe impl Send for Job {}

impl Threads {
    /// False without a thread.
    ///
    /// # Safety
    /// Nothing else touches the piece until it has [landed](Self::landed).
    pub(super) unsafe fn start(
        &mut self,
        slot: usize,
        file: &Arc<File>,
        direction: Direction,
        piece: NonNull<[u8]>,
        place: u64,
    ) -> bool {
        let running = self.running.take().or_else(Running::begin);
        let job = Job { slot, file: file.clone(), direction, piece, place };
        let sent = running.as_ref().is_some_and(|running| running.jobs.send(job).is_ok());
        self.running = running;
        sent
    }

    pub(super) fn has_ended(&self, slot: usize) -> bool {
        self.running.as_ref().is_some_and(|running| running.ends.get()[slot].is_some())
    }

    pub(super) fn landed(&self, slot: usize) -> io::Result<()> {
        let ends = &self.running.as_ref().expect("they were given the piece").ends;
        let mut by_slot = ends.get();
        loop {
            if let Some(end) = by_slot[slot].take() {
                return end;
            }
            by_slot = ends.changed.wait(by_slot).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Running {
    fn begin() -> Option<Self> {
        let (jobs, waiting) = channel();
        let (waiting, ends) = (Arc::new(Mutex::new(waiting)), Arc::new(Ends::default()));
        let begin = |_| {
            let (waiting, ends) = (waiting.clone(), ends.clone());
            Builder::new().name("disk".to_owned()).spawn(move || work(&waiting, &ends)).ok()
        };
        let handles: Vec<_> = (0..THREADS).filter_map(begin).collect();
        (!handles.is_empty()).then_some(Self { jobs, ends, handles })
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        if let Some(Running { jobs, handles, .. }) = self.running.take() {
            drop(jobs);
            for handle in handles {
                _ = handle.join();
            }
        }
    }
}

impl Ends {
    fn get(&self) -> MutexGuard<'_, [Option<io::Result<()>>; BUFFERS]> {
        self.by_slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn work(waiting: &Mutex<Receiver<Job>>, ends: &Ends) {
    loop {
        let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Job { slot, file, direction, mut piece, place }) = next else { return };
        // SAFETY: nothing else touches the piece until its end is known.
        let end = move_all(&file, direction, unsafe { piece.as_mut() }, place);
        ends.get()[slot] = Some(end);
        ends.changed.notify_all();
    }
}
