//! A background thread that receives gradients in order of submission, adds shares and computes squares
//! (`the_program_continues_while_a_gradient_is_received`).

use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

use crate::error::HostOptimError;
use crate::state::HostState;
use crate::tensors::Incoming;

/// A thread that receives gradients.
#[derive(Debug)]
pub struct Arrivals {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    room: Arc<Room>,
}

/// Host memory of shares that are not received yet, which no budget counts: that of the two largest shares. Small
/// shares may be many, so that the device has work while they arrive
/// (`shares_wait_only_for_the_memory_of_two_of_the_largest`).
#[derive(Debug, Default)]
struct Room {
    bytes: Mutex<Bytes>,
    received: Condvar,
}

#[derive(Debug, Default)]
struct Bytes {
    waiting: u64,
    largest: u64,
}

impl Room {
    /// Waits until `bytes` more may wait.
    fn enter(self: &Arc<Self>, bytes: u64) -> Place {
        let mut held = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        held.largest = held.largest.max(bytes);
        let is_full = |held: &mut Bytes| held.waiting > 0 && held.waiting + bytes > 2 * held.largest;
        held = self.received.wait_while(held, is_full).unwrap_or_else(PoisonError::into_inner);
        held.waiting += bytes;
        Place { room: Arc::clone(self), bytes }
    }
}

/// A share's memory, until its drop.
struct Place {
    room: Arc<Room>,
    bytes: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.room.bytes.lock().unwrap_or_else(PoisonError::into_inner).waiting -= self.bytes;
        self.room.received.notify_all();
    }
}

struct Job {
    state: HostState,
    share: Incoming,
    is_last: bool,
    done: SyncSender<Done>,
    place: Place,
}

type Done = (HostState, Result<(), HostOptimError>);

/// A state whose gradient share is being received.
#[derive(Debug)]
pub struct Arriving {
    name: String,
    done: Receiver<Done>,
}

impl Arrivals {
    /// Starts the thread.
    pub fn begin() -> Result<Self, HostOptimError> {
        Self::run(|state, share, is_last| {
            state.take_in(share)?;
            if is_last { state.squares().map(drop) } else { Ok(()) }
        })
    }

    fn run(
        take_in: impl Fn(&mut HostState, Incoming, bool) -> Result<(), HostOptimError> + Send + 'static,
    ) -> Result<Self, HostOptimError> {
        let (jobs, waiting) = channel::<Job>();
        let run = move || {
            for Job { mut state, share, is_last, done, place } in waiting {
                let outcome = take_in(&mut state, share, is_last);
                drop(place);
                _ = done.send((state, outcome));
            }
        };
        match Builder::new().name("host-optim gradients".to_owned()).spawn(run) {
            Ok(thread) => Ok(Self { jobs: Some(jobs), thread: Some(thread), room: Arc::default() }),
            Err(error) => Err(HostOptimError::Gradients { reason: format!("no thread for them: {error}") }),
        }
    }

    /// Queues `share`. Computes squares if `is_last`. Blocks while queued shares take more memory than two of the
    /// largest.
    pub fn take_in(&self, state: HostState, share: Incoming, is_last: bool) -> Arriving {
        let place = self.room.enter(share.bytes());
        let (done, result) = sync_channel(1);
        let name = state.name().to_owned();
        // `Arriving::wait` reports a thread that panicked.
        _ = self.jobs.as_ref().expect("there until the end").send(Job { state, share, is_last, done, place });
        Arriving { name, done: result }
    }
}

impl Arriving {
    /// Waits for the state, which a panic of the thread loses. An inner error loses earlier shares.
    pub fn wait(self) -> Result<(HostState, Result<(), HostOptimError>), HostOptimError> {
        let lost =
            || HostOptimError::Gradients { reason: format!("a panic at that of {} or before", self.name) };
        self.done.recv().map_err(|_lost| lost())
    }
}

