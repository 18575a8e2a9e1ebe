//! A matrix whose rows are read and stepped by their numbers: an embedding, of which a batch names few.
//!
//! A row without a gradient moves, too: its moments decay, and the weights follow them and the weight decay. Such steps are not
//! taken when they are due. What they are made of is kept, the factors of each, and before a row is read or stepped along a
//! gradient it takes all that it has missed, one after another, in one pass: the same operations on the same numbers as if
//! each had been taken in time, and so the same bits, the bits that round moments included. Memory traffic is what that
//! saves; the arithmetic is the same.
//!
//! Rows that nobody names catch up in [turns](HostRows::catch_up_some), a share of them in every step, so that no row misses
//! many steps and a save does not wait for all of them at once.

use backend_offload::HostBuffer;
use rayon::prelude::*;

use crate::adamw::{Factors, Stride};
use crate::error::HostOptimError;
use crate::kept::arrays;
use crate::layout::{Arrays, MASTERS, Moments};
use crate::noise::Noise;
use crate::numbers::{Number, Values};
use crate::pieces::{step_elements, step_elements_along, vectorised};
use crate::row_gradient::RowGradient;
use crate::rule::Rule;
use crate::sgd::SgdFactors;
use crate::state::{HostState, key, matching};

/// Steps in which each row has its turn.
const TURNS: usize = 64;

/// A matrix in f32 whose rows are stepped when they are named, or have their turn.
#[derive(Debug)]
pub struct HostRows {
    /// Its time is that of the matrix: the steps that every row has taken or missed.
    state: HostState,
    width: usize,
    /// Steps that each row has taken, in host memory.
    times: HostBuffer,
    /// The latest steps, those that some row may have missed.
    missed: Vec<Missed>,
    /// The next row to have its turn, and the matrix's time when the first one last had it.
    turn: (usize, u32),
    first_share: u64,
    gradient: Option<Waiting>,
    squares: Option<f64>,
}

#[derive(Debug)]
enum Waiting {
    Rows(RowGradient),
    Whole(HostBuffer),
}

/// A step along no gradient.
#[derive(Debug, Clone, Copy)]
struct Missed {
    factors: StepFactors,
    noise: Noise,
}

#[derive(Debug, Clone, Copy)]
enum StepFactors {
    AdamW(Factors),
    Sgd(SgdFactors),
}

impl Missed {
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
                step_elements(factors, self.noise, begin, masters, moments, gradient, weights);
            }
            StepFactors::Sgd(factors) => {
                let [velocity, _nothing] = moments;
                step_elements_along(factors, self.noise, begin, masters, velocity, gradient, weights);
            }
        }
    }
}

