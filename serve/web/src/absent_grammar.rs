//! A build without grammars refuses them.

use crate::engine::Vocabulary;
use crate::grammar::Form;

/// This build has none.
#[derive(Debug, Clone)]
pub enum Grammar {}

#[derive(Debug, Default)]
pub(crate) struct Grammars(());

#[expect(clippy::unused_self, reason = "as in a build with grammars")]
impl Grammars {
    pub(crate) fn compile(&self, _: &Form, _: &dyn Vocabulary, _: usize) -> Result<Grammar, String> {
        Err("this server was built without the feature `structured`".to_owned())
    }
}

impl Grammar {
    /// Never called.
    pub fn mask(&mut self, _logits: &mut [f32]) {
        match *self {}
    }

    /// Never called.
    pub fn accept(&mut self, _token: u32) {
        match *self {}
    }
}
