//! Bytes of single tokens (`bytes_of_tokens_join_to_the_text`).

use serde_json::Value;

use crate::{
    encode::{alphabet, tokenizer::Tokenizer},
    format::definition::Definition,
};

/// Spellings in vocabularies of Hugging Face's code, which decodes whole texts only. Spellings become bytes on demand: a
/// hostile decoder would multiply all of them.
#[derive(Debug)]
pub(crate) struct Spellings {
    /// By id; empty for unused ids.
    tokens: Vec<Box<str>>,
    steps: Vec<Step>,
}

/// A decoder's step that rewrites single tokens. Other steps join tokens or cut a text's ends.
#[derive(Debug)]
enum Step {
    Replace { pattern: String, content: String },
    ByteFallback,
    ByteLevel,
}

enum Spelled {
    /// Byte fallback: neighbours decode together.
    Byte(u8),
    Text(Vec<u8>),
}

impl Spellings {
    pub(crate) fn new(definition: &Definition, size: u32) -> Self {
        let mut tokens: Vec<Box<str>> = vec![Box::default(); size as usize];
        for (token, id) in &definition.model.vocab.0 {
            tokens[*id as usize] = token.as_str().into();
        }
        for added in &definition.added_tokens {
            tokens[added.id as usize] = added.content.as_str().into();
        }

        let mut steps = Vec::new();
        if let Some(decoder) = &definition.decoder {
            collect(decoder, &mut steps);
        }
        Self { tokens, steps }
    }

    fn spelled(&self, id: u32) -> Spelled {
        let mut text = self.tokens.get(id as usize).map_or("", AsRef::as_ref).to_owned();
        for step in &self.steps {
            match step {
                Step::Replace { pattern, content } => text = text.replace(pattern.as_str(), content),
                Step::ByteFallback => {
                    if let Some(byte) = fallback_byte(&text) {
                        return Spelled::Byte(byte);
                    }
                }
                Step::ByteLevel => {
                    if let Some(bytes) = alphabet::unspell(&text) {
                        return Spelled::Text(bytes.into());
                    }
                }
            }
        }
        Spelled::Text(text.into_bytes())
    }
}

fn collect(decoder: &Value, steps: &mut Vec<Step>) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let replace = |pattern: &Value, content: &str| Step::Replace {
        pattern: text(pattern),
        content: content.to_owned(),
    };
    match decoder["type"].as_str().unwrap_or_default() {
        "Sequence" => {
            let inner = decoder["decoders"].as_array();
            inner.into_iter().flatten().for_each(|step| collect(step, steps));
        }
        "Replace" => steps.push(replace(&decoder["pattern"]["String"], &text(&decoder["content"]))),
        "Metaspace" => steps.push(replace(&decoder["replacement"], " ")),
        "BPEDecoder" => steps.push(replace(&decoder["suffix"], " ")),
        "ByteFallback" => steps.push(Step::ByteFallback),
        "ByteLevel" => steps.push(Step::ByteLevel),
        _ => {}
    }
}

/// The byte of `<0xNN>`.
fn fallback_byte(token: &str) -> Option<u8> {
    let hex = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if hex.len() == 2 { u8::from_str_radix(hex, 16).ok() } else { None }
}

impl Tokenizer {
    /// Bytes of token `id` within a text, perhaps part of a character. At a text's beginning it may decode without its
    /// leading blank. Control tokens and unknown ids have no bytes.
    pub fn token_bytes(&self, id: u32) -> Vec<u8> {
        let Some(spellings) = &self.spellings else {
            return self.decode_bytes(&[id]).unwrap_or_default();
        };
        if self.specials().contains(id) {
            return Vec::new();
        }
        match spellings.spelled(id) {
            Spelled::Byte(byte) => vec![byte],
            Spelled::Text(bytes) => bytes,
        }
    }

    pub(crate) fn is_byte_fallback(&self, id: u32) -> bool {
        self.spellings.as_ref().is_some_and(|spellings| matches!(spellings.spelled(id), Spelled::Byte(_)))
    }
}
