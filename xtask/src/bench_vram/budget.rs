//! Budgets as they are asked for, and byte counts as they are shown. The units are the trainer's.

use std::{fmt, str::FromStr};

use anyhow::{Context, Error, Result, bail, ensure};

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Budget {
    Unlimited,
    /// Percent of what the same model took at its peak without a limit.
    Share(f64),
    Bytes(u64),
}

/// The device memory that one process is given; nothing for no limit.
pub(super) type Limit = Option<u64>;

impl Budget {
    /// A share needs the peak it is a share of, so the unlimited run comes first.
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
        let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (digits, unit) = text.split_at(split);
        let example = "write `75%`, `8GiB` or `unlimited`";
        let number: f64 = digits.parse().with_context(|| format!("`{text}` is no budget: {example}"))?;
        ensure!(number > 0.0, "a budget of {text} holds nothing: {example}");
        let scale = match unit.trim().to_ascii_lowercase().as_str() {
            "%" => return Ok(Self::Share(number)),
            "" | "b" => 1,
            "k" | "kib" => 1 << 10,
            "m" | "mib" => 1 << 20,
            "g" | "gib" => 1 << 30,
            "t" | "tib" => 1_u64 << 40,
            "kb" => 1_000,
            "mb" => 1_000_000,
            "gb" => 1_000_000_000,
            "tb" => 1_000_000_000_000,
            other => bail!("`{text}` is no budget, its unit `{other}` is unknown: {example}"),
        };
        Ok(Self::Bytes((number * scale as f64) as u64))
    }
}

/// Exactly, so that what was written can be read again.
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

/// A byte count that is shown with three digits or a little more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bytes(pub(super) u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut value = self.0 as f64;
        let mut unit = "B";
        for larger in ["KiB", "MiB", "GiB", "TiB"] {
            if value < 1024.0 {
                break;
            }
            value /= 1024.0;
            unit = larger;
        }
        let digits = if unit == "B" || value >= 100.0 { 0 } else { 2 - usize::from(value >= 10.0) };
        write!(f, "{value:.digits$} {unit}")
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
    fn a_share_of_nothing_says_the_way_out() {
        assert!(budget("25%").resolve(None).unwrap_err().to_string().contains("--budgets 8GiB"));
    }

    #[test]
    fn what_is_written_reads_back_as_the_same_budget() {
        for text in ["unlimited", "12.5%", "8GiB", "1536MiB", "1KiB", "1025B"] {
            assert_eq!(budget(text).to_string(), text);
        }
    }

    #[test]
    fn bytes_are_shown_with_about_three_digits() {
        let shown = [999, 1536, 20 << 20, 300 << 30, 2 << 40].map(|bytes| Bytes(bytes).to_string());
        assert_eq!(shown, ["999 B", "1.50 KiB", "20.0 MiB", "300 GiB", "2.00 TiB"]);
    }
}
