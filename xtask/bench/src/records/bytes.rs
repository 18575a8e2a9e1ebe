//! Parsing and display of byte counts.

use std::{fmt, str::FromStr};

use anyhow::{Context, Error, Result, bail, ensure};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bytes(pub(crate) u64);

impl FromStr for Bytes {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let text = text.trim();
        let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (digits, unit) = text.split_at(split);
        let number: f64 = digits.parse().with_context(|| format!("`{text}` is no number of bytes"))?;
        ensure!(number > 0.0, "{text} are no bytes at all");
        let scale = match unit.trim().to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "k" | "kib" => 1 << 10,
            "m" | "mib" => 1 << 20,
            "g" | "gib" => 1 << 30,
            "t" | "tib" => 1_u64 << 40,
            "kb" => 1_000,
            "mb" => 1_000_000,
            "gb" => 1_000_000_000,
            "tb" => 1_000_000_000_000,
            other => bail!("the unit `{other}` of `{text}` is unknown: write B, KiB, MB, GiB"),
        };
        Ok(Self((number * scale as f64) as u64))
    }
}

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

    #[test]
    fn units_of_a_thousand_and_of_1024_are_understood() {
        let typed = ["1025", "1.5 m", "8GiB", "6gb", "7B"].map(|text| text.parse::<Bytes>().unwrap().0);
        assert_eq!(typed, [1025, 3 << 19, 8 << 30, 6_000_000_000, 7]);
        for text in ["", "lots", "-1GiB", "6XB", "0"] {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
    }

    #[test]
    fn bytes_are_shown_with_about_three_digits() {
        let shown = [999, 1536, 20 << 20, 300 << 30, 2 << 40].map(|bytes| Bytes(bytes).to_string());
        assert_eq!(shown, ["999 B", "1.50 KiB", "20.0 MiB", "300 GiB", "2.00 TiB"]);
    }
}
