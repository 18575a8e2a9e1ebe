//! The feature of each token of a text that comes one token at a time, as in decoding.

use std::sync::Arc;

use super::{Corpora, Match, Source, document::Document, text::Context};

/// Matches after each token so far. It depends on the tokens of the present document alone, so a prompt read at once,
/// one read in pieces and one that was sampled give the same.
#[derive(Clone, Debug)]
pub struct Matcher {
    corpora: Arc<Corpora>,
    past: Past,
}

/// A document's matches in indexes and in itself.
#[derive(Clone, Debug)]
pub(super) struct Past {
    own: bool,
    document: Document,
}

impl Matcher {
    pub(super) fn new(corpora: Arc<Corpora>, own: bool) -> Self {
        Self { corpora, past: Past::new(own) }
    }

    /// Takes the next token and gives the longest match of the text that ends with it. The token that opens documents
    /// begins anew. Equally long matches rank as they do for positions of a corpus: indexes before the document itself,
    /// earlier positions before later ones.
    pub fn push(&mut self, id: u32) -> Option<Match> {
        self.past.push(&self.corpora, id, true)
    }
}

impl Past {
    pub(super) fn new(own: bool) -> Self {
        Self { own, document: Document::default() }
    }

    /// As [`Matcher::push`]; what comes out counts only with `search`.
    pub(super) fn push(&mut self, corpora: &Corpora, id: u32, search: bool) -> Option<Match> {
        if Some(id) == corpora.bos() {
            self.document.clear();
        }
        let found = self.document.push(id);
        if !search {
            return None;
        }
        let context = Context::after(self.document.ids(), corpora.bos());
        let indexed = corpora.search(&context, corpora.indexes().len());
        let length = found.length();
        if !self.own || length < corpora.shortest() || indexed.is_some_and(|best| best.length >= length) {
            return indexed;
        }
        let (next, at) = (self.document.next(found), found.position().into());
        Some(Match { length, next, source: Source::Document, at })
    }
}
