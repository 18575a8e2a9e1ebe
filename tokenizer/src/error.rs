//! The error type of this crate: the attempt, the file, and the remedy.

use std::{io, path::PathBuf};

use crate::{
    chat::conversation::ChatProblem, data::shard::ShardProblem, format::problem::Problem, index::IndexProblem,
};

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The system failed to read.
    #[error("reading {}: {cause}{}", path.display(), remedy(cause))]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
    /// The system failed to write.
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
    /// A tokenizer file exceeds [`crate::limits`].
    #[error("{} has {bytes} bytes, a file of its kind may have {limit}", path.display())]
    FileTooLarge {
        /// The file.
        path: PathBuf,
        /// Bytes of the file.
        bytes: u64,
        /// The most that is read.
        limit: u64,
    },
    /// The folder holds no tokenizer.
    #[error(
        "{} holds no tokenizer: looked for tokenizer.json, then for vocab.json with merges.txt. Train one with \
         `train tokenizer train`, or use `bytes`",
        path.display()
    )]
    NoTokenizer {
        /// The folder.
        path: PathBuf,
    },
    /// A tokenizer file is refused.
    #[error("{}: {problem}", path.display())]
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// The problem in the file.
        problem: Problem,
    },
    /// The vocabulary is smaller than the bytes and control tokens it must hold.
    #[error(
        "a vocabulary of {asked} is too small: 256 bytes and {specials} control tokens need at least {}",
        256 + specials
    )]
    VocabularyTooSmall {
        /// The requested size.
        asked: usize,
        /// The number of control tokens.
        specials: usize,
    },
    /// Training was given no text.
    #[error(
        "the corpus is empty: none of its {documents} document(s) has text. Check what --input points at"
    )]
    EmptyCorpus {
        /// The number of documents.
        documents: u64,
    },
    /// Hugging Face's trainer failed.
    #[error("training the tokenizer: {0}")]
    Training(String),
    /// A character-level tokenizer does not know a character.
    #[error(
        "character {character:?} at byte {at} is not in the tokenizer's alphabet; train one on this text, or use \
         a byte-level tokenizer, which takes anything"
    )]
    OutsideAlphabet {
        /// The character.
        character: char,
        /// Its byte position in the text.
        at: usize,
    },
    /// No token has the id.
    #[error("token id {id} does not exist; the vocabulary has {vocabulary} ids. Is it another tokenizer's?")]
    UnknownId {
        /// The id.
        id: u32,
        /// The number of ids.
        vocabulary: u32,
    },
    /// The text is too long for 32-bit positions.
    #[error(
        "a text of {bytes} bytes is too long to encode in one call, the limit is {limit}; encode it in parts"
    )]
    TextTooLong {
        /// Bytes of the text.
        bytes: usize,
        /// The most that is accepted.
        limit: usize,
    },
    /// A tokenizer of text was given bytes that are not UTF-8.
    #[error(
        "the bytes are not UTF-8 from byte {at} on, and this tokenizer reads text only; use a byte-level one"
    )]
    BytesNotText {
        /// Position of the first invalid byte.
        at: usize,
    },
    /// Hugging Face's encoder failed.
    #[error("encoding {bytes} bytes of text: {reason}")]
    Encoding {
        /// Bytes of the text.
        bytes: usize,
        /// The encoder's message.
        reason: String,
    },
    /// Hugging Face's decoder failed.
    #[error("decoding {ids} ids: {reason}")]
    Decoding {
        /// The number of ids.
        ids: usize,
        /// The decoder's message.
        reason: String,
    },
    /// The tokenizer would turn text into a control token.
    #[error(
        "the text contains `{token}`, which this tokenizer turns into a control token; remove it from the text"
    )]
    ControlTokenFromText {
        /// The control token.
        token: String,
    },
    /// A conversation cannot be encoded.
    #[error(transparent)]
    Chat(#[from] ChatProblem),
    /// A text file is not UTF-8.
    #[error(
        "{} is not UTF-8: byte {at} cannot be read as text. Convert the file, or take it as plain bytes with \
         `--tokenizer bytes`",
        path.display()
    )]
    NotUtf8 {
        /// The file.
        path: PathBuf,
        /// Position of the first invalid byte.
        at: u64,
    },
    /// A line of a JSON-lines file is malformed.
    #[error(
        "{} line {line}: {reason}. Each line is a JSON object with `text`, `messages`, `conversations`, or `prompt` \
         and `completion`",
        path.display()
    )]
    Line {
        /// The file.
        path: PathBuf,
        /// Number of the line, from 1.
        line: u64,
        /// The reason.
        reason: String,
    },
    /// A Parquet file cannot be used.
    #[error("{}: {reason}", path.display())]
    Parquet {
        /// The file.
        path: PathBuf,
        /// The reason and the remedy.
        reason: String,
    },
    /// The file is one JSON array instead of lines.
    #[error(
        "{} is a JSON array of records; expected one record per line. Convert it with `jq -c '.[]' FILE > FILE.jsonl`",
        path.display()
    )]
    JsonArray {
        /// The file.
        path: PathBuf,
    },
    /// Too many records cannot be used.
    #[error(
        "{bad} of {records} records cannot be used, more than one in ten; the first: {first}. Correct the input, or \
         check that it is what it should be"
    )]
    BadRecords {
        /// Records that cannot be used.
        bad: u64,
        /// Records read.
        records: u64,
        /// The first bad record: file, line or document, and reason.
        first: String,
    },
    /// The path is a folder, FIFO, socket or device.
    #[error("{} is not a regular file but a folder, FIFO, socket or device; give the file itself", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// A document cannot be encoded.
    #[error("{} document {document}: {problem}", path.display())]
    Document {
        /// The file.
        path: PathBuf,
        /// Number of the document within the file, from 1.
        document: u64,
        /// The reason.
        problem: Box<Error>,
    },
    /// An input mixes text and conversations.
    #[error(
        "{} holds conversations but earlier input held text (or the reverse); a set has a loss mask or has none. \
         Prepare them into two sets",
        path.display()
    )]
    MixedInput {
        /// The first file of the other sort.
        path: PathBuf,
    },
    /// The input holds no files.
    #[error("{} holds no files to read (hidden files and empty ones do not count)", path.display())]
    NoInput {
        /// The folder.
        path: PathBuf,
    },
    /// A split is empty.
    #[error(
        "the {split} split got none of the {documents} document(s); add documents, choose another validation share, \
         or split by position"
    )]
    EmptySplit {
        /// Name of the split.
        split: &'static str,
        /// Documents in the corpus.
        documents: u64,
    },
    /// An option is out of range.
    #[error("{option} {value}: {expected}")]
    Option {
        /// Name of the option.
        option: &'static str,
        /// The given value.
        value: String,
        /// The accepted values.
        expected: &'static str,
    },
    /// The output folder holds something else.
    #[error("{}: {reason}", path.display())]
    Occupied {
        /// The folder.
        path: PathBuf,
        /// The folder's contents and the remedy.
        reason: String,
    },
    /// The folder holds no finished set.
    #[error(
        "{} holds no set of shards: it has no manifest.json. Make one with `train prepare`, or name llm.c's or \
         nanoGPT's files `train….bin` and `val….bin`",
        path.display()
    )]
    NoSet {
        /// The folder.
        path: PathBuf,
    },
    /// A shard or manifest is refused.
    #[error("{} {problem}", path.display())]
    Shard {
        /// The file.
        path: PathBuf,
        /// The problem in the file.
        problem: ShardProblem,
    },
    /// An index of longest matches is refused.
    #[error("{} {problem}", path.display())]
    Index {
        /// The file.
        path: PathBuf,
        /// The problem in the file.
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
    /// Whether the error is about one record of the input, so that reading can continue after it.
    pub fn is_bad_record(&self) -> bool {
        match self {
            Self::Line { .. } => true,
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
