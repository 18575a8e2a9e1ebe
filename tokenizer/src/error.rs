//! This crate's error type.

use std::{io, path::PathBuf};

use crate::{
    chat::problem::ChatProblem, data::shard::ShardProblem, format::problem::Problem, index::IndexProblem,
};

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Reading failed.
    #[error("reading {}: {cause}{}", path.display(), remedy(cause))]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
    /// Writing failed.
    #[error(
        "writing {}: {cause}; nothing that looks complete was left behind{}",
        path.display(),
        remedy(cause)
    )]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
    /// A tokenizer file beyond [`crate::limits`].
    #[error("{} has {bytes} bytes, a file of its kind may have {limit}", path.display())]
    FileTooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// A folder without a tokenizer.
    #[error(
        "{} holds no tokenizer: looked for tokenizer.json, then for vocab.json with merges.txt. Train one with \
         `train tokenizer train`, or use `bytes`",
        path.display()
    )]
    NoTokenizer {
        /// The folder.
        path: PathBuf,
    },
    /// A refused tokenizer file.
    #[error("{}: {problem}", path.display())]
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// The fault.
        problem: Problem,
    },
    /// A vocabulary smaller than bytes and control tokens.
    #[error(
        "a vocabulary of {asked} is too small: 256 bytes and {specials} control tokens need at least {}",
        256 + specials
    )]
    VocabularyTooSmall {
        /// Requested size.
        asked: usize,
        /// Control tokens.
        specials: usize,
    },
    /// Training without text.
    #[error(
        "the corpus is empty: none of its {documents} document(s) has text. Check that its files are the right ones"
    )]
    EmptyCorpus {
        /// How many.
        documents: u64,
    },
    /// From Hugging Face's trainer.
    #[error("training the tokenizer: {0}")]
    Training(String),
    /// A character outside the alphabet.
    #[error(
        "character {character:?} at byte {at} is not in the tokenizer's alphabet; train one on this text, or use \
         a byte-level tokenizer, which takes anything"
    )]
    OutsideAlphabet {
        /// The character.
        character: char,
        /// Byte position.
        at: usize,
    },
    /// An id without a token.
    #[error("token id {id} does not exist; the vocabulary has {vocabulary} ids. Is it another tokenizer's?")]
    UnknownId {
        /// The id.
        id: u32,
        /// Number of ids.
        vocabulary: u32,
    },
    /// A text too long for 32-bit positions.
    #[error(
        "a text of {bytes} bytes is too long to encode in one call, the limit is {limit}; encode it in parts"
    )]
    TextTooLong {
        /// Its bytes.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// Bytes other than UTF-8, for a tokenizer of text.
    #[error(
        "the bytes are not UTF-8 from byte {at} on, and this tokenizer reads text only; use a byte-level one"
    )]
    BytesNotText {
        /// First invalid byte.
        at: usize,
    },
    /// From Hugging Face's encoder.
    #[error("encoding {bytes} bytes of text: {reason}")]
    Encoding {
        /// Text bytes.
        bytes: usize,
        /// Its message.
        reason: String,
    },
    /// From Hugging Face's decoder.
    #[error("decoding {ids} ids: {reason}")]
    Decoding {
        /// How many.
        ids: usize,
        /// Its message.
        reason: String,
    },
    /// Text that would become a control token.
    #[error(
        "the text contains `{token}`, which this tokenizer turns into a control token; remove it from the text"
    )]
    ControlTokenFromText {
        /// The control token.
        token: String,
    },
    /// A conversation that cannot be encoded.
    #[error(transparent)]
    Chat(#[from] ChatProblem),
    /// A file other than UTF-8.
    #[error(
        "{} is not UTF-8: byte {at} cannot be read as text. Convert the file, or take it as plain bytes with the \
         tokenizer `bytes`",
        path.display()
    )]
    NotUtf8 {
        /// The file.
        path: PathBuf,
        /// First invalid byte.
        at: u64,
    },
    /// A malformed JSON line.
    #[error(
        "{} line {line}: {reason}. A record is a JSON object with `text`, `messages`, `conversations`, `prompt` and \
         `completion`, or `instruction` and `output`",
        path.display()
    )]
    Line {
        /// The file.
        path: PathBuf,
        /// From 1.
        line: u64,
        /// The reason.
        reason: String,
    },
    /// A malformed row of a Parquet file.
    #[error("{} row {row}: {reason}", path.display())]
    Row {
        /// The file.
        path: PathBuf,
        /// From 1.
        row: u64,
        /// The reason.
        reason: String,
    },
    /// An unusable Parquet file.
    #[error("{}: {reason}", path.display())]
    Parquet {
        /// The file.
        path: PathBuf,
        /// Reason and remedy.
        reason: String,
    },
    /// A damaged JSON array of records.
    #[error("{} line {line}: {reason}; expected an array of objects, `[{{…}}, {{…}}]`", path.display())]
    JsonArray {
        /// The file.
        path: PathBuf,
        /// From 1.
        line: u64,
        /// The reason.
        reason: String,
    },
    /// Too many unusable records.
    #[error(
        "{bad} of {records} records cannot be used, more than one in ten; the first: {first}. Correct the input, or \
         check that it is what it should be"
    )]
    BadRecords {
        /// Unusable records.
        bad: u64,
        /// Records read.
        records: u64,
        /// Location and reason of the first.
        first: String,
    },
    /// A folder, FIFO, socket or device.
    #[error("{} is not a regular file but a folder, FIFO, socket or device; give the file itself", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// A document that cannot be encoded.
    #[error("{} document {document}: {problem}", path.display())]
    Document {
        /// The file.
        path: PathBuf,
        /// Within the file, from 1.
        document: u64,
        /// The reason.
        problem: Box<Error>,
    },
    /// Text and conversations in one input.
    #[error(
        "{} holds conversations but earlier input held text (or the reverse); a set has a loss mask or has none. \
         Prepare them into two sets",
        path.display()
    )]
    MixedInput {
        /// The first file of the other sort.
        path: PathBuf,
    },
    /// An input without files.
    #[error("{} holds no files to read (hidden files and empty ones do not count)", path.display())]
    NoInput {
        /// The folder.
        path: PathBuf,
    },
    /// An empty split.
    #[error(
        "the {split} split got none of the {documents} document(s); add documents, choose another validation share, \
         or split by position"
    )]
    EmptySplit {
        /// Its name.
        split: &'static str,
        /// In the corpus.
        documents: u64,
    },
    /// An option out of range.
    #[error("{option} {value}: {expected}")]
    Option {
        /// Its name.
        option: &'static str,
        /// Its value.
        value: String,
        /// Accepted values.
        expected: &'static str,
    },
    /// An output folder with other contents.
    #[error("{}: {reason}", path.display())]
    Occupied {
        /// The folder.
        path: PathBuf,
        /// Contents and remedy.
        reason: String,
    },
    /// A folder without a finished set.
    #[error(
        "{} holds no set of shards: it has no manifest.json. Make one with `train prepare`, or name llm.c's or \
         nanoGPT's files `train….bin` and `val….bin`",
        path.display()
    )]
    NoSet {
        /// The folder.
        path: PathBuf,
    },
    /// A refused shard or manifest.
    #[error("{} {problem}", path.display())]
    Shard {
        /// The file.
        path: PathBuf,
        /// The fault.
        problem: ShardProblem,
    },
    /// A refused index.
    #[error("{} {problem}", path.display())]
    Index {
        /// The file.
        path: PathBuf,
        /// The fault.
        problem: IndexProblem,
    },
    /// Stopped on request.
    #[error("interrupted; nothing that looks complete was left behind. Run the same command again")]
    Interrupted,
}

fn remedy(cause: &io::Error) -> &'static str {
    match cause.kind() {
        io::ErrorKind::NotFound => "; check the path",
        io::ErrorKind::PermissionDenied => "; check who may use it",
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            "; make room, or write to another disk"
        }
        _ => "",
    }
}

impl Error {
    /// Whether it concerns one record: reading can continue.
    pub fn is_bad_record(&self) -> bool {
        match self {
            Self::Line { .. } | Self::Row { .. } => true,
            Self::Document { problem, .. } => {
                matches!(**problem, Self::Chat(ref chat) if chat.is_about_messages())
            }
            _ => false,
        }
    }

    pub(crate) fn read(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |cause| Self::Read { path, cause }
    }

    pub(crate) fn write(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |cause| Self::Write { path, cause }
    }

    pub(crate) fn index(path: impl Into<PathBuf>, problem: impl Into<IndexProblem>) -> Self {
        Self::Index { path: path.into(), problem: problem.into() }
    }

    pub(crate) fn shard(path: impl Into<PathBuf>, problem: ShardProblem) -> Self {
        Self::Shard { path: path.into(), problem }
    }
}
