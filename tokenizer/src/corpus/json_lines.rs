//! JSON lines: a document or a conversation on each.

use std::{
    fs::File,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
};

use serde::Deserialize;

use super::{Body, FilePart, ReadParts};
use crate::{chat::Message, error::Error};

/// A line is held in memory whole.
const LONGEST_LINE: u64 = 256 << 20;

pub(super) struct JsonLines {
    path: PathBuf,
    file: BufReader<File>,
    line: u64,
    position: u64,
    document: u64,
    buffer: Vec<u8>,
}

/// Other fields, such as an id or a source, are left alone.
#[derive(Deserialize)]
struct Document {
    text: Option<String>,
    messages: Option<Vec<Message>>,
}

/// Reads one line's JSON. The message says what is wrong with it.
pub(crate) fn parse_line(line: &[u8]) -> Result<Body, String> {
    match serde_json::from_slice(line).map_err(|error| reason(&error))? {
        Document { text: Some(text), messages: None } => Ok(Body::Text(text)),
        Document { text: None, messages: Some(messages) } => Ok(Body::Chat(messages)),
        Document { text: None, messages: None } => Err("has neither `text` nor `messages`".to_owned()),
        Document { text: Some(_), messages: Some(_) } => Err("has both `text` and `messages`".to_owned()),
    }
}

/// `serde_json` counts lines of its own input, always line 1 here; the column is worth keeping.
fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rsplit_once(" at line 1 column ") {
        Some((what, column)) => format!("{what} (column {column})"),
        None => text,
    }
}

impl JsonLines {
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        let file = BufReader::with_capacity(1 << 18, File::open(path).map_err(Error::read(path))?);
        let (path, buffer) = (path.to_owned(), Vec::new());
        Ok(Self { path, file, line: 0, position: 0, document: 0, buffer })
    }

    fn malformed(&self, reason: String) -> Error {
        Error::Line { path: self.path.clone(), line: self.line, reason }
    }
}

impl ReadParts for JsonLines {
    fn read_part(&mut self) -> Result<Option<FilePart>, Error> {
        loop {
            self.buffer.clear();
            let mut bounded = (&mut self.file).take(LONGEST_LINE);
            let read = bounded.read_until(b'\n', &mut self.buffer).map_err(Error::read(&self.path))? as u64;
            if read == 0 {
                return Ok(None);
            }
            self.line += 1;
            let position = self.position;
            self.position += read;
            if read == LONGEST_LINE && !self.buffer.ends_with(b"\n") {
                return Err(self.malformed(format!("is longer than {LONGEST_LINE} bytes")));
            }
            let mut line = self.buffer.as_slice();
            if self.line == 1 {
                line = line.strip_prefix("\u{feff}".as_bytes()).unwrap_or(line);
            }
            let line = line.trim_ascii();
            if line.is_empty() {
                continue;
            }
            let body = parse_line(line).map_err(|reason| self.malformed(reason))?;
            self.document += 1;
            return Ok(Some(FilePart { document: self.document, begins: true, position, body }));
        }
    }
}