impl HostRows {
    /// The rows of a matrix in f32, each `width` long, whose state this is.
    ///
    /// # Errors
    /// If the host tier has no room, the state is of something that is no such matrix or is on the disk, or a gradient waits in it.
    pub fn new(state: HostState, width: usize) -> Result<Self, HostOptimError> {
        state.has_masters()?;
        if state.kept.in_host_memory().is_none() {
            return Err(HostOptimError::RowsOnDisk { name: state.name().to_owned() });
        }
        let rows = state.len() / width;
        matching(state.name(), "its rows", state.len(), rows * width)?;
        matching(
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

    /// Bytes held on the host, an arrived gradient included.
    pub fn host_bytes(&self) -> u64 {
        let gradient = match &self.gradient {
            None => 0,
            Some(Waiting::Rows(gradient)) => gradient.bytes(),
            Some(Waiting::Whole(gradient)) => gradient.len() as u64,
        };
        self.state.host_bytes() + self.times.len() as u64 + gradient
    }

    /// The numbers of `rows`, which are in order and each there once, as they are after the last step.
    ///
    /// # Errors
    /// If some row is not there, or they are in no order.
    pub fn read(&mut self, rows: &[u32]) -> Result<Vec<f32>, HostOptimError> {
        self.are_named(rows)?;
        self.catch_up(rows);
        let kept = self.state.kept.in_host_memory().expect(IN_HOST_MEMORY);
        let masters: &[f32] = kept[MASTERS].as_deref().map_or(&[], bytemuck::cast_slice);
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

    /// Takes the gradient of `rows` in, or the next share of it: all others' is zero. The rows are in order, each there once.
    ///
    /// # Errors
    /// If the host tier has no room, some row is not there or they are in no order, or the share has another length than they.
    /// Earlier shares are lost then.
    pub fn arrive(&mut self, rows: &[u32], share: &[f32]) -> Result<(), HostOptimError> {
        self.squares = None;
        let waiting = self.gradient.take();
        self.are_named(rows)?;
        matching(self.name(), "the gradient", self.width * rows.len(), share.len())?;
        let mut gradient = match waiting {
            Some(Waiting::Rows(gradient)) => gradient,
            _ => RowGradient::new(self.width, self.first_share),
        };
        gradient.arrive(&self.state.memory, self.state.name(), rows, share)?;
        self.gradient = Some(Waiting::Rows(gradient));
        Ok(())
    }

    /// The gradient received so far, of the whole matrix: sums of neighbouring shares, in order.
    pub fn shares(&self) -> Vec<Vec<f32>> {
        match &self.gradient {
            None => Vec::new(),
            Some(Waiting::Rows(gradient)) => gradient.parts(self.len()),
            Some(Waiting::Whole(gradient)) => vec![bytemuck::cast_slice(gradient).to_vec()],
        }
    }

    /// Takes the `whole` matrix's gradient in for whatever has arrived: what all shares together came to elsewhere.
    ///
    /// # Errors
    /// If the host tier has no room, or the length is another than the matrix's. The shares are lost then.
    pub fn replace_gradient(&mut self, whole: &[f32]) -> Result<(), HostOptimError> {
        self.drop_gradient();
        matching(self.name(), "the gradient", self.len(), whole.len())?;
        let purpose = format_args!("the gradient of {}", self.state.name());
        let mut buffer = self.state.memory.take(size_of_val(whole), purpose)?;
        buffer.copy_from_slice(bytemuck::cast_slice(whole));
        self.gradient = Some(Waiting::Whole(buffer));
        Ok(())
    }

    /// The sum of squares of the gradient, once all shares have arrived; 0 if none has.
    ///
    /// # Errors
    /// If the host tier has no room to add them up. The gradient is lost then.
    pub fn squares(&mut self) -> Result<f64, HostOptimError> {
        if let Some(squares) = self.squares {
            return Ok(squares);
        }
        let Some(gradient) = self.take_gradient()? else { return Ok(0.0) };
        let squares = match &gradient {
            Waiting::Rows(gradient) => gradient.squares(self.len()),
            Waiting::Whole(gradient) => Values::F32(bytemuck::cast_slice(gradient)).squares(),
        };
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

    /// One step along the gradient that has arrived. Rows that it does not name take the step later.
    ///
    /// # Errors
    /// As [`HostState::step`].
    pub fn step(&mut self, rule: impl Into<Rule>, stride: Stride) -> Result<(), HostOptimError> {
        let rule = rule.into();
        self.state.is_made_for(&rule)?;
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
        self.missed.push(Missed { factors, noise: Noise::new(key(self.state.name()), time) });
        match &gradient {
            Waiting::Rows(gradient) => {
                let (rows, numbers) = gradient.whole();
                self.take_steps(rows, Some(numbers));
            }
            Waiting::Whole(gradient) => {
                let rows: Vec<u32> = (0..self.rows() as u32).collect();
                self.take_steps(&rows, Some(bytemuck::cast_slice(gradient)));
            }
        }
        Ok(())
    }

    /// Lets the rows whose turn it is take the steps that they have missed. Called once a step, it keeps every row within
    /// 64 steps of the last.
    pub fn catch_up_some(&mut self) {
        let (begin, since) = self.turn;
        let end = self.rows().min(begin + self.rows().div_ceil(TURNS));
        self.catch_up(&(begin as u32..end as u32).collect::<Vec<_>>());
        self.turn.0 = end;
        if end == self.rows() {
            // Every row has had its turn since then.
            let first = self.state.time - self.missed.len() as u32;
            self.missed.drain(..(since - first) as usize);
            self.turn = (0, self.state.time);
        }
    }

    /// The matrix's state, once every row has taken the steps that it has missed.
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

    fn are_named(&self, rows: &[u32]) -> Result<(), HostOptimError> {
        let in_order = rows.is_sorted_by(|one, other| one < other);
        if in_order && rows.last().is_none_or(|last| (*last as usize) < self.rows()) {
            return Ok(());
        }
        Err(HostOptimError::Rows { name: self.name().to_owned(), has: self.rows() })
    }

    /// The gradient that has arrived, added up.
    fn take_gradient(&mut self) -> Result<Option<Waiting>, HostOptimError> {
        let mut gradient = self.gradient.take();
        if let Some(Waiting::Rows(gradient)) = &mut gradient {
            gradient.complete(&self.state.memory, self.state.name())?;
        }
        Ok(gradient)
    }

    fn catch_up(&mut self, rows: &[u32]) {
        self.take_steps(rows, None);
    }

    /// Lets `rows` take every step that they have missed, the last of them along `gradient` where there is one.
    fn take_steps(&mut self, rows: &[u32], gradient: Option<&[f32]>) {
        if self.state.memory.computes_nothing() {
            return;
        }
        let Self { state, width, times, missed, .. } = self;
        let steps = Steps { width: *width, missed, time: state.time, gradient };
        let times = bytemuck::cast_slice_mut(times);
        let kept = state.kept.in_host_memory_mut().expect(IN_HOST_MEMORY);
        match arrays(state.layout, kept) {
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

const IN_HOST_MEMORY: &str = "refused before: it is on the disk";

/// The latest steps of a matrix, and the gradient of the last.
struct Steps<'a> {
    width: usize,
    missed: &'a [Missed],
    /// After the last of them.
    time: u32,
    gradient: Option<&'a [f32]>,
}

impl Steps<'_> {
    fn take<M: Number>(
        &self,
        rows: &[u32],
        times: &mut [u32],
        masters: &mut [f32],
        [first, second]: [&mut [M]; 2],
        kept: Moments,
    ) {
        let width = self.width;
        // Beside a velocity there is no second moment.
        let of_second = if kept == Moments::Two { width } else { 0 };
        let moments = picked(first, width, rows).into_iter().zip(picked(second, of_second, rows));
        let picked_rows = picked(masters, width, rows).into_iter().zip(moments).zip(picked(times, 1, rows));
        let picked_rows: Vec<_> = rows.iter().zip(picked_rows).enumerate().collect();
        let zeros = vec![0.0; width];
        picked_rows.into_par_iter().for_each(|(n, (row, ((masters, (first, second)), time)))| {
            let begin = (*row as usize * width) as u32;
            let missed = &self.missed[self.missed.len() - (self.time - time[0]) as usize..];
            vectorised(
                #[inline(always)]
                || {
                    // What is given to no one takes no room.
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

/// The parts of `all` that have these numbers, which are in order; each is `width` long.
fn picked<'a, T>(mut all: &'a mut [T], width: usize, rows: &[u32]) -> Vec<&'a mut [T]> {
    let mut at = 0;
    let pick = |row: &u32| {
        let begin = *row as usize * width;
        let (part, rest) = std::mem::take(&mut all)[begin - at..].split_at_mut(width);
        (all, at) = (rest, begin + width);
        part
    };
    rows.iter().map(pick).collect()
}
