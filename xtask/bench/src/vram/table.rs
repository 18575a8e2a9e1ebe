//! Cells as a table, for terminal and pages.

use crate::records::bytes::Bytes;

use super::{
    cell::{Cell, Outcome},
    summary::Summary,
};

const COLUMNS: [&str; 11] = [
    "Model",
    "Device budget",
    "Fits",
    "Peak device",
    "Peak host",
    "Tokens/s",
    "Of unlimited",
    "Moved per step",
    "Stall",
    "Losses",
    "Weights",
];

type Row = [String; COLUMNS.len()];

pub(super) const NOTHING: &str = "–";

fn row(cell: &Cell, cells: &[Cell]) -> Row {
    let fits = if cell.summary().is_some() { "yes" } else { cell.outcome.name() };
    let measured = cell.summary().map(|run| measured(run, cell.reference(cells), cell.limit.is_some()));
    let [device, host, rate, ratio, moved, stall, losses, weights] =
        measured.unwrap_or_else(|| [NOTHING; 8].map(str::to_owned));
    let [model, budget] = names(cell, cells);
    [model, budget, fits.to_owned(), device, host, rate, ratio, moved, stall, losses, weights]
}

pub(super) fn names(cell: &Cell, cells: &[Cell]) -> [String; 2] {
    let budget = match cell.limit {
        Some(bytes) if cell.budget.to_string() != Bytes(bytes).to_string() => {
            format!("{} = {}", cell.budget, Bytes(bytes))
        }
        _ => cell.budget.to_string(),
    };
    [model(cell, cells), budget]
}

fn model(cell: &Cell, cells: &[Cell]) -> String {
    let known = cells.iter().filter(|other| other.model == cell.model).find_map(Cell::summary);
    known.map_or_else(|| cell.model.clone(), |run| format!("{} ({})", cell.model, parameters(run.parameters)))
}

pub(super) fn parameters(count: u64) -> String {
    match count {
        0..1_000_000 => format!("{:.0}K", count as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1}M", count as f64 / 1e6),
        _ => format!("{:.2}B", count as f64 / 1e9),
    }
}

fn measured(run: &Summary, reference: Option<&Summary>, is_limited: bool) -> [String; 8] {
    let same = |key: fn(&Summary) -> &String| match reference {
        None => NOTHING,
        Some(_) if !is_limited => "reference",
        Some(reference) if key(reference) == key(run) => "equal",
        Some(reference) if !run.is_comparable(reference) => "not compared",
        Some(_) => "differ",
    };
    let ratio = reference.map(|reference| format!("{:.2}", ratio(run, reference)));
    [
        Bytes(run.peak_device_bytes).to_string(),
        Bytes(run.peak_host_bytes).to_string(),
        rate(run.tokens_per_second),
        ratio.unwrap_or_else(|| NOTHING.to_owned()),
        moved(run),
        format!("{:.1} %", run.stall_share() * 100.0),
        same(|run| &run.losses_sha256).to_owned(),
        same(|run| &run.weights_sha256).to_owned(),
    ]
}

/// Bytes per step over the link and, if any, to and from a disk.
fn moved(run: &Summary) -> String {
    let over_the_link = Bytes(run.bytes_per_step());
    match run.disk_bytes_per_step() {
        0 => over_the_link.to_string(),
        disk => format!("{over_the_link}, disk {}", Bytes(disk)),
    }
}

pub(super) fn ratio(run: &Summary, reference: &Summary) -> f64 {
    run.tokens_per_second / reference.tokens_per_second
}

fn rate(tokens_per_second: f64) -> String {
    let digits = usize::from(tokens_per_second < 100.0);
    format!("{tokens_per_second:.digits$}")
}

pub(super) fn markdown(cells: &[Cell]) -> String {
    let line = |row: &[String]| format!("| {} |\n", row.join(" | "));
    let header = line(&COLUMNS.map(str::to_owned));
    let rule = format!("|{}\n", "---|".repeat(COLUMNS.len()));
    cells.iter().map(|cell| line(&row(cell, cells))).fold(header + &rule, |table, line| table + &line)
}

