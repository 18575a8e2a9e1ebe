//! Control tokens: structural ids that no text encodes to.

use serde::{Deserialize, Serialize};

use crate::format::definition::Definition;

/// Control tokens of conversations, in the order of ids.
pub const CHAT_SPECIALS: [&str; 5] =
    ["<|bos|>", "<|user_start|>", "<|user_end|>", "<|assistant_start|>", "<|assistant_end|>"];

/// A control token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpecialToken {
    /// Spelling in templates.
    pub text: String,
    /// Its id.
    pub id: u32,
}

/// A vocabulary's control tokens.
#[derive(Clone, Debug, Default)]
pub struct SpecialTokens {
    tokens: Vec<SpecialToken>,
    /// Ids of tokens that swallow the blanks before them: `lstrip`.
    swallow_before: Vec<u32>,
    /// Ids of tokens that swallow the blanks after them: `rstrip`.
    swallow_after: Vec<u32>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Segment<'t> {
    Text(&'t str),
    Special(u32),
}

impl SpecialTokens {
    pub(crate) fn new(mut tokens: Vec<SpecialToken>) -> Self {
        tokens.sort_by_key(|token| token.id);
        Self { tokens, ..Self::default() }
    }

    pub(crate) fn after(first: u32, texts: &[&str]) -> Self {
        let tokens = texts.iter().zip(first..);
        Self::new(tokens.map(|(text, id)| SpecialToken { text: (*text).to_owned(), id }).collect())
    }

    /// Whether the blanks before `id` belong to it in templates.
    pub(crate) fn swallows_before(&self, id: u32) -> bool {
        self.swallow_before.contains(&id)
    }

    /// Whether the blanks after `id` belong to it in templates.
    pub(crate) fn swallows_after(&self, id: u32) -> bool {
        self.swallow_after.contains(&id)
    }

    /// Sorted by id.
    pub fn iter(&self) -> impl Iterator<Item = &SpecialToken> {
        self.tokens.iter()
    }

    /// Whether `id` is a control token.
    pub fn contains(&self, id: u32) -> bool {
        self.tokens.binary_search_by_key(&id, |token| token.id).is_ok()
    }

    /// Id of the control token `text`.
    pub fn id(&self, text: &str) -> Option<u32> {
        self.tokens.iter().find(|token| token.text == text).map(|token| token.id)
    }

    /// Spelling of control token `id`.
    pub fn text(&self, id: u32) -> Option<&str> {
        let at = self.tokens.binary_search_by_key(&id, |token| token.id).ok()?;
        Some(&self.tokens[at].text)
    }

    /// Cuts at control tokens; the longest wins.
    pub(crate) fn segments<'t>(&self, text: &'t str) -> Vec<Segment<'t>> {
        let mut segments = Vec::new();
        let (mut start, mut at) = (0, 0);
        while at < text.len() {
            let rest = &text.as_bytes()[at..];

            let longest = self
                .tokens
                .iter()
                .filter(|token| rest.starts_with(token.text.as_bytes()))
                .max_by_key(|token| token.text.len());

            let Some(token) = longest else {
                at += 1;
                continue;
            };

            if start < at {
                segments.push(Segment::Text(&text[start..at]));
            }
            segments.push(Segment::Special(token.id));
            at += token.text.len();
            start = at;
        }
        if start < text.len() {
            segments.push(Segment::Text(&text[start..]));
        }
        segments
    }
}

impl From<&Definition> for SpecialTokens {
    fn from(definition: &Definition) -> Self {
        let controls = || definition.added_tokens.iter().filter(|token| token.special);
        let tokens = controls().map(|token| SpecialToken { text: token.content.clone(), id: token.id });
        Self {
            swallow_before: controls().filter(|token| token.lstrip).map(|token| token.id).collect(),
            swallow_after: controls().filter(|token| token.rstrip).map(|token| token.id).collect(),
            ..Self::new(tokens.collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_control_token_wins() {
        let specials = SpecialTokens::after(7, &["<a>", "<a><b>"]);
        assert_eq!(
            specials.segments("é<a><b>x<a>"),
            [Segment::Text("é"), Segment::Special(8), Segment::Text("x"), Segment::Special(7)]
        );
    }
}
