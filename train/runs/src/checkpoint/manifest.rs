//! `manifest.json`: a checkpoint's files with checksums, and a digest of the manifest.
//!
//! It must equal what this program writes: every changed byte is detected.

use serde::{Deserialize, Serialize};
use tokenizer::Fingerprint;

use super::error::Damage;

pub(super) const FILE: &str = "manifest.json";
const VERSION: u32 = 1;
/// Checkpoints have a dozen files and one per rank.
pub(super) const MAX_BYTES: u64 = 16 << 20;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Manifest {
    version: u32,
    pub(super) step: u64,
    /// Numbers a run's saves: their steps fall when a run resumes at an earlier one.
    pub(super) sequence: u64,
    pub(super) files: Vec<Entry>,
    seal: Fingerprint,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Entry {
    /// Relative to the checkpoint, with `/`.
    pub(super) name: String,
    pub(super) bytes: u64,
    pub(super) sha256: Fingerprint,
}

impl Manifest {
    pub(super) fn new(step: u64, sequence: u64, files: Vec<Entry>) -> Self {
        let seal = seal(VERSION, step, sequence, &files);
        Self { version: VERSION, step, sequence, files, seal }
    }

    pub(super) fn parse(text: &[u8]) -> Result<Self, Damage> {
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }

        let unreadable = |error: serde_json::Error| Damage::NotAManifest { reason: error.to_string() };
        let Version { version } = serde_json::from_slice(text).map_err(unreadable)?;
        if version != VERSION {
            return Err(Damage::Version { found: version, read: VERSION });
        }

        let manifest: Self = serde_json::from_slice(text).map_err(unreadable)?;
        let expected = seal(version, manifest.step, manifest.sequence, &manifest.files);
        if manifest.seal != expected {
            return Err(Damage::Checksum { expected: manifest.seal, found: expected });
        }

        if manifest.to_text().as_bytes() != text {
            return Err(Damage::NotAManifest { reason: "it is not spelled as it was written".to_owned() });
        }
        Ok(manifest)
    }

    pub(super) fn to_text(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).expect("strings and numbers become JSON");
        text.push('\n');
        text
    }

    pub(super) fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }
}

fn seal(version: u32, step: u64, sequence: u64, files: &[Entry]) -> Fingerprint {
    let sealed =
        serde_json::to_vec(&(version, step, sequence, files)).expect("strings and numbers become JSON");
    Fingerprint::of(&sealed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_changed_bit_and_byte_is_detected() {
        let sha256 = Fingerprint::of(b"weights");
        let whole = Manifest::new(3, 1, vec![Entry { name: "model".to_owned(), bytes: 7, sha256 }]);
        let text = whole.to_text().into_bytes();
        assert_eq!(Manifest::parse(&text).expect("it is whole"), whole);
        for at in 0..text.len() {
            for bit in 0..8 {
                let mut flipped = text.clone();
                flipped[at] ^= 1 << bit;
                assert!(Manifest::parse(&flipped).is_err(), "{}", String::from_utf8_lossy(&flipped));
            }
            assert!(Manifest::parse(&text[..at]).is_err());
        }
        assert!(Manifest::parse(&[&text[..], b" "].concat()).is_err());
    }

    #[test]
    fn a_later_format_is_not_reported_as_damage() {
        let error = Manifest::parse(br#"{"version":2,"shards":[]}"#).expect_err("it is unknown").to_string();
        assert_eq!(error, "has format version 2, this program reads 1");
    }
}
