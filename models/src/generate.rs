//! Text generation: batched, streamed, stoppable between tokens.

use std::ops::ControlFlow;

use burn::tensor::backend::Backend;
use thiserror::Error;

use crate::config::GptConfig;
use crate::decode::DecoderFull;
use crate::gpt::Gpt;
use crate::lookup::{Lookup, Stretch, Text};
use crate::random::{Random, combine};
use crate::reader::{Reader, WholeReader};
use crate::sample::{Sampling, SamplingError};
use crate::stop::Stop;

/// A sequence at `n_positions`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Overflow {
    /// Refuses requests that could exceed it.
    #[default]
    Refuse,
    /// Drops the window's older half and reads the rest again.
    Slide,
}

/// Prompts and settings of one call.
#[derive(Debug, Clone)]
pub struct Request<'a> {
    /// Token sequences to continue, of any lengths.
    pub prompts: &'a [Vec<u32>],
    /// Most tokens to add to each prompt.
    pub max_new_tokens: usize,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Tokens that end a completion; excluded from it.
    pub end_tokens: &'a [u32],
    /// Texts that end a completion; excluded from it.
    pub stop: Option<Stop<'a>>,
    /// Behaviour at the window's end.
    pub overflow: Overflow,
    /// Texts in which a model with `longest_match` looks up its tokens.
    pub lookup: Option<&'a dyn Lookup>,
}

impl<'a> Request<'a> {
    /// Default sampling without stop conditions.
    pub fn new(prompts: &'a [Vec<u32>], max_new_tokens: usize) -> Self {
        Self {
            prompts,
            max_new_tokens,
            sampling: Sampling::default(),
            end_tokens: &[],
            stop: None,
            overflow: Overflow::default(),
            lookup: None,
        }
    }
}

/// The end of a completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// `max_new_tokens` were generated.
    Length,
    /// An end token was chosen.
    EndToken,
    /// A stop string came up.
    StopString,
    /// The callback asked to stop.
    Cancelled,
}

/// One prompt's continuation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Completion {
    /// New tokens, without end token or stop string.
    pub tokens: Vec<u32>,
    /// Text before the stop string, which may cut a token; `None` without a decoder.
    pub text: Option<String>,
    /// Why the completion ended.
    pub finish: Finish,
}

/// Final tokens, streamed as they come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece<'a> {
    /// Index of the prompt.
    pub prompt: usize,
    /// One or more tokens.
    pub tokens: &'a [u32],
}

/// A request that cannot be served.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum GenerateError {
    /// A prompt without tokens.
    #[error("prompt {index} is empty; begin it with the model's start token")]
    EmptyPrompt {
        /// Index of the prompt.
        index: usize,
    },
    /// A token without an embedding.
    #[error("prompt {index} holds token {token}, but the model knows {vocab_size}; is this its tokenizer?")]
    UnknownToken {
        /// Index of the prompt.
        index: usize,
        /// The token.
        token: u32,
        /// The model's vocabulary size.
        vocab_size: usize,
    },
    /// More tokens than positions.
    #[error(
        "prompt {index} has {prompt} tokens and {wanted} more were asked for, but the context window holds {window}; \
         ask for at most {} or allow the window to slide",
        (window + 1).saturating_sub(*prompt)
    )]
    WindowTooSmall {
        /// Index of the prompt.
        index: usize,
        /// Its tokens.
        prompt: usize,
        /// Tokens to add.
        wanted: usize,
        /// `n_positions`.
        window: usize,
    },
    /// A key already in the batch.
    #[error("another sequence runs under the key {key}")]
    KeyInUse {
        /// The key.
        key: u64,
    },
    /// Keys and values of the sequence have no room beside those of others.
    #[error(
        "keys and values need {needed} positions of {room}, which other sequences hold; wait for their end"
    )]
    NoRoom {
        /// Positions of the sequence.
        needed: usize,
        /// Positions of all sequences.
        room: usize,
    },
    /// Logits could not be fetched from the device.
    #[error("could not read what the model computed: {reason}")]
    Unread {
        /// The device's message.
        reason: String,
    },
    /// An invalid sampling setting.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// More tokens than the cache holds; excluded before the first token.
    #[error(transparent)]
    DecoderFull(#[from] DecoderFull),
}

