//! One parameter's state on the host: its master weights, its moments, and the gradient that waits for the next step.
//!
//! The order of a step is: gradients [arrive](HostState::arrive), in one share or in several; the caller adds up
//! [`HostState::squares`] of all parameters and decides; then each parameter [steps](HostState::step), or all
//! [drop](HostState::drop_gradient) what arrived. Memory is taken when a state is made and when a gradient arrives, never
//! within a step.

use backend_offload::{HostBuffer, HostMemory};
use half::bf16;

use crate::adamw::Stride;
use crate::compact::{Compact, step_compact};
use crate::error::HostOptimError;
use crate::format::{BASES, BLOCK, Format};
use crate::gradient::Gradient;
use crate::noise::Noise;
use crate::numbers::{Number, Values, ValuesMut};
use crate::pieces::{Rounded, convert, step_velocity, step_wide};
use crate::rule::Rule;
use crate::tiles::{Code, TILE, encode, tiles};

/// A parameter's state.
#[derive(Debug)]
pub struct HostState {
    pub(crate) name: String,
    pub(crate) memory: HostMemory,
    pub(crate) len: usize,
    pub(crate) time: u32,
    pub(crate) moments: Moments,
    pub(crate) kept: Kept,
    /// Number of the first share of the next gradient.
    first_share: u64,
    gradient: Option<Gradient>,
    /// The sum of squares of what has arrived, where it was asked for since.
    squares: Option<f64>,
}

/// Numbers that a rule keeps of each parameter beside its weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moments {
    Two,
    /// The first of them; of the second there is nothing.
    Velocity,
    /// Nothing: the parameter is stepped by somebody else. No rule finds its state here.
    Elsewhere,
}

#[derive(Debug)]
pub(crate) enum Kept {
    F32 { masters: HostBuffer, moments: [HostBuffer; 2] },
    Bf16Moments { masters: HostBuffer, moments: [HostBuffer; 2] },
    Compact { low: HostBuffer, codes: [HostBuffer; 2], bases: HostBuffer },
}

impl Kept {
    pub(crate) fn format(&self) -> Format {
        match self {
            Self::F32 { .. } => Format::F32,
            Self::Bf16Moments { .. } => Format::Bf16Moments,
            Self::Compact { .. } => Format::Compact,
        }
    }

    /// Its buffers, in an order that is always the same.
    pub(crate) fn parts(&self) -> Vec<&HostBuffer> {
        match self {
            Self::F32 { masters, moments: [first, second] }
            | Self::Bf16Moments { masters, moments: [first, second] } => vec![masters, first, second],
            Self::Compact { low, codes: [first, second], bases } => vec![low, first, second, bases],
        }
    }

    pub(crate) fn parts_mut(&mut self) -> Vec<&mut HostBuffer> {
        match self {
            Self::F32 { masters, moments: [first, second] }
            | Self::Bf16Moments { masters, moments: [first, second] } => vec![masters, first, second],
            Self::Compact { low, codes: [first, second], bases } => vec![low, first, second, bases],
        }
    }
}

impl HostState {
    /// The state before the first step of a parameter with these `weights`. A parameter in f32 has no bits to complete, so
    /// its compact state is the one with moments in bf16.
    ///
    /// # Errors
    /// If the host tier has no room.
    pub fn new(
        memory: &HostMemory,
        name: &str,
        format: Format,
        weights: Values<'_>,
    ) -> Result<Self, HostOptimError> {
        Self::begun(memory, name, (format, Moments::Two), weights)
    }

    /// The same, of a parameter that is stepped by [`Sgd`](crate::Sgd).
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_velocity(
        memory: &HostMemory,
        name: &str,
        format: Format,
        weights: Values<'_>,
    ) -> Result<Self, HostOptimError> {
        Self::begun(memory, name, (format, Moments::Velocity), weights)
    }

