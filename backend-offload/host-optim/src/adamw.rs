//! AdamW with decoupled weight decay.
//!
//! Operations, order and rounding are Burn's: the bits agree if the backend fuses no operations.

use rayon::prelude::*;

use crate::noise::Noise;
use crate::numbers::Number;
use crate::pieces::{DeviceWeight, PIECE, vectorised};

/// Settings of AdamW.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamW {
    /// Decay factors of both moments.
    pub betas: [f32; 2],
    /// Added to the divisor.
    pub epsilon: f32,
    /// Decay per step, multiplied by the learning rate.
    pub weight_decay: f64,
}

/// Values that may change between steps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stride {
    /// Learning rate.
    pub lr: f64,
    /// Factor on all gradients.
    pub scale: f64,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Factors {
    scale: f32,
    keep: [f32; 2],
    take: [f32; 2],
    unbias: [f32; 2],
    epsilon: f32,
    shrink: f32,
    lr: f32,
}

impl AdamW {
    /// One step of an f32 parameter. `time` counts steps from 1.
    pub fn step(
        &self,
        stride: Stride,
        time: u32,
        weights: &mut [f32],
        moments: [&mut [f32]; 2],
        gradient: &[f32],
    ) {
        let factors = self.factors(stride, time);
        step_adamw(factors, Noise::new(0, time), weights, moments, gradient, &mut vec![(); gradient.len()]);
    }

    /// First half of [`step`](Self::step): both halves together give its bits.
    pub fn step_moments(&self, stride: Stride, time: u32, moments: [&mut [f32]; 2], gradient: &[f32]) {
        step_moments(self.factors(stride, time), moments, gradient);
    }

    /// Second half of [`step`](Self::step).
    pub fn step_weights(&self, stride: Stride, time: u32, weights: &mut [f32], moments: [&[f32]; 2]) {
        step_weights(self.factors(stride, time), weights, moments);
    }

    pub(crate) fn factors(&self, stride: Stride, time: u32) -> Factors {
        let time = time as i32;
        Factors {
            scale: stride.scale as f32,
            keep: self.betas,
            take: self.betas.map(|beta| 1.0 - beta),
            unbias: self.betas.map(|beta| 1.0 - beta.powi(time)),
            epsilon: self.epsilon,
            shrink: (1.0 - stride.lr * self.weight_decay) as f32,
            lr: stride.lr as f32,
        }
    }
}

/// Factors for one division per element. Rounds differently from [`Factors::step`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Folded {
    keep: [f32; 2],
    /// For the first moment, and for the square root of the second.
    take: [f32; 2],
    /// Includes both bias corrections.
    lr: f32,
    epsilon: f32,
    shrink: f32,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Element {
    pub(crate) weight: f32,
    pub(crate) first: f32,
    pub(crate) second: f32,
}

impl Factors {
    #[inline(always)]
    pub(crate) fn step(&self, element: Element, gradient: f32) -> Element {
        let [first, second] = self.moments([element.first, element.second], gradient);
        Element { weight: self.weight(element.weight, [first, second]), first, second }
    }

    #[inline(always)]
    pub(crate) fn moments(&self, [first, second]: [f32; 2], gradient: f32) -> [f32; 2] {
        let gradient = gradient * self.scale;
        let first = first * self.keep[0] + gradient * self.take[0];
        [first, second * self.keep[1] + gradient * gradient * self.take[1]]
    }

    #[inline(always)]
    pub(crate) fn weight(&self, weight: f32, [first, second]: [f32; 2]) -> f32 {
        let delta = first / self.unbias[0] / ((second / self.unbias[1]).sqrt() + self.epsilon);
        weight * self.shrink - delta * self.lr
    }

    pub(crate) fn folded(&self) -> Folded {
        let root = self.unbias[1].sqrt();
        Folded {
            keep: self.keep,
            take: [self.scale * self.take[0], self.scale * self.take[1].sqrt()],
            lr: self.lr * (root / self.unbias[0]),
            epsilon: self.epsilon * root,
            shrink: self.shrink,
        }
    }
}

impl Folded {
    #[inline(always)]
    pub(crate) fn step(&self, element: Element, gradient: f32) -> Element {
        let Element { weight, first, second } = element;
        let root = gradient * self.take[1];
        let first = first * self.keep[0] + gradient * self.take[0];
        let second = second * self.keep[1] + root * root;
        let delta = first * self.lr / (second.sqrt() + self.epsilon);
        Element { weight: weight * self.shrink - delta, first, second }
    }
}

pub(crate) fn step_adamw<G: Number, M: Number, W: DeviceWeight>(
    factors: Factors,
    noise: Noise,
    masters: &mut [f32],
    [first, second]: [&mut [M]; 2],
    gradient: &[G],
    weights: &mut [W],
) {
    let moments = first.par_chunks_mut(PIECE).zip(second.par_chunks_mut(PIECE));
    let outside = gradient.par_chunks(PIECE).zip(weights.par_chunks_mut(PIECE));
    let pieces = masters.par_chunks_mut(PIECE).zip(moments).zip(outside);
    pieces.enumerate().for_each(|(n, ((masters, (first, second)), (gradient, weights)))| {
        let begin = (n * PIECE) as u32;
        vectorised(
            #[inline(always)]
            || step_elements_adamw(factors, noise, begin, masters, [first, second], gradient, weights),
        );
    });
}

