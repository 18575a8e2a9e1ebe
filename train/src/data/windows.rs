//! Sequences as the network takes them, by their place in the run.
//!
//! Which sequences a step learns from follows from its number and the seed. A resumed run therefore asks for the next
//! step's and gets what it would have got. Burn's `Dataset` has no errors: one that cannot be read ends early, and says
//! why when asked.

use std::sync::{Mutex, PoisonError};

use burn_dataset::Dataset;
use runs::config::Config;
use tokenizer::{Cursor, Fingerprint, Split, Targets, TokenDataset, Window};

use super::corpus::Data;

/// Sequences that pass through the network at once, row by row.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct MicroBatch {
    pub(crate) rows: usize,
    pub(crate) inputs: Vec<i32>,
    pub(crate) targets: Vec<i32>,
    /// One weight per target; `None` where all count.
    pub(crate) mask: Option<Vec<f32>>,
}

/// Everything one optimizer step learns from.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct StepData {
    /// Counted from 1.
    pub(crate) step: u64,
    pub(crate) micro_batches: Vec<MicroBatch>,
}

impl MicroBatch {
    pub(crate) fn of(windows: &[Window]) -> Self {
        let ids = |tokens: &[u32]| tokens.iter().map(|id| *id as i32).collect::<Vec<_>>();
        let weight = |counts: &bool| if *counts { 1.0 } else { 0.0 };
        let masked = windows.iter().any(|window| window.mask.is_some());
        Self {
            rows: windows.len(),
            inputs: windows.iter().flat_map(|window| ids(&window.x)).collect(),
            targets: windows.iter().flat_map(|window| ids(&window.y)).collect(),
            mask: masked.then(|| {
                let of_window = |window: &Window| match &window.mask {
                    Some(mask) => mask.iter().map(weight).collect(),
                    None => vec![1.0; window.y.len()],
                };
                windows.iter().flat_map(of_window).collect()
            }),
        }
    }

    /// Targets that count towards the loss.
    pub(crate) fn counted(&self) -> f64 {
        match &self.mask {
            Some(mask) => mask.iter().map(|weight| f64::from(*weight)).sum(),
            None => self.targets.len() as f64,
        }
    }

    /// The targets that count.
    pub(crate) fn counted_targets(&self) -> impl Iterator<Item = u32> {
        let counts = |at: usize| self.mask.as_ref().is_none_or(|mask| mask[at] > 0.0);
        self.targets.iter().enumerate().filter(move |(at, _)| counts(*at)).map(|(_, id)| *id as u32)
    }
}

impl StepData {
    /// Targets that count, never 0: a step without any has a loss and gradients of 0.
    pub(crate) fn counted(&self) -> f64 {
        self.micro_batches.iter().map(MicroBatch::counted).sum::<f64>().max(1.0)
    }
}

/// The training sequences of all steps. Item `n` is what step `n + 1` learns from.
#[derive(Debug)]
pub(crate) struct TrainingWindows {
    tokens: TokenDataset,
    start: Cursor,
    steps: u64,
    micro_batch: usize,
    accumulate: usize,
    only_first: bool,
    failure: Failure,
}

/// The first error of a data set that ended early.
#[derive(Debug, Default)]
struct Failure(Mutex<Option<tokenizer::Error>>);

impl Failure {
    fn take(&self) -> Option<tokenizer::Error> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn or_keep<T>(&self, read: Result<T, tokenizer::Error>) -> Option<T> {
        read.map_err(|error| {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        })
        .ok()
    }
}

impl TrainingWindows {
    pub(crate) fn open(config: &Config, data: &Data) -> Result<Self, tokenizer::Error> {
        let plan = Data::windows(config, config.data.shuffle);
        let tokens = TokenDataset::open(&data.shards, Split::Train, &data.tokenizer, plan)?;
        let train = &config.train;
        Ok(Self {
            tokens,
            start: Cursor::start(train.seed),
            steps: train.steps,
            micro_batch: train.micro_batch,
            accumulate: train.accumulate,
            only_first: train.overfit_one_batch,
            failure: Failure::default(),
        })
    }

