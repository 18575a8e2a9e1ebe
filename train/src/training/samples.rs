//! What the model says: continuations, answers, and how many answers are right.

use std::fmt;
use std::io::Write;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use burn::tensor::backend::Backend;
use models::{Completion, Gpt, Overflow, Request, Sampling, Stop, generate};
use serde::Serialize;
use tokenizer::{Message, Role, Tokenizer};

use crate::config::EvalSection;
use crate::data::{Question, questions};

/// A model with its words.
pub(crate) struct Speaker<'a, B: Backend> {
    pub(crate) gpt: &'a Gpt<B>,
    pub(crate) tokenizer: &'a Tokenizer,
    pub(crate) sampling: Sampling,
    pub(crate) max_new_tokens: usize,
    /// Any of these ends a text, which lacks it.
    pub(crate) stop: &'a [String],
}

/// One text of a run's samples.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Sample {
    pub(crate) prompt: String,
    pub(crate) text: String,
}

/// Right answers, word for word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Score {
    pub(crate) right: usize,
    pub(crate) asked: usize,
}

/// How the held-out questions of the embedded corpus were answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct QuizScore {
    /// Asked in forms that training knows, about what it never asked in that form.
    pub(crate) held_out: Score,
    /// Asked in forms that training does not know.
    pub(crate) unseen_phrasings: Score,
}

impl fmt::Display for QuizScore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (held_out, unseen) = (self.held_out, self.unseen_phrasings);
        write!(
            f,
            "questions never asked in training: {} of {} right; in phrasings never seen: {} of {}",
            held_out.right, held_out.asked, unseen.right, unseen.asked
        )
    }
}

impl<'a, B: Backend> Speaker<'a, B> {
    /// As a run's samples are made.
    pub(crate) fn sampling(gpt: &'a Gpt<B>, tokenizer: &'a Tokenizer, eval: &EvalSection, seed: u64) -> Self {
        let sampling =
            Sampling { temperature: eval.temperature, top_k: eval.top_k, seed, ..Sampling::default() };
        Self { gpt, tokenizer, sampling, max_new_tokens: eval.max_new_tokens, stop: &[] }
    }

    /// The ids of a text to continue. One without text begins as a document does.
    pub(crate) fn opening(&self, text: &str) -> anyhow::Result<Vec<u32>> {
        let mut ids: Vec<u32> = self.tokenizer.bos().into_iter().collect();
        ids.extend(self.tokenizer.encode(text)?);
        if ids.is_empty() {
            ids = self.tokenizer.encode("\n").context("an empty prompt begins with a line break")?;
        }
        Ok(ids)
    }

    /// Continues `prompts`, showing the pieces of the first as they come.
    pub(crate) fn speak(
        &self,
        prompts: &[Vec<u32>],
        mut show: impl FnMut(&[u32]) -> ControlFlow<()>,
    ) -> anyhow::Result<Vec<Completion>> {
        let ends = ends(self.tokenizer);
        let decode = |ids: &[u32]| self.words(ids).unwrap_or_default();
        let request = Request {
            sampling: self.sampling,
            end_tokens: &ends,
            stop: (!self.stop.is_empty()).then_some(Stop { strings: self.stop, decode: &decode }),
            overflow: Overflow::Slide,
            ..Request::new(prompts, self.max_new_tokens)
        };
        let completions = generate(self.gpt, &request, |piece| {
            if piece.prompt == 0 { show(piece.tokens) } else { ControlFlow::Continue(()) }
        })?;
        Ok(completions)
    }

