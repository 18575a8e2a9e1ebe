//! Continuous batching: sequences join and leave between steps.
//!
//! A sequence's tokens do not depend on others (`a_continuous_batch_gives_each_request_the_tokens_of_generate`): seed
//! and row key random numbers, and attention sees its own keys.
//!
//! Keys and values of running and ended sequences share one bound in positions. Running ones reserve theirs when they
//! join; ended ones keep theirs while there is room. A prompt with a known beginning reads only the rest, and waits
//! while an earlier sequence reads that beginning (`siblings_read_their_prompt_once`).

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Debug;
use std::sync::Arc;

use burn::tensor::backend::Backend;

use crate::adjustment::Adjustment;
use crate::generate::{GenerateError, check_logits};
use crate::gpt::Gpt;
use crate::lookup::{Lookup, Text};
use crate::ragged::{self, Sequence, Turn, capacity_for};
use crate::random::{Random, combine};
use crate::sample::Sampling;

/// A sequence to continue.
#[derive(Debug)]
pub struct Continuation {
    /// The tokens to continue, at least one.
    pub prompt: Vec<u32>,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Added to logits before the choice.
    pub adjustment: Adjustment,
    /// Separates sequences of one seed: row `n` draws like prompt `n` of a [`crate::Request`].
    pub row: u64,
    /// Most likely tokens to report; `None` omits likelihoods.
    pub alternatives: Option<usize>,
    /// Most tokens to choose, for which positions are reserved.
    pub max_tokens: usize,
    /// Whether to report the prompt's likelihoods too. Then all of it is read.
    pub score_prompt: bool,
    /// Tokens allowed at each choice.
    pub constraint: Option<Box<dyn Constraint>>,
}

/// A grammar, or another rule for an answer's tokens.
pub trait Constraint: Debug + Send {
    /// Lowers the logits of tokens that must not come next to minus infinity. At least one stays.
    fn mask(&mut self, logits: &mut [f32]);

    /// Takes note of the chosen token.
    fn accept(&mut self, token: u32);
}

/// A sequence's next token.
#[derive(Debug, Clone, PartialEq)]
pub struct Chosen {
    /// The token.
    pub token: u32,
    /// The token's likelihood, if requested.
    pub likelihood: Option<Likelihood>,
    /// With a sequence's first token.
    pub prompt: Option<PromptRead>,
}

/// How a prompt was read.
#[derive(Debug, Clone, PartialEq)]
pub struct PromptRead {
    /// Tokens that another sequence had read.
    pub cached: usize,
    /// Likelihoods of the prompt's tokens after the first, if requested.
    pub likelihoods: Vec<Likelihood>,
}

/// Caching shorter beginnings costs more memory than time.
const SHARED: usize = 32;

/// Natural-log probabilities, before adjustment, temperature and filters.
#[derive(Debug, Clone, PartialEq)]
pub struct Likelihood {
    /// Log-probability of the chosen token.
    pub chosen: f64,
    /// The most likely tokens, best first.
    pub alternatives: Vec<(u32, f64)>,
}

/// Any backend's [`Continuous`]: users of `dyn Continuing` compile without the model.
pub trait Continuing {
    /// Adds a sequence under an unused key.
    fn join(&mut self, key: u64, wanted: Continuation) -> Result<(), GenerateError>;

    /// Whether a sequence of `prompt` and `max_tokens` tokens may join.
    fn has_room(&self, prompt: usize, max_tokens: usize) -> bool;

    /// Positions that running and kept sequences hold.
    fn held(&self) -> usize;

    /// Removes a sequence and keeps its cache. Ignores unknown keys.
    fn leave(&mut self, key: u64);

    /// Runs the model once. Returns the next token of every sequence with a read prompt, by key.
    fn step(&mut self) -> Result<Vec<(u64, Chosen)>, GenerateError>;

    /// Drops all caches. Sequences read their tokens again and continue unchanged
    /// (`a_batch_without_its_caches_continues_as_before`).
    fn forget(&mut self);

    /// Drops all sequences, ended ones too.
    fn clear(&mut self);
}

/// Running sequences, and ended ones kept for reuse.
#[derive(Debug)]
pub struct Continuous<'m, B: Backend> {
    model: &'m Gpt<B>,
    lookup: Option<Arc<dyn Lookup>>,
    piece: usize,
    room: usize,
    rows: BTreeMap<u64, Row<B>>,
    /// Ended sequences, most recently used last.
    kept: VecDeque<Sequence<B>>,
}

#[derive(Debug)]
struct Row<B: Backend> {
    sequence: Sequence<B>,
    text: Text,
    prompt: usize,
    sampling: Sampling,
    adjustment: Adjustment,
    random: Random,
    alternatives: Option<usize>,
    reserved: usize,
    own: usize,
    scores: Option<Vec<Likelihood>>,
    constraint: Option<Box<dyn Constraint>>,
}

