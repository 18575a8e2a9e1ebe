//! Problems in a tokenizer file. [`crate::Error`] adds the path.

/// A reason to refuse a tokenizer file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// The file is not JSON of the expected shape.
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    /// The model is not of the BPE family.
    #[error(
        "the model is `{0}`; only the BPE family is read here. Convert it to BPE, or train one on your text"
    )]
    NotBpe(String),
    /// A size exceeds [`crate::limits`].
    #[error("{what}: {found}, the limit is {limit}")]
    TooLarge {
        /// The quantity.
        what: Limit,
        /// Its value.
        found: usize,
        /// The most that is accepted.
        limit: usize,
    },
    /// A token has no text.
    #[error("token {0} has no text")]
    EmptyToken(u32),
    /// A token is listed twice, or under two ids.
    #[error("token `{0}` is listed twice")]
    RepeatedToken(String),
    /// Two tokens share an id.
    #[error("id {id} belongs to both `{first}` and `{second}`")]
    RepeatedId {
        /// The id.
        id: u32,
        /// The first token.
        first: String,
        /// The second token.
        second: String,
    },
    /// A merge needs or makes a token that does not exist.
    #[error("merge {at} needs token `{token}`, which the vocabulary lacks")]
    UnknownInMerge {
        /// Position in the list, from 1.
        at: usize,
        /// The missing token.
        token: String,
    },
    /// A pair is merged twice.
    #[error("merge {at} repeats the pair of an earlier one")]
    RepeatedMerge {
        /// Position in the list, from 1.
        at: usize,
    },
    /// A line of `merges.txt` is not a merge.
    #[error("line {0} is not two tokens with one blank between")]
    MergeLine(usize),
    /// A merge turns plain text into a control token.
    #[error("merge {at} makes the control token `{token}`; plain text must never become one")]
    MergeMakesControlToken {
        /// Position in the list, from 1.
        at: usize,
        /// The control token.
        token: String,
    },
    /// A control token is also a byte or character of text.
    #[error("the control token `{0}` is also a token of ordinary text")]
    ControlTokenIsText(String),
    /// `dropout` would give other ids on every run.
    #[error("`dropout` {0} makes encoding random; set it to null for a tokenizer that is used, not trained")]
    Dropout(f32),
    /// The regular expression is not a known pattern.
    #[error(
        "the split pattern `{0}` is not among the known ones (GPT-2, cl100k / Llama 3, Qwen, o200k, and this \
         crate's own); a file's pattern is never run unseen. Retrain with a known pattern, or add this one to \
         `split.rs` with a test"
    )]
    UnknownPattern(String),
    /// The component's type is not supported.
    #[error("{place} `{kind}` is not supported; known are {known}")]
    UnknownComponent {
        /// Normalizer, pre-tokenizer or decoder.
        place: &'static str,
        /// The component's type in the file.
        kind: String,
        /// The supported types.
        known: String,
    },
    /// A component's field is missing, of the wrong type or too long.
    #[error("{place} `{kind}`: field `{field}` must be {expected}")]
    ComponentField {
        /// Normalizer, pre-tokenizer or decoder.
        place: &'static str,
        /// The component's type in the file.
        kind: String,
        /// The field.
        field: &'static str,
        /// The accepted values.
        expected: &'static str,
    },
    /// A chain of steps multiplies text.
    #[error(
        "the {place} may turn one byte into {bytes:.0}, the limit is {}; it multiplies text",
        crate::format::limits::GROWTH
    )]
    Growth {
        /// Normalizer, pre-tokenizer or decoder.
        place: &'static str,
        /// The product of its steps' bounds.
        bytes: f64,
    },
    /// Hugging Face's reader refused the file.
    #[error("{0}")]
    Refused(String),
}

/// A quantity with a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Limit {
    /// Merge rules.
    Merges,
    /// Tokens outside the vocabulary.
    AddedTokens,
    /// Tokens in and outside the vocabulary.
    Vocabulary,
    /// Bytes of one token.
    TokenBytes,
    /// The largest id, plus one.
    TokenId,
    /// Steps of one component.
    Components,
    /// Characters of a prefix of continued words, or a suffix of word ends.
    AffixChars,
    /// Bytes of the chat template.
    TemplateBytes,
}

impl Limit {
    pub(crate) fn check(self, found: usize, limit: usize) -> Result<(), Problem> {
        if found > limit { Err(Problem::TooLarge { what: self, found, limit }) } else { Ok(()) }
    }
}

impl std::fmt::Display for Limit {
    fn fmt(&self, out: &mut std::fmt::Formatter) -> std::fmt::Result {
        out.write_str(match self {
            Self::Merges => "number of merges",
            Self::AddedTokens => "number of added tokens",
            Self::Vocabulary => "number of tokens",
            Self::TokenBytes => "bytes of one token",
            Self::TokenId => "largest token id plus one",
            Self::Components => "steps in one component",
            Self::AffixChars => "characters of a prefix or suffix within words",
            Self::TemplateBytes => "bytes of the chat template",
        })
    }
}
