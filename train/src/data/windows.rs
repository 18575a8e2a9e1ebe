//! Sequences in the network's form, by their place in the run.
//!
//! Step number and seed alone decide a step's sequences (`an_interrupted_run_resumes_bit_for_bit`). Burn's `Dataset`
//! has no errors: after a read error it ends early, and `failure` returns the error.

use std::sync::{Mutex, PoisonError, atomic::AtomicBool};

use burn_dataset::Dataset;
use runs::Indexes;
use runs::config::Config;
use tokenizer::{Cursor, Duplicates, Fingerprint, Split, Targets, Window};

use super::corpus::Data;
use super::sequences::{Sequences, SourceUse};

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct MicroBatch {
    pub(crate) rows: usize,
    pub(crate) inputs: Vec<i32>,
    pub(crate) targets: Vec<i32>,
    /// The token after each input's longest match; the vocabulary size for no match.
    pub(crate) followers: Option<Vec<i32>>,
    /// One weight per target; `None` if all count.
    pub(crate) mask: Option<Vec<f32>>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct StepData {
    /// From 1.
    pub(crate) step: u64,
    pub(crate) micro_batches: Vec<MicroBatch>,
}

impl MicroBatch {
    pub(crate) fn new(windows: &[Window]) -> Self {
        let ids = |tokens: &[u32]| tokens.iter().map(|id| *id as i32).collect::<Vec<_>>();
        let weight = |counts: &bool| if *counts { 1.0 } else { 0.0 };
        let masked = windows.iter().any(|window| window.mask.is_some());
        Self {
            rows: windows.len(),
            inputs: windows.iter().flat_map(|window| ids(&window.x)).collect(),
            targets: windows.iter().flat_map(|window| ids(&window.y)).collect(),
            followers: None,
            mask: masked.then(|| {
                let weights = |window: &Window| match &window.mask {
                    Some(mask) => mask.iter().map(weight).collect(),
                    None => vec![1.0; window.y.len()],
                };
                windows.iter().flat_map(weights).collect()
            }),
        }
    }

    pub(crate) fn counted(&self) -> f64 {
        match &self.mask {
            Some(mask) => mask.iter().map(|weight| f64::from(*weight)).sum(),
            None => self.targets.len() as f64,
        }
    }

    fn hits(&self) -> Option<f64> {
        let pairs = self.followers.as_ref()?.iter().zip(&self.targets);
        let hits = pairs.filter(|(follower, target)| follower == target).count();
        Some(hits as f64 / self.targets.len() as f64)
    }

    pub(crate) fn counted_targets(&self) -> impl Iterator<Item = u32> {
        let counts = |at: usize| self.mask.as_ref().is_none_or(|mask| mask[at] > 0.0);
        self.targets.iter().enumerate().filter(move |(at, _)| counts(*at)).map(|(_, id)| *id as u32)
    }
}

impl StepData {
    /// At least 1: a step without counted targets has a loss and gradients of 0.
    pub(crate) fn counted(&self) -> f64 {
        counted(&self.micro_batches)
    }
}

pub(crate) fn counted(micro_batches: &[MicroBatch]) -> f64 {
    micro_batches.iter().map(MicroBatch::counted).sum::<f64>().max(1.0)
}

/// Item `n` is step `n + 1`.
#[derive(Debug)]
pub(crate) struct TrainingWindows {
    sequences: Sequences,
    start: Cursor,
    steps: u64,
    micro_batch: usize,
    accumulate: usize,
    only_first: bool,
    failure: Failure,
}

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
        let train = &config.train;
        Ok(Self {
            sequences: Sequences::open(
                config,
                data,
                data.indexes.as_ref(),
                Split::Train,
                config.data.shuffle,
            )?,
            start: Cursor::start(train.seed),
            steps: train.steps,
            micro_batch: train.micro_batch,
            accumulate: train.accumulate,
            only_first: train.overfit_one_batch,
            failure: Failure::default(),
        })
    }

    pub(crate) fn set_steps(&mut self, steps: u64) {
        self.steps = steps;
    }

    pub(crate) fn fingerprint(&self) -> Result<Fingerprint, tokenizer::Error> {
        self.sequences.fingerprint()
    }

    pub(crate) fn cursor(&self, steps: u64) -> Cursor {
        self.sequences.cursor(self.start, steps * (self.micro_batch * self.accumulate) as u64)
    }

    pub(crate) fn sequences(&self) -> u64 {
        self.sequences.count()
    }

    pub(crate) fn targets(&self) -> Targets {
        self.sequences.targets()
    }

    pub(crate) fn text_tokens(&self) -> u64 {
        self.sequences.tokens()
    }

    pub(crate) fn sources(&self) -> Vec<SourceUse> {
        self.sequences.uses()
    }

    pub(crate) fn hits(&self) -> Option<f64> {
        let hits: Vec<f64> = self.get(0)?.micro_batches.iter().filter_map(MicroBatch::hits).collect();
        (!hits.is_empty()).then(|| hits.iter().sum::<f64>() / hits.len() as f64)
    }

    pub(crate) fn failure(&self) -> Option<tokenizer::Error> {
        self.failure.take()
    }

    fn read(&self, step: u64) -> Result<StepData, tokenizer::Error> {
        let done = if self.only_first { 0 } else { step - 1 };
        let rows = self.micro_batch as u64;
        let first = done * rows * self.accumulate as u64;
        // A begun step is read to its end.
        let never_stop = AtomicBool::new(false);
        let micro_batch = |n: u64| {
            let numbers = first + n * rows..first + (n + 1) * rows;
            let places: Vec<_> = numbers.map(|number| self.sequences.place(self.start, number)).collect();
            self.sequences.read(&places, self.sequences.followers(&places, &never_stop)?)
        };
        let micro_batches = (0..self.accumulate as u64).map(micro_batch).collect::<Result<_, _>>()?;
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

#[derive(Debug)]
pub(crate) struct ValidationWindows {
    windows: Sequences,
    /// Copies of indexed documents; `None` without indexes.
    copies: Option<Duplicates>,
    followers: Option<Vec<i32>>,
    pub(crate) sequences: u64,
    /// Whether each sequence occurs once; else a mixture's sources have their shares.
    takes_all: bool,
    rows: usize,
    failure: Failure,
}

impl ValidationWindows {
    /// `limit` sequences of a fixed order, or all, looked up in `indexes`. Fails soon after `stop` is set.
    pub(crate) fn open(
        config: &Config,
        data: &Data,
        indexes: Option<&Indexes>,
        limit: Option<u64>,
        stop: &AtomicBool,
    ) -> Result<Self, tokenizer::Error> {
        // Shuffled: a file's start can be unlike its rest.
        let windows = Sequences::open(config, data, indexes, Split::Val, limit.is_some())?;
        // Without opening tokens the split is one document: partial copies cannot be found.
        let divided = indexes.filter(|_| data.tokenizer.bos().is_some());
        let copies = divided.map(|indexes| indexes.corpora().duplicates_unless(windows.first(), stop));
        let sequences = limit.unwrap_or(u64::MAX).min(windows.count());
        let takes_all = sequences == windows.count();
        let rows = config.train.micro_batch;
        let copies = copies.transpose()?;
        let failure = Failure::default();
        let mut opened = Self { windows, copies, followers: None, sequences, takes_all, rows, failure };
        let all: Vec<_> = (0..sequences).map(|index| opened.place(index)).collect();
        opened.followers = opened.windows.followers(&all, stop)?;
        Ok(opened)
    }

    /// Identifies the sequences that are measured.
    pub(crate) fn fingerprint(&self) -> Result<Fingerprint, tokenizer::Error> {
        let of_all = self.windows.fingerprint()?;
        Ok(Fingerprint::of(format!("{} of {of_all}", self.sequences).as_bytes()))
    }

    pub(crate) fn hits(&self) -> Option<f64> {
        self.get(0)?.hits()
    }

    pub(crate) fn know_copies(&self) -> bool {
        self.copies.is_some()
    }

    /// `None` if no target is left.
    pub(crate) fn without_copies(&self, index: usize, batch: &MicroBatch) -> Option<MicroBatch> {
        let copies = self.copies.as_ref().filter(|copies| copies.duplicate_positions > 0)?;
        let length = batch.targets.len() / batch.rows;
        let mut mask = batch.mask.clone().unwrap_or_else(|| vec![1.0; batch.targets.len()]);
        let mut any = false;
        for ((_, cursor), mask) in self.places(index).zip(mask.chunks_mut(length)) {
            let positions = self.windows.first().positions(cursor);
            for (position, weight) in positions.zip(mask) {
                if *weight > 0.0 && copies.contains(position + 1) {
                    (*weight, any) = (0.0, true);
                }
            }
        }
        any.then(|| MicroBatch { mask: Some(mask), ..batch.clone() })
    }

    fn places(&self, index: usize) -> impl Iterator<Item = (usize, Cursor)> {
        let first = (index * self.rows) as u64;
        let rows = self.sequences.saturating_sub(first).min(self.rows as u64);
        (first..first + rows).map(|number| self.place(number))
    }

    fn place(&self, number: u64) -> (usize, Cursor) {
        let start = Cursor::start(0);
        if self.takes_all {
            self.windows.place_in_order(start, number)
        } else {
            self.windows.place(start, number)
        }
    }

    pub(crate) fn failure(&self) -> Option<tokenizer::Error> {
        self.failure.take()
    }
}

impl Dataset<MicroBatch> for ValidationWindows {
    fn get(&self, index: usize) -> Option<MicroBatch> {
        if index >= self.len() {
            return None;
        }
        let places: Vec<_> = self.places(index).collect();
        let followers = self.followers.as_ref().map(|all| {
            let length = all.len() / self.sequences as usize;
            let first = index * self.rows * length;
            all[first..first + places.len() * length].to_vec()
        });
        self.failure.or_keep(self.windows.read(&places, followers))
    }

    fn len(&self) -> usize {
        (self.sequences as usize).div_ceil(self.rows)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    const DESCRIPTION: &str = r#"{
        "model": {"n_layer": 1, "n_head": 1, "n_embd": 4, "n_positions": 5, "vocab_size": 264, "longest_match": true},
        "tokenizer": {"kind": "bytes"},
        "data": {"source": "text", "path": "PATH", "split": "position", "val_fraction": 0.35},
        "train": {"micro_batch": 3}
    }"#;

    fn opened(documents: &[&str]) -> (Config, Data, tempfile::TempDir) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("in.jsonl");
        let lines: Vec<_> = documents.iter().map(|text| format!(r#"{{"text": "{text}"}}"#)).collect();
        std::fs::write(&path, lines.join("\n")).expect("writing");
        let text = DESCRIPTION.replace("PATH", &path.to_string_lossy());
        let config = Config::from_text(&text, "a tiny run", &[]).expect("valid");
        let data =
            crate::data::prepare(&config, folder.path(), None, &AtomicBool::new(false)).expect("prepared");
        (config, data, folder)
    }

    #[test]
    fn validation_without_copies_leaves_out_only_the_copies() {
        let documents =
            ["a river rises", "a river falls", "it rains", "so it goes", "a river falls", "it snows"];
        let (config, data, _folder) = opened(&documents);
        let windows =
            ValidationWindows::open(&config, &data, data.indexes.as_ref(), None, &AtomicBool::new(false))
                .expect("there are some");
        let (mut left_out, mut kept) = (Vec::new(), Vec::new());

        for (index, batch) in windows.iter().enumerate() {
            let fresh = windows.without_copies(index, &batch).unwrap_or_else(|| batch.clone());
            assert_eq!((&fresh.inputs, &fresh.followers), (&batch.inputs, &batch.followers));
            let places: Vec<_> = windows.places(index).collect();
            assert_eq!(
                batch.followers,
                windows.windows.followers(&places, &AtomicBool::new(false)).expect("reading")
            );
            let weights = fresh.mask.unwrap_or_else(|| vec![1.0; batch.targets.len()]);
            for (target, weight) in batch.targets.iter().zip(weights) {
                if weight > 0.0 { &mut kept } else { &mut left_out }.push(*target as u32);
            }
        }

        let text = |ids: &[u32]| data.tokenizer.decode(ids).expect("known ids");
        assert_eq!(text(&left_out), "a river falls");
        assert!(text(&kept).contains("it sn") && !text(&kept).contains("river"), "{}", text(&kept));
    }

    #[test]
    fn each_input_has_the_token_after_its_longest_match() {
        let documents =
            ["a river rises", "a river falls", "it rains", "so it goes", "a river falls", "it snows"];
        let (config, data, _folder) = opened(&documents);
        let windows = TrainingWindows::open(&config, &data).expect("there are some");
        let step = windows.get(0).expect("the first");
        assert_eq!(step, windows.get(0).expect("the same again"));
        let batch = &step.micro_batches[0];
        let followers = batch.followers.as_ref().expect("it looks up");
        assert_eq!(followers.len(), batch.inputs.len());
        let found: Vec<_> = followers.iter().filter(|id| **id != 264).collect();
        assert!(!found.is_empty() && found.iter().all(|id| **id < 264), "{followers:?}");
        let plain = Data { indexes: None, ..data };
        let plain =
            TrainingWindows::open(&config, &plain).expect("there are some").get(0).expect("the first");
        assert_eq!(plain.micro_batches[0].followers, None);
        assert_eq!(plain.micro_batches[0].inputs, batch.inputs);
    }
}