/// Each direction; empty if nothing moved.
pub(super) fn over_the_link(cells: &[Cell]) -> String {
    let row = |cell: &Cell| {
        let run = cell.summary().filter(|run| run.bytes_per_step() > 0)?;
        let (out, back, each) = run.crossings_per_step();
        let [named, budget, ..] = row(cell, cells);
        Some(format!("| {named} | {budget} | {} | {} | {each:.2} |\n", Bytes(out), Bytes(back)))
    };
    let rows: String = cells.iter().filter_map(row).collect();
    if rows.is_empty() {
        return rows;
    }
    format!(
        "\n| Model | Device budget | Out per step | In per step | Bytes per parameter and step |\n|---|---|---|---|---|\n{rows}"
    )
}

pub(super) fn terminal(cells: &[Cell]) -> String {
    let rows = cells.iter().map(|cell| row(cell, cells));
    let rows: Vec<Row> = std::iter::once(COLUMNS.map(str::to_owned)).chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
    let widths: Vec<usize> = (0..COLUMNS.len()).map(width).collect();
    let line = |row: &Row| {
        let padded = row.iter().zip(&widths).map(|(text, &width)| format!("{text:width$}"));
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

pub(super) fn reasons(cells: &[Cell]) -> Vec<String> {
    let line = |cell: &Cell| {
        let reason = cell.outcome.reason()?;
        Some(format!("{} at {}, {}: {reason}", cell.model, cell.budget, cell.outcome.name()))
    };
    cells.iter().filter_map(line).collect()
}

/// What a budget must not do: change bits, or be exceeded.
pub(super) fn faults(cells: &[Cell]) -> Vec<String> {
    let mut faults = Vec::new();
    for cell in cells {
        let (Some(run), Cell { model, budget, .. }) = (cell.summary(), cell) else { continue };
        let mut own = cells.iter().filter(|other| other.model == *model);
        let first = own.find_map(|other| {
            let first = other.summary().filter(|first| run.is_comparable(first))?;
            Some((first, other.budget))
        });
        if let Some((first, at)) = first {
            let digests = [
                ("losses", &run.losses_sha256, &first.losses_sha256),
                ("weights", &run.weights_sha256, &first.weights_sha256),
            ];
            for (what, ..) in digests.into_iter().filter(|(_, own, first)| own != first) {
                faults.push(format!("{what} of {model} at {budget} differ from those at {at}"));
            }
        }
        let peak = run.peak_device_bytes;
        if let Some(limit) = cell.limit.filter(|limit| peak > *limit) {
            faults.push(format!("{model} at {budget} had {peak} bytes on the device, more than {limit}"));
        }
    }
    faults
}

pub(super) fn short(cell: &Cell, cells: &[Cell]) -> String {
    match &cell.outcome {
        Outcome::Fits(run) => {
            let reference = cell.reference(cells).filter(|_| cell.limit.is_some());
            let ratio = reference.map(|reference| ratio(run, reference));
            let ratio = ratio.map(|ratio| format!(", {ratio:.2} of unlimited")).unwrap_or_default();
            format!("{} tokens/s{ratio}, peak {}", rate(run.tokens_per_second), Bytes(run.peak_device_bytes))
        }
        Outcome::Skipped(reason) => format!("{} at {}: skipped: {reason}", cell.model, cell.budget),
        other => format!("{}: {}", other.name(), other.reason().unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::cell::tests::three, *};

    const EXPECTED: &str = "\
| Model | Device budget | Fits | Peak device | Peak host | Tokens/s | Of unlimited | Moved per step | Stall | Losses | Weights |
|---|---|---|---|---|---|---|---|---|---|---|
| toy (1.2M) | unlimited | yes | 38.1 MiB | 0 B | 3000 | 1.00 | 0 B | 0.0 % | reference | reference |
| toy (1.2M) | 50% = 19.1 MiB | yes | 19.1 MiB | 16.0 MiB | 2160 | 0.72 | 30.0 MiB | 25.0 % | equal | equal |
| toy (1.2M) | 25% = 9.54 MiB | does not fit | – | – | – | – | – | – | – | – |
";

    #[test]
    fn every_cell_is_a_row_whether_it_fits_or_not() {
        assert_eq!(markdown(&three()), EXPECTED);
    }

    #[test]
    fn a_disk_below_the_host_is_shown_with_what_moved() {
        let mut cells = three();
        let Outcome::Fits(run) = &mut cells[1].outcome else { unreachable!("the second one fits") };
        (run.bytes_to_disk, run.bytes_from_disk) = (Some(40 << 20), Some(60 << 20));
        let table = markdown(&cells);
        assert!(table.contains("| 30.0 MiB, disk 10.0 MiB |") && table.contains("| 0 B |"), "{table}");
    }

    #[test]
    fn link_traffic_is_shown_by_direction_and_per_parameter() {
        let table = over_the_link(&three());
        let rows: Vec<_> = table.trim().lines().skip(2).collect();
        // 300 MiB in 10 steps of 1.2 million parameters.
        assert_eq!(rows, ["| toy (1.2M) | 50% = 19.1 MiB | 10.0 MiB | 20.0 MiB | 26.21 |"]);
        assert_eq!(over_the_link(&three()[..1]), "", "what fits moves nothing");
    }

    #[test]
    fn different_bits_are_called_different() {
        let mut cells = three();
        let Outcome::Fits(run) = &mut cells[1].outcome else { unreachable!("the second one fits") };
        run.weights_sha256 = "cc".to_owned();
        assert!(markdown(&cells).lines().nth(3).unwrap().ends_with("| equal | differ |"));
    }

    fn fitting(cells: &mut [Cell], at: usize) -> &mut Summary {
        let Outcome::Fits(run) = &mut cells[at].outcome else { unreachable!("it fits") };
        run
    }

    #[test]
    fn bits_that_a_budget_changes_and_peaks_above_it_are_faults() {
        let mut cells = three();
        assert_eq!(faults(&cells), [""; 0]);
        let run = fitting(&mut cells, 1);
        (run.weights_sha256, run.peak_device_bytes) = ("cc".to_owned(), 20_000_001);
        assert_eq!(
            faults(&cells),
            [
                "weights of toy at 50% differ from those at unlimited",
                "toy at 50% had 20000001 bytes on the device, more than 20000000"
            ]
        );
        // Without that run, budgets are compared with each other.
        cells[0].outcome = Outcome::DoesNotFit("no room".to_owned());
        cells.push(three().swap_remove(1));
        let expected = "weights of toy at 50% differ from those at 50%";
        assert_eq!(faults(&cells).last().map(String::as_str), Some(expected));
    }

    #[test]
    fn another_place_of_the_optimizer_has_other_last_digits_and_is_not_compared() {
        let mut cells = three();
        let run = fitting(&mut cells, 1);
        (run.optimizer_on, run.weights_sha256) = (Some("host".to_owned()), "cc".to_owned());
        assert!(markdown(&cells).lines().nth(3).unwrap().ends_with("| equal | not compared |"));
        assert_eq!(faults(&cells), [""; 0]);
    }

    #[test]
    fn without_an_unlimited_run_nothing_is_compared() {
        let mut cells = three();
        cells[0].outcome = Outcome::DoesNotFit("no room".to_owned());
        let table = markdown(&cells);
        assert!(table.contains("| 2160 | – | 30.0 MiB | 25.0 % | – | – |"), "{table}");
        assert!(table.contains("| toy (1.2M) | unlimited | does not fit | – |"), "{table}");
    }

    #[test]
    fn columns_line_up_on_the_terminal() {
        let table = terminal(&three());
        let at = |line: &str, word: &str| line.split(word).next().unwrap().chars().count();
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(at(lines[0], "Tokens/s"), at(lines[2], "2160"));
        assert_eq!(at(lines[0], "Weights"), at(lines[1].strip_suffix("reference").unwrap(), "none"));
    }

    #[test]
    fn a_cell_that_was_not_measured_keeps_its_reason() {
        assert_eq!(reasons(&three()), ["toy at 25%, does not fit: step 1: \"mul\", wants 12 MiB"]);
    }

    #[test]
    fn sizes_are_printed_as_people_write_them() {
        let shown = [800_000, 804_096, 124_439_808, 1_557_611_200].map(parameters);
        assert_eq!(shown, ["800K", "804K", "124.4M", "1.56B"]);
    }
}
