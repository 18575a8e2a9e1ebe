//! Reads plain files, one document each, in parts.
//!
//! Parts end where every split pattern ends a piece, so they encode like the whole. After [`LONGEST_PART`] bytes
//! without such a place, a part ends at any character.

use std::{
    io::Read,
    path::{Path, PathBuf},
};

use durable::regular::BYTE_ORDER_MARK;

use super::{Body, FilePart, PART_BYTES, ReadParts};
use crate::{encode::split::safe_cut, error::Error};

const LONGEST_PART: usize = 8 << 20;

struct FileBytes {
    path: PathBuf,
    file: Box<dyn Read + Send>,
    pending: Vec<u8>,
    position: u64,
    document: u64,
    begins: bool,
    cut: Option<u64>,
    ended: bool,
}

impl FileBytes {
    fn new(path: &Path, file: Box<dyn Read + Send>, cut: Option<u64>) -> Self {
        let (path, pending, position) = (path.to_owned(), Vec::new(), 0);
        Self { path, file, pending, position, document: 1, begins: true, cut, ended: false }
    }

    fn fill(&mut self, bytes: usize) -> Result<(), Error> {
        while !self.ended && self.pending.len() < bytes {
            let missing = (bytes - self.pending.len()) as u64;
            let read = (&mut self.file).take(missing).read_to_end(&mut self.pending);
            self.ended = read.map_err(Error::read(&self.path))? == 0;
        }
        Ok(())
    }

    /// The mark is no text. A cut within it stays where it is.
    fn skip_byte_order_mark(&mut self) -> Result<(), Error> {
        let len = BYTE_ORDER_MARK.len();
        self.fill(len)?;
        let is_cut = self.cut.is_some_and(|cut| cut < len as u64);
        if self.pending.starts_with(BYTE_ORDER_MARK) && !is_cut {
            self.pending.drain(..len);
            self.position = len as u64;
        }
        Ok(())
    }

    fn before_cut(&self) -> (usize, bool) {
        match self.cut.map(|cut| (cut - self.position) as usize) {
            Some(cut) if cut <= self.pending.len() => (cut, true),
            _ => (self.pending.len(), false),
        }
    }

    fn part(&mut self, body: Body, reaches_cut: bool) -> FilePart {
        let (document, begins, position) = (self.document, self.begins, self.position);
        self.position += body.len() as u64;
        self.begins = reaches_cut;
        if reaches_cut {
            self.cut = None;
            self.document += 1;
        }
        FilePart { document, begins, position, body }
    }
}

pub(super) struct ByteParts(FileBytes);

impl ByteParts {
    pub(super) fn new(path: &Path, contents: Box<dyn Read + Send>, cut: Option<u64>) -> Self {
        Self(FileBytes::new(path, contents, cut))
    }
}

impl ReadParts for ByteParts {
    fn read_part(&mut self) -> Result<Option<FilePart>, Error> {
        self.0.fill(PART_BYTES)?;
        let (end, reaches_cut) = self.0.before_cut();
        let later = self.0.pending.split_off(end);
        let now = std::mem::replace(&mut self.0.pending, later);
        let over = now.is_empty() && !reaches_cut;
        Ok((!over).then(|| self.0.part(Body::Bytes(now), reaches_cut)))
    }
}

pub(super) struct TextParts(FileBytes);

impl TextParts {
    pub(super) fn new(path: &Path, contents: Box<dyn Read + Send>, cut: Option<u64>) -> Self {
        Self(FileBytes::new(path, contents, cut))
    }

    fn valid_prefix(&self) -> Result<&str, Error> {
        let pending = &self.0.pending;
        std::str::from_utf8(pending).or_else(|error| {
            let valid = error.valid_up_to();
            if error.error_len().is_some() || self.0.ended {
                let at = self.0.position + valid as u64;
                return Err(Error::NotUtf8 { path: self.0.path.clone(), at });
            }
            Ok(std::str::from_utf8(&pending[..valid]).expect("valid up to there"))
        })
    }
}

impl ReadParts for TextParts {
    fn read_part(&mut self) -> Result<Option<FilePart>, Error> {
        if self.0.position == 0 {
            self.0.skip_byte_order_mark()?;
        }
        let mut wanted = PART_BYTES;
        loop {
            self.0.fill(wanted)?;
            if self.0.pending.is_empty() {
                return Ok(None);
            }

            let text = self.valid_prefix()?;
            let (mut end, reaches_cut) = self.0.before_cut();
            end = text.ceil_char_boundary(end.min(text.len()));
            // A cut within the last character waits for the rest.
            let at_cut = reaches_cut && self.0.before_cut().0 <= end;
            let whole = at_cut || self.0.ended;
            let end = if whole { Some(end) } else { safe_cut(&text[..end], end) };

            let forced = (wanted >= LONGEST_PART).then_some(text.len());
            if let Some(end) = end.or(forced) {
                let later = self.0.pending.split_off(end);
                let now = std::mem::replace(&mut self.0.pending, later);
                let now = String::from_utf8(now).expect("the prefix was checked and cut between characters");
                return Ok(Some(self.0.part(Body::Text(now), at_cut)));
            }
            wanted *= 2;
        }
    }
}
