//! A matrix of which a batch uses few rows, such as an embedding.
//!
//! Moments and weight decay change unused rows too, but later: a row takes all missed steps before its next use, with
//! the same operations and bits (`rows_stepped_when_they_are_named_have_the_bits_of_rows_stepped_in_time`). This saves
//! memory traffic, not arithmetic.

use backend_offload::HostBuffer;
use rayon::prelude::*;

use crate::adamw::step_elements_adamw;
use crate::adamw::{Factors, Stride};
use crate::error::HostOptimError;
use crate::layout::{Arrays, MASTERS, Moments};
use crate::noise::Noise;
use crate::numbers::{Number, Values};
use crate::pieces::vectorised;
use crate::row_gradient::RowGradient;
use crate::rule::Rule;
use crate::sgd::SgdFactors;
use crate::sgd::step_elements_sgd;
use crate::state::{HostState, check_len, name_hash};
use crate::storage::arrays;

/// Steps within which each row has its turn.
const TURN_PERIOD: usize = 64;

/// An f32 matrix whose rows step when used, or at their turn.
#[derive(Debug)]
pub struct HostRows {
    /// Its time includes missed steps.
    state: HostState,
    width: usize,
    times: HostBuffer,
    missed: Vec<MissedStep>,
    /// The next row in turn, and the time when this round began.
    turn: (usize, u32),
    first_share: u64,
    gradient: Option<PendingGradient>,
    squares: Option<f64>,
}

#[derive(Debug)]
enum PendingGradient {
    Rows(RowGradient),
    Whole(HostBuffer),
}

#[derive(Debug, Clone, Copy)]
struct MissedStep {
    factors: StepFactors,
    noise: Noise,
}

#[derive(Debug, Clone, Copy)]
enum StepFactors {
    AdamW(Factors),
    Sgd(SgdFactors),
}

impl MissedStep {
    #[inline(always)]
    fn step<M: Number>(
        &self,
        begin: u32,
        masters: &mut [f32],
        moments: [&mut [M]; 2],
        gradient: &[f32],
        weights: &mut [()],
    ) {
        match self.factors {
            StepFactors::AdamW(factors) => {
                step_elements_adamw(factors, self.noise, begin, masters, moments, gradient, weights);
            }
            StepFactors::Sgd(factors) => {
                let [velocity, _nothing] = moments;
                step_elements_sgd(factors, self.noise, begin, masters, velocity, gradient, weights);
            }
        }
    }
}

impl HostRows {
    /// Steps `state` by rows of `width` elements. Requires host memory, f32 weights and no waiting gradient.
    pub fn new(state: HostState, width: usize) -> Result<Self, HostOptimError> {
        state.check_has_masters()?;
        if state.storage.host_parts().is_none() {
            return Err(HostOptimError::RowsOnDisk { name: state.name().to_owned() });
        }
        let rows = state.len() / width;
        check_len(state.name(), "its rows", state.len(), rows * width)?;
        check_len(
            state.name(),
            "a gradient that waits",
            0,
            if state.has_gradient() { state.len() } else { 0 },
        )?;
        let purpose = format_args!("the steps of each row of {}", state.name());
        let mut times = state.memory.take(size_of::<u32>() * rows, purpose)?;
        bytemuck::cast_slice_mut::<u8, u32>(&mut times).fill(state.time());
        let turn = (0, state.time());
        Ok(Self {
            state,
            width,
            times,
            missed: Vec::new(),
            turn,
            first_share: 0,
            gradient: None,
            squares: None,
        })
    }

    /// The parameter's name.
    pub fn name(&self) -> &str {
        self.state.name()
    }

    /// Elements of the matrix.
    #[expect(clippy::len_without_is_empty, reason = "a parameter has elements")]
    pub fn len(&self) -> usize {
        self.state.len()
    }

    /// See [`HostState::moments`].
    pub fn moments(&self) -> usize {
        self.state.moments()
    }

    /// Bytes in host memory, including the gradient.
    pub fn host_bytes(&self) -> u64 {
        let gradient = match &self.gradient {
            None => 0,
            Some(PendingGradient::Rows(gradient)) => gradient.bytes(),
            Some(PendingGradient::Whole(gradient)) => gradient.len() as u64,
        };
        self.state.host_bytes() + self.times.len() as u64 + gradient
    }

