//! What ranks divide: `false`, `"states"` (or `true`), `"weights"`.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// What each rank holds only a share of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShardKind {
    /// Nothing.
    None,
    /// Master weights and moments.
    States,
    /// Also the blocks' matrices.
    Weights,
}

impl ShardKind {
    /// Whether each parameter has one owner.
    pub fn has_owners(self) -> bool {
        self != Self::None
    }
}

impl Serialize for ShardKind {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::None => to.serialize_bool(false),
            Self::States => to.serialize_str("states"),
            Self::Weights => to.serialize_str("weights"),
        }
    }
}

impl<'de> Deserialize<'de> for ShardKind {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Read)
    }
}

struct Read;

impl de::Visitor<'_> for Read {
    type Value = ShardKind;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("false, \"states\" or \"weights\"")
    }

    fn visit_bool<E: de::Error>(self, divides: bool) -> Result<ShardKind, E> {
        Ok(if divides { ShardKind::States } else { ShardKind::None })
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<ShardKind, E> {
        match text {
            "states" => Ok(ShardKind::States),
            "weights" => Ok(ShardKind::Weights),
            _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
        }
    }
}
