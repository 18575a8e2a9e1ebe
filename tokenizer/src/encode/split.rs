//! Cuts text into pieces, within which merges happen.
//!
//! Patterns end in `\s+(?!\S)|\s+`, whose look-ahead needs backtracking, which gives up on a megabyte of blanks.
//! Without it a pattern is a DFA, and a run of blanks before a word gives back its last. Anchored searches take linear
//! time.

use regex_automata::{
    Anchored, Input,
    hybrid::dfa::{Cache, DFA},
    nfa::thompson,
};

/// A known split pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pattern {
    /// Does not cut.
    Whole,
    /// GPT-2's; `ByteLevel { use_regex: true }` in Hugging Face files.
    Gpt2,
    /// GPT-4's with at most two digits together: the default for training.
    Digits2,
    /// GPT-4's (`cl100k`) and Llama 3's: at most three digits.
    Digits3,
    /// Qwen's: every digit alone.
    Digits1,
    /// GPT-4o's (`o200k`): also between lower and upper case.
    CaseAware,
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const DIGITS2: &str = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const CASE_AWARE: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Saving writes the first.
const SPELLINGS: &[(Pattern, &str)] = &[
    (Pattern::Gpt2, GPT2),
    (Pattern::Digits2, DIGITS2),
    (
        Pattern::Digits2,
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    ),
    (
        Pattern::Digits3,
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
    (
        Pattern::Digits3,
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    ),
    (
        Pattern::Digits1,
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
    (Pattern::CaseAware, CASE_AWARE),
];

const LOOK_AHEAD: &str = r"\s+(?!\S)|";

impl Pattern {
    pub(crate) fn from_regex(regex: &str) -> Option<Self> {
        SPELLINGS.iter().find(|(_, spelling)| *spelling == regex).map(|(pattern, _)| *pattern)
    }

    /// Other programs' regular expression; `None` for [`Pattern::Whole`].
    pub fn regex(self) -> Option<&'static str> {
        SPELLINGS.iter().find(|(pattern, _)| *pattern == self).map(|(_, spelling)| *spelling)
    }
}

#[derive(Debug)]
pub(crate) struct Splitter {
    pattern: Pattern,
    dfa: Option<DFA>,
}

pub(crate) type SplitCache = Option<Cache>;

impl Splitter {
    pub(crate) fn new(pattern: Pattern) -> Self {
        let dfa = pattern.regex().map(|regex| {
            let linear = regex.replacen(LOOK_AHEAD, "", 1).replace("?+", "?").replace("++", "+");
            DFA::builder()
                .thompson(thompson::Config::new().shrink(false))
                // Unicode letters need about 1 MB; more avoids clearing the cache.
                .configure(DFA::config().cache_capacity(4 << 20).skip_cache_capacity_check(true))
                .build(&linear)
                .expect("the list holds patterns that compile")
        });
        Self { pattern, dfa }
    }

    pub(crate) fn pattern(&self) -> Pattern {
        self.pattern
    }

    pub(crate) fn cache(&self) -> SplitCache {
        self.dfa.as_ref().map(DFA::create_cache)
    }

    pub(crate) fn split<'t>(&self, text: &'t str, cache: &mut SplitCache, mut piece: impl FnMut(&'t str)) {
        let (Some(dfa), Some(cache)) = (&self.dfa, cache) else {
            if !text.is_empty() {
                piece(text);
            }
            return;
        };
        let mut start = 0;
        while start < text.len() {
            let input = Input::new(text).span(start..text.len()).anchored(Anchored::Yes);
            let found =
                dfa.try_search_fwd(cache, &input).expect("neither quit bytes nor a give-up limit are set");
            let end = found.expect("every pattern matches any character").offset();
            let end = self.hand_back_blank(text, start, end);
            piece(&text[start..end]);
            start = end;
        }
    }

    /// `\s+(?!\S)` before `\s+`: a run of blanks before a word gives up its last.
    fn hand_back_blank(&self, text: &str, start: usize, end: usize) -> usize {
        let bytes = text.as_bytes();
        if end == text.len() || (bytes[end - 1].is_ascii() && !matches!(bytes[end - 1], b'\t'..=b'\r' | b' '))
        {
            return end;
        }
        let run = &text[start..end];
        let Some(last) = run.chars().next_back() else { return end };
        // In all patterns but GPT-2's, another alternative matches a final line break.
        let line_break = matches!(last, '\r' | '\n') && self.pattern != Pattern::Gpt2;
        if line_break || last.len_utf8() == run.len() || !run.chars().all(char::is_whitespace) {
            return end;
        }
        end - last.len_utf8()
    }
}

/// The last position up to `limit` where a cut changes no piece: between an ASCII letter and a blank, or after a single
/// line break between visible characters. One pattern joins a line break and a slash.
pub(crate) fn safe_cut(text: &str, limit: usize) -> Option<usize> {
    let bytes = text.as_bytes();
    let end = limit.min(bytes.len().checked_sub(1)?);
    (1..=end).rev().find(|&at| match (bytes[at - 1], bytes[at]) {
        (before, b' ' | b'\n' | b'\r' | b'\t') => before.is_ascii_alphabetic(),
        (b'\n', b'/') => false,
        (b'\n', _) => {
            let visible =
                |neighbour: Option<char>| neighbour.is_some_and(|neighbour| !neighbour.is_whitespace());
            visible(text[..at - 1].chars().next_back()) && visible(text[at..].chars().next())
        }
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(pattern: Pattern, text: &str) -> Vec<&str> {
        let splitter = Splitter::new(pattern);
        let mut found = Vec::new();
        splitter.split(text, &mut splitter.cache(), |piece| found.push(piece));
        found
    }

    #[test]
    fn blanks_leave_their_last_one_to_the_next_word() {
        assert_eq!(pieces(Pattern::Gpt2, "a   b  "), ["a", "  ", " b", "  "]);
        assert_eq!(pieces(Pattern::Digits2, "a \n\n  b1234"), ["a", " \n\n", " ", " b", "12", "34"]);
        assert_eq!(pieces(Pattern::Gpt2, "a\n\nb"), ["a", "\n", "\n", "b"]);
        assert_eq!(pieces(Pattern::Gpt2, "a\u{3000}\u{3000}b"), ["a", "\u{3000}", "\u{3000}", "b"]);
    }

    #[test]
    fn each_pattern_splits_digits_and_case_as_documented() {
        assert_eq!(pieces(Pattern::Digits1, "123"), ["1", "2", "3"]);
        assert_eq!(pieces(Pattern::Digits3, "1234"), ["123", "4"]);
        assert_eq!(pieces(Pattern::CaseAware, "fooBar's"), ["foo", "Bar's"]);
        assert_eq!(pieces(Pattern::Digits2, "HE'LL"), ["HE", "'LL"]);
        assert_eq!(pieces(Pattern::Gpt2, "HE'LL"), ["HE", "'", "LL"]);
        assert_eq!(pieces(Pattern::Whole, "a b"), ["a b"]);
    }

    #[test]
    fn a_safe_cut_changes_no_piece() {
        let text = "It's 12 o'clock,\tand  all's\r\n\r\n well  \n indeed 3.14\n/x.\n/ é\nü\n\u{3000}1\n2.\n3 \n x\n\ny";
        for (pattern, _) in SPELLINGS {
            let whole = pieces(*pattern, text);
            for limit in 0..=text.len() {
                let Some(at) = safe_cut(text, limit) else { continue };
                let mut halves = pieces(*pattern, &text[..at]);
                halves.extend(pieces(*pattern, &text[at..]));
                assert_eq!(halves, whole, "{pattern:?} cut at {at}");
            }
        }
    }
}
