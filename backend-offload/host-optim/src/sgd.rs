//! Gradient descent with momentum and decoupled weight decay, one element at a time.

use crate::adamw::Stride;

/// Settings of gradient descent with momentum.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sgd {
    /// Factor on the old velocity.
    pub momentum: f32,
    /// Decay per step, multiplied by the learning rate.
    pub weight_decay: f64,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct SgdFactors {
    scale: f32,
    momentum: f32,
    shrink: f32,
    lr: f32,
}

impl Sgd {
    pub(crate) fn factors(&self, stride: Stride) -> SgdFactors {
        SgdFactors {
            scale: stride.scale as f32,
            momentum: self.momentum,
            shrink: (1.0 - stride.lr * self.weight_decay) as f32,
            lr: stride.lr as f32,
        }
    }
}

impl SgdFactors {
    /// Returns weight and velocity.
    #[inline(always)]
    pub(crate) fn step(&self, weight: f32, velocity: f32, gradient: f32) -> [f32; 2] {
        let velocity = velocity * self.momentum + gradient * self.scale;
        [weight * self.shrink - velocity * self.lr, velocity]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_velocity_carries_over_and_decay_shrinks_the_weight_alone() {
        let rule = Sgd { momentum: 0.5, weight_decay: 0.5 };
        let factors = rule.factors(Stride { lr: 0.25, scale: 0.5 });
        let [weight, velocity] = factors.step(8.0, 4.0, 2.0);
        assert_eq!((weight, velocity), (8.0 * 0.875 - 3.0 * 0.25, 3.0));
    }
}
