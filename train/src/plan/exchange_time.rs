//! Seconds of the ranks' exchange, beside a step's arithmetic and copies.

use runs::config::{Config, ExchangeKind, Round, ShardKind};

use super::Machine;

/// Bounds of a time, in seconds: copies and exchange hidden as far as possible, and all waited for.
type Bounds = [f64; 2];

#[derive(Debug, Clone, PartialEq)]
pub(super) struct ExchangeTime {
    /// Of one exchange, which ends a step or a round.
    one: f64,
    /// Steps with an exact exchange, and its seconds.
    exact: (u64, f64),
    /// Part of `one` that follows the last pass.
    open: f64,
    /// Arithmetic that hides the rest.
    beside: f64,
    round: Option<Round>,
}

impl ExchangeTime {
    /// Over several ranks whose link is known. The busiest card carries `bytes` in a step, and in an exact one. A step
    /// computes for `compute` seconds, in `groups` groups.
    pub(super) fn new(
        config: &Config,
        machine: &Machine,
        bytes: [u64; 2],
        compute: Option<f64>,
        groups: u64,
    ) -> Option<Self> {
        if machine.ranks() == 1 {
            return None;
        }
        let [sends, exact] = bytes.map(|bytes| machine.send_seconds(bytes));
        let (ranks, sends, exact, compute) = (&config.ranks, sends?, exact?, compute?);
        let (one, round) = match (ranks.exchange, ranks.round.steps()) {
            (ExchangeKind::Rarely, Some(steps)) => (sends * steps as f64, Some(ranks.round.clone())),
            (ExchangeKind::Rarely, None) => (sends, Some(ranks.round.clone())),
            _ => (sends, None),
        };
        let warm_up = if ranks.exchange == ExchangeKind::OneBit { ranks.warm_up } else { 0 };
        let (open, beside) = match config.memory.shard {
            // Stages sum after all passes.
            _ if ranks.pipeline > 1 => (0.0, 0.0),
            // New weights travel after the update.
            ShardKind::States => (one / 2.0, compute / groups as f64),
            ShardKind::Weights => (0.0, compute),
            // Gradients leave in the last group's pass.
            ShardKind::None => (0.0, compute / groups as f64),
        };
        Some(Self { one, exact: (warm_up, exact), open, beside, round })
    }

    pub(super) fn step(&self, step: Bounds) -> Bounds {
        match &self.round {
            None => self.waited_for(self.one, step),
            Some(Round::Steps(steps)) => step.map(|seconds| seconds.max(self.one / *steps as f64)),
            Some(Round::Time(time)) => step.map(|seconds| seconds * (self.one / time.as_secs_f64()).max(1.0)),
            Some(Round::AsIn(_)) => step,
        }
    }

    pub(super) fn run(&self, steps: u64, step: Bounds) -> Bounds {
        let usual = self.step(step);
        if self.round.is_some() {
            // All wait for the last one.
            return usual.map(|seconds| seconds * steps as f64 + self.one);
        }
        let exact = self.exact.0.min(steps);
        let first = self.waited_for(self.exact.1, step);
        [0, 1].map(|at| first[at] * exact as f64 + usual[at] * (steps - exact) as f64)
    }

    fn waited_for(&self, seconds: f64, [hidden, waiting]: Bounds) -> Bounds {
        [hidden + (seconds - self.open - self.beside).max(0.0) + self.open, waiting + seconds]
    }
}
