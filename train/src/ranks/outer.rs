//! Local steps with an outer step now and then: an outer optimizer for each parameter, in the order in which ranks come to them.

use std::collections::VecDeque;

use anyhow::{Context, ensure};
use exchange::{Engine, Outer, OuterStep};
use runs::config::RanksSection;

/// The outer optimizers of one rank. They are the same on all ranks.
#[derive(Debug)]
pub(super) struct OuterSteps {
    settings: OuterStep,
    buffers: Vec<Outer>,
    /// Momentum of a checkpoint, for the parameters that have not begun yet.
    restored: VecDeque<Vec<f32>>,
    /// The buffer that is stepped next.
    next: usize,
}

impl OuterSteps {
    pub(super) fn new(settings: &RanksSection) -> Self {
        let settings = OuterStep {
            inner: settings.local_steps,
            rate: settings.outer_rate as f32,
            momentum: settings.outer_momentum as f32,
        };
        Self { settings, buffers: Vec::new(), restored: VecDeque::new(), next: 0 }
    }

    pub(super) fn every(&self) -> u64 {
        self.settings.inner
    }

    /// Takes over the momentum of each parameter, before they begin.
    pub(super) fn restore(&mut self, momentum: Vec<Vec<f32>>) {
        self.restored = momentum.into();
    }

    /// Begins the next parameter with weights that are the same on all ranks.
    pub(super) fn start(&mut self, weights: Vec<f32>) -> anyhow::Result<()> {
        let momentum = self.restored.pop_front().unwrap_or_else(|| vec![0.0; weights.len()]);
        let restored = Outer::restore(self.settings, weights, momentum);
        self.buffers.push(restored.context("taking over the momentum of outer steps")?);
        Ok(())
    }

    /// Steps the next parameter from this rank's `weights` and those of the others, into `weights`.
    pub(super) fn step(&mut self, engine: &mut dyn Engine, weights: &mut [f32]) -> anyhow::Result<()> {
        let known = self.buffers.len();
        let buffer = self.buffers.get_mut(self.next);
        let buffer = buffer.with_context(|| format!("parameter {} of {known} was never begun", self.next))?;
        let average = buffer.average(engine, weights)?;
        buffer.step(&average, weights)?;
        self.next = (self.next + 1) % known;
        Ok(())
    }

    /// The momentum of each parameter.
    pub(super) fn momentum(&self) -> impl ExactSizeIterator<Item = &[f32]> {
        self.buffers.iter().map(|buffer| buffer.state().1)
    }

    /// Refuses to end an outer step that has left parameters out.
    pub(super) fn end(&self) -> anyhow::Result<()> {
        ensure!(
            self.next == 0,
            "an outer step ended after {} of {} parameters",
            self.next,
            self.buffers.len()
        );
        Ok(())
    }
}
