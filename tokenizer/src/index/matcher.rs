//! Matches of a text that arrives token by token, as training reads them
//! (`decoding_a_document_matches_as_training_on_it_after_the_corpus`).

use std::sync::Arc;

use super::{Corpora, Match, Source, document::Document, text::Context};

/// Finds the longest match after each token, which depends only on the document's tokens.
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

    /// Returns the longest match that ends with this token. The opening token starts another document. Of equally long
    /// matches, indexes precede the document, and earlier positions later ones.
    pub fn push(&mut self, id: u32) -> Option<Match> {
        self.matcher.push(&self.corpora, id, true)
    }
}

impl DocumentMatcher {
    pub(super) fn new(own: bool) -> Self {
        Self { own, document: Document::default() }
    }

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
