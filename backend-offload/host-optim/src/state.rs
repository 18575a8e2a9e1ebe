//! One parameter's state: its master weights and its moments, on the host or on the disk below it, and the gradient that waits
//! for the next step.
//!
//! The order of a step is: gradients [arrive](HostState::arrive), in one share or in several; the caller adds up
//! [`HostState::squares`] of all parameters and decides; then each parameter [steps](HostState::step), or all
//! [drop](HostState::drop_gradient) what arrived. Memory is taken when a state is made and when a gradient arrives; a step of a
//! state on the disk takes that of a few chunks before it begins.

use std::ops::Range;

use backend_offload::HostMemory;

use crate::adamw::Stride;
use crate::chunks::Pipeline;
use crate::error::HostOptimError;
use crate::format::Format;
use crate::gradient::Gradient;
use crate::kept::{Kept, StateMemory};
use crate::layout::{Along, Arrays, Layout, MASTERS, Moments};
use crate::noise::Noise;
use crate::numbers::{Values, ValuesMut};
use crate::rule::Rule;
use crate::tiles::{Code, TILE, encode, tiles};

/// A parameter's state.
#[derive(Debug)]
pub struct HostState {
    pub(crate) name: String,
    pub(crate) memory: HostMemory,
    pub(crate) len: usize,
    pub(crate) time: u32,
    pub(crate) layout: Layout,
    pub(crate) kept: Kept,
    /// Number of the first share of the next gradient.
    first_share: u64,
    gradient: Option<Gradient>,
    /// The sum of squares of what has arrived, where it was asked for since.
    squares: Option<f64>,
}

impl HostState {
    /// The state before the first step of a parameter with these `weights`, in host memory or on the disk below it. A parameter in
    /// f32 has no bits to complete, so its compact state is the one with moments in bf16.
    ///
    /// # Errors
    /// If the memory has no room.
    pub fn new(
        memory: impl Into<StateMemory>,
        name: &str,
        format: Format,
        weights: Values<'_>,
    ) -> Result<Self, HostOptimError> {
        Self::begun(&memory.into(), name, (format, Moments::Two), weights)
    }

    /// The same, of a parameter that is stepped by [`Sgd`](crate::Sgd).
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_velocity(
        memory: impl Into<StateMemory>,
        name: &str,
        format: Format,
        weights: Values<'_>,
    ) -> Result<Self, HostOptimError> {
        Self::begun(&memory.into(), name, (format, Moments::Velocity), weights)
    }

    fn begun(
        memory: &StateMemory,
        name: &str,
        (format, moments): (Format, Moments),
        weights: Values<'_>,
    ) -> Result<Self, HostOptimError> {
        let layout = Layout::of(format, moments, weights.is_narrow());
        Self::made(memory, name, layout, weights.len(), |range, arrays| arrays.begin(weights.part(range)))
    }

    /// A state as `fill` makes it of zeros, stretch by stretch.
    pub(crate) fn made(
        memory: &StateMemory,
        name: &str,
        layout: Layout,
        len: usize,
        fill: impl FnMut(Range<usize>, &mut Arrays<'_>),
    ) -> Result<Self, HostOptimError> {
        let kept = Kept::new(memory, name, layout, len, fill)?;
        let (name, memory) = (name.to_owned(), memory.host.clone());
        let (first_share, gradient, squares) = (0, None, None);
        Ok(Self { name, memory, len, time: 0, layout, kept, first_share, gradient, squares })
    }

    /// The next gradients' shares are numbered from `first` on, where others have those before. Shares are added pairwise by
    /// their number, so that the sum does not depend on who adds which.
    pub fn number_shares_from(&mut self, first: u64) {
        self.first_share = first;
    }

    /// The number of the share that arrives next.
    pub fn next_share(&self) -> u64 {
        self.gradient.as_ref().map_or(self.first_share, Gradient::next)
    }

    /// Takes a gradient in, or the next share of it.
    ///
    /// # Errors
    /// If the host tier has no room, or the length is another than the parameter's. Earlier shares are lost then.
    pub fn arrive(&mut self, share: Values<'_>) -> Result<(), HostOptimError> {
        matching(&self.name, "the gradient", self.len, share.len())?;
        self.squares = None;
        let mut gradient = self.gradient.take().unwrap_or_else(|| Gradient::new(self.first_share));
        gradient.arrive(&self.memory, &self.name, share)?;
        self.gradient = Some(gradient);
        Ok(())
    }

    /// The gradient received so far: sums of neighbouring shares, in order.
    pub fn shares(&self) -> Vec<Values<'_>> {
        self.gradient.iter().flat_map(Gradient::parts).collect()
    }