    /// Continues a prompt as it is written to `out`, until `silenced`; returns what was said.
    pub(crate) fn aloud(
        &self,
        prompt: &[Vec<u32>],
        out: &mut impl Write,
        silenced: &AtomicBool,
    ) -> anyhow::Result<String> {
        let mut stream = self.tokenizer.decode_stream();
        let (mut said, mut failure) = (String::new(), None);
        let show = |ids: &[u32]| {
            let piece = || -> anyhow::Result<String> {
                let known = ids.iter().filter(|id| **id < self.tokenizer.vocab_size());
                let text = known.map(|id| stream.push(*id)).collect::<Result<String, _>>()?;
                write!(out, "{text}")?;
                out.flush()?;
                Ok(text)
            };
            match { piece }() {
                Ok(text) => said += &text,
                Err(error) => failure = Some(error),
            }
            let ends = failure.is_some() || silenced.load(Ordering::Relaxed);
            if ends { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let completions = self.speak(prompt, show)?;
        if let Some(failure) = failure {
            return Err(failure);
        }
        let mut rest = stream.finish()?;
        // A stop string may begin within a token, the beginning of which is still to be said.
        let whole = completions.first().and_then(|completion| completion.text.as_deref());
        if let Some(left) = whole.and_then(|whole| whole.strip_prefix(said.as_str())) {
            left.clone_into(&mut rest);
        }
        write!(out, "{rest}")?;
        Ok(said + &rest)
    }

    /// What a run's configuration asks to be continued, as text and ids.
    pub(crate) fn prompts(&self, eval: &EvalSection) -> anyhow::Result<Vec<(String, Vec<u32>)>> {
        let mut prompts = Vec::new();
        for text in &eval.prompts {
            prompts.push((text.clone(), self.opening(text)?));
        }
        for question in &eval.questions {
            let message = Message::new(Role::User, question.clone());
            prompts.push((question.clone(), self.tokenizer.encode_prompt(&[message])?));
        }
        Ok(prompts)
    }

    /// The texts that a run's configuration asks for.
    pub(crate) fn samples(&self, eval: &EvalSection) -> anyhow::Result<Vec<Sample>> {
        let prompts = self.prompts(eval)?;
        let mut samples = Vec::with_capacity(prompts.len());
        for (prompt, ids) in prompts {
            let completions = self.speak(&[ids], |_| ControlFlow::Continue(()))?;
            let text = self.words(&completions[0].tokens)?;
            samples.push(Sample { prompt, text });
        }
        Ok(samples)
    }

    fn right(&self, questions: &[Question]) -> anyhow::Result<Score> {
        let mut score = Score { right: 0, asked: questions.len() };
        for questions in questions.chunks(QUESTIONS_AT_ONCE) {
            let prompts: Vec<Vec<u32>> = questions.iter().map(|question| question.prompt.clone()).collect();
            let completions = self.speak(&prompts, |_| ControlFlow::Continue(()))?;
            for (question, completion) in questions.iter().zip(completions) {
                score.right += usize::from(self.words(&completion.tokens)? == question.answer);
            }
        }
        Ok(score)
    }

    /// Ids beyond the vocabulary, which an embedding larger than it can produce, are no words.
    pub(crate) fn words(&self, ids: &[u32]) -> anyhow::Result<String> {
        let known: Vec<u32> = ids.iter().copied().filter(|id| *id < self.tokenizer.vocab_size()).collect();
        let bytes = self.tokenizer.decode_bytes(&known)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// The control tokens at which an answer ends, without repetition.
pub(crate) fn ends(tokenizer: &Tokenizer) -> Vec<u32> {
    let mut ends: Vec<u32> = tokenizer.eos().into_iter().chain(tokenizer.bos()).collect();
    ends.dedup();
    ends
}

const QUESTIONS_AT_ONCE: usize = 32;

/// Asks `count` questions of either kind and takes the likeliest answer.
pub(crate) fn quiz<B: Backend>(
    gpt: &Gpt<B>,
    tokenizer: &Tokenizer,
    count: usize,
    max_new_tokens: usize,
) -> anyhow::Result<QuizScore> {
    let speaker = Speaker { gpt, tokenizer, sampling: Sampling::greedy(), max_new_tokens, stop: &[] };
    let [held_out, unseen] = questions(tokenizer, count)?;
    Ok(QuizScore { held_out: speaker.right(&held_out)?, unseen_phrasings: speaker.right(&unseen)? })
}
