//! Reads files as documents, a few parts at a time.

mod compressed;
mod detect;
mod json_array;
mod json_lines;
mod parquet_rows;
mod record;
mod text;

use std::{
    fs,
    path::{Path, PathBuf},
};

pub use compressed::Compression;
pub use detect::Format;

use crate::{chat::message::Message, error::Error, regular};

/// Part size of a long document.
pub(crate) const PART_BYTES: usize = 64 << 10;

/// Input files with formats, sorted by name.
#[derive(Clone, Debug)]
pub struct Corpus {
    files: Vec<CorpusFile>,
}

/// A corpus file.
#[derive(Clone, Debug)]
pub struct CorpusFile {
    /// Its path.
    pub path: PathBuf,
    /// Path within the input folder, with `/`, or the file name.
    pub name: String,
    /// Decompressed size.
    pub bytes: u64,
    /// Its format.
    pub format: Format,
    /// `None` for a plain file.
    pub compression: Option<Compression>,
}

/// A document, or part of a long one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// File number.
    pub file: usize,
    /// Number within the file, from 1.
    pub document: u64,
    /// Whether the document begins here.
    pub begins: bool,
    /// Bytes of all files before the part.
    pub position: u64,
    /// The contents.
    pub body: Body,
}

/// Contents of a [`Part`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// Text.
    Text(String),
    /// For the byte tokenizer.
    Bytes(Vec<u8>),
    /// Never divided.
    Chat(Vec<Message>),
}

pub(crate) struct FilePart {
    document: u64,
    begins: bool,
    position: u64,
    body: Body,
}

pub(crate) trait ReadParts {
    /// `None` at the end of the file.
    fn read_part(&mut self) -> Result<Option<FilePart>, Error>;
}

/// An error is last unless it concerns one record.
enum FileParts {
    Reading(Box<dyn ReadParts + Send>),
    Failed(Error),
    Ended,
}

impl Iterator for FileParts {
    type Item = Result<FilePart, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        match std::mem::replace(self, Self::Ended) {
            Self::Ended => None,
            Self::Failed(error) => Some(Err(error)),
            Self::Reading(mut reader) => {
                let part = reader.read_part();
                let continues = match &part {
                    Ok(part) => part.is_some(),
                    Err(error) => error.is_bad_record(),
                };
                if continues {
                    *self = Self::Reading(reader);
                }
                part.transpose()
            }
        }
    }
}

impl Corpus {
    /// Finds files under `inputs`, without hidden and empty ones. A folder of records may also hold a README, and
    /// splits other than `train`: they are left out. With `plain_bytes`, files other than JSON lines and Parquet need
    /// not be UTF-8.
    pub fn find(inputs: &[PathBuf], plain_bytes: bool) -> Result<Self, Error> {
        let mut files = Vec::new();
        for input in inputs {
            let before = files.len();
            if fs::metadata(input).map_err(Error::read(input))?.is_dir() {
                search(input, input, plain_bytes, &mut files)?;
                keep_records(&mut files, before);
                files[before..].sort_by(|a: &CorpusFile, b| a.name.cmp(&b.name));
            } else {
                let name = input.file_name().unwrap_or_default().to_string_lossy().into_owned();
                files.extend(file(input, name, plain_bytes)?);
            }
            if files.len() == before {
                return Err(Error::NoInput { path: input.clone() });
            }
        }
        Ok(Self { files })
    }

    /// In reading order.
    pub fn files(&self) -> &[CorpusFile] {
        &self.files
    }

    /// Decompressed size.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// Reads files in order. An error [about one record](Error::is_bad_record) is followed by the next record; any
    /// other ends its file. A plain file is one document, with a second from corpus position `cut`.
    pub fn parts(&self, cut: Option<u64>) -> impl Iterator<Item = Result<Part, Error>> + Send {
        let mut before = 0;
        self.files.iter().enumerate().flat_map(move |(file, entry)| {
            let start = before;
            before += entry.bytes;
            let cut = cut.and_then(|cut| cut.checked_sub(start)).filter(|cut| *cut < entry.bytes);
            let parts = entry.open(cut).map_or_else(FileParts::Failed, FileParts::Reading);
            parts.map(move |part| {
                let FilePart { document, begins, position, body } = part?;
                Ok(Part { file, document, begins, position: start + position, body })
            })
        })
    }
}