    /// Takes `whole` in for whatever has arrived: what all shares together came to elsewhere.
    ///
    /// # Errors
    /// As [`arrive`](Self::arrive). The shares are lost then.
    pub fn replace_gradient(&mut self, whole: Values<'_>) -> Result<(), HostOptimError> {
        self.drop_gradient();
        self.arrive(whole)
    }

    /// The sum of squares of the gradient, once all shares have arrived; 0 if none has.
    ///
    /// # Errors
    /// If the host tier has no room to add them up. The gradient is lost then.
    pub fn squares(&mut self) -> Result<f64, HostOptimError> {
        if let Some(squares) = self.squares {
            return Ok(squares);
        }
        let Some(mut gradient) = self.gradient.take() else { return Ok(0.0) };
        gradient.complete(&self.memory, &self.name)?;
        let squares = if self.memory.computes_nothing() { 0.0 } else { gradient.squares() };
        (self.gradient, self.squares) = (Some(gradient), Some(squares));
        Ok(squares)
    }

    /// Whether a gradient waits for the next step.
    pub fn has_gradient(&self) -> bool {
        self.gradient.is_some()
    }

    /// Forgets the gradient that has arrived.
    pub fn drop_gradient(&mut self) {
        (self.gradient, self.squares) = (None, None);
    }

    /// One step along the gradient that has arrived. `weights` become the new ones, rounded to their type; the compact
    /// format also reads the old ones there.
    ///
    /// # Errors
    /// If no gradient has arrived, lengths differ, the state was made for another rule, or it completes bf16 weights and these are
    /// others; and if the host tier has no room to add shares up, which are lost then, or for chunks of a state on the disk. Weights
    /// and moments have not changed. If the disk fails, weights are NaN and the state is lost.
    pub fn step(
        &mut self,
        rule: impl Into<Rule>,
        stride: Stride,
        mut weights: ValuesMut<'_>,
    ) -> Result<(), HostOptimError> {
        let rule = &rule.into();
        let len = weights.len();
        let stepped =
            self.alone(|state, pipeline| state.step_in(pipeline, rule, stride, weights.part(0..len)));
        stepped.inspect_err(|_| {
            if self.kept.is_torn() {
                weights.fill_with_nan();
            }
        })
    }

    /// Takes a step of this state and no other.
    pub(crate) fn alone(
        &mut self,
        step: impl FnOnce(&mut Self, &mut Pipeline) -> Result<(), HostOptimError>,
    ) -> Result<(), HostOptimError> {
        let mut pipeline = Pipeline::over([&self.kept])?;
        step(self, &mut pipeline)?;
        self.kept.when_written(&mut pipeline, || {});
        drop(pipeline);
        self.kept.is_written()
    }

    /// [`step`](Self::step), as one of those that `pipeline` was made for. The new numbers count once they are
    /// [written](Kept::when_written); after an error, weights may be of no step.
    pub(crate) fn step_in(
        &mut self,
        pipeline: &mut Pipeline,
        rule: &Rule,
        stride: Stride,
        mut weights: ValuesMut<'_>,
    ) -> Result<(), HostOptimError> {
        self.is_made_for(rule)?;
        matching(&self.name, "the parameter", self.len, weights.len())?;
        if self.reads_weights() && !weights.values().is_narrow() {
            return Err(self.not_bf16());
        }
        self.step_stretches(pipeline, rule, stride, |along, range, arrays, gradient| {
            along.step(arrays, gradient, Some(weights.part(range)));
        })
    }

    /// The same of the master weights alone, which the format [has](Self::has_masters); and these in tiles: all codes, then all
    /// scales.
    pub(crate) fn step_to_tiles(
        &mut self,
        pipeline: &mut Pipeline,
        rule: &Rule,
        stride: Stride,
        code: Code,
        into: &mut [u8],
    ) -> Result<(), HostOptimError> {
        self.is_made_for(rule)?;
        let len = self.len;
        self.step_stretches(pipeline, rule, stride, |along, range, arrays, gradient| {
            along.step(arrays, gradient, None);
            encode_stretch(code, arrays.masters(), (range, len), into);
        })
    }

