//! States in full precision: what a checkpoint holds, whatever format the state is kept in.

use backend_offload::{HostBuffer, HostMemory};
use half::bf16;

use crate::codes::{decode_positive, decode_signed};
use crate::compact::encode_nearest;
use crate::error::HostOptimError;
use crate::format::{BLOCK, Format};
use crate::numbers::{Number, Values, ValuesMut, completed, nearest, split};
use crate::pieces::convert;
use crate::state::{HostState, Kept, Moments, matching};

/// A state in full precision, for files.
#[derive(Debug, Clone, PartialEq)]
pub struct Saved {
    /// Steps taken.
    pub time: u32,
    /// Master weights.
    pub weights: Vec<f32>,
    /// First and second moments; a velocity and nothing where there is one.
    pub moments: [Vec<f32>; 2],
}

impl HostState {
    /// The state that was saved. `weights` become the saved ones, rounded to their type; formats narrower than f32 round
    /// the moments to the nearest.
    ///
    /// # Errors
    /// If the host tier has no room, or lengths differ.
    pub fn restore(
        memory: &HostMemory,
        name: &str,
        format: Format,
        saved: &Saved,
        weights: &mut ValuesMut<'_>,
    ) -> Result<Self, HostOptimError> {
        let [first, second] = &saved.moments;
        let lengths = [("the saved weights", saved.weights.len()), ("the first moments", first.len())];
        let kept = if second.is_empty() { Moments::Velocity } else { Moments::Two };
        let second = (kept == Moments::Two).then_some(("the second moments", second.len()));
        for (what, found) in lengths.into_iter().chain(second) {
            matching(name, what, weights.len(), found)?;
        }
        match weights {
            ValuesMut::F32(weights) => weights.copy_from_slice(&saved.weights),
            ValuesMut::Bf16(weights) => convert(weights, &saved.weights, nearest),
        }
        let mut state =
            Self::blank(memory, name, (format, kept), weights.len(), weights.values().is_narrow())?;
        state.time = saved.time;
        match &mut state.kept {
            Kept::F32 { masters, moments } => {
                bytemuck::cast_slice_mut(masters).copy_from_slice(&saved.weights);
                for (kept, saved) in moments.iter_mut().zip(&saved.moments) {
                    bytemuck::cast_slice_mut(kept).copy_from_slice(saved);
                }
            }
            Kept::Bf16Moments { masters, moments } => {
                bytemuck::cast_slice_mut(masters).copy_from_slice(&saved.weights);
                for (kept, saved) in moments.iter_mut().zip(&saved.moments) {
                    convert(bytemuck::cast_slice_mut::<u8, bf16>(kept), saved, nearest);
                }
            }
            Kept::Compact { low, codes: [first, second], bases } => {
                convert(bytemuck::cast_slice_mut(low), &saved.weights, |master| split(master).1);
                let bases: &mut [[u16; 2]] = bytemuck::cast_slice_mut(bases);
                let saved = saved.moments[0].chunks(BLOCK).zip(saved.moments[1].chunks(BLOCK));
                let codes = first.chunks_mut(BLOCK).zip(second.chunks_mut(BLOCK));
                for ((saved, (first, second)), bases) in saved.zip(codes).zip(bases) {
                    *bases = encode_nearest([saved.0, saved.1], first, second);
                }
            }
        }
        Ok(state)
    }

    /// Everything but a gradient that waits, in full precision. `weights` are the parameter's own, as the device has them.
    ///
    /// # Errors
    /// As [`masters`](Self::masters).
    pub fn save(&self, weights: Values<'_>) -> Result<Saved, HostOptimError> {
        let moments = [self.first_moments(), self.second_moments()];
        Ok(Saved { time: self.time, weights: self.masters(weights)?, moments })
    }

    /// The master weights, where none are [completed](Self::reads_weights) on the host; else nothing.
    pub fn own_masters(&self) -> Vec<f32> {
        match &self.kept {
            Kept::F32 { masters, .. } | Kept::Bf16Moments { masters, .. } => wide::<f32>(masters),
            Kept::Compact { .. } => Vec::new(),
        }
    }

    /// The master weights. `weights` are the parameter's own, as the device has them.
    ///
    /// # Errors
    /// If lengths differ, or the state completes bf16 weights and these are others.
    pub fn masters(&self, weights: Values<'_>) -> Result<Vec<f32>, HostOptimError> {
        matching(&self.name, "the parameter", self.len, weights.len())?;
        match (&self.kept, weights) {
            (Kept::F32 { .. } | Kept::Bf16Moments { .. }, _) => Ok(self.own_masters()),
            (Kept::Compact { low, .. }, Values::Bf16(weights)) => {
                let low: &[i16] = bytemuck::cast_slice(low);
                Ok(weights.iter().zip(low).map(|(weight, low)| completed(*weight, *low)).collect())
            }
            (Kept::Compact { .. }, Values::F32(_)) => Err(self.not_bf16()),
        }
    }

    /// Running means of the gradient, or the velocity.
    pub fn first_moments(&self) -> Vec<f32> {
        self.wide_moments(0, decode_signed)
    }

    /// Running means of its square; nothing where there is a velocity.
    pub fn second_moments(&self) -> Vec<f32> {
        self.wide_moments(1, decode_positive)
    }

    fn wide_moments(&self, which: usize, decode: fn(u8, u16) -> f32) -> Vec<f32> {
        match &self.kept {
            Kept::F32 { moments, .. } => wide::<f32>(&moments[which]),
            Kept::Bf16Moments { moments, .. } => wide::<bf16>(&moments[which]),
            Kept::Compact { codes, bases, .. } => {
                let bases: &[[u16; 2]] = bytemuck::cast_slice(bases);
                let numbered = codes[which].iter().enumerate();
                numbered.map(|(n, code)| decode(*code, bases[n / BLOCK][which])).collect()
            }
        }
    }
}

fn wide<T: Number>(buffer: &HostBuffer) -> Vec<f32> {
    let narrow: &[T] = bytemuck::cast_slice(buffer);
    let mut wide = vec![0.0; narrow.len()];
    convert(&mut wide, narrow, |x| x);
    wide
}
