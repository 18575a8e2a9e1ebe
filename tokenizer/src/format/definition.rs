//! `tokenizer.json`: parsed within limits and checked. Equal tokenizers are equal bytes.
//!
//! Checks sizes, ids, and that each merge joins two known tokens into a third.

use std::{borrow::Cow, collections::HashMap, fmt};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{MapAccess, Visitor},
    ser::SerializeMap,
};
use serde_json::Value;

use crate::{
    encode::byte_bpe::MergeRule,
    format::{
        limits,
        problem::{Limit, Problem},
    },
};

/// Uninterpreted parts stay JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Definition {
    #[serde(default = "version")]
    pub(crate) version: String,
    #[serde(default)]
    pub(crate) truncation: Option<Value>,
    #[serde(default)]
    pub(crate) padding: Option<Value>,
    #[serde(default)]
    pub(crate) added_tokens: Vec<AddedToken>,
    #[serde(default)]
    pub(crate) normalizer: Option<Value>,
    #[serde(default)]
    pub(crate) pre_tokenizer: Option<Value>,
    #[serde(default)]
    pub(crate) post_processor: Option<Value>,
    #[serde(default)]
    pub(crate) decoder: Option<Value>,
    pub(crate) model: Model,
}

fn version() -> String {
    "1.0".to_owned()
}