    /// Takes a step, stretch by stretch of the parameter, with as much of the gradient.
    fn step_stretches(
        &mut self,
        pipeline: &mut Pipeline,
        rule: &Rule,
        stride: Stride,
        mut step: impl FnMut(Along<'_>, Range<usize>, &mut Arrays<'_>, Values<'_>),
    ) -> Result<(), HostOptimError> {
        let gradient = self.take_gradient()?;
        if self.memory.computes_nothing() {
            return Ok(());
        }
        let noise = Noise::new(key(&self.name), self.time);
        let along = Along { rule, stride, time: self.time, noise };
        self.kept.change(pipeline, self.layout, self.len, |range, arrays| {
            let along = Along { noise: noise.from(range.start), ..along };
            step(along, range.clone(), arrays, gradient.whole().part(range));
        })
    }

    pub(crate) fn is_made_for(&self, rule: &Rule) -> Result<(), HostOptimError> {
        match (rule, self.layout.moments) {
            (Rule::AdamW(_), Moments::Two) | (Rule::Sgd(_), Moments::Velocity) => Ok(()),
            _ => Err(HostOptimError::OtherRule { name: self.name.clone(), rule: rule.name() }),
        }
    }

    /// The gradient that has arrived, added up, for the step that begins.
    fn take_gradient(&mut self) -> Result<Gradient, HostOptimError> {
        let Some(mut gradient) = self.gradient.take() else {
            return Err(HostOptimError::NoGradient { name: self.name.clone() });
        };
        gradient.complete(&self.memory, &self.name)?;
        self.squares = None;
        self.time += 1;
        Ok(gradient)
    }

    /// The parameter's name, in errors and for the bits that round its moments.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether a step needs the parameter's weights as the device has them.
    pub fn reads_weights(&self) -> bool {
        self.layout.format == Format::Compact
    }

    /// Whether the master weights are here.
    ///
    /// # Errors
    /// If they are what the device has, completed.
    pub(crate) fn has_masters(&self) -> Result<(), HostOptimError> {
        if self.reads_weights() { Err(HostOptimError::NoMasters { name: self.name.clone() }) } else { Ok(()) }
    }

    /// The master weights in tiles: all codes, then all scales.
    pub(crate) fn encode(&self, code: Code, into: &mut [u8]) -> Result<(), HostOptimError> {
        self.kept.read(MASTERS..MASTERS + 1, self.len, |range, parts| {
            encode_stretch(code, bytemuck::cast_slice(parts[0]), (range, self.len), into);
        })
    }

    /// Moments that it keeps of each number of its parameter: 2, 1 where it has a velocity, or none where it takes
    /// [gradients alone](Self::of_gradients).
    pub fn moments(&self) -> usize {
        match self.layout.moments {
            Moments::Two => 2,
            Moments::Velocity => 1,
            Moments::Elsewhere => 0,
        }
    }

    /// Elements of the parameter.
    #[expect(clippy::len_without_is_empty, reason = "a parameter has elements")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Steps taken.
    pub fn time(&self) -> u32 {
        self.time
    }

    /// Bytes held on the host, an arrived gradient included.
    pub fn host_bytes(&self) -> u64 {
        self.kept.host_bytes() + self.gradient.as_ref().map_or(0, Gradient::bytes)
    }

    /// Bytes on the disk, where the state is there.
    pub fn disk_bytes(&self) -> u64 {
        self.kept.disk_bytes()
    }

    pub(crate) fn not_bf16(&self) -> HostOptimError {
        HostOptimError::NotBf16 { name: self.name.clone(), found: "f32" }
    }
}

/// Encodes a stretch of so many master weights in all. Tiles do not go over its ends.
fn encode_stretch(code: Code, masters: &[f32], (range, len): (Range<usize>, usize), into: &mut [u8]) {
    let (codes, scales) = into.split_at_mut(TILE * tiles(len));
    let (first, count) = (range.start / TILE, tiles(range.len()));
    let scales: &mut [f32] = bytemuck::cast_slice_mut(scales);
    encode(code, masters, &mut codes[TILE * first..][..TILE * count], &mut scales[first..][..count]);
}

pub(crate) fn matching(
    name: &str,
    what: &'static str,
    expected: usize,
    found: usize,
) -> Result<(), HostOptimError> {
    if expected == found {
        return Ok(());
    }
    Err(HostOptimError::Length { name: name.to_owned(), what, expected, found })
}

/// A number that tells parameters apart: FNV-1a of the name.
pub(crate) fn key(name: &str) -> u32 {
    name.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}
