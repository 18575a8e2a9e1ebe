//! `ranks.round`: the local steps between two exchanges of weights.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A round of local steps.
#[derive(Debug, Clone, PartialEq)]
pub enum Round {
    /// As many on each process.
    Steps(u64),
    /// As many as a process manages in this time, at least one.
    Time(Duration),
    /// As many as the journal of this run records, round by round.
    AsIn(PathBuf),
}

impl Round {
    /// Steps per round, if known beforehand.
    pub fn steps(&self) -> Option<u64> {
        match self {
            Self::Steps(steps) => Some(*steps),
            Self::Time(_) | Self::AsIn(_) => None,
        }
    }
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Steps(1) => f.write_str("1 step"),
            Self::Steps(steps) => write!(f, "{steps} steps"),
            Self::Time(time) => write!(f, "{} s", time.as_secs_f64()),
            Self::AsIn(run) => write!(f, "as in {}", run.display()),
        }
    }
}

const EXPECTED: &str = "\"50 steps\", \"60 s\", or \"as in DIRECTORY\" of a run";

impl FromStr for Round {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(run) = text.strip_prefix("as in ") {
            return Ok(Self::AsIn(run.trim().into()));
        }
        let (number, unit) = text.trim().split_once(' ').ok_or(EXPECTED)?;
        let round = match unit.trim() {
            "step" | "steps" => number.parse().ok().map(Self::Steps),
            "s" => {
                number.parse().ok().and_then(|time| Duration::try_from_secs_f64(time).ok()).map(Self::Time)
            }
            _ => None,
        };
        round.ok_or(EXPECTED)
    }
}

impl Serialize for Round {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Round {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Read)
    }
}

struct Read;

impl de::Visitor<'_> for Read {
    type Value = Round;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(EXPECTED)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Round, E> {
        text.parse().map_err(|_| E::invalid_value(de::Unexpected::Str(text), &self))
    }

    fn visit_u64<E: de::Error>(self, steps: u64) -> Result<Round, E> {
        Ok(Round::Steps(steps))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_is_read_as_it_is_written() {
        for (text, round) in [
            ("50 steps", Round::Steps(50)),
            ("1 step", Round::Steps(1)),
            ("60 s", Round::Time(Duration::from_mins(1))),
            ("0.25 s", Round::Time(Duration::from_millis(250))),
            ("as in runs/a b", Round::AsIn("runs/a b".into())),
        ] {
            assert_eq!((text.parse(), round.to_string().as_str()), (Ok(round.clone()), text));
            let json = serde_json::to_value(&round).expect("a text");
            assert_eq!((json.as_str(), serde_json::from_value(json.clone()).ok()), (Some(text), Some(round)));
        }
        assert_eq!(serde_json::from_str::<Round>("7").expect("steps"), Round::Steps(7));
        for text in ["", "50", "steps", "1.5 steps", "-1 s", "NaN s", "inf s", "1 h", "as runs/a"] {
            assert_eq!(text.parse::<Round>(), Err(EXPECTED), "{text}");
        }
    }
}
