//! SHA-256 digests of tokenizers and shards.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Written as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// Digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self::finish(Sha256::new_with_prefix(bytes))
    }

    /// Digest of all that `digest` received.
    pub fn finish(digest: Sha256) -> Self {
        Self(digest.finalize().into())
    }

    pub(crate) fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    pub(crate) fn bytes(self) -> [u8; 32] {
        self.0
    }

    /// For shard headers.
    pub(crate) fn short(self) -> [u8; 8] {
        let mut short = [0; 8];
        short.copy_from_slice(&self.0[..8]);
        short
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(out, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        write!(out, "Fingerprint({self})")
    }
}

/// Not 64 lower-case hexadecimal digits.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("a SHA-256 digest has 64 lower-case hexadecimal digits, `{0}` has not")]
pub struct NotADigest(String);

impl FromStr for Fingerprint {
    type Err = NotADigest;

    fn from_str(text: &str) -> Result<Self, NotADigest> {
        let digit = |at: usize| match text.as_bytes().get(at)? {
            digit @ b'0'..=b'9' => Some(digit - b'0'),
            letter @ b'a'..=b'f' => Some(letter - b'a' + 10),
            _ => None,
        };
        let mut bytes = [0; 32];
        for (at, byte) in bytes.iter_mut().enumerate() {
            let (Some(high), Some(low)) = (digit(2 * at), digit(2 * at + 1)) else {
                return Err(NotADigest(text.to_owned()));
            };
            *byte = high << 4 | low;
        }
        if text.len() == 64 { Ok(Self(bytes)) } else { Err(NotADigest(text.to_owned())) }
    }
}

impl TryFrom<String> for Fingerprint {
    type Error = NotADigest;

    fn try_from(text: String) -> Result<Self, NotADigest> {
        text.parse()
    }
}

impl From<Fingerprint> for String {
    fn from(fingerprint: Fingerprint) -> Self {
        fingerprint.to_string()
    }
}
