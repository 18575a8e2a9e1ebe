//! JSON lines: one document or conversation per line.

use std::{
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
};

use durable::regular::BYTE_ORDER_MARK;

use super::{Body, FilePart, ReadParts, record};
use crate::error::Error;

pub(super) const LONGEST_LINE: u64 = 256 << 20;

pub(super) struct JsonLines {
    path: PathBuf,
    file: BufReader<Box<dyn Read + Send>>,
    line: u64,
    position: u64,
    document: u64,
    buffer: Vec<u8>,
}

pub(crate) fn parse_line(line: &[u8]) -> Result<Body, String> {
    if let Some(text) = only_text(line).filter(|text| !text.is_empty()) {
        return Ok(Body::Text(text));
    }
    record::parse(line)
}

/// Parses exactly `{"text": "…"}`, in half the time of `serde_json`, which gets other lines.
fn only_text(line: &[u8]) -> Option<String> {
    let value = line.strip_prefix(br#"{"text":"#)?;
    let value = value.strip_prefix(b" ").unwrap_or(value);
    let mut rest = value.strip_prefix(b"\"")?.strip_suffix(b"\"}")?;
    let mut text = Vec::with_capacity(rest.len());
    loop {
        rest = copy_plain(rest, &mut text);
        let (escape, behind) = match rest {
            [] => return String::from_utf8(text).ok(),
            [b'\\', escape, behind @ ..] => (escape, behind),
            _ => return None,
        };
        text.push(match escape {
            b'n' => b'\n',
            b't' => b'\t',
            b'r' => b'\r',
            b'b' => 0x08,
            b'f' => 0x0C,
            b'"' | b'\\' | b'/' => *escape,
            _ => return None,
        });
        rest = behind;
    }
}

fn copy_plain<'l>(mut rest: &'l [u8], text: &mut Vec<u8>) -> &'l [u8] {
    while let Some((block, behind)) = rest.split_first_chunk() {
        let plain = plain_bytes(*block);
        text.extend_from_slice(block);
        if plain < block.len() {
            text.truncate(text.len() - block.len() + plain);
            return &rest[plain..];
        }
        rest = behind;
    }
    let plain = rest.iter().position(|byte| matches!(byte, b'"' | b'\\' | ..0x20)).unwrap_or(rest.len());
    text.extend_from_slice(&rest[..plain]);
    &rest[plain..]
}

/// Bytes before the first quote, backslash or control character. Tests subtract from all bytes at once and mark
/// borrows, which spread upwards.
fn plain_bytes(block: [u8; 8]) -> usize {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    let word = u64::from_le_bytes(block);
    let below = |word: u64, limit: u8| word.wrapping_sub(ONES * u64::from(limit)) & !word;
    let is = |byte: u8| below(word ^ (ONES * u64::from(byte)), 1);
    let marks = (below(word, 0x20) | is(b'"') | is(b'\\')) & (ONES << 7);
    marks.trailing_zeros() as usize / 8
}

impl JsonLines {
    pub(super) fn new(path: &Path, contents: Box<dyn Read + Send>) -> Self {
        let (path, buffer) = (path.to_owned(), Vec::new());
        let file = BufReader::with_capacity(1 << 18, contents);
        Self { path, file, line: 0, position: 0, document: 0, buffer }
    }

    fn end_line(&mut self) -> Result<(), Error> {
        self.position += self.file.skip_until(b'\n').map_err(Error::read(&self.path))? as u64;
        Ok(())
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
                self.end_line()?;
                return Err(self.malformed(format!("is longer than {LONGEST_LINE} bytes")));
            }

            let mut line = self.buffer.as_slice();
            if self.line == 1 {
                line = line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line);
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn by_serde(line: &[u8]) -> Option<String> {
        serde_json::from_slice::<serde_json::Value>(line).ok()?.get("text")?.as_str().map(str::to_owned)
    }

    #[test]
    fn a_plain_text_line_is_read_without_serde() {
        let text = "To be,\tor\r\nnot to \"be\" \\ / \u{8}\u{c} é 🌊 \u{7f}, and on beyond one block";
        for end in (0..=text.len()).filter(|end| text.is_char_boundary(*end)) {
            let line = serde_json::json!({ "text": text[..end] }).to_string();
            assert_eq!(only_text(line.as_bytes()).as_deref(), Some(&text[..end]));
            let spaced = line.replacen(':', ": ", 1);
            assert_eq!(only_text(spaced.as_bytes()).as_deref(), Some(&text[..end]));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(suite::cases(256)))]

        #[test]
        fn the_fast_path_agrees_with_serde(
            inside in prop::collection::vec(
                prop_oneof![
                    4 => any::<u8>(),
                    4 => b'a'..=b'z',
                    2 => prop::sample::select(&br#"\"ntrbfu/{},: "#[..]),
                ],
                0..40,
            ),
        ) {
            let line = [br#"{"text": ""#, inside.as_slice(), br#""}"#].concat();
            if let Some(text) = only_text(&line) {
                prop_assert_eq!(Some(text), by_serde(&line));
            }
        }
    }
}
