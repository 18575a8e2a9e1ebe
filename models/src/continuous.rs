//! Continuous batching: sequences join and leave; every step gives each its next token.
//!
//! A sequence's tokens do not depend on the others (`a_continuous_batch_gives_each_request_the_tokens_of_generate`):
//! seed and row key random numbers, and attention sees the sequence's own keys. Caches of ended sequences stay: a
//! prompt with a known beginning reads only the rest.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use burn::tensor::backend::Backend;

use crate::adjustment::Adjustment;
use crate::generate::GenerateError;
use crate::gpt::Gpt;
use crate::lookup::{Lookup, Text};
use crate::ragged::{self, Sequence, Turn};
use crate::random::{Random, combine};
use crate::sample::Sampling;

/// A sequence to continue.
#[derive(Debug, Clone, PartialEq)]
pub struct Continuation {
    /// The tokens to continue, at least one.
    pub prompt: Vec<u32>,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Added to logits before the choice.
    pub adjustment: Adjustment,
    /// Separates sequences of one seed: row `n` draws like prompt `n` of a [`crate::Request`].
    pub row: u64,
    /// Most likely tokens to report with each choice; `None` omits likelihoods.
    pub alternatives: Option<usize>,
}

/// A sequence's next token.
#[derive(Debug, Clone, PartialEq)]
pub struct Chosen {
    /// The token.
    pub token: u32,
    /// The token's likelihood, if requested.
    pub likelihood: Option<Likelihood>,
}

/// Natural-log probabilities, before adjustment, temperature and filters.
#[derive(Debug, Clone, PartialEq)]
pub struct Likelihood {
    /// Log-probability of the chosen token.
    pub chosen: f64,
    /// The most likely tokens, best first.
    pub alternatives: Vec<(u32, f64)>,
}

/// Running sequences, and ended ones kept for reuse.
#[derive(Debug)]
pub struct Continuous<'m, B: Backend> {
    model: &'m Gpt<B>,
    lookup: Option<Arc<dyn Lookup>>,
    piece: usize,
    keep: usize,
    rows: BTreeMap<u64, Row<B>>,
    /// Ended sequences, most recently used last.
    kept: VecDeque<Sequence<B>>,
}

#[derive(Debug)]
struct Row<B: Backend> {
    sequence: Sequence<B>,
    text: Text,
    /// Tokens of the prompt.
    prompt: usize,
    sampling: Sampling,
    adjustment: Adjustment,
    random: Random,
    alternatives: Option<usize>,
}

impl<B: Backend> Row<B> {
    fn unread(&self) -> &[u32] {
        &self.text.tokens()[self.sequence.tokens().len()..]
    }
}

impl<'m, B: Backend> Continuous<'m, B> {
    /// An empty batch. A step reads at most `piece` prompt tokens; ended sequences keep at most `keep` positions.
    pub fn new(model: &'m Gpt<B>, piece: usize, keep: usize) -> Self {
        Self { model, lookup: None, piece: piece.max(1), keep, rows: BTreeMap::new(), kept: VecDeque::new() }
    }

    /// Sets the texts in which `longest_match` looks up tokens.
    #[must_use]
    pub fn looking_up(self, lookup: Option<Arc<dyn Lookup>>) -> Self {
        Self { lookup, ..self }
    }

    /// Adds a sequence under an unused key. Returns its prompt's tokens that are already read.
    pub fn join(&mut self, key: u64, wanted: Continuation) -> Result<usize, GenerateError> {
        let Continuation { prompt, sampling, adjustment, row, alternatives } = wanted;

        if self.rows.contains_key(&key) {
            return Err(GenerateError::KeyInUse { key });
        }
        sampling.validate()?;

        let (vocab_size, window) = (self.model.config().vocab_size, self.model.config().n_positions);
        adjustment.validate(vocab_size)?;
        if prompt.is_empty() {
            return Err(GenerateError::EmptyPrompt { index: 0 });
        }
        if let Some(token) = prompt.iter().copied().find(|token| *token as usize >= vocab_size) {
            return Err(GenerateError::UnknownToken { index: 0, token, vocab_size });
        }
        if prompt.len() > window {
            return Err(GenerateError::WindowTooSmall { index: 0, prompt: prompt.len(), wanted: 1, window });
        }

        let sequence = self.with_known_prefix(&prompt);
        let known = sequence.tokens().len();
        let random = Random::new(combine(&[sampling.seed, row]));
        let text = Text::new(self.model, self.lookup.as_deref(), &prompt);
        let prompt = prompt.len();
        self.rows.insert(key, Row { sequence, text, prompt, sampling, adjustment, random, alternatives });
        Ok(known)
    }