impl CorpusFile {
    fn open(&self, cut: Option<u64>) -> Result<Box<dyn ReadParts + Send>, Error> {
        let contents = || compressed::open(&self.path, self.compression);
        Ok(match self.format {
            Format::Text => Box::new(text::TextParts::new(&self.path, contents()?, cut)),
            Format::Bytes => Box::new(text::ByteParts::new(&self.path, contents()?, cut)),
            Format::JsonLines => Box::new(json_lines::JsonLines::new(&self.path, contents()?)),
            Format::JsonArray => Box::new(json_array::JsonArray::new(&self.path, contents()?)),
            Format::Parquet if self.compression.is_some() => {
                let reason = "is a compressed Parquet file; decompress it first".to_owned();
                return Err(Error::Parquet { path: self.path.clone(), reason });
            }
            Format::Parquet => Box::new(parquet_rows::ParquetRows::open(&self.path, self.bytes)?),
        })
    }
}

impl Body {
    /// Bytes of text.
    pub fn len(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Bytes(bytes) => bytes.len(),
            Self::Chat(messages) => messages.iter().map(|message| message.content.len()).sum(),
        }
    }

    /// Whether there is no text.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

fn keep_records(files: &mut Vec<CorpusFile>, from: usize) {
    let is_text = |file: &CorpusFile| matches!(file.format, Format::Text | Format::Bytes);
    let base = |file: &CorpusFile| file.name.rsplit('/').next().unwrap_or_default().to_ascii_lowercase();
    let of_split = |file: &CorpusFile, splits: &[&str]| {
        let name = base(file);
        let split = name.split(['-', '_', '.']).next().unwrap_or_default();
        !is_text(file) && splits.contains(&split)
    };
    if files[from..].iter().all(is_text) {
        return;
    }
    let has_train = files[from..].iter().any(|file| of_split(file, &["train"]));
    let mut folder = files.split_off(from);
    folder.retain(|file| {
        let name = base(file);
        let describes = ["readme", "license", "licence"].iter().any(|word| name.starts_with(word))
            || ["dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"]
                .contains(&name.as_str());
        let is_other_split = has_train && of_split(file, &["test", "validation", "valid", "val", "dev"]);
        !(is_other_split || describes && is_text(file))
    });
    files.append(&mut folder);
}

/// Follows no links to folders: they may form a cycle.
fn search(root: &Path, folder: &Path, plain_bytes: bool, files: &mut Vec<CorpusFile>) -> Result<(), Error> {
    for entry in fs::read_dir(folder).map_err(Error::read(folder))? {
        let entry = entry.map_err(Error::read(folder))?;
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        let path = entry.path();
        if entry.file_type().map_err(Error::read(&path))?.is_dir() {
            search(root, &path, plain_bytes, files)?;
        } else if fs::metadata(&path).map_err(Error::read(&path))?.is_file() {
            let within = path.strip_prefix(root).unwrap_or(&path);
            let names: Vec<_> = within.iter().map(|name| name.to_string_lossy()).collect();
            files.extend(file(&path, names.join("/"), plain_bytes)?);
        }
    }
    Ok(())
}

fn file(path: &Path, name: String, plain_bytes: bool) -> Result<Option<CorpusFile>, Error> {
    let bytes = regular::open(path)?.metadata().map_err(Error::read(path))?.len();
    if bytes == 0 {
        return Ok(None);
    }
    let (format, compression) = detect::format(path, plain_bytes)?;
    let bytes = compression.map_or(Ok(bytes), |compression| compressed::measure(path, compression))?;
    Ok(Some(CorpusFile { path: path.to_owned(), name, bytes, format, compression }))
}