#[expect(clippy::struct_excessive_bools, reason = "the file's own fields")]
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct AddedToken {
    pub(crate) id: u32,
    pub(crate) content: String,
    #[serde(default)]
    pub(crate) single_word: bool,
    #[serde(default)]
    pub(crate) lstrip: bool,
    #[serde(default)]
    pub(crate) rstrip: bool,
    #[serde(default)]
    pub(crate) normalized: bool,
    #[serde(default)]
    pub(crate) special: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Model {
    #[serde(rename = "type", default)]
    pub(crate) kind: Option<String>,
    #[serde(default)]
    pub(crate) dropout: Option<f32>,
    #[serde(default)]
    pub(crate) unk_token: Option<String>,
    #[serde(default)]
    pub(crate) continuing_subword_prefix: Option<String>,
    #[serde(default)]
    pub(crate) end_of_word_suffix: Option<String>,
    #[serde(default)]
    pub(crate) fuse_unk: bool,
    #[serde(default)]
    pub(crate) byte_fallback: bool,
    #[serde(default)]
    pub(crate) ignore_merges: bool,
    pub(crate) vocab: Vocabulary,
    #[serde(default)]
    pub(crate) merges: Vec<SpelledMerge>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Vocabulary(pub(crate) Vec<(String, u32)>);

/// An array, or in older files a string with a blank between.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct SpelledMerge(pub(crate) String, pub(crate) String);

impl Definition {
    pub(crate) fn parse(json: &[u8]) -> Result<Self, Problem> {
        let definition: Self = serde_json::from_slice(json)?;
        definition.check()?;
        Ok(definition)
    }

    pub(crate) fn to_json(&self) -> Vec<u8> {
        let mut json = serde_json::to_vec_pretty(self).expect("strings and numbers always serialise");
        json.push(b'\n');
        json
    }

    fn check(&self) -> Result<(), Problem> {
        if let Some(kind) = &self.model.kind
            && kind != "BPE"
        {
            return Err(Problem::NotBpe(kind.clone()));
        }
        let affixes = [&self.model.continuing_subword_prefix, &self.model.end_of_word_suffix];
        for affix in affixes.into_iter().flatten() {
            Limit::AffixChars.check(affix.chars().count(), limits::LITERAL_CHARS)?;
        }

        Limit::Merges.check(self.model.merges.len(), limits::MERGES)?;
        Limit::AddedTokens.check(self.added_tokens.len(), limits::ADDED_TOKENS)?;
        Limit::Vocabulary.check(self.model.vocab.0.len() + self.added_tokens.len(), limits::VOCABULARY)?;

        let mut ids: HashMap<&str, u32> = HashMap::with_capacity(self.model.vocab.0.len());
        let mut spelled: HashMap<u32, &str> = HashMap::with_capacity(self.model.vocab.0.len());
        for (token, id) in &self.model.vocab.0 {
            check_token(token, *id)?;
            if ids.insert(token, *id).is_some() {
                return Err(Problem::RepeatedToken(token.clone()));
            }
            if let Some(other) = spelled.insert(*id, token) {
                return Err(Problem::RepeatedId { id: *id, first: other.to_owned(), second: token.clone() });
            }
        }

        for added in &self.added_tokens {
            check_token(&added.content, added.id)?;
            let other = *spelled.entry(added.id).or_insert(&added.content);
            if other != added.content {
                let (first, second) = (other.to_owned(), added.content.clone());
                return Err(Problem::RepeatedId { id: added.id, first, second });
            }
            if *ids.entry(&added.content).or_insert(added.id) != added.id {
                return Err(Problem::RepeatedToken(added.content.clone()));
            }
        }
        Ok(())
    }

    /// With `texts` among the added tokens as control tokens, which some files list as text.
    pub(crate) fn with_controls(&self, texts: &[&str]) -> Cow<'_, Self> {
        let is_listed = |token: &AddedToken| texts.contains(&token.content.as_str());
        if !self.added_tokens.iter().any(|token| !token.special && is_listed(token)) {
            return Cow::Borrowed(self);
        }
        let mut definition = self.clone();
        for token in &mut definition.added_tokens {
            token.special |= is_listed(token);
        }
        Cow::Owned(definition)
    }

    /// Merges by id. A result joins the parts, without the prefix of continued words.
    pub(crate) fn merge_rules(&self) -> Result<Vec<MergeRule>, Problem> {
        let ids: HashMap<&str, u32> =
            self.model.vocab.0.iter().map(|(token, id)| (token.as_str(), *id)).collect();
        let prefix = self.model.continuing_subword_prefix.as_deref().unwrap_or_default();
        let mut joined = String::new();
        let mut rules = Vec::with_capacity(self.model.merges.len());
        for (at, SpelledMerge(left, right)) in self.model.merges.iter().enumerate() {
            let find = |token: &str| {
                ids.get(token)
                    .copied()
                    .ok_or_else(|| Problem::UnknownInMerge { at: at + 1, token: token.to_owned() })
            };
            joined.clear();
            joined.push_str(left);
            joined.push_str(right.strip_prefix(prefix).unwrap_or(right));
            rules.push(MergeRule { left: find(left)?, right: find(right)?, result: find(&joined)? });
        }
        Ok(rules)
    }
}

fn check_token(token: &str, id: u32) -> Result<(), Problem> {
    if token.is_empty() {
        return Err(Problem::EmptyToken(id));
    }
    Limit::TokenBytes.check(token.len(), limits::TOKEN_BYTES)?;
    Limit::TokenId.check(id as usize + 1, limits::VOCABULARY)
}

impl Serialize for Vocabulary {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (token, id) in &self.0 {
            map.serialize_entry(token, id)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Vocabulary {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Vocabulary;

            fn expecting(&self, out: &mut fmt::Formatter) -> fmt::Result {
                out.write_str("an object from tokens to ids")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Vocabulary, M::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Vocabulary(entries))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

impl SpelledMerge {
    /// `None` unless the line is two tokens with one blank between.
    pub(crate) fn from_line(line: &str) -> Option<Self> {
        let (left, right) = line.split_once(' ')?;
        let whole = !left.is_empty() && !right.is_empty() && !right.contains(' ');
        whole.then(|| Self(left.to_owned(), right.to_owned()))
    }
}

impl<'de> Deserialize<'de> for SpelledMerge {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(
            untagged,
            expecting = "a merge: two tokens in an array, or in one string with a blank between"
        )]
        enum Spelling {
            Pair(String, String),
            Line(String),
        }
        match Spelling::deserialize(deserializer)? {
            Spelling::Pair(left, right) => Ok(Self(left, right)),
            Spelling::Line(line) => Self::from_line(&line).ok_or_else(|| {
                serde::de::Error::custom(format!("merge `{line}` is not two tokens with one blank between"))
            }),
        }
    }
}
