//! Decodes token by token.

use crate::{
    encode::{kind::Kind, tokenizer::Tokenizer},
    error::Error,
};

/// Tokens of a prompt that decode before its continuation. More than one, since a blank alone may decode to nothing.
const CONTEXT: usize = 4;

/// Turns ids into text as they arrive. Bytes wait until they complete a character; bytes of byte fallback decode
/// together, so they wait for another token. Joined results equal [`Tokenizer::decode`].
#[derive(Debug)]
pub struct DecodeStream<'t> {
    tokenizer: &'t Tokenizer,
    pending: Vec<u8>,
    /// Ids of text, if neighbours affect a token's text.
    context: Vec<u32>,
    /// Bytes of the context's text.
    shown: usize,
}

impl Tokenizer {
    /// Starts a text.
    pub fn decode_stream(&self) -> DecodeStream<'_> {
        DecodeStream { tokenizer: self, pending: Vec::new(), context: Vec::new(), shown: 0 }
    }

    /// Continues the text of `prompt` without repeating it. A text's beginning may lose a blank, which a continuation
    /// keeps.
    pub fn decode_stream_after(&self, prompt: &[u32]) -> DecodeStream<'_> {
        let mut stream = self.decode_stream();
        let Kind::Pipeline(pipeline) = &self.kind else { return stream };
        let is_text = |id: &u32| pipeline.knows(*id) && !self.specials().contains(*id);
        let ids: Vec<u32> = prompt.iter().copied().filter(is_text).collect();

        // The continuation's bytes must not join those at the prompt's end.
        let before = |end: usize| &ids[end.saturating_sub(CONTEXT)..end];
        let text = |end: usize| self.decode(before(end)).unwrap_or_default();
        let is_whole = |end: &usize| {
            !self.is_byte_fallback(ids[end - 1]) && !text(*end).ends_with(char::REPLACEMENT_CHARACTER)
        };
        if let Some(end) = (1..=ids.len()).rev().find(is_whole) {
            stream.context = before(end).to_vec();
            stream.shown = text(end).len();
        }
        stream
    }
}

impl DecodeStream<'_> {
    /// The text that `id` completes.
    pub fn push(&mut self, id: u32) -> Result<String, Error> {
        if matches!(self.tokenizer.kind, Kind::Pipeline(_)) {
            return self.push_in_context(id);
        }
        self.tokenizer.push_token(id, &mut self.pending)?;
        Ok(take_complete(&mut self.pending))
    }

    /// The rest: U+FFFD for an incomplete character.
    pub fn finish(mut self) -> Result<String, Error> {
        if !self.context.is_empty() {
            let text = self.tokenizer.decode(&self.context)?;
            return Ok(text[text.ceil_char_boundary(self.shown)..].to_owned());
        }
        let rest = String::from_utf8_lossy(&self.pending).into_owned();
        self.pending.clear();
        Ok(rest)
    }

    /// Decodes all ids again, up to an incomplete last character. Quadratic, but replies are short.
    fn push_in_context(&mut self, id: u32) -> Result<String, Error> {
        if self.tokenizer.specials().contains(id) {
            return Ok(String::new());
        }
        self.context.push(id);
        // One stray byte makes U+FFFD of all bytes of its run.
        if self.tokenizer.is_byte_fallback(id) {
            return Ok(String::new());
        }

        let decoded = self.tokenizer.decode(&self.context);
        let text = decoded.inspect_err(|_| {
            self.context.pop();
        })?;
        let settled = text.trim_end_matches(char::REPLACEMENT_CHARACTER).len();
        let from = text.ceil_char_boundary(self.shown).min(settled);
        self.shown = settled;
        Ok(text[from..settled].to_owned())
    }
}

fn take_complete(pending: &mut Vec<u8>) -> String {
    let mut text = String::new();
    let mut taken = 0;
    for chunk in pending.utf8_chunks() {
        text.push_str(chunk.valid());
        taken += chunk.valid().len();
        let invalid = chunk.invalid();
        let at_the_end = taken + invalid.len() == pending.len();
        let may_continue =
            at_the_end && std::str::from_utf8(invalid).is_err_and(|error| error.error_len().is_none());
        if !invalid.is_empty() && !may_continue {
            text.push(char::REPLACEMENT_CHARACTER);
            taken += invalid.len();
        }
    }
    pending.drain(..taken);
    text
}
