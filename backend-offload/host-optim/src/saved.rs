//! States in full precision for checkpoints, whatever the format.

use std::ops::Range;

use crate::error::HostOptimError;
use crate::format::Format;
use crate::layout::{CODE_BASES, FIRST, Layout, MASTERS, Moments, SECOND};
use crate::numbers::{Values, ValuesMut, nearest};
use crate::pieces::convert;
use crate::state::{HostState, check_len};
use crate::storage::StateMemory;

/// A state in full precision.
#[derive(Debug, Clone, PartialEq)]
pub struct Saved {
    /// Steps taken.
    pub time: u32,
    /// Master weights.
    pub weights: Vec<f32>,
    /// Both moments; for a velocity, the second is empty.
    pub moments: [Vec<f32>; 2],
}

impl HostState {
    /// Restores a state. `weights` receive the saved weights, rounded to their type. Formats narrower than f32 round
    /// moments to nearest.
    pub fn restore(
        memory: impl Into<StateMemory>,
        name: &str,
        format: Format,
        saved: &Saved,
        weights: &mut ValuesMut<'_>,
    ) -> Result<Self, HostOptimError> {
        let [first, second] = &saved.moments;
        let lengths = [("the saved weights", saved.weights.len()), ("the first moments", first.len())];
        let moments = if second.is_empty() { Moments::Velocity } else { Moments::Two };
        let second = (moments == Moments::Two).then_some(("the second moments", second.len()));
        for (what, found) in lengths.into_iter().chain(second) {
            check_len(name, what, weights.len(), found)?;
        }
        let memory = memory.into();
        match weights {
            _ if memory.host.computes_nothing() => {}
            ValuesMut::F32(weights) => weights.copy_from_slice(&saved.weights),
            ValuesMut::Bf16(weights) => convert(weights, &saved.weights, nearest),
        }
        let layout = Layout::new(format, moments, weights.values().is_narrow());
        let second = saved.moments[1].as_slice();
        let mut state = Self::build(&memory, name, layout, weights.len(), |range, arrays| {
            let second = if second.is_empty() { second } else { &second[range.clone()] };
            arrays.load(&saved.weights[range.clone()], [&first[range], second]);
        })?;
        state.time = saved.time;
        Ok(state)
    }

    /// The state without its gradient. `weights` are the device's.
    pub fn save(&self, weights: Values<'_>) -> Result<Saved, HostOptimError> {
        let saved_moments = [self.first_moments()?, self.second_moments()?];
        Ok(Saved { time: self.time, weights: self.masters(weights)?, moments: saved_moments })
    }

    /// Master weights; empty if the state [completes](Self::reads_weights) the device's weights.
    pub fn own_masters(&self) -> Result<Vec<f32>, HostOptimError> {
        if self.reads_weights() {
            return Ok(Vec::new());
        }
        self.numbers(MASTERS..MASTERS + 1, |_, parts, into| self.layout.masters(parts[0], None, into))
    }

    /// Master weights. `weights` are the device's, in bf16 for the compact format.
    pub fn masters(&self, weights: Values<'_>) -> Result<Vec<f32>, HostOptimError> {
        check_len(&self.name, "the parameter", self.len, weights.len())?;
        match weights {
            _ if !self.reads_weights() => self.own_masters(),
            Values::Bf16(weights) => self.numbers(MASTERS..MASTERS + 1, |range, parts, into| {
                self.layout.masters(parts[0], Some(&weights[range]), into);
            }),
            Values::F32(_) => Err(self.not_bf16_error()),
        }
    }

    /// Running means of the gradient, or the velocity.
    pub fn first_moments(&self) -> Result<Vec<f32>, HostOptimError> {
        self.numbers(FIRST..CODE_BASES + 1, |_, parts, into| {
            self.layout.wide_moments(0, parts[0], parts[1], into);
        })
    }

    /// Running means of the squared gradient; empty for a velocity.
    pub fn second_moments(&self) -> Result<Vec<f32>, HostOptimError> {
        if self.layout.moments == Moments::Velocity {
            return Ok(Vec::new());
        }
        self.numbers(CODE_BASES..SECOND + 1, |_, parts, into| {
            self.layout.wide_moments(1, parts[1], parts[0], into);
        })
    }

    fn numbers(
        &self,
        parts: Range<usize>,
        mut read: impl FnMut(Range<usize>, &[&[u8]], &mut [f32]),
    ) -> Result<Vec<f32>, HostOptimError> {
        let mut numbers = vec![0.0; self.len];
        self.storage.read(parts, self.len, |range, parts| read(range.clone(), parts, &mut numbers[range]))?;
        Ok(numbers)
    }
}
