//! `train.schedule.warmup`: the steps of the rising learning rate.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Warm-up from a learning rate of zero to its peak.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum WarmUp {
    /// Number of steps.
    Steps(u64),
    /// Share of all steps, below 1.
    Share(f64),
}

impl WarmUp {
    /// Its steps in a run of `steps`; a tenth if the count leaves none at the peak.
    pub fn in_run(self, steps: u64) -> u64 {
        match self {
            Self::Steps(count) if count >= steps => steps / 10,
            Self::Steps(count) => count,
            Self::Share(share) => (share * steps as f64).round() as u64,
        }
    }

    /// Whether a run of `steps` is too short for the count.
    pub fn is_cut(self, steps: u64) -> bool {
        matches!(self, Self::Steps(count) if count > 0 && count >= steps)
    }
}

impl From<u64> for WarmUp {
    fn from(steps: u64) -> Self {
        Self::Steps(steps)
    }
}

impl fmt::Display for WarmUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Steps(steps) => write!(f, "{steps}"),
            Self::Share(share) => write!(f, "{share}"),
        }
    }
}

impl Serialize for WarmUp {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Steps(steps) => to.serialize_u64(*steps),
            Self::Share(share) => to.serialize_f64(*share),
        }
    }
}

impl<'de> Deserialize<'de> for WarmUp {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Read)
    }
}

struct Read;

impl de::Visitor<'_> for Read {
    type Value = WarmUp;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number of steps, or a share between 0 and 1")
    }

    fn visit_u64<E: de::Error>(self, steps: u64) -> Result<WarmUp, E> {
        Ok(WarmUp::Steps(steps))
    }

    fn visit_f64<E: de::Error>(self, share: f64) -> Result<WarmUp, E> {
        if share > 0.0 && share < 1.0 {
            return Ok(WarmUp::Share(share));
        }
        Err(E::invalid_value(de::Unexpected::Float(share), &self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warm_up_takes_its_steps_its_share_or_a_tenth_of_a_short_run() {
        assert_eq!(WarmUp::Steps(100).in_run(101), 100);
        assert_eq!(WarmUp::Steps(100).in_run(100), 10);
        assert_eq!(WarmUp::Steps(100).in_run(40), 4);
        assert_eq!(WarmUp::Steps(0).in_run(1), 0);
        assert_eq!(WarmUp::Share(0.03).in_run(1000), 30);
        assert_eq!(WarmUp::Share(0.03).in_run(10), 0);
        assert!(WarmUp::Steps(100).is_cut(100) && !WarmUp::Steps(100).is_cut(101));
        assert!(!WarmUp::Steps(0).is_cut(0) && !WarmUp::Share(0.9).is_cut(1));
    }
}
