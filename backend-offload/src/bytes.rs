//! Parses and prints byte counts: `"6GiB"`, `"512 MB"`, `"80%"`.

use pager::Limit;
use std::fmt;
use std::num::NonZeroUsize;
use std::str::FromStr;

/// Memory that a tier may use.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Budget {
    /// Exactly this many bytes.
    Bytes(u64),
    /// A share, in `(0, 1]`, of the memory free at the device's start.
    Share(f64),
    /// No limit except the machine's memory.
    Unlimited,
}

/// An invalid budget.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "cannot read {text:?} as a memory budget: {reason}; write bytes (\"6GiB\", \"512MB\", \"1048576\"), a share (\"80%\") or \"unlimited\""
)]
pub struct BudgetError {
    text: String,
    reason: &'static str,
}

const SHARE: &str = "a share lies above 0 % and at most at 100 %";

impl Budget {
    pub(crate) fn checked(self) -> Result<(), BudgetError> {
        match self {
            Self::Share(share) if !(share > 0.0 && share <= 1.0) => {
                Err(BudgetError { text: self.to_string(), reason: SHARE })
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn divided(self, among: NonZeroUsize) -> Self {
        match self {
            Self::Bytes(bytes) => Self::Bytes(bytes / among.get() as u64),
            Self::Share(share) => Self::Share(share / among.get() as f64),
            Self::Unlimited => Self::Unlimited,
        }
    }

    /// `None` for a share of an unknown amount.
    pub(crate) fn resolve(self, free: Option<u64>) -> Option<Limit> {
        match self {
            Self::Bytes(bytes) => Some(Limit::bytes(bytes)),
            Self::Share(share) => free.map(|free| Limit::bytes((free as f64 * share) as u64)),
            Self::Unlimited => Some(Limit::NONE),
        }
    }
}

impl FromStr for Budget {
    type Err = BudgetError;

    fn from_str(text: &str) -> Result<Self, BudgetError> {
        let fail = |reason| Err(BudgetError { text: text.to_owned(), reason });
        let trimmed = text.trim();
        if trimmed.eq_ignore_ascii_case("unlimited") {
            return Ok(Self::Unlimited);
        }

        let split = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let (digits, unit) = trimmed.split_at(split);
        let Ok(number) = digits.parse::<f64>() else { return fail("it does not start with a number") };

        let scale = match unit.trim().to_ascii_lowercase().as_str() {
            "%" if number > 0.0 && number <= 100.0 => return Ok(Self::Share(number / 100.0)),
            "%" => return fail(SHARE),
            "" | "b" => 1,
            "k" | "kib" => 1 << 10,
            "m" | "mib" => 1 << 20,
            "g" | "gib" => 1 << 30,
            "t" | "tib" => 1u64 << 40,
            "kb" => 1_000,
            "mb" => 1_000_000,
            "gb" => 1_000_000_000,
            "tb" => 1_000_000_000_000,
            _ => return fail("the unit is unknown"),
        };

        let bytes = number * scale as f64;
        if bytes >= u64::MAX as f64 {
            return fail("it is larger than any memory");
        }
        Ok(Self::Bytes(bytes as u64))
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => Bytes(*bytes).fmt(f),
            Self::Share(share) => write!(f, "{} %", share * 100.0),
            Self::Unlimited => f.write_str("unlimited"),
        }
    }
}

/// A byte count that prints with a binary unit, or exactly below the smallest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
        let mut value = self.0 as f64;
        let mut unit = "B";
        for next in UNITS {
            if value < 1024.0 {
                break;
            }
            value /= 1024.0;
            unit = next;
        }
        let text = if unit == "B" { format!("{} B", self.0) } else { format!("{value:.2} {unit}") };
        f.pad(&text)
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct OrUnlimited(pub Option<u64>);

impl fmt::Display for OrUnlimited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(bytes) => Bytes(bytes).fmt(f),
            None => f.pad("unlimited"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> Budget {
        text.parse().expect("a budget")
    }

    #[test]
    fn binary_and_decimal_units_differ() {
        assert_eq!(bytes("6GiB"), Budget::Bytes(6 << 30));
        assert_eq!(bytes("6 gb"), Budget::Bytes(6_000_000_000));
        assert_eq!(bytes("1.5m"), Budget::Bytes(3 << 19));
        assert_eq!(bytes("4096"), Budget::Bytes(4096));
    }

    #[test]
    fn shares_are_fractions_of_free_memory() {
        assert_eq!(bytes("80%").resolve(Some(1000)), Some(Limit::bytes(800)));
        assert_eq!(bytes("80%").resolve(None), None);
        assert_eq!(bytes("unlimited").resolve(None), Some(Limit::NONE));
    }

    #[test]
    fn an_unreadable_budget_is_refused_with_examples_of_readable_ones() {
        for text in ["", "lots", "-1GiB", "6XB", "0%", "101%", "99999999TiB"] {
            let error = text.parse::<Budget>().expect_err(text);
            assert!(error.to_string().contains("6GiB"), "{error}");
        }
    }

    #[test]
    fn counts_print_with_the_largest_fitting_unit() {
        assert_eq!(Bytes(1023).to_string(), "1023 B");
        assert_eq!(Bytes(6 << 30).to_string(), "6.00 GiB");
    }

    #[test]
    fn only_the_absence_of_a_limit_prints_as_unlimited() {
        assert_eq!(OrUnlimited(None).to_string(), "unlimited");
        assert_eq!(OrUnlimited(Some(u64::MAX)).to_string(), Bytes(u64::MAX).to_string());
        assert!(!Bytes(u64::MAX).to_string().contains("unlimited"));
    }
}