    /// Numbers of `rows`, ascending and without duplicates.
    pub fn read(&mut self, rows: &[u32]) -> Result<Vec<f32>, HostOptimError> {
        self.check_rows(rows)?;
        self.catch_up(rows);
        let parts = self.state.storage.host_parts().expect(NOT_ON_DISK);
        let masters: &[f32] = parts[MASTERS].as_deref().map_or(&[], bytemuck::cast_slice);
        let mut numbers = vec![0.0; self.width * rows.len()];
        numbers.par_chunks_exact_mut(self.width).zip(rows).for_each(|(to, row)| {
            to.copy_from_slice(&masters[*row as usize * self.width..][..self.width]);
        });
        Ok(numbers)
    }

    /// See [`HostState::number_shares_from`].
    pub fn number_shares_from(&mut self, first: u64) {
        self.first_share = first;
    }

    /// Receives the gradient of `rows`, ascending and without duplicates, or its next share. An error loses earlier
    /// shares.
    pub fn arrive(&mut self, rows: &[u32], share: &[f32]) -> Result<(), HostOptimError> {
        self.squares = None;
        let waiting = self.gradient.take();
        self.check_rows(rows)?;
        check_len(self.name(), "the gradient", self.width * rows.len(), share.len())?;
        let mut gradient = match waiting {
            Some(PendingGradient::Rows(gradient)) => gradient,
            _ => RowGradient::new(self.width, self.first_share),
        };
        gradient.arrive(&self.state.memory, self.state.name(), rows, share)?;
        self.gradient = Some(PendingGradient::Rows(gradient));
        Ok(())
    }

    /// Received gradient as whole matrices: sums of neighbouring shares, in order.
    pub fn shares(&self) -> Vec<Vec<f32>> {
        match &self.gradient {
            None => Vec::new(),
            Some(PendingGradient::Rows(gradient)) => gradient.partial_sums(self.len()),
            Some(PendingGradient::Whole(gradient)) => vec![bytemuck::cast_slice(gradient).to_vec()],
        }
    }

    /// Replaces all received shares with `whole`, summed over all ranks. An error loses them.
    pub fn replace_gradient(&mut self, whole: &[f32]) -> Result<(), HostOptimError> {
        self.drop_gradient();
        check_len(self.name(), "the gradient", self.len(), whole.len())?;
        let purpose = format_args!("the gradient of {}", self.state.name());
        let mut buffer = self.state.memory.take(size_of_val(whole), purpose)?;
        buffer.copy_from_slice(bytemuck::cast_slice(whole));
        self.gradient = Some(PendingGradient::Whole(buffer));
        Ok(())
    }

    /// See [`HostState::squares`].
    pub fn squares(&mut self) -> Result<f64, HostOptimError> {
        if let Some(squares) = self.squares {
            return Ok(squares);
        }
        let Some(gradient) = self.take_gradient()? else { return Ok(0.0) };
        let squares = match &gradient {
            PendingGradient::Rows(gradient) => gradient.squares(self.len()),
            PendingGradient::Whole(gradient) => Values::F32(bytemuck::cast_slice(gradient)).squares(),
        };
        (self.gradient, self.squares) = (Some(gradient), Some(squares));
        Ok(squares)
    }

    /// See [`HostState::has_gradient`].
    pub fn has_gradient(&self) -> bool {
        self.gradient.is_some()
    }

    /// See [`HostState::drop_gradient`].
    pub fn drop_gradient(&mut self) {
        (self.gradient, self.squares) = (None, None);
    }

    /// One step along the received gradient. Other rows take it later.
    pub fn step(&mut self, rule: impl Into<Rule>, stride: Stride) -> Result<(), HostOptimError> {
        let rule = rule.into();
        self.state.check_rule(&rule)?;
        let Some(gradient) = self.take_gradient()? else {
            return Err(HostOptimError::NoGradient { name: self.name().to_owned() });
        };
        self.squares = None;
        self.state.time += 1;
        let time = self.state.time;
        let factors = match rule {
            Rule::AdamW(rule) => StepFactors::AdamW(rule.factors(stride, time)),
            Rule::Sgd(rule) => StepFactors::Sgd(rule.factors(stride)),
        };
        self.missed.push(MissedStep { factors, noise: Noise::new(name_hash(self.state.name()), time) });

        match &gradient {
            PendingGradient::Rows(gradient) => {
                let (rows, numbers) = gradient.whole();
                self.take_steps(rows, Some(numbers));
            }
            PendingGradient::Whole(gradient) => {
                let rows: Vec<u32> = (0..self.rows() as u32).collect();
                self.take_steps(&rows, Some(bytemuck::cast_slice(gradient)));
            }
        }
        Ok(())
    }