    fn begun(
        memory: &HostMemory,
        name: &str,
        kept: (Format, Moments),
        weights: Values<'_>,
    ) -> Result<Self, HostOptimError> {
        let mut state = Self::blank(memory, name, kept, weights.len(), weights.is_narrow())?;
        match &mut state.kept {
            Kept::F32 { masters, .. } | Kept::Bf16Moments { masters, .. } => {
                widen(bytemuck::cast_slice_mut(masters), weights);
            }
            // Bf16 weights are their own masters: nothing completes them yet.
            Kept::Compact { .. } => {}
        }
        Ok(state)
    }

    /// A state whose master weights and moments are zeros.
    pub(crate) fn blank(
        memory: &HostMemory,
        name: &str,
        (format, kept): (Format, Moments),
        len: usize,
        is_narrow: bool,
    ) -> Result<Self, HostOptimError> {
        let zeros = |what: &str, bytes: usize| {
            memory.take(bytes, format_args!("{what} of {name}")).map(|mut buffer| {
                buffer.fill(0);
                buffer
            })
        };
        let moments = |bytes: usize| -> Result<_, HostOptimError> {
            match kept {
                Moments::Two => Ok([zeros("the first moments", bytes)?, zeros("the second moments", bytes)?]),
                // A driver locks no pages of nothing.
                Moments::Velocity | Moments::Elsewhere => {
                    Ok([zeros("the velocity", bytes)?, HostMemory::unlimited().take(0, "nothing")?])
                }
            }
        };
        let moments_kept = kept;
        let kept = match format {
            Format::Compact if is_narrow && kept == Moments::Two => Kept::Compact {
                low: zeros("the low bits", 2 * len)?,
                codes: moments(len)?,
                bases: zeros("the bases", BASES * len.div_ceil(BLOCK))?,
            },
            Format::F32 => {
                Kept::F32 { masters: zeros("the master weights", 4 * len)?, moments: moments(4 * len)? }
            }
            Format::Bf16Moments | Format::Compact => Kept::Bf16Moments {
                masters: zeros("the master weights", 4 * len)?,
                moments: moments(2 * len)?,
            },
        };
        let (name, memory) = (name.to_owned(), memory.clone());
        Ok(Self {
            name,
            memory,
            len,
            time: 0,
            moments: moments_kept,
            kept,
            first_share: 0,
            gradient: None,
            squares: None,
        })
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
        let squares = gradient.squares();
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
    /// others; and if the host tier has no room to add shares up, which are lost then. Weights and moments have not changed.
    pub fn step(
        &mut self,
        rule: impl Into<Rule>,
        stride: Stride,
        weights: ValuesMut<'_>,
    ) -> Result<(), HostOptimError> {
        let rule = &rule.into();
        self.is_made_for(rule)?;
        matching(&self.name, "the parameter", self.len, weights.len())?;
        if matches!(self.kept, Kept::Compact { .. }) && !weights.values().is_narrow() {
            return Err(self.not_bf16());
        }
        match self.take_gradient()?.whole() {
            Values::F32(gradient) => self.step_along(rule, stride, gradient, weights),
            Values::Bf16(gradient) => self.step_along(rule, stride, gradient, weights),
        }
        Ok(())
    }

    /// One step along the gradient that has arrived, of the master weights alone, which the format [has](Self::has_masters).
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub(crate) fn step_masters(&mut self, rule: &Rule, stride: Stride) -> Result<(), HostOptimError> {
        self.is_made_for(rule)?;
        let gradient = self.take_gradient()?;
        // What is given to no one takes no room.
        let mut weights = vec![(); self.len];
        match gradient.whole() {
            Values::F32(gradient) => self.step_wide(rule, stride, gradient, &mut weights),
            Values::Bf16(gradient) => self.step_wide(rule, stride, gradient, &mut weights),
        }
        Ok(())
    }

    pub(crate) fn is_made_for(&self, rule: &Rule) -> Result<(), HostOptimError> {
        match (rule, self.moments) {
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

    fn step_along<G: Number>(&mut self, rule: &Rule, stride: Stride, gradient: &[G], weights: ValuesMut<'_>) {
        match weights {
            ValuesMut::F32(weights) => self.step_wide(rule, stride, gradient, weights),
            ValuesMut::Bf16(weights) => match (&mut self.kept, rule) {
                (Kept::Compact { low, codes: [first, second], bases }, Rule::AdamW(rule)) => {
                    let low = bytemuck::cast_slice_mut(low);
                    let bases = bytemuck::cast_slice_mut(bases);
                    let state = Compact { low, first, second, bases };
                    let (factors, noise) =
                        (rule.factors(stride, self.time), Noise::new(key(&self.name), self.time));
                    step_compact(&factors, noise, state, gradient, weights);
                }
                _ => self.step_wide(rule, stride, gradient, weights),
            },
        }
    }

    fn step_wide<G: Number, W: Rounded>(
        &mut self,
        rule: &Rule,
        stride: Stride,
        gradient: &[G],
        weights: &mut [W],
    ) {
        let noise = Noise::new(key(&self.name), self.time);
        let along = Along { rule, stride, time: self.time, noise };
        match &mut self.kept {
            Kept::F32 { masters, moments } => {
                let moments = moments.each_mut().map(|moment| bytemuck::cast_slice_mut::<u8, f32>(moment));
                along.step(bytemuck::cast_slice_mut(masters), moments, gradient, weights);
            }
            Kept::Bf16Moments { masters, moments } => {
                let moments = moments.each_mut().map(|moment| bytemuck::cast_slice_mut::<u8, bf16>(moment));
                along.step(bytemuck::cast_slice_mut(masters), moments, gradient, weights);
            }
            Kept::Compact { .. } => {
                unreachable!("refused before: its weights are bf16, and its only masters")
            }
        }
    }

    /// The parameter's name, in errors and for the bits that round its moments.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether a step needs the parameter's weights as the device has them.
    pub fn reads_weights(&self) -> bool {
        matches!(self.kept, Kept::Compact { .. })
    }

    /// Whether the master weights are here.
    ///
    /// # Errors
    /// If they are what the device has, completed.
    pub(crate) fn has_masters(&self) -> Result<(), HostOptimError> {
        if self.reads_weights() { Err(HostOptimError::NoMasters { name: self.name.clone() }) } else { Ok(()) }
    }

    /// The master weights in tiles: all codes, then all scales.
    pub(crate) fn encode(&self, code: Code, into: &mut [u8]) {
        let (Kept::F32 { masters, .. } | Kept::Bf16Moments { masters, .. }) = &self.kept else {
            unreachable!("refused before: it has no masters");
        };
        let (codes, scales) = into.split_at_mut(TILE * tiles(self.len));
        encode(code, bytemuck::cast_slice(masters), codes, bytemuck::cast_slice_mut(scales));
    }

    /// Moments that it keeps of each number of its parameter: 2, 1 where it has a velocity, or none where it takes
    /// [gradients alone](Self::of_gradients).
    pub fn moments(&self) -> usize {
        match self.moments {
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
        let kept: u64 = self.kept.parts().iter().map(|part| part.len() as u64).sum();
        kept + self.gradient.as_ref().map_or(0, Gradient::bytes)
    }

    pub(crate) fn not_bf16(&self) -> HostOptimError {
        HostOptimError::NotBf16 { name: self.name.clone(), found: "f32" }
    }
}

/// A step by either rule.
struct Along<'a> {
    rule: &'a Rule,
    stride: Stride,
    time: u32,
    noise: Noise,
}

impl Along<'_> {
    fn step<G: Number, M: Number, W: Rounded>(
        self,
        masters: &mut [f32],
        moments: [&mut [M]; 2],
        gradient: &[G],
        weights: &mut [W],
    ) {
        match self.rule {
            Rule::AdamW(rule) => {
                let factors = rule.factors(self.stride, self.time);
                step_wide(factors, self.noise, masters, moments, gradient, weights);
            }
            Rule::Sgd(rule) => {
                let ([velocity, _nothing], factors) = (moments, rule.factors(self.stride));
                step_velocity(factors, self.noise, masters, velocity, gradient, weights);
            }
        }
    }
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

fn widen(to: &mut [f32], from: Values<'_>) {
    match from {
        Values::F32(from) => to.copy_from_slice(from),
        Values::Bf16(from) => convert(to, from, |x| x),
    }
}
