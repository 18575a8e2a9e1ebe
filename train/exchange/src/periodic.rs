//! Local steps with an outer step per round that arrives a round late, for slow links (as in `DiLoCo`).
//!
//! A rank's weights are common weights plus its own change. At the end of a round each rank sends the change since the
//! last common weights and trains on; at the end of the next round the mean `m` of the changes is there. An outer step
//! with Nesterov momentum moves the common weights `w`: `v ← μ v − m`, `w ← w + rate × (m − μ v)`. Then each rank
//! adds what it has changed meanwhile.

use crate::error::{Error, Result};

/// Size of the outer step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OuterStep {
    /// Learning rate of the outer step; 1 adds the mean change. 0.7 is usual.
    pub rate: f32,
    /// Nesterov momentum; 0 is a plain step. The delay needs less than the usual 0.9, which diverged in trials.
    pub momentum: f32,
}

/// Common and own weights of one parameter, and the outer optimizer: three f32 per weight.
#[derive(Debug, Clone, PartialEq)]
pub struct Outer {
    settings: OuterStep,
    /// Equal on all ranks.
    common: Vec<f32>,
    momentum: Vec<f32>,
    /// This rank's, when the round began.
    own: Vec<f32>,
}

impl Outer {
    /// Starts from equal weights on all ranks.
    pub fn new(settings: OuterStep, common: Vec<f32>) -> Self {
        let (momentum, own) = (vec![0.0; common.len()], common.clone());
        Self { settings, common, momentum, own }
    }

    /// Continues with saved weights and momentum.
    pub fn restore(settings: OuterStep, common: Vec<f32>, momentum: Vec<f32>, own: Vec<f32>) -> Result<Self> {
        let expected = common.len();
        for (what, found) in [("an outer momentum", momentum.len()), ("a rank's own weights", own.len())] {
            check(what, expected, found)?;
        }
        Ok(Self { settings, common, momentum, own })
    }

    /// Weights that all ranks have.
    pub fn common(&self) -> &[f32] {
        &self.common
    }

    /// The outer momentum, equal on all ranks.
    pub fn momentum(&self) -> &[f32] {
        &self.momentum
    }

    /// The weights that this rank trains from.
    pub fn own(&self) -> &[f32] {
        &self.own
    }

    /// This rank's change since the common weights, times `share`: its part of the mean change.
    pub fn part_of_mean(&self, share: f32) -> Vec<f32> {
        self.own.iter().zip(&self.common).map(|(own, common)| (own - common) * share).collect()
    }

    /// Moves the common weights by the `mean` change of an earlier round.
    pub fn step(&mut self, mean: &[f32]) -> Result<()> {
        check("a mean change", self.common.len(), mean.len())?;
        let OuterStep { rate, momentum: mu } = self.settings;
        for ((common, momentum), mean) in self.common.iter_mut().zip(&mut self.momentum).zip(mean) {
            *momentum = mu * *momentum - mean;
            *common += rate * (mean - mu * *momentum);
        }
        Ok(())
    }

    /// Ends a round: own weights become the common ones plus the round's change, which led to `weights`.
    pub fn end_round(&mut self, weights: &[f32]) -> Result<()> {
        check("a buffer of weights", self.common.len(), weights.len())?;
        for ((own, common), weight) in self.own.iter_mut().zip(&self.common).zip(weights) {
            *own = common + (weight - *own);
        }
        Ok(())
    }

    /// Gives up own changes, once the common weights hold them.
    pub fn take_common(&mut self) {
        self.own.copy_from_slice(&self.common);
    }
}

fn check(what: &'static str, expected: usize, found: usize) -> Result<()> {
    if expected == found { Ok(()) } else { Err(Error::Length { what, expected, found }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: OuterStep = OuterStep { rate: 1.0, momentum: 0.0 };

    /// Two ranks' rounds by hand: the mean of a round joins after the next one, and no change is counted twice.
    #[test]
    fn changes_of_a_round_reach_all_ranks_a_round_later_and_once() {
        let mut ranks = [Outer::new(PLAIN, vec![1.0]), Outer::new(PLAIN, vec![1.0])];
        let mean = |ranks: &[Outer; 2]| ranks.iter().map(|rank| rank.part_of_mean(0.5)[0]).sum::<f32>();
        let changes = [[0.5, 0.25], [1.0, -0.5], [0.125, 0.0]];
        let mut on_the_way = None;
        for round in changes {
            if let Some(mean) = on_the_way {
                for rank in &mut ranks {
                    rank.step(&[mean]).expect("one weight");
                }
            }
            for (rank, change) in ranks.iter_mut().zip(round) {
                let weights = [rank.own()[0] + change];
                rank.end_round(&weights).expect("one weight");
            }
            on_the_way = Some(mean(&ranks));
        }
        // Means of the first two rounds.
        let common = 1.0 + 0.375 + 0.25;
        assert!(ranks.iter().all(|rank| rank.common() == [common]));
        assert!(ranks[0].own() == [common + 0.125] && ranks[1].own() == [common]);
        ranks[0].step(&[on_the_way.expect("sent")]).expect("one weight");
        ranks[0].take_common();
        assert_eq!(ranks[0].own(), [common + 0.0625]);
    }

    #[test]
    fn the_outer_step_is_nesterovs() {
        let settings = OuterStep { rate: 0.7, momentum: 0.9 };
        let mut outer = Outer::new(settings, vec![1.0]);
        let (mut expected, mut v) = (1.0_f64, 0.0_f64);
        for mean in [-0.2_f32, -0.5, 0.4] {
            let change = -f64::from(mean);
            v = 0.9 * v + change;
            expected -= 0.7 * (change + 0.9 * v);
            outer.step(&[mean]).expect("one weight");
            assert!((f64::from(outer.common()[0]) - expected).abs() < 1e-6, "{outer:?} {expected}");
        }
        let (common, momentum, own) =
            (outer.common().to_vec(), outer.momentum().to_vec(), outer.own().to_vec());
        assert_eq!(Outer::restore(settings, common, momentum, own), Ok(outer));
    }

    #[test]
    fn buffers_of_another_length_are_refused() {
        let mut outer = Outer::new(PLAIN, vec![0.0; 3]);
        let found = |outcome: Result<()>| matches!(outcome, Err(Error::Length { expected: 3, found: 2, .. }));
        assert!(found(outer.step(&[0.0; 2])) && found(outer.end_round(&[0.0; 2])));
        assert!(found(Outer::restore(PLAIN, vec![0.0; 3], vec![0.0; 2], vec![0.0; 3]).map(drop)));
        assert!(found(Outer::restore(PLAIN, vec![0.0; 3], vec![0.0; 3], vec![0.0; 2]).map(drop)));
    }
}
