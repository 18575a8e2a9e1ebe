//! Lookup of followers: for each token, the one after the text's longest earlier match.
//!
//! The caller chooses the texts. Decoding finds a full pass's followers
//! (`decoding_with_matches_equals_a_full_forward_pass`).

use std::fmt::Debug;
use std::iter::repeat_n;

use burn::tensor::{Tensor, TensorData, backend::Backend};

use crate::config::GptConfig;
use crate::gpt::Gpt;
use crate::input::Input;

/// Texts searched for followers.
pub trait Lookup: Debug + Send + Sync {
    /// Begins an empty text.
    fn begin(&self) -> Box<dyn Matching>;
}

/// A text read so far.
pub trait Matching: Debug + Send {
    /// Reads the next token. Returns the one after the longest match, which must depend on the text alone.
    fn follower_after(&mut self, token: u32) -> Option<u32>;
}

/// Consecutive tokens and their followers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stretch<'a> {
    /// The tokens.
    pub tokens: &'a [u32],
    /// One follower per token, or the vocabulary size; `None` without a lookup.
    pub followers: Option<&'a [u32]>,
}

impl<'a> From<&'a [u32]> for Stretch<'a> {
    fn from(tokens: &'a [u32]) -> Self {
        Self { tokens, followers: None }
    }
}

/// Padding before a stretch, hidden from attention.
pub(crate) type Padded<'a> = (usize, Stretch<'a>);

pub(crate) fn upload<B: Backend>(model: &Gpt<B>, stretches: &[Padded<'_>], shape: [usize; 2]) -> Input<B> {
    let device = model.wte.lazy_device();
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

#[derive(Debug)]
pub(crate) struct Text {
    tokens: Vec<u32>,
    followers: Vec<u32>,
    matching: Option<Box<dyn Matching>>,
    none: u32,
}

impl Text {
    pub(crate) fn new(config: &GptConfig, lookup: Option<&dyn Lookup>, prompt: &[u32]) -> Self {
        let none = config.vocab_size as u32;
        let matching = lookup.filter(|_| config.longest_match).map(Lookup::begin);
        Self { tokens: prompt.to_vec(), followers: Vec::new(), matching, none }
    }

    pub(crate) fn push(&mut self, token: u32) {
        self.tokens.push(token);
    }

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

    pub(crate) fn from(&self, first: usize) -> Stretch<'_> {
        self.part(first, self.tokens.len())
    }

    /// Needs followers looked up before.
    pub(crate) fn part(&self, first: usize, end: usize) -> Stretch<'_> {
        let followers = self.matching.is_some().then(|| &self.followers[first..end]);
        Stretch { tokens: &self.tokens[first..end], followers }
    }
}