    /// Identifies the tokens that are learned from.
    pub(crate) fn fingerprint(&self) -> Result<Fingerprint, tokenizer::Error> {
        self.tokens.fingerprint()
    }

    /// Where the stream of sequences stands after `steps`.
    pub(crate) fn cursor(&self, steps: u64) -> Cursor {
        self.tokens.skip(self.start, steps * (self.micro_batch * self.accumulate) as u64)
    }

    /// Sequences in one epoch.
    pub(crate) fn sequences(&self) -> u64 {
        self.tokens.windows()
    }

    /// Targets that count, and how many of them an epoch sees.
    pub(crate) fn targets(&self) -> Targets {
        self.tokens.targets()
    }

    /// Why the data set ended early, if it did.
    pub(crate) fn failure(&self) -> Option<tokenizer::Error> {
        self.failure.take()
    }

    fn read(&self, step: u64) -> Result<StepData, tokenizer::Error> {
        let done = if self.only_first { 0 } else { step - 1 };
        let mut stream = self.tokens.stream(self.cursor(done));
        let mut next = || stream.next().expect("the stream has no end").map(|(_, window)| window);
        let mut micro_batch = || -> Result<MicroBatch, tokenizer::Error> {
            let windows = (0..self.micro_batch).map(|_| next()).collect::<Result<Vec<_>, _>>()?;
            Ok(MicroBatch::of(&windows))
        };
        let micro_batches = (0..self.accumulate).map(|_| micro_batch()).collect::<Result<_, _>>()?;
        Ok(StepData { step, micro_batches })
    }
}

impl Dataset<StepData> for TrainingWindows {
    fn get(&self, index: usize) -> Option<StepData> {
        let step = index as u64 + 1;
        if step > self.steps { None } else { self.failure.or_keep(self.read(step)) }
    }

    fn len(&self) -> usize {
        self.steps as usize
    }
}

/// The validation sequences, always the same ones, in batches.
#[derive(Debug)]
pub(crate) struct ValidationWindows {
    tokens: TokenDataset,
    pub(crate) sequences: u64,
    rows: usize,
    failure: Failure,
}

impl ValidationWindows {
    /// The first `limit` sequences of a fixed order, or all.
    pub(crate) fn open(config: &Config, data: &Data, limit: Option<u64>) -> Result<Self, tokenizer::Error> {
        // A fixed order that is not the files': the first sequences of a file can be unlike the rest.
        let plan = Data::windows(config, limit.is_some());
        let tokens = TokenDataset::open(&data.shards, Split::Val, &data.tokenizer, plan)?;
        let sequences = limit.unwrap_or(u64::MAX).min(tokens.windows());
        let rows = config.train.micro_batch;
        Ok(Self { tokens, sequences, rows, failure: Failure::default() })
    }
}

impl ValidationWindows {
    /// Why the data set ended early, if it did.
    pub(crate) fn failure(&self) -> Option<tokenizer::Error> {
        self.failure.take()
    }

    fn read(&self, first: u64, rows: u64) -> Result<MicroBatch, tokenizer::Error> {
        let at = |row: u64| self.tokens.window(Cursor { index: first + row, ..Cursor::start(0) });
        Ok(MicroBatch::of(&(0..rows).map(at).collect::<Result<Vec<_>, _>>()?))
    }
}

impl Dataset<MicroBatch> for ValidationWindows {
    fn get(&self, index: usize) -> Option<MicroBatch> {
        let first = (index * self.rows) as u64;
        let rows = self.sequences.saturating_sub(first).min(self.rows as u64);
        if rows == 0 { None } else { self.failure.or_keep(self.read(first, rows)) }
    }

    fn len(&self) -> usize {
        (self.sequences as usize).div_ceil(self.rows)
    }
}
