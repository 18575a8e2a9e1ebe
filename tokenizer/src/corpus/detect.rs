//! What a file is, by its beginning; by its name only where the beginning leaves it open.

use std::{fs::File, io::Read, path::Path};

use serde_json::Value;

use crate::error::Error;

/// The sorts of input files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// UTF-8 text, one document.
    Text,
    /// Any bytes, one document.
    Bytes,
    /// One `{"text": …}` or `{"messages": […]}` per line.
    JsonLines,
    /// Apache Parquet with a column `text`.
    Parquet,
}

/// Enough for the first line of almost any JSON-lines file.
const SAMPLE_BYTES: u64 = 64 << 10;

pub(super) fn format(path: &Path, plain_bytes: bool) -> Result<Format, Error> {
    let mut sample = Vec::new();
    let file = File::open(path).map_err(Error::read(path))?;
    file.take(SAMPLE_BYTES).read_to_end(&mut sample).map_err(Error::read(path))?;
    let extension = path.extension().unwrap_or_default().to_ascii_lowercase();
    Ok(if sample.starts_with(b"PAR1") {
        Format::Parquet
    } else if extension == "jsonl" || extension == "ndjson" || begins_with_document(&sample) {
        Format::JsonLines
    } else if plain_bytes {
        Format::Bytes
    } else {
        Format::Text
    })
}

/// Whether the first line is, or goes beyond the sample and begins like, a JSON document of ours.
fn begins_with_document(sample: &[u8]) -> bool {
    let sample = sample.strip_prefix("\u{feff}".as_bytes()).unwrap_or(sample).trim_ascii_start();
    let line = sample.split(|byte| *byte == b'\n').next().unwrap_or_default();
    if line.len() == sample.len() && line.len() as u64 > SAMPLE_BYTES / 2 {
        let key = line.strip_prefix(b"{").unwrap_or_default().trim_ascii_start();
        return key.starts_with(b"\"text\"") || key.starts_with(b"\"messages\"");
    }
    match serde_json::from_slice(line) {
        Ok(Value::Object(fields)) => fields.contains_key("text") || fields.contains_key("messages"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prose_that_opens_with_a_brace_is_not_json_lines() {
        assert!(!begins_with_document(b"{ stage left } enter a fool\n"));
        assert!(!begins_with_document(b"{\"name\": \"package\"}\n"));
        assert!(begins_with_document(b"\n  {\"id\": 1, \"text\": \"a\"}\n{"));
        assert!(begins_with_document("\u{feff}{\"messages\": []}".as_bytes()));
    }

    #[test]
    fn a_first_line_longer_than_the_sample_is_judged_by_its_first_key() {
        let long = format!("{{\"text\": \"{}", "a".repeat(60_000));
        assert!(begins_with_document(long.as_bytes()));
        assert!(!begins_with_document("{".repeat(60_000).as_bytes()));
    }
}