fn step_moments(factors: Factors, [first, second]: [&mut [f32]; 2], gradient: &[f32]) {
    let moments = first.par_chunks_mut(PIECE).zip(second.par_chunks_mut(PIECE));
    moments.zip(gradient.par_chunks(PIECE)).for_each(|((first, second), gradient)| {
        vectorised(
            #[inline(always)]
            || {
                for ((first, second), gradient) in first.iter_mut().zip(second).zip(gradient) {
                    [*first, *second] = factors.moments([*first, *second], *gradient);
                }
            },
        );
    });
}

fn step_weights(factors: Factors, weights: &mut [f32], [first, second]: [&[f32]; 2]) {
    let moments = first.par_chunks(PIECE).zip(second.par_chunks(PIECE));
    weights.par_chunks_mut(PIECE).zip(moments).for_each(|(weights, (first, second))| {
        vectorised(
            #[inline(always)]
            || {
                for ((weight, first), second) in weights.iter_mut().zip(first).zip(second) {
                    *weight = factors.weight(*weight, [*first, *second]);
                }
            },
        );
    });
}

#[inline(always)]
pub(crate) fn step_elements_adamw<G: Number, M: Number, W: DeviceWeight>(
    factors: Factors,
    noise: Noise,
    begin: u32,
    masters: &mut [f32],
    [first, second]: [&mut [M]; 2],
    gradient: &[G],
    weights: &mut [W],
) {
    let len = masters.len();
    let (first, second) = (&mut first[..len], &mut second[..len]);
    let (gradient, weights) = (&gradient[..len], &mut weights[..len]);
    for n in 0..len {
        let noise = noise.draw(begin.wrapping_add(n as u32));
        let element = Element { weight: masters[n], first: first[n].wide(), second: second[n].wide() };
        let stepped = factors.step(element, gradient[n].wide());
        masters[n] = stepped.weight;
        first[n] = M::rounded(stepped.first, noise);
        second[n] = M::rounded(stepped.second, noise << 16);
        weights[n] = W::from_master(stepped.weight);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_step_has_the_length_of_the_learning_rate() {
        let rule = AdamW { betas: [0.9, 0.95], epsilon: 0.0, weight_decay: 0.0 };
        let factors = rule.factors(Stride { lr: 0.5, scale: 1.0 }, 1);
        let before = Element { weight: 2.0, first: 0.0, second: 0.0 };
        let after = factors.step(before, -3.0);
        assert!((after.weight - 2.5).abs() < 1e-6, "{after:?}");
        assert!((after.first + 0.3).abs() < 1e-6 && (after.second - 0.45).abs() < 1e-6, "{after:?}");
    }

    #[test]
    fn two_halves_have_the_bits_of_one_step() {
        let rule = AdamW { betas: [0.9, 0.95], epsilon: 1e-8, weight_decay: 0.1 };
        let stride = Stride { lr: 0.3, scale: 0.7 };
        let numbers = |seed: usize| (0..20_000).map(move |n| ((n * 7919 + seed) % 2003) as f32 / 500.0 - 2.0);
        let gradient: Vec<f32> = numbers(5).collect();
        let mut whole = [numbers(1).collect(), numbers(2).collect(), numbers(3).map(f32::abs).collect()];
        let mut halves: [Vec<f32>; 3] = whole.clone();
        for time in 1..4 {
            let [weights, first, second] = &mut whole;
            rule.step(stride, time, weights, [first, second], &gradient);
            let [weights, first, second] = &mut halves;
            rule.step_moments(stride, time, [first, second], &gradient);
            rule.step_weights(stride, time, weights, [first, second]);
        }
        let bits = |vectors: &[Vec<f32>; 3]| {
            vectors.clone().map(|vector| vector.into_iter().map(f32::to_bits).collect::<Vec<_>>())
        };
        assert_eq!(bits(&halves), bits(&whole));
    }

    #[test]
    fn decay_shrinks_the_weight_and_not_the_moments() {
        let rule = AdamW { betas: [0.9, 0.95], epsilon: 1e-8, weight_decay: 0.1 };
        let factors = rule.factors(Stride { lr: 0.5, scale: 1.0 }, 1);
        let after = factors.step(Element { weight: 2.0, first: 0.0, second: 0.0 }, 0.0);
        assert_eq!((after.weight, after.first, after.second), (1.9, 0.0, 0.0));
    }

    #[test]
    fn folded_factors_differ_by_rounding_alone() {
        let rule = AdamW { betas: [0.9, 0.95], epsilon: 1e-3, weight_decay: 0.1 };
        for time in 1..40 {
            let factors = rule.factors(Stride { lr: 0.5, scale: 0.25 }, time);
            for size in [1e-6, 1e-2, 7.0] {
                let before = Element { weight: 2.0, first: -0.3 * size, second: 0.2 * size * size };
                let (exact, folded) = (factors.step(before, size), factors.folded().step(before, size));
                let near = |a: f32, b: f32| (a - b).abs() <= 4.0 * f32::EPSILON * a.abs();
                assert!(near(exact.first, folded.first) && near(exact.second, folded.second));
                let moved = [exact, folded].map(|element| 2.0 * 0.95 - element.weight);
                assert!((moved[0] - moved[1]).abs() <= 1e-6, "{moved:?}");
            }
        }
    }

    #[test]
    fn a_scale_of_half_equals_half_the_gradient() {
        let rule = AdamW { betas: [0.5, 0.5], epsilon: 1.0, weight_decay: 0.0 };
        let element = Element { weight: 1.0, first: 0.0, second: 0.0 };
        let halved = rule.factors(Stride { lr: 1.0, scale: 0.5 }, 1).step(element, 4.0);
        let half = rule.factors(Stride { lr: 1.0, scale: 1.0 }, 1).step(element, 2.0);
        assert_eq!(halved.weight.to_bits(), half.weight.to_bits());
    }
}
