//! `TensorBoard`'s event files: `TFRecords` of protobuf's `Event`. Every process begins a file: a killed one may leave
//! half a record.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::process;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

#[derive(Debug)]
pub(super) struct TensorBoard {
    file: File,
}

impl TensorBoard {
    /// `TensorBoard` forgets steps after `kept` of earlier files.
    pub(super) fn create(run: &Path, kept: u64) -> io::Result<Self> {
        let time = now();
        let name = format!("events.out.tfevents.{:010}.spillway.{}", time as u64, process::id());
        let file = OpenOptions::new().create(true).append(true).open(run.join(name))?;
        let mut board = Self { file };
        board.append(&event(time, 0, |event| event.bytes(3, b"brain.Event:2")))?;
        board.append(&event(time, kept + 1, |event| event.message(7, |log| log.varint(1, 1))))?;
        Ok(board)
    }

    pub(super) fn write(&mut self, kind: &str, record: &Value) -> io::Result<()> {
        let group = match kind {
            "step" => "train",
            "eval" => "validation",
            _ => return Ok(()),
        };
        let numbers = record.as_object().into_iter().flatten().filter(|(name, _)| !name.starts_with("step"));
        let numbers =
            numbers.filter_map(|(name, value)| Some((format!("{group}/{name}"), value.as_f64()? as f32)));
        let numbers: Vec<_> = numbers.collect();
        let step = record["step"].as_u64().unwrap_or_default();
        self.append(&event(now(), step, |event| {
            event.message(5, |summary| {
                for (tag, value) in &numbers {
                    summary.message(1, |entry| {
                        entry.bytes(1, tag.as_bytes());
                        entry.fixed(2, 5, &value.to_le_bytes());
                    });
                }
            });
        }))
    }

    fn append(&mut self, data: &[u8]) -> io::Result<()> {
        let length = (data.len() as u64).to_le_bytes();
        let sums = [&length[..], data].map(|bytes| masked(crc32c(bytes)).to_le_bytes());
        let before = self.file.metadata()?.len();
        let written = self.file.write_all(&[&length[..], &sums[0], data, &sums[1]].concat());
        if written.is_err() {
            // Behind a part of a record, readers find no other.
            _ = self.file.set_len(before);
        }
        written
    }
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

fn event(time: f64, step: u64, fill: impl FnOnce(&mut Message)) -> Vec<u8> {
    let mut event = Message(Vec::new());
    event.fixed(1, 1, &time.to_le_bytes());
    event.varint(2, step);
    fill(&mut event);
    event.0
}

struct Message(Vec<u8>);

impl Message {
    fn number(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn fixed(&mut self, field: u64, wire_type: u64, bytes: &[u8]) {
        self.number(field << 3 | wire_type);
        self.0.extend(bytes);
    }

    fn varint(&mut self, field: u64, value: u64) {
        self.number(field << 3);
        self.number(value);
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.number(field << 3 | 2);
        self.number(bytes.len() as u64);
        self.0.extend(bytes);
    }

    fn message(&mut self, field: u64, fill: impl FnOnce(&mut Self)) {
        let mut inner = Self(Vec::new());
        fill(&mut inner);
        self.bytes(field, &inner.0);
    }
}

fn masked(sum: u32) -> u32 {
    sum.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Bit by bit: an event has a kilobyte.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |sum, byte| {
        (0..8).fold(
            sum ^ u32::from(*byte),
            |sum, _| if sum & 1 == 1 { sum >> 1 ^ 0x82f6_3b78 } else { sum >> 1 },
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_castagnolis() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        // RFC 3720, B.4.
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
    }
}
