//! Faults of a tokenizer file; [`crate::Error`] adds the path.

/// Why a tokenizer file is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// Invalid JSON, or another shape.
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    /// A model outside the BPE family.
    #[error(
        "the model is `{0}`; only the BPE family is read here. Convert it to BPE, or train one on your text"
    )]
    NotBpe(String),
    /// A size beyond [`crate::limits`].
    #[error("{what}: {found}, the limit is {limit}")]
    TooLarge {
        /// Quantity.
        what: Limit,
        /// Its value.
        found: usize,
        /// The limit.
        limit: usize,
    },
    /// A chat template other than UTF-8.
    #[error("the chat template is not UTF-8")]
    TemplateNotText,
    /// A token without text.
    #[error("token {0} has no text")]
    EmptyToken(u32),
    /// A token listed twice, or under two ids.
    #[error("token `{0}` is listed twice")]
    RepeatedToken(String),
    /// Two tokens with one id.
    #[error("id {id} belongs to both `{first}` and `{second}`")]
    RepeatedId {
        /// The id.
        id: u32,
        /// The first token.
        first: String,
        /// The second token.
        second: String,
    },
    /// A merge of an unknown token, or into one.
    #[error("merge {at} needs token `{token}`, which the vocabulary lacks")]
    UnknownInMerge {
        /// From 1.
        at: usize,
        /// The missing token.
        token: String,
    },
    /// A pair merged twice.
    #[error("merge {at} repeats the pair of an earlier one")]
    RepeatedMerge {
        /// From 1.
        at: usize,
    },
    /// A malformed line of `merges.txt`.
    #[error("line {0} is not two tokens with one blank between")]
    MergeLine(usize),
    /// Another tokenizer's `vocab.json` and `merges.txt`.
    #[error(
        "vocab.json with merges.txt is read as GPT-2's alone, and {0}; save tokenizer.json beside them by \
         `AutoTokenizer.from_pretrained(FOLDER, use_fast=True).save_pretrained(FOLDER)`"
    )]
    NotGpt2(String),
    /// A merge of plain text into a control token.
    #[error("merge {at} makes the control token `{token}`; plain text must never become one")]
    MergeMakesControlToken {
        /// From 1.
        at: usize,
        /// The control token.
        token: String,
    },
    /// A control token that is also a byte or character of text.
    #[error("the control token `{0}` is also a token of ordinary text")]
    ControlTokenIsText(String),
    /// Random ids on every run.
    #[error("`dropout` {0} makes encoding random; set it to null for a tokenizer that is used, not trained")]
    Dropout(f32),
    /// An unknown regular expression.
    #[error(
        "the split pattern `{0}` is not among the known ones (GPT-2, cl100k / Llama 3, Qwen, o200k, and this \
         crate's own); a file's pattern is never run unseen. Retrain with a known pattern, or add this one to \
         `split.rs` with a test"
    )]
    UnknownPattern(String),
    /// An unsupported component.
    #[error("{place} `{kind}` is not supported; known are {known}")]
    UnknownComponent {
        /// Normalizer, pre-tokenizer or decoder.
        place: &'static str,
        /// Its type.
        kind: String,
        /// Supported types.
        known: String,
    },
    /// A field that is missing, too long or of another type.
    #[error("{place} `{kind}`: field `{field}` must be {expected}")]
    ComponentField {
        /// Normalizer, pre-tokenizer or decoder.
        place: &'static str,
        /// Its type.
        kind: String,
        /// The field.
        field: &'static str,
        /// Accepted values.
        expected: &'static str,
    },
    /// Steps that multiply text.
    #[error(
        "the {place} may turn one byte into {bytes:.0}, the limit is {}; it multiplies text",
        crate::format::limits::GROWTH
    )]
    Growth {
        /// Normalizer, pre-tokenizer or decoder.
        place: &'static str,
        /// Product of the steps' bounds.
        bytes: f64,
    },
    /// Refused by Hugging Face's reader.
    #[error("{0}")]
    Refused(String),
}

/// A limited quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Limit {
    /// Merge rules.
    Merges,
    /// Tokens outside the vocabulary.
    AddedTokens,
    /// All tokens.
    Vocabulary,
    /// Bytes of one token.
    TokenBytes,
    /// The largest id, plus one.
    TokenId,
    /// Steps of one component.
    Components,
    /// Characters of a continued word's prefix, or a word's suffix.
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