/// Continues every prompt. `on_piece` gets final tokens at once, and may cancel.
pub fn generate<B: Backend>(
    model: &Gpt<B>,
    request: &Request<'_>,
    on_piece: impl FnMut(Piece<'_>) -> ControlFlow<()>,
) -> Result<Vec<Completion>, GenerateError> {
    generate_by(&mut WholeReader::new(model), model.config(), request, on_piece)
}

/// As [`generate`], with the logits of `reader`, a model of this `config`.
pub fn generate_by(
    reader: &mut dyn Reader,
    config: &GptConfig,
    request: &Request<'_>,
    mut on_piece: impl FnMut(Piece<'_>) -> ControlFlow<()>,
) -> Result<Vec<Completion>, GenerateError> {
    check(config, request)?;
    let (window, vocabulary) = (config.n_positions, config.vocab_size);
    let mut rows: Vec<Row> = request
        .prompts
        .iter()
        .enumerate()
        .map(|(at, prompt)| Row::new(config, at, prompt, request))
        .collect();
    let mut keep = window;

    while rows.iter().any(|row| row.finish.is_none()) {
        for row in &mut rows {
            row.text.look_up_to(row.text.tokens().len());
        }

        let values = if keep < window && reader.has_room() {
            reader.feed(&rows.iter().map(Row::last).collect::<Vec<_>>())?
        } else {
            let longest = rows.iter().map(|row| row.text.tokens().len().min(keep)).max().unwrap_or(0);
            let capacity = window.min(longest.saturating_add(request.max_new_tokens));
            let values = reader.read(&rows.iter().map(|row| row.tail(keep)).collect::<Vec<_>>(), capacity)?;
            keep = (window / 2).max(1);
            values
        };
        check_logits(&values)?;
        for (at, row) in rows.iter_mut().enumerate().filter(|(_, row)| row.finish.is_none()) {
            row.advance(&values[at * vocabulary..][..vocabulary], request);
            if let Some(tokens) = row.ready()
                && on_piece(Piece { prompt: at, tokens }).is_break()
            {
                rows.iter_mut().for_each(Row::cancel);
                break;
            }
        }
    }
    Ok(rows.into_iter().map(|row| row.completion(request)).collect())
}

fn check(config: &GptConfig, request: &Request<'_>) -> Result<(), GenerateError> {
    request.sampling.validate()?;
    let (vocab_size, window) = (config.vocab_size, config.n_positions);

    for (index, prompt) in request.prompts.iter().enumerate() {
        if prompt.is_empty() {
            return Err(GenerateError::EmptyPrompt { index });
        }
        if let Some(token) = prompt.iter().copied().find(|token| *token as usize >= vocab_size) {
            return Err(GenerateError::UnknownToken { index, token, vocab_size });
        }
        // The last token is never read: it needs no position.
        let positions = (prompt.len() - 1).saturating_add(request.max_new_tokens);
        if request.overflow == Overflow::Refuse && positions > window {
            return Err(GenerateError::WindowTooSmall {
                index,
                prompt: prompt.len(),
                wanted: request.max_new_tokens,
                window,
            });
        }
    }
    Ok(())
}

/// Grammars exclude tokens by minus infinity.
pub(crate) fn check_logits(logits: &[f32]) -> Result<(), GenerateError> {
    let is_wrong = |logit: &f32| logit.is_nan() || *logit == f32::INFINITY;
    if !logits.iter().any(is_wrong) {
        return Ok(());
    }
    let reason = "some are not finite numbers; numbers above 65,504 have no form in f16, but in bf16 and f32"
        .to_owned();
    Err(GenerateError::Unread { reason })
}

struct Row {
    text: Text,
    prompt: usize,
    shown: usize,
    safe: usize,
    stopped_at: Option<usize>,
    random: Random,
    finish: Option<Finish>,
}

impl Row {
    fn new(config: &GptConfig, at: usize, prompt: &[u32], request: &Request<'_>) -> Self {
        Self {
            text: Text::new(config, request.lookup, prompt),
            prompt: prompt.len(),
            shown: 0,
            safe: 0,
            stopped_at: None,
            random: Random::new(combine(&[request.sampling.seed, at as u64])),
            finish: (request.max_new_tokens == 0).then_some(Finish::Length),
        }
    }

    fn generated(&self) -> &[u32] {
        &self.text.tokens()[self.prompt..]
    }

    fn tail(&self, keep: usize) -> Stretch<'_> {
        self.text.from(self.text.tokens().len().saturating_sub(keep))
    }

    /// A finished row rereads its last token, to keep the batch one matrix; the result is ignored.
    fn last(&self) -> Stretch<'_> {
        self.text.from(self.text.tokens().len() - 1)
    }

    fn advance(&mut self, logits: &[f32], request: &Request<'_>) {
        let token = request.sampling.choose(logits, self.text.tokens(), &mut self.random);
        if request.end_tokens.contains(&token) {
            self.finish = Some(Finish::EndToken);
            self.safe = self.generated().len();
            return;
        }
        self.text.push(token);
        let count = self.generated().len();
        self.safe = count;
        if let Some(stop) = &request.stop {
            let verdict = stop.judge(self.generated(), self.shown);
            (self.safe, self.stopped_at) = (verdict.safe, verdict.stopped_at);
        }
        if self.stopped_at.is_some() {
            self.finish = Some(Finish::StopString);
        } else if count == request.max_new_tokens {
            self.finish = Some(Finish::Length);
            self.safe = count;
        }
    }

    fn ready(&mut self) -> Option<&[u32]> {
        let shown = std::mem::replace(&mut self.shown, self.safe);
        (shown < self.safe).then(|| &self.generated()[shown..self.safe])
    }

    fn cancel(&mut self) {
        self.finish.get_or_insert(Finish::Cancelled);
    }

    fn completion(self, request: &Request<'_>) -> Completion {
        let text = request.stop.map(|stop| {
            let mut text = (stop.decode)(self.generated());
            text.truncate(self.stopped_at.unwrap_or(text.len()));
            text
        });
        let count = if self.finish == Some(Finish::StopString) { self.safe } else { self.generated().len() };
        Completion {
            tokens: self.generated()[..count].to_vec(),
            text,
            finish: self.finish.unwrap_or(Finish::Cancelled),
        }
    }
}