impl Drop for Arrivals {
    fn drop(&mut self) {
        self.jobs = None;
        // Freeing host memory needs the device's thread, which may end with the program.
        if let Some(thread) = self.thread.take() {
            _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use backend_offload::HostMemory;
    use burn::backend::{Flex, flex::FlexDevice};
    use burn::tensor::Tensor;

    use super::*;
    use crate::{Format, Values};

    fn state(memory: &HostMemory, name: &str) -> HostState {
        HostState::new(memory, name, Format::F32, Values::F32(&[0.0; 3])).expect("memory")
    }

    fn share(numbers: [f32; 3]) -> Incoming {
        Incoming::begin("w", Tensor::<Flex, 1>::from_floats(numbers, &FlexDevice)).expect("it can be read")
    }

    #[test]
    fn the_program_continues_while_a_gradient_is_received() {
        let memory = HostMemory::unlimited();
        let (open, gate) = sync_channel::<()>(0);
        let gate = Mutex::new(gate);
        let program = thread::current().id();
        let arrivals = Arrivals::run(move |state, share, _is_last| {
            assert_ne!(thread::current().id(), program);
            gate.lock().expect("no panic").recv().expect("the test opens it");
            state.take_in(share)
        });
        let arrivals = arrivals.expect("a thread");
        let first = arrivals.take_in(state(&memory, "first"), share([1.0; 3]), false);
        let second = arrivals.take_in(state(&memory, "second"), share([2.0; 3]), false);
        for (arriving, name, squares) in [(first, "first", 3.0), (second, "second", 12.0)] {
            open.send(()).expect("it waits");
            let (mut state, outcome) = arriving.wait().expect("no panic");
            outcome.expect("there is room");
            assert_eq!((state.squares().expect("whole"), state.name()), (squares, name));
        }
    }

    #[test]
    fn shares_wait_only_for_the_memory_of_two_of_the_largest() {
        const LONG: Duration = Duration::from_secs(20);
        let room = Arc::<Room>::default();
        let enter = |bytes: &'static [u64]| {
            let (room, (entered, places)) = (room.clone(), channel());
            thread::spawn(move || bytes.iter().try_for_each(|bytes| entered.send(room.enter(*bytes))));
            places
        };
        let many = enter(&[40, 1, 9, 20, 10]);
        let mut places: Vec<_> = (0..5).map(|_| many.recv_timeout(LONG).expect("80 have room")).collect();
        let one_more = enter(&[1]);
        assert!(one_more.recv_timeout(Duration::from_millis(50)).is_err(), "81 have none");
        drop(places.swap_remove(0));
        one_more.recv_timeout(LONG).expect("41 have room");
    }

    #[test]
    fn squares_computed_on_arrival_match_the_received_gradient() {
        let memory = HostMemory::unlimited();
        let arrivals = Arrivals::begin().expect("a thread");
        let mut state = state(&memory, "w");
        for (numbers, is_last, squares) in
            [([1.0; 3], true, 3.0), ([2.0; 3], false, 27.0), ([-3.0, 3.0, 1.0], true, 52.0)]
        {
            let outcome;
            (state, outcome) = arrivals.take_in(state, share(numbers), is_last).wait().expect("no panic");
            outcome.expect("there is room");
            assert_eq!(state.squares().expect("whole").to_bits(), f64::to_bits(squares));
        }
        state.replace_gradient(Values::F32(&[1.0, 2.0, 3.0])).expect("memory");
        assert_eq!(state.squares().expect("whole").to_bits(), 14.0f64.to_bits());
        state.drop_gradient();
        assert_eq!(state.squares().expect("nothing").to_bits(), 0);
    }

    #[test]
    fn a_refused_share_returns_its_state_and_a_panic_loses_it() {
        let memory = HostMemory::unlimited();
        let arrivals = Arrivals::begin().expect("a thread");
        let short = Incoming::begin("w", Tensor::<Flex, 1>::zeros([2], &FlexDevice)).expect("it can be read");
        let (state, outcome) = arrivals.take_in(state(&memory, "w"), short, true).wait().expect("no panic");
        let message = outcome.expect_err("it is too short").to_string();
        assert_eq!(message, "w: the gradient has 2 elements where its parameter has 3");
        let panicking =
            Arrivals::run(|_state, _share, _is_last| panic!("the memory went away")).expect("a thread");
        let arriving = panicking.take_in(state, share([1.0; 3]), true);
        let message = arriving.wait().expect_err("it panicked").to_string();
        assert_eq!(message, "gradients could not be taken to the host: a panic at that of w or before");
        let later = panicking.take_in(self::state(&memory, "later"), share([1.0; 3]), true);
        assert!(later.wait().is_err());
        assert_eq!(memory.usage().in_use, 0, "what was held is free");
    }
}
