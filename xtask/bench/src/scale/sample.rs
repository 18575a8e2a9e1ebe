//! One repetition of one exchange, parsed: a record's raw data.

use std::fmt;

use anyhow::{Context, Result, ensure};

use crate::records::csv;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Link {
    /// A world of one sends nothing.
    None,
    Tcp,
    SharedMemory,
    /// Between simulated hosts.
    Cards,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Barrier,
    Commit,
    Exact,
    OneBit,
    /// Sums of even parts, each to its owner.
    ReduceScatter,
    ToOneOwner,
    /// Even parts from their owners.
    AllGather,
    FromOneOwner,
    /// Each rank's message to the next one, and one to the rank before.
    Pipeline,
    /// A world of one's additions in plain loops.
    Plain,
    Alone,
    /// The difference from `Plain` is noise.
    PlainAgain,
    /// Training without MPI.
    Step,
    /// The same step under `mpirun -n 1`.
    StepUnderMpi,
    StepAgain,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Sample {
    pub(super) link: Link,
    pub(super) ranks: usize,
    pub(super) kind: Kind,
    /// Gradients; 0 for a barrier or a commit.
    pub(super) bytes: u64,
    pub(super) turn: u64,
    /// By rank 0, in bytes.
    pub(super) sent: u64,
    /// Of the slowest rank; of a training process's fastest step.
    pub(super) seconds: f64,
}

const LINKS: [(&str, Link); 4] = [
    ("none", Link::None),
    ("TCP", Link::Tcp),
    ("shared memory", Link::SharedMemory),
    ("simulated hosts", Link::Cards),
];

const KINDS: [(&str, Kind); 15] = [
    ("barrier", Kind::Barrier),
    ("commit", Kind::Commit),
    ("exact", Kind::Exact),
    ("one bit", Kind::OneBit),
    ("reduce-scatter", Kind::ReduceScatter),
    ("to one owner", Kind::ToOneOwner),
    ("all-gather", Kind::AllGather),
    ("from one owner", Kind::FromOneOwner),
    ("pipeline", Kind::Pipeline),
    ("plain", Kind::Plain),
    ("alone", Kind::Alone),
    ("plain again", Kind::PlainAgain),
    ("step", Kind::Step),
    ("step under MPI", Kind::StepUnderMpi),
    ("step again", Kind::StepAgain),
];

const HEADER: [&str; 7] = ["link", "ranks", "kind", "bytes", "turn", "sent", "seconds"];

fn named<T: Copy>(names: &[(&str, T)], name: &str) -> Result<T> {
    let found = names.iter().find(|(known, _)| *known == name);
    found.map(|(_, value)| *value).with_context(|| format!("`{name}` is unknown"))
}

fn name_of<T: PartialEq>(names: &[(&'static str, T)], value: &T) -> &'static str {
    names.iter().find(|(_, known)| known == value).map_or("", |(name, _)| name)
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(name_of(&LINKS, self))
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(name_of(&KINDS, self))
    }
}

impl Sample {
    fn from_fields(link: Link, ranks: usize, fields: &[impl AsRef<str>]) -> Result<Self> {
        let [kind, bytes, turn, sent, seconds] = <&[_; 5]>::try_from(fields)
            .context("a sample has five fields of its own")?
            .each_ref()
            .map(AsRef::as_ref);
        let seconds: f64 = seconds.parse().with_context(|| format!("`{seconds}` are no seconds"))?;
        ensure!(seconds.is_finite() && seconds >= 0.0, "{seconds} seconds cannot be measured");
        Ok(Self {
            link,
            ranks,
            kind: named(&KINDS, kind)?,
            bytes: bytes.parse().with_context(|| format!("`{bytes}` is no number of bytes"))?,
            turn: turn.parse().with_context(|| format!("`{turn}` is no turn"))?,
            sent: sent.parse().with_context(|| format!("`{sent}` is no number of bytes"))?,
            seconds,
        })
    }
}

/// Ignores `mpirun`'s lines.
pub(super) fn printed(text: &str, link: Link, ranks: usize) -> Result<(String, Vec<Sample>)> {
    let engine = text.lines().find_map(|line| line.strip_prefix("engine,"));
    let engine = engine.context("the program did not name its engine")?.to_owned();
    let sample = |line: &str| {
        let fields: Vec<_> = line.split(',').collect();
        Sample::from_fields(link, ranks, &fields).with_context(|| format!("the line `{line}` is no sample"))
    };
    let samples: Vec<_> =
        text.lines().filter_map(|line| line.strip_prefix("sample,")).map(sample).collect::<Result<_>>()?;
    ensure!(!samples.is_empty(), "the program printed no sample");
    Ok((engine, samples))
}

pub(super) fn to_csv(samples: &[Sample]) -> String {
    let row = |sample: &Sample| {
        let Sample { link, ranks, kind, bytes, turn, sent, seconds } = sample;
        vec![
            link.to_string(),
            ranks.to_string(),
            kind.to_string(),
            bytes.to_string(),
            turn.to_string(),
            sent.to_string(),
            seconds.to_string(),
        ]
    };
    let header = vec![HEADER.map(str::to_owned).to_vec()];
    csv::write(&[header, samples.iter().map(row).collect()].concat())
}

pub(super) fn from_csv(text: &str) -> Result<Vec<Sample>> {
    let mut rows = csv::read(text)?.into_iter();
    let header = rows.next().unwrap_or_default();
    ensure!(header == HEADER, "the columns are {header:?} and should be {HEADER:?}");
    let sample = |row: Vec<String>| {
        let [link, ranks, ..] = &row[..] else { anyhow::bail!("a row has {} columns", row.len()) };
        Sample::from_fields(named(&LINKS, link)?, ranks.parse().context("ranks are a number")?, &row[2..])
            .with_context(|| format!("the row {row:?} is no sample"))
    };
    rows.map(sample).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn samples() -> Vec<Sample> {
        let mut samples = Vec::new();
        let mut take = |link, ranks, kind, bytes, sent, seconds| {
            samples.push(Sample { link, ranks, kind, bytes, turn: 0, sent, seconds });
        };

        for (link, slow) in [(Link::Tcp, 1.0), (Link::SharedMemory, 0.5)] {
            for ranks in [2, 4] {
                for (kind, seconds) in [(Kind::Barrier, 1e-5), (Kind::Commit, 2e-5)] {
                    take(link, ranks, kind, 0, 0, slow * seconds * (ranks - 1) as f64);
                }
                let share = (ranks - 1) as f64 / ranks as f64;
                for bytes in [1_u64 << 16, 1 << 20, 1 << 24] {
                    let whole = bytes as f64 * share;
                    let latency = 3e-5 * (ranks - 1) as f64;
                    take(link, ranks, Kind::Exact, bytes, 2 * whole as u64, slow * (latency + whole * 2e-9));
                    take(
                        link,
                        ranks,
                        Kind::OneBit,
                        bytes,
                        (whole / 16.0) as u64,
                        slow * (latency + whole * 4e-9),
                    );
                    for (kind, per_byte) in [(Kind::ReduceScatter, 1.5e-9), (Kind::AllGather, 1e-9)] {
                        take(link, ranks, kind, bytes, whole as u64, slow * (latency + whole * per_byte));
                    }
                }
            }
        }

        for (kind, seconds) in [(Kind::Plain, 0.1), (Kind::Alone, 0.1005), (Kind::PlainAgain, 0.099)] {
            take(Link::None, 1, kind, 1 << 24, 0, seconds);
        }
        for (kind, seconds) in [(Kind::Step, 0.2), (Kind::StepUnderMpi, 0.201), (Kind::StepAgain, 0.2004)] {
            take(Link::None, 1, kind, 1 << 22, 0, seconds);
        }
        samples
    }

    #[test]
    fn raw_data_reads_back_as_it_was_written() {
        let text = to_csv(&samples());
        assert!(
            text.starts_with("link,ranks,kind,bytes,turn,sent,seconds\nTCP,2,barrier,0,0,0,0.00001\n"),
            "{text}"
        );
        assert_eq!(from_csv(&text).unwrap(), samples());
    }

    #[test]
    fn raw_data_of_another_form_is_refused() {
        let text = to_csv(&samples()[..1]);
        for (from, to) in [
            ("turn", "round"),
            ("TCP", "pigeons"),
            ("barrier", "tea"),
            ("0.00001", "NaN"),
            (",0,0,0,", ",0,"),
        ] {
            let other = text.replacen(from, to, 1);
            assert_ne!(other, text);
            assert!(from_csv(&other).is_err(), "{other}");
        }
    }

    #[test]
    fn samples_are_found_among_other_output_of_mpirun() {
        let said =
            "A warning, of mpirun\nengine,Open MPI v4.1.4\nsample,one bit,65536,3,2080,0.000097725\nbye\n";
        let (engine, samples) = printed(said, Link::SharedMemory, 2).unwrap();
        let expected = Sample {
            link: Link::SharedMemory,
            ranks: 2,
            kind: Kind::OneBit,
            bytes: 65536,
            turn: 3,
            sent: 2080,
            seconds: 0.000_097_725,
        };
        assert_eq!((engine.as_str(), samples), ("Open MPI v4.1.4", vec![expected]));
    }

    #[test]
    fn a_program_that_breaks_off_is_an_error_that_shows_the_line() {
        let error = printed("engine,x\nsample,exact,655", Link::Tcp, 2).unwrap_err();
        assert!(format!("{error:#}").contains("`exact,655`"), "{error:#}");
        assert!(printed("engine,x\n", Link::Tcp, 2).is_err() && printed("", Link::Tcp, 2).is_err());
    }
}
