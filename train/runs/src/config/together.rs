//! `train.together`: micro-batches that pass a segment together.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Micro-batches per pass of a recomputed segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Together {
    /// As many as fit in memory, by the plan.
    Auto,
    /// At most this many.
    Count(usize),
}

impl Together {
    /// The count; `None` if the plan chooses it.
    pub fn count(self) -> Option<usize> {
        match self {
            Self::Auto => None,
            Self::Count(count) => Some(count),
        }
    }
}

impl Serialize for Together {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => to.serialize_str("auto"),
            Self::Count(count) => to.serialize_u64(*count as u64),
        }
    }
}

impl<'de> Deserialize<'de> for Together {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Read)
    }
}

struct Read;

impl de::Visitor<'_> for Read {
    type Value = Together;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a power of two, or \"auto\"")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Together, E> {
        if text == "auto" {
            Ok(Together::Auto)
        } else {
            Err(E::invalid_value(de::Unexpected::Str(text), &self))
        }
    }

    fn visit_u64<E: de::Error>(self, count: u64) -> Result<Together, E> {
        let power = usize::try_from(count).ok().filter(|count| count.is_power_of_two());
        power.map(Together::Count).ok_or_else(|| E::invalid_value(de::Unexpected::Unsigned(count), &self))
    }
}
