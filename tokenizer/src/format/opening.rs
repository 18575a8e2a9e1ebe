//! The token that opens a text, by the tokenizer's files.

use serde_json::Value;

use crate::{
    encode::special::CHAT_SPECIALS,
    format::{config::Config, definition::Definition},
};

/// Whether the token `bos` opens texts. This crate opens them where the files say nothing else, and always by its own
/// token.
pub(crate) fn opens_texts(definition: &Definition, config: &Config, bos: &str) -> bool {
    match &definition.post_processor {
        _ if bos == CHAT_SPECIALS[0] => true,
        Some(step) => opening(step).is_some(),
        None => config.adds_bos() != Some(false),
    }
}

/// The token that a post-processor puts before a text. The last step's comes first.
pub(crate) fn opening(step: &Value) -> Option<&str> {
    match step["processors"].as_array() {
        Some(steps) => steps.iter().rev().find_map(opening),
        None => step["single"][0]["SpecialToken"]["id"].as_str(),
    }
}
