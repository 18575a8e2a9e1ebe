//! Local steps with a periodic outer step (DiLoCo): for links slower than many steps.
//!
//! Every rank trains alone for `inner` steps, then ranks average their weights. `Δ = outer − average` is the gradient
//! of an outer step with Nesterov momentum: `v ← μ v + Δ`, `weights ← outer − rate × (Δ + μ v)`.
//!
//! The code computes `average + (1 − rate) Δ − rate × μ × v`: equal, and the average's exact bits at rate 1 and
//! momentum 0.

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::exact::Exact;
use crate::pairwise::Pairwise;
use crate::share::Share;

/// Interval and size of the outer step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OuterStep {
    /// Local steps per outer step, at least 1.
    pub inner: u64,
    /// Learning rate of the outer step; 1 takes the average. 0.7 is usual.
    pub rate: f32,
    /// Nesterov momentum; 0 is a plain step. 0.9 is usual.
    pub momentum: f32,
}

impl OuterStep {
    /// Whether an outer step follows local step `step`, counted from zero.
    pub fn due(&self, step: u64) -> bool {
        (step + 1).is_multiple_of(self.inner.max(1))
    }
}

/// The outer optimizer of one buffer of weights: two f32 per weight.
#[derive(Debug, Clone, PartialEq)]
pub struct Outer {
    settings: OuterStep,
    weights: Vec<f32>,
    momentum: Vec<f32>,
}

impl Outer {
    /// Starts from equal weights on all ranks.
    pub fn new(settings: OuterStep, weights: &[f32]) -> Self {
        Self { settings, weights: weights.to_vec(), momentum: vec![0.0; weights.len()] }
    }

    /// Continues with saved weights and momentum.
    pub fn restore(settings: OuterStep, weights: Vec<f32>, momentum: Vec<f32>) -> Result<Self> {
        if weights.len() == momentum.len() {
            return Ok(Self { settings, weights, momentum });
        }
        Err(Error::Length { what: "an outer momentum", expected: weights.len(), found: momentum.len() })
    }

    /// Outer weights and momentum, for a checkpoint; equal on all ranks.
    pub fn state(&self) -> (&[f32], &[f32]) {
        (&self.weights, &self.momentum)
    }

    /// The average of all ranks' weights. Changes nothing, so a failed one can be repeated.
    pub fn average(&self, engine: &mut dyn Engine, weights: &[f32]) -> Result<Vec<f32>> {
        self.check(weights.len())?;
        let (rank, world) = (engine.rank(), engine.world());
        let mut own = Pairwise::new(Share { count: world as u64, world, rank }, weights.len());
        own.push(weights.to_vec())?;
        let mut sum = Exact::default().sum_of(engine, own)?;
        for weight in &mut sum {
            *weight /= world as f32;
        }
        Ok(sum)
    }

    /// Writes the outer step towards `average` to `weights`. To repeat an average, call it after a `commit`.
    pub fn step(&mut self, average: &[f32], weights: &mut [f32]) -> Result<()> {
        self.check(average.len())?;
        self.check(weights.len())?;
        let OuterStep { rate, momentum: mu, .. } = self.settings;
        let outer = self.weights.iter_mut().zip(&mut self.momentum);
        for ((outer, momentum), (average, weight)) in outer.zip(average.iter().zip(weights)) {
            let change = *outer - average;
            *momentum = mu * *momentum + change;
            *outer = average + (1.0 - rate) * change - rate * mu * *momentum;
            *weight = *outer;
        }
        Ok(())
    }

    fn check(&self, found: usize) -> Result<()> {
        let expected = self.weights.len();
        if expected == found {
            Ok(())
        } else {
            Err(Error::Length { what: "a buffer of weights", expected, found })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads;

    fn plain() -> OuterStep {
        OuterStep { inner: 1, rate: 1.0, momentum: 0.0 }
    }

    #[test]
    fn an_inner_count_of_one_and_a_plain_outer_step_are_averaging_to_the_bit() {
        // Computed once: `powi` may round constants differently.
        let weights = |rank: usize, n: usize| (n as f32 + 0.1) * 1.7_f32.powi(rank as i32) - 3.3;
        let weights: Vec<Vec<f32>> = (0..4).map(|rank| (0..9).map(|n| weights(rank, n)).collect()).collect();
        let ends = threads::on_each(4, |mut engine| {
            let mut own = weights[engine.rank()].clone();
            let mut outer = Outer::new(plain(), &[0.123; 9]);
            let average = outer.average(&mut engine, &own).expect("averaged");
            outer.step(&average, &mut own).expect("stepped");
            own
        });
        for n in 0..9 {
            let w = |rank: usize| weights[rank][n];
            let average = ((w(0) + w(1)) + (w(2) + w(3))) / 4.0;
            assert!(ends.iter().all(|end| end[n].to_bits() == average.to_bits()), "{n}");
        }
    }

    #[test]
    fn the_outer_step_is_nesterovs() {
        let settings = OuterStep { inner: 8, rate: 0.7, momentum: 0.9 };
        let mut outer = Outer::new(settings, &[1.0]);
        let (mut expected, mut v) = (1.0_f64, 0.0_f64);
        let mut weights = [0.0];
        for average in [0.8_f32, 0.5, 0.4] {
            let change = expected - f64::from(average);
            v = 0.9 * v + change;
            expected -= 0.7 * (change + 0.9 * v);
            outer.step(&[average], &mut weights).expect("stepped");
            assert!((f64::from(weights[0]) - expected).abs() < 1e-6, "{weights:?} {expected}");
        }
        let (weights, momentum) = (outer.state().0.to_vec(), outer.state().1.to_vec());
        assert_eq!(Outer::restore(settings, weights, momentum), Ok(outer));
    }

    #[test]
    fn outer_steps_follow_every_so_many_local_ones() {
        let settings = OuterStep { inner: 3, ..plain() };
        assert_eq!((0..7).filter(|step| settings.due(*step)).collect::<Vec<_>>(), [2, 5]);
    }
}