impl<B: Backend> Row<B> {
    fn read(&self) -> usize {
        self.sequence.tokens().len()
    }

    fn unread(&self) -> usize {
        self.text.tokens().len() - self.read()
    }

    fn choose(&mut self, logits: &[f32]) -> Chosen {
        let mut adjusted = self.adjustment.apply(logits, &self.text.tokens()[self.prompt..]);
        if let Some(constraint) = &mut self.constraint {
            constraint.mask(adjusted.to_mut());
        }
        let token = self.sampling.choose(&adjusted, self.text.tokens(), &mut self.random);
        if let Some(constraint) = &mut self.constraint {
            constraint.accept(token);
        }
        let likelihood = self.alternatives.map(|count| Likelihood::new(logits, token, count));
        let is_first = self.text.tokens().len() == self.prompt;
        let prompt = is_first.then(|| PromptRead {
            cached: self.prompt - self.own,
            likelihoods: self.scores.take().unwrap_or_default(),
        });
        self.text.push(token);
        debug_assert_eq!(self.unread(), 1, "the rest has been read");
        Chosen { token, likelihood, prompt }
    }

    /// Tokens that `other` begins with, too, except the text's last one, whose logits are not kept.
    fn common(&self, other: &[u32]) -> usize {
        let text = self.text.tokens();
        let alike = text.iter().zip(other).take_while(|(a, b)| a == b).count();
        alike.min(text.len() - 1)
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Source {
    Running(u64),
    Kept(usize),
}

impl<'m, B: Backend> Continuous<'m, B> {
    /// An empty batch. A step reads at most `piece` prompt tokens; all sequences hold at most `room` positions.
    pub fn new(model: &'m Gpt<B>, piece: usize, room: usize) -> Self {
        Self { model, lookup: None, piece: piece.max(1), room, rows: BTreeMap::new(), kept: VecDeque::new() }
    }

    /// Sets the texts in which `longest_match` looks up tokens.
    #[must_use]
    pub fn looking_up(self, lookup: Option<Arc<dyn Lookup>>) -> Self {
        Self { lookup, ..self }
    }

    /// An answer's last token is never read.
    fn needed(&self, prompt: usize, max_tokens: usize) -> usize {
        capacity_for(prompt.saturating_add(max_tokens.saturating_sub(1)), self.model.config().n_positions)
    }

    fn known_beginning(&self, key: u64) -> Option<(Source, usize)> {
        let row = &self.rows[&key];
        let others = self.rows.iter().filter(|(other, _)| **other != key);
        let running = others.map(|(other, row)| (Source::Running(*other), &row.sequence));
        let kept = self.kept.iter().enumerate().map(|(at, kept)| (Source::Kept(at), kept));
        // Of equals the last: a kept one, which no sequence is reading.
        let known = running.chain(kept).map(|(source, sequence)| (source, row.common(sequence.tokens())));
        known.max_by_key(|(_, len)| *len).filter(|(_, len)| *len >= row.read() + SHARED)
    }

    /// Whether an earlier sequence is reading more of this text than the `known` tokens.
    fn is_being_read(&self, key: u64, known: usize, source: Option<Source>) -> bool {
        let row = &self.rows[&key];
        self.rows.range(..key).any(|(other_key, other)| {
            let is_source = source == Some(Source::Running(*other_key));
            let common = row.common(other.text.tokens());
            let is_worth_it = common >= known + if is_source { 1 } else { SHARED };
            is_worth_it && other.read() < common && other.read() + SHARED > known
        })
    }

    fn begin_with(&mut self, key: u64, source: Source, len: usize) {
        let beginning = match source {
            Source::Running(other) => self.rows[&other].sequence.beginning(len),
            Source::Kept(at) => {
                let kept = self.kept.remove(at).expect("it was found there");
                if kept.tokens().len() == len {
                    kept
                } else {
                    let beginning = kept.beginning(len);
                    self.kept.push_back(kept);
                    beginning
                }
            }
        };
        self.rows.get_mut(&key).expect("its text was compared").sequence = beginning;
    }

    /// Chooses this step's readers and their numbers of tokens. Views of others' caches are taken here only: the read
    /// copies them.
    fn plan(&mut self) -> BTreeMap<u64, usize> {
        let keys: Vec<u64> = self.rows.keys().copied().collect();
        let mut left = self.piece;
        let mut plan = BTreeMap::new();
        for key in keys {
            // A single token is a decoding step or a prompt's end: it never waits.
            if self.rows[&key].unread() == 1 {
                plan.insert(key, 1);
                continue;
            }
            let shares = self.rows[&key].scores.is_none();
            let source = self.known_beginning(key).filter(|_| shares);
            let known = source.map_or(self.rows[&key].read(), |(_, len)| len);
            if shares && self.is_being_read(key, known, source.map(|(source, _)| source)) {
                continue;
            }
            let unread = self.rows[&key].text.tokens().len() - known;
            let count = if unread == 1 { 1 } else { unread.min(left) };
            if count == 0 {
                continue;
            }
            if unread > 1 {
                left -= count;
            }
            if let Some((source, len)) = source {
                self.begin_with(key, source, len);
            }
            plan.insert(key, count);
        }
        plan
    }

    /// Drops kept caches, oldest first, until this step has room.
    fn make_room(&mut self, plan: &BTreeMap<u64, usize>) {
        let capacity = |(key, row): (&u64, &Row<B>)| {
            let end = row.read() + plan.get(key).copied().unwrap_or(0);
            row.sequence.capacity().max(capacity_for(end, self.model.config().n_positions))
        };
        let running: usize = self.rows.iter().map(capacity).sum();
        let mut kept: usize = self.kept.iter().map(Sequence::capacity).sum();
        while running + kept > self.room
            && let Some(oldest) = self.kept.pop_front()
        {
            kept -= oldest.capacity();
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
}

impl<B: Backend> Continuing for Continuous<'_, B> {
    fn join(&mut self, key: u64, wanted: Continuation) -> Result<(), GenerateError> {
        let Continuation {
            prompt,
            sampling,
            adjustment,
            row,
            alternatives,
            max_tokens,
            score_prompt,
            constraint,
        } = wanted;

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
        let reserved = self.needed(prompt.len(), max_tokens);
        if !self.has_room(prompt.len(), max_tokens) {
            return Err(GenerateError::NoRoom { needed: reserved, room: self.room });
        }

        let random = Random::new(combine(&[sampling.seed, row]));
        let text = Text::new(self.model.config(), self.lookup.as_deref(), &prompt);
        let (prompt, sequence) = (prompt.len(), Sequence::new(self.model));
        let scores = score_prompt.then(Vec::new);
        let row = Row {
            sequence,
            text,
            prompt,
            sampling,
            adjustment,
            random,
            alternatives,
            reserved,
            own: 0,
            scores,
            constraint,
        };
        self.rows.insert(key, row);
        Ok(())
    }

    fn has_room(&self, prompt: usize, max_tokens: usize) -> bool {
        let reserved: usize = self.rows.values().map(|row| row.reserved).sum();
        reserved.saturating_add(self.needed(prompt, max_tokens)) <= self.room
    }

    fn held(&self) -> usize {
        let running = self.rows.values().map(|row| &row.sequence);
        running.chain(&self.kept).map(Sequence::capacity).sum()
    }

    fn leave(&mut self, key: u64) {
        let Some(Row { sequence, .. }) = self.rows.remove(&key) else { return };
        let read = sequence.tokens();
        if read.len() < SHARED || self.kept.iter().any(|kept| kept.tokens().starts_with(read)) {
            return;
        }
        self.kept.retain(|kept| !read.starts_with(kept.tokens()));
        self.kept.push_back(sequence);
    }

    fn step(&mut self) -> Result<Vec<(u64, Chosen)>, GenerateError> {
        let plan = self.plan();
        self.make_room(&plan);
        let mut turns = Vec::with_capacity(plan.len());
        let mut ready = Vec::with_capacity(plan.len());
        for (key, row) in &mut self.rows {
            let Some(count) = plan.get(key).copied() else { continue };
            let (first, unread) = (row.read(), row.unread());
            row.text.look_up_to(first + count);
            row.own += (first + count).min(row.prompt).saturating_sub(first);
            let all = row.scores.is_some();
            turns.push(Turn { sequence: &mut row.sequence, next: row.text.part(first, first + count), all });
            ready.push((*key, if all { count } else { 1 }, count == unread));
        }

        if turns.is_empty() {
            return Ok(Vec::new());
        }
        let logits = ragged::read(self.model, &mut turns)?;
        let logits = logits.try_into_data();
        let logits = logits.map_err(|error| GenerateError::Unread { reason: error.to_string() })?;
        let values: Vec<f32> = logits.iter::<f32>().collect();
        check_logits(&values)?;

        let mut logits = values.chunks(self.model.config().vocab_size);
        let mut tokens = Vec::with_capacity(ready.len());
        for (key, count, is_ready) in ready {
            let row = self.rows.get_mut(&key).expect("its turn was just taken");
            let mut last = &[][..];
            for at in row.read() - count..row.read() {
                last = logits.next().expect("a row of logits for each");
                if let Some(scores) = &mut row.scores
                    && at + 1 < row.prompt
                {
                    let token = row.text.tokens()[at + 1];
                    scores.push(Likelihood::new(last, token, row.alternatives.unwrap_or(0)));
                }
            }
            if is_ready {
                tokens.push((key, row.choose(last)));
            }
        }
        Ok(tokens)
    }

    fn forget(&mut self) {
        self.kept.clear();
        for row in self.rows.values_mut() {
            row.sequence = Sequence::new(self.model);
            row.own = 0;
            row.scores.iter_mut().for_each(Vec::clear);
        }
    }

    fn clear(&mut self) {
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
