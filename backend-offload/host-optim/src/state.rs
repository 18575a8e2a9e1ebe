//! One parameter's state: master weights, moments and next gradient, in host memory or on disk.
//!
//! Gradients [arrive](HostState::arrive) in shares. Then a state [steps](HostState::step) or
//! [drops](HostState::drop_gradient) its gradient. Memory is taken at creation and arrival; on disk, also before a
//! step.

use std::ops::Range;

use backend_offload::HostMemory;

use crate::adamw::Stride;
use crate::chunks::Pipeline;
use crate::error::HostOptimError;
use crate::format::Format;
use crate::gradient::Gradient;
use crate::layout::{Arrays, Layout, MASTERS, Moments, StepContext};
use crate::noise::Noise;
use crate::numbers::{Values, ValuesMut};
use crate::rule::Rule;
use crate::storage::{StateMemory, Storage};
use crate::tiles::{Code, TILE, encode, tiles};

/// State of a parameter.
#[derive(Debug)]
pub struct HostState {
    pub(crate) name: String,
    pub(crate) memory: HostMemory,
    pub(crate) len: usize,
    pub(crate) time: u32,
    pub(crate) layout: Layout,
    pub(crate) storage: Storage,
    first_share: u64,
    gradient: Option<Gradient>,
    /// Cached until the gradient changes.
    squares: Option<f64>,
}

impl HostState {
    /// A state before its first step.
    pub fn new(
        memory: impl Into<StateMemory>,
        name: &str,
        format: Format,
        weights: Values<'_>,
    ) -> Result<Self, HostOptimError> {
        Self::initial(&memory.into(), name, (format, Moments::Two), weights)
    }

    /// [`new`](Self::new) for steps of [`Sgd`](crate::Sgd).
    pub fn with_velocity(
        memory: impl Into<StateMemory>,
        name: &str,
        format: Format,
        weights: Values<'_>,
    ) -> Result<Self, HostOptimError> {
        Self::initial(&memory.into(), name, (format, Moments::Velocity), weights)
    }

    fn initial(
        memory: &StateMemory,
        name: &str,
        (format, moments): (Format, Moments),
        weights: Values<'_>,
    ) -> Result<Self, HostOptimError> {
        let layout = Layout::new(format, moments, weights.is_narrow());
        Self::build(memory, name, layout, weights.len(), |range, arrays| {
            arrays.set_initial_weights(weights.part(range));
        })
    }

    pub(crate) fn build(
        memory: &StateMemory,
        name: &str,
        layout: Layout,
        len: usize,
        fill: impl FnMut(Range<usize>, &mut Arrays<'_>),
    ) -> Result<Self, HostOptimError> {
        let storage = Storage::new(memory, name, layout, len, fill)?;
        let (name, memory) = (name.to_owned(), memory.host.clone());
        let (first_share, gradient, squares) = (0, None, None);
        Ok(Self { name, memory, len, time: 0, layout, storage, first_share, gradient, squares })
    }

    /// Numbers later shares from `first` on: the order of addition, whichever rank adds them.
    pub fn number_shares_from(&mut self, first: u64) {
        self.first_share = first;
    }

    /// Number of the next share.
    pub fn next_share(&self) -> u64 {
        self.gradient.as_ref().map_or(self.first_share, Gradient::next)
    }

    /// Receives a gradient, or its next share. An error loses earlier shares.
    pub fn arrive(&mut self, share: Values<'_>) -> Result<(), HostOptimError> {
        self.arrive_sum(share, 0)
    }

    /// Receives the sum of the next `1 << level` shares, added pairwise. Panics unless their first number is a multiple
    /// of their count.
    pub fn arrive_sum(&mut self, sum: Values<'_>, level: u32) -> Result<(), HostOptimError> {
        check_len(&self.name, "the gradient", self.len, sum.len())?;
        self.squares = None;
        let mut gradient = self.gradient.take().unwrap_or_else(|| Gradient::new(self.first_share));
        gradient.arrive(&self.memory, &self.name, sum, level)?;
        self.gradient = Some(gradient);
        Ok(())
    }

    /// Received gradient: sums of neighbouring shares, in order.
    pub fn shares(&self) -> Vec<Values<'_>> {
        self.gradient.iter().flat_map(Gradient::partial_sums).collect()
    }

    /// Replaces all received shares with `whole`, the sum over all ranks. An error loses them.
    pub fn replace_gradient(&mut self, whole: Values<'_>) -> Result<(), HostOptimError> {
        self.drop_gradient();
        self.arrive(whole)
    }

    /// Sum of squares after the last share; 0 without a gradient. An error loses the gradient.
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

    /// [`squares`](Self::squares) before further shares, whose sum keeps its bits. An error changes nothing.
    pub(crate) fn squares_so_far(&mut self) -> Result<f64, HostOptimError> {
        let Some(gradient) = self.gradient.as_ref().filter(|_| self.squares.is_none()) else {
            return self.squares();
        };
        let squares = gradient.squares_so_far(&self.memory, &self.name)?;
        self.squares = Some(squares);
        Ok(squares)
    }

    /// Whether a gradient waits for a step.
    pub fn has_gradient(&self) -> bool {
        self.gradient.is_some()
    }

    /// Drops the gradient.
    pub fn drop_gradient(&mut self) {
        (self.gradient, self.squares) = (None, None);
    }

    /// One step along the received gradient. `weights` receive the result, rounded to their type. The compact format
    /// also reads them.
    ///
    /// An error also loses shares not yet added; see [`HostOptimError`].
    pub fn step(
        &mut self,
        rule: impl Into<Rule>,
        stride: Stride,
        mut weights: ValuesMut<'_>,
    ) -> Result<(), HostOptimError> {
        let rule = &rule.into();
        let len = weights.len();
        let stepped = self
            .with_own_pipeline(|state, pipeline| state.step_in(pipeline, rule, stride, weights.part(0..len)));
        stepped.inspect_err(|_| {
            if self.storage.is_torn() {
                weights.fill_with_nan();
            }
        })
    }

