//! `cargo xtask instructions`: counts the pager's instructions with callgrind, against a committed table.
//!
//! Unlike times, one compiler's counts do not vary with machine and load. Our own code counts, with inlined code; the C
//! library, which chooses code by processor, does not.

use std::{fs, path::Path};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use suite::Need;

use xtask::{
    invocation::Invocation,
    workspace::{self, Workspace},
};

#[derive(Args)]
pub(crate) struct Instructions {
    /// Write the table instead of comparing with it
    #[arg(long)]
    write: bool,
}

const WORK: [&str; 12] = [
    "resident",
    "resident planned",
    "toy 100",
    "toy 50",
    "toy 25",
    "toy 16MiB",
    "toy 100 ahead",
    "toy 50 ahead",
    "toy 25 ahead",
    "toy 16MiB ahead",
    "gpt-124m 50",
    "gpt-124m 50 ahead",
];

const TABLE: &str = "backend-offload/pager/replay/instructions.csv";
const EXAMPLE: &str = "instructions";

/// In percent of a count.
const TOLERANCE: u64 = 2;

#[derive(Debug, Clone, PartialEq, Eq)]
struct Row {
    work: String,
    operations: u64,
    instructions: u64,
}

impl Instructions {
    pub(crate) fn run(self) -> Result<()> {
        if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
            println!("not run: the table is of x86-64 Linux");
            return Ok(());
        }

        if let Err(error) = Invocation::new("valgrind").arguments(["--version"]).output(Path::new(".")) {
            ensure!(!Need::Valgrind.is_required(), "{error:#} ({})", Need::Valgrind.remedy());
            println!("not run: {error:#}");
            return Ok(());
        }

        let target = Workspace::read()?.target.join(EXAMPLE);
        // Inlining must not depend on the compiler's division of work.
        Invocation::cargo("build --quiet --release --package pager-replay --example")
            .arguments([EXAMPLE, "--target-dir", &target.to_string_lossy()])
            .environment("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1")
            .run(workspace::root())?;

        let rows = WORK.iter().map(|work| count(&target, work)).collect::<Result<Vec<_>>>()?;
        println!("{}", shown(&rows));
        let table = workspace::root().join(TABLE);
        if self.write {
            return fs::write(&table, to_csv(&rows)).with_context(|| format!("{TABLE} cannot be written"));
        }

        let text = fs::read_to_string(&table).with_context(|| format!("{TABLE} cannot be read"))?;
        let differences = differences(&rows, &from_csv(&text)?);
        if !differences.is_empty() {
            bail!(
                "{TABLE} has other counts; if they are to change, `cargo xtask instructions --write`:\n  {}",
                differences.join("\n  ")
            );
        }
        Ok(())
    }
}

fn count(target: &Path, work: &str) -> Result<Row> {
    let (program, profile) = (target.join("release/examples").join(EXAMPLE), target.join("profile"));
    let printed = Invocation::new("valgrind")
        .arguments(["--tool=callgrind", "--quiet", "--collect-atstart=no", "--toggle-collect=*metered*"])
        .arguments(["--compress-strings=no", "--compress-pos=no"])
        .arguments([format!("--callgrind-out-file={}", profile.display())])
        .arguments([program.to_string_lossy().as_ref(), work])
        .output(workspace::root())?;
    let operations =
        printed.trim().parse().with_context(|| format!("`{work}` printed no number: {printed}"))?;
    let text =
        fs::read_to_string(&profile).with_context(|| format!("{} cannot be read", profile.display()))?;
    Ok(Row { work: work.to_owned(), operations, instructions: own_instructions(&text, EXAMPLE)? })
}

/// Without calls into files other than `program`.
fn own_instructions(profile: &str, program: &str) -> Result<u64> {
    let (mut ours, mut sum) = (false, 0);
    let mut lines = profile.lines();
    while let Some(line) = lines.next() {
        if let Some(object) = line.strip_prefix("ob=") {
            ours = Path::new(object).file_name().is_some_and(|name| name == program);
        } else if line.starts_with("calls=") {
            // Skips a call's inclusive cost, listed again where it arose.
            lines.next();
        } else if ours && line.starts_with(|first: char| first.is_ascii_digit()) {
            let cost = line.split_whitespace().nth(1).and_then(|cost| cost.parse::<u64>().ok());
            sum += cost.with_context(|| format!("the profile has a line without a cost: {line}"))?;
        }
    }
    ensure!(sum > 0, "the profile has no instructions of `{program}`");
    Ok(sum)
}

