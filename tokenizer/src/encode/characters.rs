//! One token per character of a fixed alphabet.

use std::collections::HashMap;

#[derive(Debug)]
pub(crate) struct Characters {
    alphabet: Vec<Option<Box<str>>>,
    ids: HashMap<char, u32, ahash::RandomState>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnknownCharacter {
    pub(crate) character: char,
    pub(crate) at: usize,
}

impl Characters {
    pub(crate) fn new(alphabet: impl IntoIterator<Item = (char, u32)>) -> Self {
        let ids: HashMap<char, u32, _> = alphabet.into_iter().collect();
        let size = ids.values().max().map_or(0, |last| *last as usize + 1);
        let mut alphabet = vec![None; size];
        for (character, id) in &ids {
            alphabet[*id as usize] = Some(character.to_string().into());
        }
        Self { alphabet, ids }
    }

    pub(crate) fn encode(&self, text: &str) -> Result<Vec<u32>, UnknownCharacter> {
        text.char_indices()
            .map(|(at, character)| {
                self.ids.get(&character).copied().ok_or(UnknownCharacter { character, at })
            })
            .collect()
    }

    pub(crate) fn token(&self, id: u32) -> Option<&[u8]> {
        self.alphabet.get(id as usize)?.as_deref().map(str::as_bytes)
    }
}
