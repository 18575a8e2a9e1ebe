//! The layout of a state: parts, each an array of one type.

use bytemuck::Pod;
use half::bf16;

use crate::adamw::{Stride, step_adamw};
use crate::codes::{BASES, BLOCK, decode_positive, decode_signed};
use crate::compact::{Compact, encode_nearest, step_compact};
use crate::format::Format;
use crate::noise::Noise;
use crate::numbers::{Number, Values, ValuesMut, completed, nearest, split};
use crate::pieces::{DeviceWeight, convert};
use crate::rule::Rule;
use crate::sgd::step_sgd;

/// A moment's parts are neighbours.
pub(crate) const PARTS: usize = 4;
/// F32 master weights, or the bits that complete bf16 weights.
pub(crate) const MASTERS: usize = 0;
/// Or their codes, or the velocity.
pub(crate) const FIRST: usize = 1;
/// A pair for each block.
pub(crate) const CODE_BASES: usize = 2;
pub(crate) const SECOND: usize = 3;

pub(crate) const PURPOSES: [&str; PARTS] =
    ["the master weights", "the first moments", "the bases", "the second moments"];

/// Numbers per element besides the weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moments {
    /// Running means of the gradient and of its square, for [`AdamW`](crate::AdamW).
    Two,
    /// For [`Sgd`](crate::Sgd). Stored as the first moment; the second is empty.
    Velocity,
    /// Another process steps the parameter: every rule fails, and nothing is stored.
    None,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) format: Format,
    pub(crate) moments: Moments,
}

#[derive(Debug)]
pub(crate) enum Arrays<'a> {
    F32 { masters: &'a mut [f32], moments: [&'a mut [f32]; 2] },
    Bf16Moments { masters: &'a mut [f32], moments: [&'a mut [bf16]; 2] },
    Compact { low: &'a mut [i16], codes: [&'a mut [u8]; 2], bases: &'a mut [[u16; 2]] },
}

impl Layout {
    /// `Compact` becomes `Bf16Moments` for a velocity, and for f32 weights, which have no bits to complete.
    pub(crate) fn new(format: Format, moments: Moments, is_narrow: bool) -> Self {
        let is_compact = is_narrow && moments == Moments::Two;
        let format = if format == Format::Compact && !is_compact { Format::Bf16Moments } else { format };
        Self { format, moments }
    }

    pub(crate) fn bytes(self, len: usize) -> [usize; PARTS] {
        let [masters, moment, bases] = match self.format {
            Format::F32 => [4 * len, 4 * len, 0],
            Format::Bf16Moments => [4 * len, 2 * len, 0],
            Format::Compact => [2 * len, len, BASES * len.div_ceil(BLOCK)],
        };
        match self.moments {
            Moments::Two => [masters, moment, bases, moment],
            Moments::Velocity => [masters, moment, bases, 0],
            Moments::None => [0; PARTS],
        }
    }

    pub(crate) fn arrays(self, [masters, first, bases, second]: [&mut [u8]; PARTS]) -> Arrays<'_> {
        match self.format {
            Format::F32 => {
                Arrays::F32 { masters: numbers_mut(masters), moments: [first, second].map(numbers_mut) }
            }
            Format::Bf16Moments => Arrays::Bf16Moments {
                masters: numbers_mut(masters),
                moments: [first, second].map(numbers_mut),
            },
            Format::Compact => Arrays::Compact {
                low: numbers_mut(masters),
                codes: [first, second],
                bases: numbers_mut(bases),
            },
        }
    }

    /// The compact format requires `weights`.
    pub(crate) fn masters(self, part: &[u8], weights: Option<&[bf16]>, into: &mut [f32]) {
        match (self.format, weights) {
            (Format::Compact, Some(weights)) => {
                let low: &[i16] = numbers(part);
                let pairs = weights.iter().zip(low);
                into.iter_mut().zip(pairs).for_each(|(to, (weight, low))| *to = completed(*weight, *low));
            }
            (Format::Compact, None) => unreachable!("refused before: its masters are the device's"),
            _ => into.copy_from_slice(numbers(part)),
        }
    }

    pub(crate) fn wide_moments(self, which: usize, part: &[u8], bases: &[u8], into: &mut [f32]) {
        match self.format {
            Format::F32 => into.copy_from_slice(numbers(part)),
            Format::Bf16Moments => convert::<bf16, f32>(into, numbers(part), |x| x),
            Format::Compact => {
                let decode: fn(u8, u16) -> f32 = [decode_signed, decode_positive][which];
                let bases: &[[u16; 2]] = numbers(bases);
                let blocks = into.chunks_mut(BLOCK).zip(part.chunks(BLOCK)).zip(bases);
                for ((into, codes), bases) in blocks {
                    into.iter_mut().zip(codes).for_each(|(to, code)| *to = decode(*code, bases[which]));
                }
            }
        }
    }
}

