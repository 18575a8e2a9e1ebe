//! A JSON array of records, read one record at a time.

use std::{
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
};

use super::{FilePart, ReadParts, json_lines::LONGEST_LINE, record};
use crate::error::Error;

pub(super) struct JsonArray {
    path: PathBuf,
    file: BufReader<Box<dyn Read + Send>>,
    line: u64,
    position: u64,
    document: u64,
    record: Vec<u8>,
}

impl JsonArray {
    pub(super) fn new(path: &Path, contents: Box<dyn Read + Send>) -> Self {
        let file = BufReader::with_capacity(1 << 18, contents);
        Self { path: path.to_owned(), file, line: 1, position: 0, document: 0, record: Vec::new() }
    }

    fn byte(&mut self) -> Result<Option<u8>, Error> {
        let byte = self.file.fill_buf().map_err(Error::read(&self.path))?.first().copied();
        if let Some(byte) = byte {
            self.file.consume(1);
            self.position += 1;
            self.line += u64::from(byte == b'\n');
        }
        Ok(byte)
    }

    fn broken(&self, line: u64, reason: &str) -> Error {
        Error::JsonArray { path: self.path.clone(), line, reason: reason.to_owned() }
    }

    fn read_record(&mut self) -> Result<(), Error> {
        let begun = self.line;
        let (mut depth, mut quoted, mut escaped) = (1, false, false);
        self.record.clear();
        self.record.push(b'{');
        while depth > 0 {
            let byte = self.byte()?.ok_or_else(|| self.broken(begun, "the file ends within this record"))?;
            self.record.push(byte);
            if self.record.len() as u64 > LONGEST_LINE {
                return Err(self.broken(begun, "the record is longer than 256 MiB"));
            }
            match byte {
                _ if escaped => escaped = false,
                b'\\' if quoted => escaped = true,
                b'"' => quoted = !quoted,
                b'{' | b'[' if !quoted => depth += 1,
                b'}' | b']' if !quoted => depth -= 1,
                _ => {}
            }
        }
        Ok(())
    }
}

impl ReadParts for JsonArray {
    fn read_part(&mut self) -> Result<Option<FilePart>, Error> {
        loop {
            let (line, position) = (self.line, self.position);
            match self.byte()? {
                Some(b'{') => {
                    self.read_record()?;
                    let path = &self.path;
                    let body = record::parse(&self.record).map_err(|reason| Error::Line {
                        path: path.clone(),
                        line,
                        reason,
                    })?;
                    self.document += 1;
                    return Ok(Some(FilePart { document: self.document, begins: true, position, body }));
                }
                Some(b']') => return Ok(None),
                Some(b'[' | b',' | 0xEF | 0xBB | 0xBF) => {}
                Some(byte) if byte.is_ascii_whitespace() => {}
                Some(_) => return Err(self.broken(line, "here is something other than an object")),
                None => return Err(self.broken(line, "the array is not closed")),
            }
        }
    }
}
