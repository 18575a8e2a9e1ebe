//! Messages between the stages of a pipeline, on a thread beside computing.
//!
//! A failed call ends all waits
//! (`a_stage_that_is_gone_ends_the_waits_of_the_others`).

use std::collections::{HashMap, VecDeque};
use std::mem::ManuallyDrop;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Context;
use exchange::{Engine, Message};

use super::background_sums::Returned;
use super::{LEFT, Ranks};

/// Time between two looks while a message leaves, while one is expected, and else. More would take time from computing
/// where a rank has one core.
const LOOK: Duration = Duration::from_micros(50);
const EXPECTING_LOOK: Duration = Duration::from_micros(300);
const IDLE_LOOK: Duration = Duration::from_millis(1);

pub(crate) struct Pipe {
    calls: Sender<Call>,
    arrived: Receiver<Option<Message>>,
    early: HashMap<Route, VecDeque<Vec<u8>>>,
    has_failed: bool,
    thread: JoinHandle<Returned>,
    stood: Duration,
}

pub(crate) type Route = (usize, u8);

enum Call {
    Send(Route, Vec<u8>),
    Expect(Route, usize),
    End,
}

impl Ranks {
    pub(crate) fn begin_pipe(&mut self) -> anyhow::Result<Pipe> {
        let engine = self.engine.take().context(LEFT)?;
        self.costs = engine.costs();
        let mut engine = ManuallyDrop::new(engine);
        let (calls, waiting) = channel();
        let (done, arrived) = channel();
        let carry = move || {
            let outcome = carried(engine.as_mut(), &waiting, &done);
            if outcome.is_err() {
                _ = done.send(None);
                while !matches!(waiting.recv(), Ok(Call::End) | Err(_)) {}
            }
            Returned { engine, outcome }
        };
        let thread = thread::Builder::new().name("pipe".to_owned()).spawn(carry);
        let thread = thread.context("starting a thread that carries activations")?;
        let early = HashMap::new();
        Ok(Pipe { calls, arrived, early, has_failed: false, thread, stood: Duration::ZERO })
    }

    /// Fails with the first error.
    pub(crate) fn end_pipe(&mut self, pipe: Pipe) -> anyhow::Result<()> {
        let begun = Instant::now();
        _ = pipe.calls.send(Call::End);
        self.take_back(pipe.thread, (pipe.stood, begun)).context("passing activations between the ranks")
    }
}

fn carried(
    engine: &mut dyn Engine,
    calls: &Receiver<Call>,
    done: &Sender<Option<Message>>,
) -> exchange::Result<()> {
    let mut expected = 0;
    loop {
        let look = match (engine.is_sending(), expected) {
            (true, _) => LOOK,
            (false, 0) => IDLE_LOOK,
            (false, _) => EXPECTING_LOOK,
        };
        match calls.recv_timeout(look) {
            Ok(Call::Send(to, bytes)) => engine.send(to, bytes)?,
            Ok(Call::Expect(from, len)) => {
                engine.expect(from, len)?;
                expected += 1;
            }
            Ok(Call::End) | Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {}
        }
        while let Some(message) = engine.arrived()? {
            expected -= 1;
            _ = done.send(Some(message));
        }
    }
    engine.finish_sending()
}

impl Pipe {
    pub(crate) fn send(&self, to: Route, bytes: Vec<u8>) {
        _ = self.calls.send(Call::Send(to, bytes));
    }

    pub(crate) fn expect(&self, from: Route, len: usize) {
        _ = self.calls.send(Call::Expect(from, len));
    }

    /// `None` after a failure.
    pub(crate) fn take(&mut self, from: Route) -> Option<Vec<u8>> {
        if let Some(bytes) = self.early.get_mut(&from).and_then(VecDeque::pop_front) {
            return Some(bytes);
        }
        let begun = Instant::now();
        let mut found = None;
        while found.is_none() && !self.has_failed {
            match self.arrived.recv().ok().flatten() {
                Some((route, bytes)) if route == from => found = Some(bytes),
                Some((route, bytes)) => self.early.entry(route).or_default().push_back(bytes),
                None => self.has_failed = true,
            }
        }
        self.stood += begun.elapsed();
        found
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::on_each_with_its_own;

    #[test]
    fn messages_of_a_route_arrive_in_order_beside_those_of_others_and_are_counted() {
        on_each_with_its_own(
            2,
            |engine| engine,
            |mut ranks| {
                let peer = 1 - ranks.rank();
                let mut pipe = ranks.begin_pipe().expect("an engine");
                for n in 0..4_u8 {
                    pipe.send((peer, n % 2), vec![n; 3 + usize::from(n)]);
                    pipe.expect((peer, n % 2), 3 + usize::from(n));
                }
                for n in [1, 0, 2, 3_u8] {
                    assert_eq!(pipe.take((peer, n % 2)), Some(vec![n; 3 + usize::from(n)]));
                }
                ranks.end_pipe(pipe).expect("all have arrived");
                let costs = ranks.spent().expect("two ranks").costs;
                assert_eq!([costs.sent, costs.received], [18, 18]);
                assert!(ranks.all_succeeded(true).expect("both live"));
                ranks.end();
            },
        );
    }

    #[test]
    fn a_stage_that_is_gone_ends_the_waits_of_the_others() {
        let told = on_each_with_its_own(
            2,
            |engine| engine,
            |mut ranks| {
                if ranks.rank() == 1 {
                    return None;
                }
                let mut pipe = ranks.begin_pipe().expect("an engine");
                pipe.expect((1, 0), 8);
                assert_eq!(pipe.take((1, 0)), None);
                assert_eq!(pipe.take((1, 0)), None, "no later wait hangs");
                Some(format!("{:#}", ranks.end_pipe(pipe).expect_err("rank 1 is gone")))
            },
        );
        let said = told[0].as_ref().expect("rank 0 reports");
        assert!(said.contains("passing activations") && said.contains("rank 1 is gone"), "{said}");
    }
}
