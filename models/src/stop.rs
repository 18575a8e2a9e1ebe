//! Stop strings over a stream of tokens.
//!
//! They may begin and end inside tokens: tokens wait while the text could become one.

/// Strings that end a completion, with a decoder.
#[derive(Clone, Copy)]
pub struct Stop<'a> {
    /// Any of them ends the completion, without itself.
    pub strings: &'a [String],
    /// Decodes tokens to text.
    pub decode: &'a dyn Fn(&[u32]) -> String,
}

impl std::fmt::Debug for Stop<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Stop").field("strings", &self.strings).finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// Tokens before any complete or possible stop string.
    pub(crate) safe: usize,
    pub(crate) stopped_at: Option<usize>,
}

impl Stop<'_> {
    /// The first `shown` of `tokens` are safe.
    pub(crate) fn judge(&self, tokens: &[u32], shown: usize) -> Verdict {
        let text = (self.decode)(tokens);
        let strings = self.strings.iter().filter(|string| !string.is_empty());
        let stopped_at = strings.clone().filter_map(|string| text.find(string.as_str())).min();
        let open =
            strings.map(|string| text.len() - partial_match(&text, string)).min().unwrap_or(text.len());
        let limit = stopped_at.unwrap_or(open);
        let fits = |count: &usize| (self.decode)(&tokens[..*count]).len() <= limit;
        let safe = (shown + 1..=tokens.len()).take_while(fits).last().unwrap_or(shown);
        Verdict { safe, stopped_at }
    }
}

/// Bytes at the end of `text` that could begin `string`.
fn partial_match(text: &str, string: &str) -> usize {
    let mut prefixes = string.char_indices().map(|(at, _)| at).filter(|at| *at > 0);
    prefixes.rfind(|at| text.ends_with(&string[..*at])).unwrap_or(0)
}
