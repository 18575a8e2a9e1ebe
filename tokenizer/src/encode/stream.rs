//! Decodes token by token.

use crate::{
    encode::{kind::Kind, tokenizer::Tokenizer},
    error::Error,
};

/// Turns ids into text as they arrive. Bytes wait until they complete a character. Joined results equal
/// [`Tokenizer::decode`].
#[derive(Debug)]
pub struct DecodeStream<'t> {
    tokenizer: &'t Tokenizer,
    pending: Vec<u8>,
    /// All ids, if neighbours affect a token's text.
    context: Vec<u32>,
    shown: usize,
}

impl Tokenizer {
    /// Starts a text.
    pub fn decode_stream(&self) -> DecodeStream<'_> {
        DecodeStream { tokenizer: self, pending: Vec::new(), context: Vec::new(), shown: 0 }
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
            return Ok(text.get(self.shown..).unwrap_or_default().to_owned());
        }
        let rest = String::from_utf8_lossy(&self.pending).into_owned();
        self.pending.clear();
        Ok(rest)
    }

    /// Decodes all ids again, up to an incomplete last character. Quadratic, but replies are short.
    fn push_in_context(&mut self, id: u32) -> Result<String, Error> {
        self.context.push(id);
        let text = self.tokenizer.decode(&self.context)?;
        let settled = text.trim_end_matches(char::REPLACEMENT_CHARACTER).len();
        let added = text.get(self.shown..settled).unwrap_or_default().to_owned();
        self.shown += added.len();
        Ok(added)
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
