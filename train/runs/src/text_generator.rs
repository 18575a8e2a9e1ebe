//! Generates text, in batches or streamed, up to an end token or stop string.

use std::io::Write;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use burn::tensor::backend::Backend;
use models::{Completion, Gpt, Lookup, Overflow, Reader, Request, Sampling, Stop, WholeReader, generate_by};
use tokenizer::Tokenizer;

/// Texts per batch. More take memory and save no time.
pub const TEXTS_AT_ONCE: usize = 32;

/// A model, its vocabulary and settings.
pub struct TextGenerator<'a, B: Backend> {
    /// The model.
    pub gpt: &'a Gpt<B>,
    /// Its vocabulary.
    pub tokenizer: &'a Tokenizer,
    /// Sampling parameters.
    pub sampling: Sampling,
    /// Most new tokens per text.
    pub max_new_tokens: usize,
    /// Strings that end a text, cut off.
    pub stop: &'a [String],
    /// Indexed texts (`longest_match`).
    pub lookup: Option<&'a dyn Lookup>,
}

impl<B: Backend> TextGenerator<'_, B> {
    /// Token ids of a text to continue, by [`opening`].
    pub fn opening(&self, text: &str) -> anyhow::Result<Vec<u32>> {
        opening(self.tokenizer, text)
    }

    /// Continues `prompts`; `show` gets the first's new tokens.
    pub fn speak(
        &self,
        prompts: &[Vec<u32>],
        show: impl FnMut(&[u32]) -> ControlFlow<()>,
    ) -> anyhow::Result<Vec<Completion>> {
        self.speak_by(&mut WholeReader::new(self.gpt), prompts, show)
    }

    /// As [`speak`](Self::speak), with a `reader` for the model.
    pub fn speak_by(
        &self,
        reader: &mut dyn Reader,
        prompts: &[Vec<u32>],
        mut show: impl FnMut(&[u32]) -> ControlFlow<()>,
    ) -> anyhow::Result<Vec<Completion>> {
        let ends = self.tokenizer.ends_of_answers();
        let decode = |ids: &[u32]| self.words(ids).unwrap_or_default();
        let request = Request {
            sampling: self.sampling,
            end_tokens: &ends,
            stop: (!self.stop.is_empty()).then_some(Stop { strings: self.stop, decode: &decode }),
            overflow: Overflow::Slide,
            lookup: self.lookup,
            ..Request::new(prompts, self.max_new_tokens)
        };

        let completions = generate_by(reader, self.gpt.config(), &request, |piece| {
            if piece.prompt == 0 { show(piece.tokens) } else { ControlFlow::Continue(()) }
        })?;
        Ok(completions)
    }

    /// Streams a continuation to `out` until `silenced`. Returns it.
    pub fn stream_to(
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
        // A stop string may begin within a token, whose first bytes wait.
        let whole = completions.first().and_then(|completion| completion.text.as_deref());
        if let Some(left) = whole.and_then(|whole| whole.strip_prefix(said.as_str())) {
            left.clone_into(&mut rest);
        }
        write!(out, "{rest}")?;
        Ok(said + &rest)
    }

    /// A completion's text, up to a stop string.
    pub fn text(&self, completion: &Completion) -> anyhow::Result<String> {
        completion.text.clone().map_or_else(|| self.words(&completion.tokens), Ok)
    }

    /// Decodes `ids` of the vocabulary; an embedding may be larger.
    pub fn words(&self, ids: &[u32]) -> anyhow::Result<String> {
        let known: Vec<u32> = ids.iter().copied().filter(|id| *id < self.tokenizer.vocab_size()).collect();
        let bytes = self.tokenizer.decode_bytes(&known)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// Token ids of a text to continue, after the opening token; never empty.
pub fn opening(tokenizer: &Tokenizer, text: &str) -> anyhow::Result<Vec<u32>> {
    let mut ids: Vec<u32> = tokenizer.bos().into_iter().collect();
    ids.extend(tokenizer.encode(text)?);
    if ids.is_empty() {
        ids = tokenizer.encode("\n").context("an empty prompt begins with a line break")?;
    }
    Ok(ids)
}
