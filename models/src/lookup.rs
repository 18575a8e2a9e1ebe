//! Models that look texts up: beside each token they read what followed the longest match of the text up to it.
//!
//! Which texts are searched, and how, is the caller's: a [`Lookup`] is given in, and this crate sees ids alone. Where a
//! model that was trained with one is given none, it reads everywhere that there was no match, as it did in training
//! wherever a follower was dropped.

use std::fmt::Debug;
use std::iter::repeat_n;

use burn::tensor::{Tensor, TensorData, backend::Backend};

use crate::gpt::Gpt;
use crate::input::Input;

/// Texts in which a model looks up what followed.
pub trait Lookup: Debug + Send + Sync {
    /// Begins with a text that nothing was read of.
    fn begin(&self) -> Box<dyn Matching>;
}

/// A text as far as it was read.
pub trait Matching: Debug + Send {
    /// Reads the next token. Returns what followed the longest match of the text up to it; the same for the same text,
    /// whoever asks.
    fn follower_after(&mut self, token: u32) -> Option<u32>;
}

/// A stretch of a text, and what followed the longest match at each of its tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stretch<'a> {
    /// Its tokens.
    pub tokens: &'a [u32],
    /// One for each token, the size of the vocabulary where there is none; `None` where nothing is looked up.
    pub followers: Option<&'a [u32]>,
}

impl<'a> From<&'a [u32]> for Stretch<'a> {
    fn from(tokens: &'a [u32]) -> Self {
        Self { tokens, followers: None }
    }
}

/// A stretch behind as many tokens of padding, which are hidden from attention.
pub(crate) type Padded<'a> = (usize, Stretch<'a>);

/// Stretches one behind the other, in rows of `shape`, as the model reads them.
pub(crate) fn upload<B: Backend>(model: &Gpt<B>, stretches: &[Padded<'_>], shape: [usize; 2]) -> Input<B> {
    let device = model.wte.device();
    let none = model.config().vocab_size as i32;
    let (mut tokens, mut followers) = (Vec::new(), Vec::new());
    for (padding, stretch) in stretches {
        tokens.extend(repeat_n(0, *padding));
        tokens.extend(stretch.tokens.iter().map(|id| *id as i32));
        if let Some(known) = stretch.followers {
            followers.resize(tokens.len() - known.len(), none);
            followers.extend(known.iter().map(|id| *id as i32));
        }
    }
    let looks_up = model.config().longest_match && !followers.is_empty();
    followers.resize(tokens.len(), none);
    let followers = looks_up.then(|| Tensor::from_data(TensorData::new(followers, shape), &device));
    Input { followers, ..Input::of_tokens(tokens, shape, model.rows_on_demand(), &device) }
}

/// A text that grows, with the followers looked up so far where the model reads them.
#[derive(Debug)]
pub(crate) struct Text {
    tokens: Vec<u32>,
    /// Followers of the first tokens; empty without a lookup.
    followers: Vec<u32>,
    matching: Option<Box<dyn Matching>>,
    none: u32,
}

impl Text {
    /// A text that begins with `prompt`.
    pub(crate) fn new<B: Backend>(model: &Gpt<B>, lookup: Option<&dyn Lookup>, prompt: &[u32]) -> Self {
        let none = model.config().vocab_size as u32;
        let matching = lookup.filter(|_| model.config().longest_match).map(Lookup::begin);
        Self { tokens: prompt.to_vec(), followers: Vec::new(), matching, none }
    }

    pub(crate) fn push(&mut self, token: u32) {
        self.tokens.push(token);
    }

    /// Looks up what is about to be read, before `end`.
    pub(crate) fn look_up_to(&mut self, end: usize) {
        let Some(matching) = &mut self.matching else { return };
        for token in &self.tokens[self.followers.len().min(end)..end] {
            let known = matching.follower_after(*token).filter(|follower| *follower < self.none);
            self.followers.push(known.unwrap_or(self.none));
        }
    }

    pub(crate) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The text from the token `first` on, which must have been looked up.
    pub(crate) fn from(&self, first: usize) -> Stretch<'_> {
        self.part(first, self.tokens.len())
    }

    /// The tokens from `first` to before `end`, once they were looked up.
    pub(crate) fn part(&self, first: usize, end: usize) -> Stretch<'_> {
        let followers = self.matching.is_some().then(|| &self.followers[first..end]);
        Stretch { tokens: &self.tokens[first..end], followers }
    }
}
