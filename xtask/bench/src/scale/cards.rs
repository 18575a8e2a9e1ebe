//! Simulated hosts: network namespaces on one bridge, each behind a card that `tc` limits.

use std::{fmt, str::FromStr};

use anyhow::{Context, Result, bail};

use xtask::{invocation::Invocation, workspace};

use super::{
    cell::Cell,
    sample::{Kind, Link},
    table,
};

/// Makes the hosts and starts a rank on each.
const SCRIPT: &str = "train/exchange/examples/rates/on-hosts";

/// A card's rate each way, as `tc` spells it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Card {
    spelled: String,
    bytes_per_second: f64,
}

impl FromStr for Card {
    type Err = anyhow::Error;

    fn from_str(spelled: &str) -> Result<Self> {
        let digits = spelled.find(|c: char| !c.is_ascii_digit()).unwrap_or(spelled.len());
        let (number, unit) = spelled.split_at(digits);
        let bits: f64 = match unit {
            "kbit" => 1e3,
            "mbit" => 1e6,
            "gbit" => 1e9,
            _ => bail!("`{spelled}` is no rate of a card, as `250mbit` or `1gbit`"),
        };
        let number: f64 = number.parse().with_context(|| format!("`{spelled}` names no number of bits"))?;
        if number <= 0.0 {
            bail!("a card that sends nothing ends no exchange: `{spelled}`");
        }
        Ok(Self { spelled: spelled.to_owned(), bytes_per_second: number * bits / 8.0 })
    }
}

impl fmt::Display for Card {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.spelled)
    }
}

impl Card {
    pub(super) fn start(&self, hosts: usize, program: &[String]) -> Invocation {
        let script = workspace::root().join(SCRIPT);
        self.command(script.to_string_lossy(), hosts, program)
    }

    /// For a record, without the repository's folder.
    pub(super) fn shown(&self, hosts: usize, program: &[String]) -> String {
        self.command(SCRIPT, hosts, program).to_string()
    }

    fn command(&self, script: impl Into<String>, hosts: usize, program: &[String]) -> Invocation {
        Invocation::new(script)
            .arguments([hosts.to_string(), "1".to_owned(), self.spelled.clone()])
            .arguments(program.iter().cloned())
    }

    pub(super) fn table(&self, cells: &[Cell]) -> String {
        table::behind_cards(cells, self.bytes_per_second, carried)
    }
}

/// Bytes that the busiest card carries one way. `None` for kinds that send next to nothing.
fn carried(cell: &Cell) -> Option<f64> {
    let (ranks, bytes) = (cell.ranks as f64, cell.bytes as f64);
    let of_others = bytes * (ranks - 1.0) / ranks;
    debug_assert_eq!(cell.link, Link::Cards);
    match cell.kind {
        Kind::ReduceScatter | Kind::AllGather => Some(of_others),
        Kind::Exact | Kind::ToOneOwner | Kind::FromOneOwner => Some(2.0 * of_others),
        // A rank between two others sends one message each way.
        Kind::Pipeline => Some(if cell.ranks > 2 { 2.0 * bytes } else { bytes }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{super::cell::cells, super::sample::Sample, *};

    #[test]
    fn a_rate_is_spelled_as_tc_does() {
        let rate = |spelled: &str| spelled.parse::<Card>().map(|card| card.bytes_per_second as u64);
        assert_eq!(
            ["8kbit", "250mbit", "1gbit"].map(|spelled| rate(spelled).unwrap()),
            [1000, 31_250_000, 125_000_000]
        );
        for wrong in ["1", "gbit", "1Gbit", "1.5gbit", "0mbit", "-1gbit", ""] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn times_stand_beside_those_of_the_busiest_cards_bytes() {
        let sample = |kind, ranks, seconds| Sample {
            link: Link::Cards,
            ranks,
            kind,
            bytes: 100 << 20,
            turn: 0,
            sent: 0,
            seconds,
        };
        let samples = [
            sample(Kind::ReduceScatter, 4, 1.0),
            sample(Kind::ToOneOwner, 4, 2.0),
            sample(Kind::Pipeline, 4, 2.0),
            sample(Kind::Pipeline, 2, 1.0),
            sample(Kind::OneBit, 4, 1.0),
        ];
        let card: Card = "1gbit".parse().unwrap();
        let table = card.table(&cells(&samples));
        let rows: Vec<&str> = table.lines().skip(2).collect();
        assert_eq!(
            rows,
            [
                "| 4 | reduce-scatter | 100 MiB | 629 ms | 1.00 s | 1.59 | 1.59 to 1.59 |",
                "| 4 | to one owner | 100 MiB | 1.26 s | 2.00 s | 1.59 | 1.59 to 1.59 |",
                "| 4 | pipeline | 100 MiB | 1.68 s | 2.00 s | 1.19 | 1.19 to 1.19 |",
                "| 2 | pipeline | 100 MiB | 839 ms | 1.00 s | 1.19 | 1.19 to 1.19 |",
            ]
        );
    }
}