fn shown(rows: &[Row]) -> String {
    let line = |row: &Row| {
        let each = row.instructions as f64 / row.operations as f64;
        format!("{:20}{each:8.0} instructions an operation", row.work)
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn differences(rows: &[Row], table: &[Row]) -> Vec<String> {
    let find = |rows: &[Row], work: &str| rows.iter().find(|row| row.work == work).cloned();
    let gone = table.iter().filter(|row| find(rows, &row.work).is_none());
    let gone = gone.map(|row| format!("{} is not counted any more", row.work));
    let changed = rows.iter().filter_map(|row| {
        let Some(before) = find(table, &row.work) else { return Some(format!("{} is not in it", row.work)) };
        let apart = row.instructions.abs_diff(before.instructions);
        let same = apart * 100 <= before.instructions * TOLERANCE && row.operations == before.operations;
        let percent = 100.0 * (row.instructions as f64 / before.instructions as f64 - 1.0);
        let [now, before] =
            [row, &before].map(|row| format!("{} for {} operations", row.instructions, row.operations));
        (!same).then(|| format!("{}: {now} instead of {before}, {percent:+.1} %", row.work))
    });
    changed.chain(gone).collect()
}

/// No field has a comma.
fn to_csv(rows: &[Row]) -> String {
    let line = |row: &Row| format!("{},{},{}\n", row.work, row.operations, row.instructions);
    rows.iter().map(line).fold("work,operations,instructions\n".to_owned(), |table, line| table + &line)
}

fn from_csv(text: &str) -> Result<Vec<Row>> {
    ensure!(text.is_empty() || text.ends_with('\n'), "{TABLE}: the last line is cut off");
    let row = |line: &str| {
        let fields: Vec<&str> = line.split(',').collect();
        let [work, operations, instructions] = fields[..] else {
            bail!("{TABLE}: `{line}` is no line of it")
        };
        let number =
            |text: &str| text.parse::<u64>().with_context(|| format!("{TABLE}: `{text}` is no number"));
        Ok(Row {
            work: work.to_owned(),
            operations: number(operations)?,
            instructions: number(instructions)?,
        })
    };
    text.lines().skip(1).map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROFILE: &str = "\
# callgrind format
events: Ir

ob=/somewhere/examples/instructions
fl=???
fn=pager::begin
0 100
cob=/lib/libc.so.6
cfn=memcpy
calls=3 0
0 5000
12 11

ob=/lib/libc.so.6
fl=???
fn=memcpy
0 5000

ob=/somewhere/examples/instructions
fn=pager::wrote
0 7
totals: 5118
";

    fn row(work: &str, instructions: u64) -> Row {
        Row { work: work.to_owned(), operations: 10, instructions }
    }

    #[test]
    fn only_instructions_of_our_code_count() {
        assert_eq!(own_instructions(PROFILE, "instructions").unwrap(), 118);
        assert_eq!(own_instructions(PROFILE, "libc.so.6").unwrap(), 5000);
        let error = own_instructions(PROFILE, "instruction").unwrap_err().to_string();
        assert!(error.contains("no instructions of `instruction`"), "{error}");
    }

    #[test]
    fn counts_may_differ_by_two_percent_in_either_direction() {
        let table = [row("resident", 1000)];
        for (counted, passes) in [(1000, true), (1020, true), (980, true), (1021, false), (979, false)] {
            assert_eq!(differences(&[row("resident", counted)], &table).is_empty(), passes, "{counted}");
        }
        let found = differences(&[row("resident", 1100)], &table);
        assert_eq!(found, ["resident: 1100 for 10 operations instead of 1000 for 10 operations, +10.0 %"]);
        let other = Row { operations: 11, ..row("resident", 1000) };
        assert_eq!(differences(&[other], &table).len(), 1, "other work has no count to compare with");
    }

    #[test]
    fn added_and_removed_work_is_reported() {
        let found = differences(&[row("new", 1)], &[row("old", 1)]);
        assert_eq!(found, ["new is not in it", "old is not counted any more"]);
    }

    #[test]
    fn the_committed_table_has_every_piece_of_work_and_reads_back() {
        let text = fs::read_to_string(workspace::root().join(TABLE)).unwrap();
        let rows = from_csv(&text).unwrap();
        assert_eq!(rows.iter().map(|row| row.work.as_str()).collect::<Vec<_>>(), WORK);
        assert_eq!(from_csv(&to_csv(&rows)).unwrap(), rows);
        assert!(from_csv("work\nresident,1\n").is_err());
    }
}