    /// Lets some rows catch up. One call per step limits a row's delay to 64 steps.
    pub fn catch_up_some(&mut self) {
        let (begin, since) = self.turn;
        let end = self.rows().min(begin + self.rows().div_ceil(TURN_PERIOD));
        self.catch_up(&(begin as u32..end as u32).collect::<Vec<_>>());
        self.turn.0 = end;
        if end == self.rows() {
            // All rows have caught up since the round began.
            let first = self.state.time - self.missed.len() as u32;
            self.missed.drain(..(since - first) as usize);
            self.turn = (0, self.state.time);
        }
    }

    /// The state, with no step missed.
    pub fn whole(&mut self) -> &HostState {
        let rows: Vec<u32> = (0..self.rows() as u32).collect();
        self.catch_up(&rows);
        self.missed.clear();
        self.turn = (0, self.state.time);
        &self.state
    }

    fn rows(&self) -> usize {
        self.len() / self.width
    }

    fn check_rows(&self, rows: &[u32]) -> Result<(), HostOptimError> {
        let in_order = rows.is_sorted_by(|one, other| one < other);
        if in_order && rows.last().is_none_or(|last| (*last as usize) < self.rows()) {
            return Ok(());
        }
        Err(HostOptimError::Rows { name: self.name().to_owned(), has: self.rows() })
    }

    fn take_gradient(&mut self) -> Result<Option<PendingGradient>, HostOptimError> {
        let mut gradient = self.gradient.take();
        if let Some(PendingGradient::Rows(gradient)) = &mut gradient {
            gradient.complete(&self.state.memory, self.state.name())?;
        }
        Ok(gradient)
    }

    fn catch_up(&mut self, rows: &[u32]) {
        self.take_steps(rows, None);
    }

    /// Takes all missed steps. The last one follows `gradient`, if given.
    fn take_steps(&mut self, rows: &[u32], gradient: Option<&[f32]>) {
        if self.state.memory.computes_nothing() {
            return;
        }
        let Self { state, width, times, missed, .. } = self;
        let steps = RowSteps { width: *width, missed, time: state.time, gradient };

        let times = bytemuck::cast_slice_mut(times);
        let parts = state.storage.host_parts_mut().expect(NOT_ON_DISK);
        match arrays(state.layout, parts) {
            Arrays::F32 { masters, moments } => {
                steps.take(rows, times, masters, moments, state.layout.moments);
            }
            Arrays::Bf16Moments { masters, moments } => {
                steps.take(rows, times, masters, moments, state.layout.moments);
            }
            Arrays::Compact { .. } => unreachable!("refused before: it has no masters"),
        }
    }
}

const NOT_ON_DISK: &str = "refused before: it is on the disk";

struct RowSteps<'a> {
    width: usize,
    missed: &'a [MissedStep],
    time: u32,
    gradient: Option<&'a [f32]>,
}

impl RowSteps<'_> {
    fn take<M: Number>(
        &self,
        rows: &[u32],
        times: &mut [u32],
        masters: &mut [f32],
        [first, second]: [&mut [M]; 2],
        kind: Moments,
    ) {
        let width = self.width;
        let second_width = if kind == Moments::Two { width } else { 0 };
        let moments =
            select_rows(first, width, rows).into_iter().zip(select_rows(second, second_width, rows));
        let rows_to_step =
            select_rows(masters, width, rows).into_iter().zip(moments).zip(select_rows(times, 1, rows));
        let rows_to_step: Vec<_> = rows.iter().zip(rows_to_step).enumerate().collect();

        let zeros = vec![0.0; width];
        rows_to_step.into_par_iter().for_each(|(n, (row, ((masters, (first, second)), time)))| {
            let begin = (*row as usize * width) as u32;
            let missed = &self.missed[self.missed.len() - (self.time - time[0]) as usize..];
            vectorised(
                #[inline(always)]
                || {
                    // A vector of `()` allocates nothing.
                    let mut weights = vec![(); width];
                    for (at, step) in missed.iter().enumerate() {
                        let along = self.gradient.filter(|_| at + 1 == missed.len());
                        let along = along.map_or(&zeros[..], |gradient| &gradient[n * width..][..width]);
                        step.step(begin, masters, [&mut *first, &mut *second], along, &mut weights);
                    }
                },
            );
            time[0] = self.time;
        });
    }
}

fn select_rows<'a, T>(mut all: &'a mut [T], width: usize, rows: &[u32]) -> Vec<&'a mut [T]> {
    let mut at = 0;
    let pick = |row: &u32| {
        let begin = *row as usize * width;
        let (part, rest) = std::mem::take(&mut all)[begin - at..].split_at_mut(width);
        (all, at) = (rest, begin + width);
        part
    };
    rows.iter().map(pick).collect()
}
