//! Gradient descent with momentum and decoupled weight decay.

use rayon::prelude::*;

use crate::adamw::Stride;
use crate::noise::Noise;
use crate::numbers::Number;
use crate::pieces::{DeviceWeight, PIECE, vectorised};

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
    #[inline(always)]
    pub(crate) fn step(&self, weight: f32, velocity: f32, gradient: f32) -> [f32; 2] {
        let velocity = velocity * self.momentum + gradient * self.scale;
        [weight * self.shrink - velocity * self.lr, velocity]
    }
}

pub(crate) fn step_sgd<G: Number, M: Number, W: DeviceWeight>(
    factors: SgdFactors,
    noise: Noise,
    masters: &mut [f32],
    velocity: &mut [M],
    gradient: &[G],
    weights: &mut [W],
) {
    let outside = gradient.par_chunks(PIECE).zip(weights.par_chunks_mut(PIECE));
    let pieces = masters.par_chunks_mut(PIECE).zip(velocity.par_chunks_mut(PIECE)).zip(outside);
    pieces.enumerate().for_each(|(n, ((masters, velocity), (gradient, weights)))| {
        let begin = (n * PIECE) as u32;
        vectorised(
            #[inline(always)]
            || step_elements_sgd(factors, noise, begin, masters, velocity, gradient, weights),
        );
    });
}

#[inline(always)]
pub(crate) fn step_elements_sgd<G: Number, M: Number, W: DeviceWeight>(
    factors: SgdFactors,
    noise: Noise,
    begin: u32,
    masters: &mut [f32],
    velocity: &mut [M],
    gradient: &[G],
    weights: &mut [W],
) {
    let len = masters.len();
    let velocity = &mut velocity[..len];
    let (gradient, weights) = (&gradient[..len], &mut weights[..len]);
    for n in 0..len {
        let [weight, moved] = factors.step(masters[n], velocity[n].wide(), gradient[n].wide());
        masters[n] = weight;
        velocity[n] = M::rounded(moved, noise.draw(begin.wrapping_add(n as u32)));
        weights[n] = W::from_master(weight);
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
