//! The rest of the BPE family on Hugging Face's code: normalizers, prefix spaces, byte fallback. Definitions are
//! checked.

use crate::{
    encode::special::SpecialTokens,
    error::Error,
    format::{component, definition::Definition, limits, problem::Problem},
};

#[derive(Debug)]
pub(crate) struct Pipeline {
    tokenizer: hf::Tokenizer,
    /// For characters outside the vocabulary; may be a control token.
    unknown: Option<u32>,
    /// Bytes of text that stay within [`limits::NORMALIZED_BYTES`].
    longest: usize,
}

impl Pipeline {
    pub(crate) fn new(definition: &Definition) -> Result<Self, Problem> {
        let bare = Definition { truncation: None, padding: None, post_processor: None, ..definition.clone() };
        let refused = |error: hf::Error| Problem::Refused(error.to_string());
        let mut tokenizer = hf::Tokenizer::from_bytes(bare.to_json()).map_err(refused)?;
        tokenizer.set_encode_special_tokens(true);
        for added in &definition.added_tokens {
            if tokenizer.token_to_id(&added.content) != Some(added.id) {
                let reason = format!("added token `{}` does not keep its id {}", added.content, added.id);
                return Err(Problem::Refused(reason));
            }
        }
        let unknown = definition.model.unk_token.as_ref().and_then(|token| tokenizer.token_to_id(token));
        let growth = component::growth(definition.normalizer.as_ref(), definition.pre_tokenizer.as_ref())?;
        let longest = (limits::NORMALIZED_BYTES as f64 / growth) as usize;
        Ok(Self { tokenizer, unknown, longest })
    }

    pub(crate) fn encode(&self, text: &str, specials: &SpecialTokens) -> Result<Vec<u32>, Error> {
        if text.len() > self.longest {
            return Err(Error::TextTooLong { bytes: text.len(), limit: self.longest });
        }
        let encoding = self
            .tokenizer
            .encode_fast(text, false)
            .map_err(|error| Error::Encoding { bytes: text.len(), reason: error.to_string() })?;
        let forged =
            encoding.get_ids().iter().find(|id| Some(**id) != self.unknown && specials.contains(**id));
        match forged.and_then(|id| specials.text(*id)) {
            Some(token) => Err(Error::ControlTokenFromText { token: token.to_owned() }),
            None => Ok(encoding.get_ids().to_vec()),
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
