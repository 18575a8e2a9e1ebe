//! Detects a file's format by its beginning, else its name.

use std::{io::Read, path::Path};

use durable::regular::BYTE_ORDER_MARK;
use serde_json::Value;

use super::{
    compressed::{self, Compression},
    record::KEYS,
};
use crate::error::Error;

/// Input formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// UTF-8 text, one document.
    Text,
    /// Any bytes, one document.
    Bytes,
    /// A JSON object per line: `text`, `messages`, `conversations`, `prompt` with `completion`, or `instruction` with
    /// `output`.
    JsonLines,
    /// A JSON array of such objects.
    JsonArray,
    /// Apache Parquet with columns of these names.
    Parquet,
}

const SAMPLE_BYTES: u64 = 64 << 10;

pub(super) fn format(path: &Path, plain_bytes: bool) -> Result<(Format, Option<Compression>), Error> {
    let compression = Compression::detect(&sample(path, None)?);
    let sample = sample(path, compression)?;
    // The extension before `.gz` or `.zst` names the contents.
    let named = if compression.is_some() { path.file_stem().map(Path::new) } else { Some(path) };
    let extension = named.and_then(Path::extension).unwrap_or_default().to_ascii_lowercase();
    if extension == "arrow" || sample.starts_with(b"ARROW1") {
        let reason = "this is an Arrow file; write it as Parquet with `dataset.to_parquet(...)`".to_owned();
        return Err(Error::Parquet { path: path.to_owned(), reason });
    }
    let format = if begins_with_array_of_records(&sample, extension == "json") {
        Format::JsonArray
    } else if sample.starts_with(b"PAR1") {
        Format::Parquet
    } else if extension == "jsonl" || extension == "ndjson" || begins_with_document(&sample) {
        Format::JsonLines
    } else if plain_bytes {
        Format::Bytes
    } else {
        Format::Text
    };
    Ok((format, compression))
}

fn sample(path: &Path, compression: Option<Compression>) -> Result<Vec<u8>, Error> {
    let mut sample = Vec::new();
    let contents = compressed::open(path, compression)?;
    contents.take(SAMPLE_BYTES).read_to_end(&mut sample).map_err(Error::read(path))?;
    Ok(sample)
}

/// An array named `.json` holds records, whatever their keys.
fn begins_with_array_of_records(sample: &[u8], is_json: bool) -> bool {
    let inside = without_mark(sample).strip_prefix(b"[").unwrap_or_default().trim_ascii_start();
    inside.starts_with(b"{")
        && (is_json
            || KEYS.iter().any(|key| {
                let quoted = format!("\"{key}\"");
                inside.windows(quoted.len()).any(|window| window == quoted.as_bytes())
            }))
}

fn without_mark(sample: &[u8]) -> &[u8] {
    sample.strip_prefix(BYTE_ORDER_MARK).unwrap_or(sample).trim_ascii_start()
}

/// The first key decides if the line exceeds the sample.
fn begins_with_document(sample: &[u8]) -> bool {
    let sample = without_mark(sample);
    let line = sample.split(|byte| *byte == b'\n').next().unwrap_or_default();
    if line.len() == sample.len() && line.len() as u64 > SAMPLE_BYTES / 2 {
        let key = line.strip_prefix(b"{").unwrap_or_default().trim_ascii_start();
        let key = key.strip_prefix(b"\"").unwrap_or_default();
        return KEYS
            .iter()
            .any(|known| key.strip_prefix(known.as_bytes()).is_some_and(|rest| rest.starts_with(b"\"")));
    }
    match serde_json::from_slice(line) {
        Ok(Value::Object(fields)) => KEYS.iter().any(|key| fields.contains_key(*key)),
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
