//! States in full precision: what a checkpoint holds, whatever format the state is kept in.

use std::ops::Range;

use crate::error::HostOptimError;
use crate::format::Format;
use crate::kept::StateMemory;
use crate::layout::{BASES_OF_CODES, FIRST, Layout, MASTERS, Moments, SECOND};
use crate::numbers::{Values, ValuesMut, nearest};
use crate::pieces::convert;
use crate::state::{HostState, matching};

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
        memory: impl Into<StateMemory>,
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
        let memory = memory.into();
        match weights {
            _ if memory.host.computes_nothing() => {}
            ValuesMut::F32(weights) => weights.copy_from_slice(&saved.weights),
            ValuesMut::Bf16(weights) => convert(weights, &saved.weights, nearest),
        }
        let layout = Layout::of(format, kept, weights.values().is_narrow());
        let second = saved.moments[1].as_slice();
        let mut state = Self::made(&memory, name, layout, weights.len(), |range, arrays| {
            let second = if second.is_empty() { second } else { &second[range.clone()] };
            arrays.fill(&saved.weights[range.clone()], [&first[range], second]);
        })?;
        state.time = saved.time;
        Ok(state)
    }

    /// Everything but a gradient that waits, in full precision. `weights` are the parameter's own, as the device has them.
    ///
    /// # Errors
    /// As [`masters`](Self::masters).
    pub fn save(&self, weights: Values<'_>) -> Result<Saved, HostOptimError> {
        let moments = [self.first_moments()?, self.second_moments()?];
        Ok(Saved { time: self.time, weights: self.masters(weights)?, moments })
    }

    /// The master weights, where none are [completed](Self::reads_weights) on the host; else nothing.
    ///
    /// # Errors
    /// If the state is on the disk and cannot be read, or host memory has no room for a chunk of it.
    pub fn own_masters(&self) -> Result<Vec<f32>, HostOptimError> {
        if self.reads_weights() {
            return Ok(Vec::new());
        }
        self.numbers(MASTERS..MASTERS + 1, |_, parts, into| self.layout.masters(parts[0], None, into))
    }

    /// The master weights. `weights` are the parameter's own, as the device has them.
    ///
    /// # Errors
    /// If lengths differ, or the state completes bf16 weights and these are others; and as [`own_masters`](Self::own_masters).
    pub fn masters(&self, weights: Values<'_>) -> Result<Vec<f32>, HostOptimError> {
        matching(&self.name, "the parameter", self.len, weights.len())?;
        match weights {
            _ if !self.reads_weights() => self.own_masters(),
            Values::Bf16(weights) => self.numbers(MASTERS..MASTERS + 1, |range, parts, into| {
                self.layout.masters(parts[0], Some(&weights[range]), into);
            }),
            Values::F32(_) => Err(self.not_bf16()),
        }
    }

    /// Running means of the gradient, or the velocity.
    ///
    /// # Errors
    /// As [`own_masters`](Self::own_masters).
    pub fn first_moments(&self) -> Result<Vec<f32>, HostOptimError> {
        self.numbers(FIRST..BASES_OF_CODES + 1, |_, parts, into| {
            self.layout.wide_moments(0, parts[0], parts[1], into);
        })
    }

    /// Running means of its square; nothing where there is a velocity.
    ///
    /// # Errors
    /// As [`own_masters`](Self::own_masters).
    pub fn second_moments(&self) -> Result<Vec<f32>, HostOptimError> {
        if self.layout.moments == Moments::Velocity {
            return Ok(Vec::new());
        }
        self.numbers(BASES_OF_CODES..SECOND + 1, |_, parts, into| {
            self.layout.wide_moments(1, parts[1], parts[0], into);
        })
    }

    /// A number for each element, of these parts.
    fn numbers(
        &self,
        parts: Range<usize>,
        mut read: impl FnMut(Range<usize>, &[&[u8]], &mut [f32]),
    ) -> Result<Vec<f32>, HostOptimError> {
        let mut numbers = vec![0.0; self.len];
        self.kept.read(parts, self.len, |range, parts| read(range.clone(), parts, &mut numbers[range]))?;
        Ok(numbers)
    }
}
