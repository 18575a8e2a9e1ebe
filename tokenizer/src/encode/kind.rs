//! Chooses the encoder: this crate's, or Hugging Face's code.

use std::collections::HashSet;

use serde_json::Value;

use crate::{
    encode::{
        alphabet,
        byte_bpe::{ByteBpe, Defect, MergeRule},
        characters::Characters,
        pipeline::Pipeline,
        special::SpecialTokens,
        split::Pattern,
    },
    format::{
        component::{self, PreTokenizer},
        definition::Definition,
        problem::Problem,
    },
};

/// Without control tokens.
#[derive(Debug)]
pub(crate) enum Kind {
    Bytes,
    Characters(Characters),
    ByteBpe(Box<ByteBpe>),
    Pipeline(Box<Pipeline>),
}

impl Kind {
    pub(crate) fn new(definition: &Definition, specials: &SpecialTokens) -> Result<Self, Problem> {
        component::check_normalizer(definition.normalizer.as_ref())?;
        component::check_decoder(definition.decoder.as_ref())?;
        let pre_tokenizer = component::check_pre_tokenizer(definition.pre_tokenizer.as_ref())?;

        if let Some(dropout) = definition.model.dropout.filter(|dropout| *dropout != 0.0) {
            return Err(Problem::Dropout(dropout));
        }

        let rules = definition.merge_rules()?;
        if let Some((at, token)) = first_forged(&rules, specials) {
            return Err(Problem::MergeMakesControlToken { at, token });
        }

        if is_plain(definition) {
            if let PreTokenizer::ByteLevel(pattern) = pre_tokenizer
                && let Some(kind) = byte_level(pattern, definition, &rules, specials)?
            {
                return Ok(kind);
            }
            if let Some(characters) = characters(definition, &rules, specials)? {
                return Ok(Self::Characters(characters));
            }
        }

        Pipeline::new(definition).map(|pipeline| Self::Pipeline(Box::new(pipeline)))
    }
}

fn first_forged(rules: &[MergeRule], specials: &SpecialTokens) -> Option<(usize, String)> {
    let forged = |rule: &MergeRule| specials.text(rule.result).map(str::to_owned);
    rules.iter().enumerate().find_map(|(at, rule)| Some((at + 1, forged(rule)?)))
}

fn is_plain(definition: &Definition) -> bool {
    let model = &definition.model;
    let absent = |text: &Option<String>| text.as_deref().is_none_or(str::is_empty);
    definition.normalizer.is_none()
        && model.unk_token.is_none()
        && !model.byte_fallback
        && absent(&model.continuing_subword_prefix)
        && absent(&model.end_of_word_suffix)
        && definition.added_tokens.iter().all(|token| token.special)
}

/// `None` if a token has no spelling in bytes, or a byte no token.
fn byte_level(
    pattern: Pattern,
    definition: &Definition,
    rules: &[MergeRule],
    specials: &SpecialTokens,
) -> Result<Option<Kind>, Problem> {
    let mut tokens = Vec::new();
    for (spelled, id) in &definition.model.vocab.0 {
        let bytes = alphabet::unspell(spelled);
        if specials.contains(*id) {
            if bytes.is_some_and(|bytes| bytes.len() == 1) {
                return Err(Problem::ControlTokenIsText(spelled.clone()));
            }
            continue;
        }
        let Some(bytes) = bytes else { return Ok(None) };
        let id = *id as usize;
        if tokens.len() <= id {
            tokens.resize(id + 1, None);
        }
        tokens[id] = Some(bytes);
    }

    let identity = tokens.iter().zip(0..=u8::MAX).all(|(token, byte)| token.as_deref() == Some(&[byte]));
    if pattern == Pattern::Whole && rules.is_empty() && tokens.len() == 256 && identity {
        return Ok(Some(Kind::Bytes));
    }

    match ByteBpe::new(pattern, tokens, rules, definition.model.ignore_merges) {
        Ok(bpe) => Ok(Some(Kind::ByteBpe(Box::new(bpe)))),
        Err(Defect::MissingByte(_)) => Ok(None),
        Err(Defect::RepeatedMerge { at }) => Err(Problem::RepeatedMerge { at }),
    }
}

fn characters(
    definition: &Definition,
    rules: &[MergeRule],
    specials: &SpecialTokens,
) -> Result<Option<Characters>, Problem> {
    let joins = definition.decoder.as_ref().and_then(|decoder| decoder.get("type")).and_then(Value::as_str);
    if definition.pre_tokenizer.is_some() || !rules.is_empty() || joins != Some("Fuse") {
        return Ok(None);
    }
    let controls: HashSet<u32> = specials.iter().map(|token| token.id).collect();
    let mut alphabet = Vec::new();
    for (token, id) in &definition.model.vocab.0 {
        let mut chars = token.chars();
        match (chars.next(), chars.next(), controls.contains(id)) {
            (Some(_), None, true) => return Err(Problem::ControlTokenIsText(token.clone())),
            (Some(character), None, false) => alphabet.push((character, *id)),
            (_, _, true) => {}
            (_, _, false) => return Ok(None),
        }
    }
    Ok(Some(Characters::new(alphabet)))
}