impl Arrays<'_> {
    pub(crate) fn parts(&mut self) -> [&mut [u8]; PARTS] {
        match self {
            Self::F32 { masters, moments } => {
                let [first, second] = moments.each_mut().map(|moment| bytemuck::cast_slice_mut(moment));
                [bytemuck::cast_slice_mut(masters), first, &mut [], second]
            }
            Self::Bf16Moments { masters, moments } => {
                let [first, second] = moments.each_mut().map(|moment| bytemuck::cast_slice_mut(moment));
                [bytemuck::cast_slice_mut(masters), first, &mut [], second]
            }
            Self::Compact { low, codes: [first, second], bases } => {
                [bytemuck::cast_slice_mut(low), first, bytemuck::cast_slice_mut(bases), second]
            }
        }
    }

    pub(crate) fn load(&mut self, weights: &[f32], saved: [&[f32]; 2]) {
        match self {
            Self::F32 { masters, moments } => {
                masters.copy_from_slice(weights);
                moments.iter_mut().zip(saved).for_each(|(kept, saved)| kept.copy_from_slice(saved));
            }
            Self::Bf16Moments { masters, moments } => {
                masters.copy_from_slice(weights);
                moments.iter_mut().zip(saved).for_each(|(kept, saved)| convert(kept, saved, nearest));
            }
            Self::Compact { low, codes: [first, second], bases } => {
                convert(low, weights, |master| split(master).1);
                let saved = saved[0].chunks(BLOCK).zip(saved[1].chunks(BLOCK));
                let codes = first.chunks_mut(BLOCK).zip(second.chunks_mut(BLOCK));
                for ((saved, (first, second)), bases) in saved.zip(codes).zip(&mut **bases) {
                    *bases = encode_nearest([saved.0, saved.1], first, second);
                }
            }
        }
    }

    /// Copies nothing in the compact format, whose bits start at zero.
    pub(crate) fn set_initial_weights(&mut self, weights: Values<'_>) {
        match (self, weights) {
            (Self::F32 { masters, .. } | Self::Bf16Moments { masters, .. }, Values::F32(weights)) => {
                masters.copy_from_slice(weights);
            }
            (Self::F32 { masters, .. } | Self::Bf16Moments { masters, .. }, Values::Bf16(weights)) => {
                convert(masters, weights, |x| x);
            }
            (Self::Compact { .. }, _) => {}
        }
    }

    pub(crate) fn masters(&self) -> &[f32] {
        match self {
            Self::F32 { masters, .. } | Self::Bf16Moments { masters, .. } => masters,
            Self::Compact { .. } => unreachable!("refused before: it has no masters"),
        }
    }
}

/// An empty part may be unaligned.
fn numbers<T: Pod>(bytes: &[u8]) -> &[T] {
    if bytes.is_empty() { &[] } else { bytemuck::cast_slice(bytes) }
}

fn numbers_mut<T: Pod>(bytes: &mut [u8]) -> &mut [T] {
    if bytes.is_empty() { &mut [] } else { bytemuck::cast_slice_mut(bytes) }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct StepContext<'a> {
    pub(crate) rule: &'a Rule,
    pub(crate) stride: Stride,
    /// From 1.
    pub(crate) time: u32,
    pub(crate) noise: Noise,
}

impl StepContext<'_> {
    pub(crate) fn step(self, arrays: &mut Arrays<'_>, gradient: Values<'_>, weights: Option<ValuesMut<'_>>) {
        match gradient {
            Values::F32(gradient) => self.step_with(arrays, gradient, weights),
            Values::Bf16(gradient) => self.step_with(arrays, gradient, weights),
        }
    }

    fn step_with<G: Number>(self, arrays: &mut Arrays<'_>, gradient: &[G], weights: Option<ValuesMut<'_>>) {
        match (weights, arrays, self.rule) {
            (
                Some(ValuesMut::Bf16(weights)),
                Arrays::Compact { low, codes: [first, second], bases },
                Rule::AdamW(rule),
            ) => {
                let state = Compact { low, first, second, bases };
                let factors = rule.factors(self.stride, self.time);
                step_compact(&factors, self.noise, state, gradient, weights);
            }
            (Some(ValuesMut::F32(weights)), arrays, _) => self.step_with_masters(arrays, gradient, weights),
            (Some(ValuesMut::Bf16(weights)), arrays, _) => self.step_with_masters(arrays, gradient, weights),
            (None, arrays, _) => self.step_with_masters(arrays, gradient, &mut vec![(); gradient.len()]),
        }
    }

    fn step_with_masters<G: Number, W: DeviceWeight>(
        self,
        arrays: &mut Arrays<'_>,
        gradient: &[G],
        weights: &mut [W],
    ) {
        match arrays {
            Arrays::F32 { masters, moments: [first, second] } => {
                self.step_arrays(masters, [first, second], gradient, weights);
            }
            Arrays::Bf16Moments { masters, moments: [first, second] } => {
                self.step_arrays(masters, [first, second], gradient, weights);
            }
            Arrays::Compact { .. } => {
                unreachable!("refused before: its weights are bf16, and its only masters")
            }
        }
    }

    fn step_arrays<G: Number, M: Number, W: DeviceWeight>(
        self,
        masters: &mut [f32],
        moments: [&mut [M]; 2],
        gradient: &[G],
        weights: &mut [W],
    ) {
        match self.rule {
            Rule::AdamW(rule) => {
                let factors = rule.factors(self.stride, self.time);
                step_adamw(factors, self.noise, masters, moments, gradient, weights);
            }
            Rule::Sgd(rule) => {
                let ([velocity, _nothing], factors) = (moments, rule.factors(self.stride));
                step_sgd(factors, self.noise, masters, velocity, gradient, weights);
            }
        }
    }
}