    pub(crate) fn with_own_pipeline(
        &mut self,
        step: impl FnOnce(&mut Self, &mut Pipeline) -> Result<(), HostOptimError>,
    ) -> Result<(), HostOptimError> {
        let mut pipeline = Storage::pipeline([&self.storage])?;
        step(self, &mut pipeline)?;
        self.storage.when_written(&mut pipeline, || {});
        drop(pipeline);
        self.storage.check_written()
    }

    /// [`step`](Self::step) in `pipeline`, valid once [written](Storage::when_written). After an error, `weights` may
    /// mix two steps.
    pub(crate) fn step_in(
        &mut self,
        pipeline: &mut Pipeline,
        rule: &Rule,
        stride: Stride,
        mut weights: ValuesMut<'_>,
    ) -> Result<(), HostOptimError> {
        self.check_rule(rule)?;
        check_len(&self.name, "the parameter", self.len, weights.len())?;
        if self.reads_weights() && !weights.values().is_narrow() {
            return Err(self.not_bf16_error());
        }
        self.step_ranges(pipeline, rule, stride, |context, range, arrays, gradient| {
            context.step(arrays, gradient, Some(weights.part(range)));
        })
    }

    /// [`step_in`](Self::step_in) that gives masters as tiles: all codes, then all scales. Requires masters.
    pub(crate) fn step_to_tiles(
        &mut self,
        pipeline: &mut Pipeline,
        rule: &Rule,
        stride: Stride,
        code: Code,
        into: &mut [u8],
    ) -> Result<(), HostOptimError> {
        self.check_rule(rule)?;
        let len = self.len;
        self.step_ranges(pipeline, rule, stride, |context, range, arrays, gradient| {
            context.step(arrays, gradient, None);
            encode_range(code, arrays.masters(), (range, len), into);
        })
    }

    fn step_ranges(
        &mut self,
        pipeline: &mut Pipeline,
        rule: &Rule,
        stride: Stride,
        mut step: impl FnMut(StepContext<'_>, Range<usize>, &mut Arrays<'_>, Values<'_>),
    ) -> Result<(), HostOptimError> {
        let gradient = self.take_gradient()?;
        if self.memory.computes_nothing() {
            return Ok(());
        }
        let noise = Noise::new(name_hash(&self.name), self.time);
        let context = StepContext { rule, stride, time: self.time, noise };
        self.storage.change(pipeline, self.layout, self.len, |range, arrays| {
            let context = StepContext { noise: noise.starting_at(range.start), ..context };
            step(context, range.clone(), arrays, gradient.whole().part(range));
        })
    }

    pub(crate) fn check_rule(&self, rule: &Rule) -> Result<(), HostOptimError> {
        match (rule, self.layout.moments) {
            (Rule::AdamW(_), Moments::Two) | (Rule::Sgd(_), Moments::Velocity) => Ok(()),
            _ => Err(HostOptimError::OtherRule { name: self.name.clone(), rule: rule.name() }),
        }
    }

    fn take_gradient(&mut self) -> Result<Gradient, HostOptimError> {
        let Some(mut gradient) = self.gradient.take() else {
            return Err(HostOptimError::NoGradient { name: self.name.clone() });
        };
        gradient.complete(&self.memory, &self.name)?;
        self.squares = None;
        self.time += 1;
        Ok(gradient)
    }

    /// The parameter's name, which seeds the rounding bits.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether a step needs the device's weights.
    pub fn reads_weights(&self) -> bool {
        self.layout.format == Format::Compact
    }

    /// Fails if the state only completes the device's weights.
    pub(crate) fn check_has_masters(&self) -> Result<(), HostOptimError> {
        if self.reads_weights() { Err(HostOptimError::NoMasters { name: self.name.clone() }) } else { Ok(()) }
    }

    pub(crate) fn encode_masters(&self, code: Code, into: &mut [u8]) -> Result<(), HostOptimError> {
        self.storage.read(MASTERS..MASTERS + 1, self.len, |range, parts| {
            encode_range(code, bytemuck::cast_slice(parts[0]), (range, self.len), into);
        })
    }

    /// Moments per element: 2, 1 for a velocity, 0 for [gradients only](Self::for_gradients).
    pub fn moments(&self) -> usize {
        match self.layout.moments {
            Moments::Two => 2,
            Moments::Velocity => 1,
            Moments::None => 0,
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

    /// Bytes in host memory, including the gradient.
    pub fn host_bytes(&self) -> u64 {
        self.storage.host_bytes() + self.gradient.as_ref().map_or(0, Gradient::bytes)
    }

    /// Bytes on disk.
    pub fn disk_bytes(&self) -> u64 {
        self.storage.disk_bytes()
    }

    pub(crate) fn not_bf16_error(&self) -> HostOptimError {
        HostOptimError::NotBf16 { name: self.name.clone(), found: "f32" }
    }
}

/// `range` begins at a tile.
fn encode_range(code: Code, masters: &[f32], (range, len): (Range<usize>, usize), into: &mut [u8]) {
    let (codes, scales) = into.split_at_mut(TILE * tiles(len));
    let (first, count) = (range.start / TILE, tiles(range.len()));
    let scales: &mut [f32] = bytemuck::cast_slice_mut(scales);
    encode(code, masters, &mut codes[TILE * first..][..TILE * count], &mut scales[first..][..count]);
}

pub(crate) fn check_len(
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

/// FNV-1a.
pub(crate) fn name_hash(name: &str) -> u32 {
    name.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}
