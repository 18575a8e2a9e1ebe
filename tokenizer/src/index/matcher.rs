//! Matches of a text whose tokens arrive one by one, as in decoding. They are those that training reads
//! (`decoding_a_document_matches_as_training_on_it_after_the_corpus`).

use std::sync::Arc;

use super::{Corpora, Match, Source, document::Document, text::Context};

/// Finds the longest match after each token. Results depend on the current document's tokens alone: it does not matter
/// whether they were read at once, in pieces, or sampled.
#[derive(Clone, Debug)]
pub struct Matcher {
    corpora: Arc<Corpora>,
    matcher: DocumentMatcher,
}

#[derive(Clone, Debug)]
pub(super) struct DocumentMatcher {
    own: bool,
    document: Document,
}

impl Matcher {
    pub(super) fn new(corpora: Arc<Corpora>, own: bool) -> Self {
        Self { corpora, matcher: DocumentMatcher::new(own) }
    }

    /// Takes the next token and returns the longest match of the text that ends with it. The token that opens documents
    /// starts a new one. Equally long matches rank as in a corpus: indexes before the document, earlier positions
    /// before later ones.
    pub fn push(&mut self, id: u32) -> Option<Match> {
        self.matcher.push(&self.corpora, id, true)
    }
}

impl DocumentMatcher {
    pub(super) fn new(own: bool) -> Self {
        Self { own, document: Document::default() }
    }

    /// Like [`Matcher::push`], but returns no match unless `search` is set.
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
