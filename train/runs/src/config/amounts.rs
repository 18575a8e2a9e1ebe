//! Amounts of memory, saved as they were written.

use std::{fmt, marker::PhantomData, str::FromStr};

use backend_offload::{Budget, BudgetError};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A value and its text.
#[derive(Debug, Clone, PartialEq)]
pub struct Amount<T> {
    text: String,
    value: T,
}

impl<T: Copy> Amount<T> {
    /// The value.
    pub fn value(&self) -> T {
        self.value
    }
}

/// A value parsed from an amount's text.
pub trait Meaning: Sized {
    /// Parses `text`. The error names the right form.
    fn read(text: &str) -> Result<Self, String>;
}

impl<T: Meaning> FromStr for Amount<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        T::read(text).map(|value| Self { text: text.to_owned(), value })
    }
}

impl<T> Serialize for Amount<T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.text)
    }
}

impl<'de, T: Meaning> Deserialize<'de> for Amount<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Written(PhantomData))
    }
}

/// A text, or a number of bytes.
struct Written<T>(PhantomData<T>);

impl<T: Meaning> de::Visitor<'_> for Written<T> {
    type Value = Amount<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text such as \"6GiB\", or a number of bytes")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<Self::Value, E> {
        self.visit_str(&bytes.to_string())
    }
}

fn budget(text: &str) -> Result<Budget, String> {
    text.parse().map_err(|error: BudgetError| error.to_string())
}

/// `auto` is `None`: environment and device decide.
impl Meaning for Option<Budget> {
    fn read(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(None),
            _ => budget(text).map(Some).map_err(|error| format!("{error}, or \"auto\"")),
        }
    }
}

/// Part of a disk, reserved when a run starts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum DiskPart {
    /// Bytes.
    Bytes(u64),
    /// Share of the free space.
    Share(f64),
}

impl Meaning for DiskPart {
    fn read(text: &str) -> Result<Self, String> {
        match budget(text)? {
            Budget::Bytes(bytes) => Ok(Self::Bytes(bytes)),
            Budget::Share(share) => Ok(Self::Share(share)),
            Budget::Unlimited => {
                Err("space on a disk is taken before the first step: write a number of bytes such as \
                                      \"100GiB\", or a share of what is free such as \"50%\""
                    .to_owned())
            }
        }
    }
}

impl From<DiskPart> for Budget {
    fn from(part: DiskPart) -> Self {
        match part {
            DiskPart::Bytes(bytes) => Self::Bytes(bytes),
            DiskPart::Share(share) => Self::Share(share),
        }
    }
}

impl Meaning for u64 {
    fn read(text: &str) -> Result<Self, String> {
        match budget(text)? {
            Budget::Bytes(bytes) => Ok(bytes),
            _ => Err("write a number of bytes, such as \"20TiB\"".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn amounts_are_read_once_and_written_as_they_were() {
        let set = [
            "memory.device_budget=1.5GiB",
            "memory.host_budget=80 %",
            "memory.disk=/",
            "memory.disk_budget=100GB",
            "memory.disk_endurance=1048576",
            "memory.max_disk_writes=20TiB",
        ];
        let config = Config::load("toy", &set.map(str::to_owned)).expect("each can be read");
        let memory = &config.memory;
        assert_eq!(memory.device_budget.value(), Some(Budget::Bytes(3 << 29)));
        assert_eq!(memory.host_budget.value(), Some(Budget::Share(0.8)));
        assert_eq!(memory.disk_budget.value(), DiskPart::Bytes(100_000_000_000));
        assert_eq!(memory.max_disk_writes.as_ref().map(Amount::value), Some(20 << 40));
        let endurance = memory.disk_endurance.as_ref().map(Amount::value);
        assert_eq!(endurance, Some(1 << 20), "a number, as an error advises");
        let written: serde_json::Value = serde_json::from_str(&config.to_json()).expect("JSON");
        assert_eq!(written["memory"]["device_budget"], "1.5GiB");
        assert_eq!(written["memory"]["disk_budget"], "100GB");
        assert_eq!(Config::from_text(&config.to_json(), "its own JSON", &[]).expect("it is read"), config);
    }

    #[test]
    fn amounts_of_another_kind_than_the_key_takes_are_refused_by_name() {
        for (setting, expected) in [
            (
                "memory.disk_budget=unlimited",
                "`memory.disk_budget` (from --set): space on a disk is taken before",
            ),
            ("memory.disk_budget=auto", "it does not start with a number"),
            ("memory.max_disk_writes=50%", "`memory.max_disk_writes` (from --set): write a number of bytes"),
            ("memory.disk_endurance=unlimited", "write a number of bytes"),
            ("memory.host_budget=101%", "or \"auto\""),
        ] {
            let refused = Config::load("toy", &["memory.disk=/".to_owned(), setting.to_owned()]);
            let refused = refused.expect_err("no such amount").to_string();
            assert!(refused.contains(expected), "{refused}");
        }
    }
}
