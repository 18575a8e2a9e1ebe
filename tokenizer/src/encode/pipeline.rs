//! The rest of the BPE family on Hugging Face's code: normalizers, prefix spaces, byte fallback. Definitions are
//! checked.

use std::ops::Range;

use serde_json::Value;

use crate::{
    encode::special::SpecialTokens,
    error::Error,
    format::{component, definition::Definition, limits, problem::Problem},
};

/// A token, and its bytes of the text.
pub(crate) type Placed = (u32, Range<usize>);

#[derive(Debug)]
pub(crate) struct Pipeline {
    tokenizer: hf::Tokenizer,
    /// For text behind a control token, if only text without one before it opens with a blank.
    following: Option<hf::Tokenizer>,
    /// For characters outside the vocabulary; may be a control token.
    unknown: Option<u32>,
    /// Bytes of text that stay within [`limits::NORMALIZED_BYTES`].
    longest: usize,
}

impl Pipeline {
    pub(crate) fn new(definition: &Definition) -> Result<Self, Problem> {
        let mut bare =
            Definition { truncation: None, padding: None, post_processor: None, ..definition.clone() };
        let tokenizer = built(&bare)?;
        let opens_with_blank = bare.pre_tokenizer.as_mut().is_some_and(drop_opening_blank);
        let following = opens_with_blank.then(|| built(&bare)).transpose()?;

        for added in &definition.added_tokens {
            if tokenizer.token_to_id(&added.content) != Some(added.id) {
                let reason = format!("added token `{}` does not keep its id {}", added.content, added.id);
                return Err(Problem::Refused(reason));
            }
        }
        let unknown = definition.model.unk_token.as_ref().and_then(|token| tokenizer.token_to_id(token));
        let growth = component::growth(definition.normalizer.as_ref(), definition.pre_tokenizer.as_ref())?;
        let longest = (limits::NORMALIZED_BYTES as f64 / growth) as usize;
        Ok(Self { tokenizer, following, unknown, longest })
    }

    pub(crate) fn takes(&self, text: &str) -> bool {
        text.len() <= self.longest
    }

    pub(crate) fn unknown(&self) -> Option<u32> {
        self.unknown
    }

    pub(crate) fn encode(
        &self,
        text: &str,
        begins: bool,
        specials: &SpecialTokens,
    ) -> Result<Vec<u32>, Error> {
        if !self.takes(text) {
            return Err(Error::TextTooLong { bytes: text.len(), limit: self.longest });
        }
        let encoding = self.checked(self.at(begins).encode_fast(text, false), text, specials)?;
        Ok(encoding.get_ids().to_vec())
    }

    pub(crate) fn encode_with_places(
        &self,
        text: &str,
        begins: bool,
        specials: &SpecialTokens,
    ) -> Result<Vec<Placed>, Error> {
        let encoding = self.checked(self.at(begins).encode(text, false), text, specials)?;
        let places = encoding.get_offsets().iter().map(|(start, end)| *start..*end);
        Ok(encoding.get_ids().iter().copied().zip(places).collect())
    }

    fn at(&self, begins: bool) -> &hf::Tokenizer {
        self.following.as_ref().filter(|_| !begins).unwrap_or(&self.tokenizer)
    }

    fn checked(
        &self,
        encoded: hf::Result<hf::Encoding>,
        text: &str,
        specials: &SpecialTokens,
    ) -> Result<hf::Encoding, Error> {
        let encoding =
            encoded.map_err(|error| Error::Encoding { bytes: text.len(), reason: error.to_string() })?;
        let forged =
            encoding.get_ids().iter().find(|id| Some(**id) != self.unknown && specials.contains(**id));
        match forged.and_then(|id| specials.text(*id)) {
            Some(token) => Err(Error::ControlTokenFromText { token: token.to_owned() }),
            None => Ok(encoding),
        }
    }

    pub(crate) fn decode(&self, ids: &[u32]) -> Result<String, Error> {
        self.tokenizer
            .decode(ids, false)
            .map_err(|error| Error::Decoding { ids: ids.len(), reason: error.to_string() })
    }

    pub(crate) fn knows(&self, id: u32) -> bool {
        self.tokenizer.id_to_token(id).is_some()
    }
}

fn built(definition: &Definition) -> Result<hf::Tokenizer, Problem> {
    let refused = |error: hf::Error| Problem::Refused(error.to_string());
    let mut tokenizer = hf::Tokenizer::from_bytes(definition.to_json()).map_err(refused)?;
    tokenizer.set_encode_special_tokens(true);
    Ok(tokenizer)
}

/// Changes steps that write a blank only where a text begins, and returns whether there are any. Depth is checked.
fn drop_opening_blank(step: &mut Value) -> bool {
    if let Some(scheme) = step.get_mut("prepend_scheme").filter(|scheme| **scheme == "first") {
        *scheme = "never".into();
        return true;
    }
    let steps = step.get_mut("pretokenizers").and_then(Value::as_array_mut).into_iter().flatten();
    let mut dropped = false;
    for step in steps {
        dropped |= drop_opening_blank(step);
    }
    dropped
}
