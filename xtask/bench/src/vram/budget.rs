//! Budgets in the trainer's units.

use std::{fmt, str::FromStr};

use anyhow::{Context, Error, Result, ensure};

use crate::records::bytes::Bytes;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Budget {
    Unlimited,
    /// Percent of the model's unlimited peak.
    Share(f64),
    Bytes(u64),
}

const EXAMPLE: &str = "write `75%`, `8GiB` or `unlimited`";

/// Device bytes; `None` is no limit.
pub(super) type Limit = Option<u64>;

impl Budget {
    /// A share needs the unlimited run first.
    pub(super) fn resolve(self, unlimited_peak: Option<u64>) -> Result<Limit> {
        match self {
            Self::Unlimited => Ok(None),
            Self::Bytes(bytes) => Ok(Some(bytes)),
            Self::Share(percent) => {
                let peak =
                    unlimited_peak.context("a share needs the peak of a run without a limit, and there is none; give bytes (`--budgets 8GiB`)")?;
                Ok(Some((peak as f64 * percent / 100.0).round() as u64))
            }
        }
    }
}

impl FromStr for Budget {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let text = text.trim();
        if text == "unlimited" {
            return Ok(Self::Unlimited);
        }
        if let Some(percent) = text.strip_suffix('%') {
            let percent: f64 =
                percent.trim().parse().with_context(|| format!("`{text}` is no budget: {EXAMPLE}"))?;
            ensure!(percent > 0.0, "a budget of {text} holds nothing: {EXAMPLE}");
            return Ok(Self::Share(percent));
        }
        let Bytes(bytes) = text.parse().with_context(|| format!("`{text}` is no budget: {EXAMPLE}"))?;
        Ok(Self::Bytes(bytes))
    }
}

/// Exact: the text reads back as the same budget.
impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10), ("B", 0)];
        match *self {
            Self::Unlimited => f.write_str("unlimited"),
            Self::Share(percent) => write!(f, "{percent}%"),
            Self::Bytes(bytes) => {
                let fits = |shift: u32| bytes.is_multiple_of(1 << shift);
                let (unit, shift) =
                    units.into_iter().find(|(_, shift)| fits(*shift)).expect("bytes always fit");
                write!(f, "{}{unit}", bytes >> shift)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(text: &str) -> Budget {
        text.parse().unwrap()
    }

    #[test]
    fn shares_bytes_and_no_limit_are_understood() {
        assert_eq!(budget("75%"), Budget::Share(75.0));
        assert_eq!(budget(" 12.5 %"), Budget::Share(12.5));
        assert_eq!(budget("8GiB"), Budget::Bytes(8 << 30));
        assert_eq!(budget("1.5 m"), Budget::Bytes(3 << 19));
        assert_eq!(budget("6gb"), Budget::Bytes(6_000_000_000));
        assert_eq!(budget("unlimited"), Budget::Unlimited);
    }

    #[test]
    fn nonsense_is_refused_with_what_to_write_instead() {
        for text in ["", "lots", "-1GiB", "6XB", "0%", "0", "1.2.3GiB"] {
            let error = format!("{:#}", text.parse::<Budget>().unwrap_err());
            assert!(error.contains("8GiB"), "{error}");
        }
    }

    #[test]
    fn a_share_is_of_the_unlimited_peak() {
        assert_eq!(budget("25%").resolve(Some(4000)).unwrap(), Some(1000));
        assert_eq!(budget("100%").resolve(Some(u64::from(u32::MAX))).unwrap(), Some(u64::from(u32::MAX)));
        assert_eq!(budget("4KiB").resolve(None).unwrap(), Some(4096));
        assert_eq!(budget("unlimited").resolve(None).unwrap(), None);
    }

    #[test]
    fn a_share_without_a_peak_names_the_way_out() {
        assert!(budget("25%").resolve(None).unwrap_err().to_string().contains("--budgets 8GiB"));
    }

    #[test]
    fn a_written_budget_reads_back() {
        for text in ["unlimited", "12.5%", "8GiB", "1536MiB", "1KiB", "1025B"] {
            assert_eq!(budget(text).to_string(), text);
        }
    }
}