    /// `prompt`'s longest known beginning, without its last token, whose logits were not kept.
    fn with_known_prefix(&mut self, prompt: &[u32]) -> Sequence<B> {
        let common = |sequence: &Sequence<B>| {
            let alike = sequence.tokens().iter().zip(prompt).take_while(|(a, b)| a == b).count();
            alike.min(prompt.len() - 1)
        };
        let kept = (0..self.kept.len()).max_by_key(|at| common(&self.kept[*at]));
        let active = self.rows.values().map(|row| &row.sequence).max_by_key(|sequence| common(sequence));
        let lengths = (kept.map_or(0, |at| common(&self.kept[at])), active.map_or(0, common));
        match (kept, active, lengths) {
            (_, _, (0, 0)) => Sequence::new(self.model),
            (_, Some(sequence), (kept, active)) if active >= kept => sequence.beginning(active),
            (Some(at), _, (len, _)) => {
                let sequence = self.kept.remove(at).expect("it was found there");
                let beginning = sequence.beginning(len);
                self.kept.push_back(sequence);
                beginning
            }
            (None, ..) => Sequence::new(self.model),
        }
    }

    /// Removes a sequence and keeps its cache. Ignores unknown keys.
    pub fn leave(&mut self, key: u64) {
        let Some(Row { sequence, .. }) = self.rows.remove(&key) else { return };
        if sequence.tokens().is_empty() {
            return;
        }
        self.kept.retain(|kept| !sequence.tokens().starts_with(kept.tokens()));
        self.kept.push_back(sequence);
        let mut held: usize = self.kept.iter().map(Sequence::capacity).sum();
        while held > self.keep {
            held -= self.kept.pop_front().map_or(0, |sequence| sequence.capacity());
        }
    }

    /// Number of running sequences.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether no sequence runs.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Runs the model once. Returns the next token of every sequence with a read prompt, ordered by key.
    pub fn step(&mut self) -> Result<Vec<(u64, Chosen)>, GenerateError> {
        let mut left = self.piece;
        let mut turns = Vec::with_capacity(self.rows.len());
        let mut ready = Vec::with_capacity(self.rows.len());
        for (key, row) in &mut self.rows {
            let first = row.sequence.tokens().len();
            let unread = row.text.tokens().len() - first;
            // A single token is a decoding step or a prompt's end, which never waits.
            let count = if unread == 1 { 1 } else { unread.min(left) };
            if unread > 1 {
                left -= count;
            }
            if count > 0 {
                row.text.look_up_to(first + count);
                turns.push(Turn { sequence: &mut row.sequence, next: row.text.part(first, first + count) });
                ready.push((*key, count == unread));
            }
        }

        if turns.is_empty() {
            return Ok(Vec::new());
        }
        let logits = ragged::read(self.model, &mut turns)?;
        let logits = logits.try_into_data();
        let logits = logits.map_err(|error| GenerateError::Unread { reason: error.to_string() })?;
        let values: Vec<f32> = logits.iter::<f32>().collect();

        let mut tokens = Vec::with_capacity(ready.len());
        for (logits, (key, _)) in
            values.chunks(self.model.config().vocab_size).zip(ready).filter(|(_, (_, ready))| *ready)
        {
            let row = self.rows.get_mut(&key).expect("its turn was just taken");
            let adjusted = row.adjustment.apply(logits, &row.text.tokens()[row.prompt..]);
            let token = row.sampling.choose(&adjusted, row.text.tokens(), &mut row.random);
            let likelihood = row.alternatives.map(|count| Likelihood::new(logits, token, count));
            row.text.push(token);
            debug_assert_eq!(row.unread(), [token], "the rest has been read");
            tokens.push((key, Chosen { token, likelihood }));
        }
        Ok(tokens)
    }

    /// Drops all caches. Sequences read their tokens again and continue unchanged
    /// (`a_batch_without_its_caches_continues_as_before`).
    pub fn forget(&mut self) {
        self.kept.clear();
        for row in self.rows.values_mut() {
            row.sequence = Sequence::new(self.model);
        }
    }

    /// Drops all sequences, ended ones too.
    pub fn clear(&mut self) {
        self.rows.clear();
        self.kept.clear();
    }
}

impl Likelihood {
    fn new(logits: &[f32], chosen: u32, count: usize) -> Self {
        let logits: Vec<f64> = logits.iter().map(|logit| f64::from(*logit)).collect();
        let highest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let total = highest + logits.iter().map(|logit| (logit - highest).exp()).sum::<f64>().ln();
        let mut order: Vec<u32> = (0..logits.len() as u32).collect();
        let better = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
        let count = count.min(order.len());
        if count > 0 {
            order.select_nth_unstable_by(count - 1, better);
        }
        order.truncate(count);
        order.sort_unstable_by(better);
        let alternatives = order.into_iter().map(|token| (token, logits[token as usize] - total)).collect();
        Self { chosen: logits[chosen as usize] - total, alternatives }
    }
}
