//! Cells against bounds: fewest bytes, the link's speed, the longer of computing and copying.

use super::{cell::Cell, simulation, summary::Summary, table};

const COLUMNS: [&str; 9] = [
    "Model",
    "Device budget",
    "Step",
    "Exposed",
    "Of the bound",
    "Link",
    "Of the roofline",
    "Brought ahead",
    "J per 1,000 tokens",
];

const LEGEND: &str = "\
*Step* is the median. *Exposed* is what it takes longer than without a limit. *Of the bound*: bytes of spilled tensors in the \
median step, of the least that any way of moving could copy under this budget, by a recording of the step; left out where the \
budget made the plan choose another step. *Link*: bytes per \
second while the program waited for them, of those that one long copy in the same process reached; where copies ran beside the \
work, the larger direction's over the whole step, so at least. *Of the roofline*: the step, of the longest of its time without a \
limit and its copies in either direction at that speed. *Brought ahead*: blocks that came before they were asked for and were used, \
and those that were not. Energy is the GPU's between the first step and the last, as its driver counts it. What could not be \
measured or recorded is left out.
";

/// Empty if no cell has more than a step time.
pub(super) fn markdown(cells: &[Cell]) -> String {
    let rows: Vec<_> = cells.iter().filter_map(|cell| row(cell, cells)).collect();
    if rows.iter().all(|row| row[3..].iter().all(|figure| figure == table::NOTHING)) {
        return String::new();
    }
    let line = |fields: &[String]| format!("| {} |\n", fields.join(" | "));
    let header = line(&COLUMNS.map(str::to_owned));
    let rows: String = rows.iter().map(|row| line(row)).collect();
    format!("\n{header}|{}\n{rows}\n{LEGEND}", "---|".repeat(COLUMNS.len()))
}

fn row(cell: &Cell, cells: &[Cell]) -> Option<[String; COLUMNS.len()]> {
    let run = cell.summary()?;
    let reference = cell.reference(cells).filter(|_| cell.limit.is_some());
    let [model, budget] = table::names(cell, cells);
    let said = |figure: Option<String>| figure.unwrap_or_else(|| table::NOTHING.to_owned());
    Some([
        model,
        budget,
        said(run.step_ms_median.map(|ms| format!("{ms:.1} ms"))),
        said(reference.and_then(|reference| exposed(run, reference))),
        said(of_the_bound(run)),
        said(link(run)),
        said(reference.and_then(|reference| roofline(run, reference)).map(|ratio| format!("{ratio:.2}"))),
        said(brought_ahead(run)),
        said(run.joules_per_kilotoken.map(|joules| format!("{joules:.1}"))),
    ])
}

fn exposed(run: &Summary, reference: &Summary) -> Option<String> {
    let longer = run.step_ms_median? - reference.step_ms_median?;
    Some(if longer > 0.0 { format!("{longer:.1} ms") } else { "none".to_owned() })
}

/// Bytes in and out, of median step and bound.
pub(super) fn moved_and_bound(run: &Summary) -> Option<[(u64, u64); 2]> {
    Some([(run.spilled_in_median?, run.spilled_out_median?), (run.least_in?, run.least_out?)])
}

fn of_the_bound(run: &Summary) -> Option<String> {
    moved_and_bound(run).map(|[moved, least]| simulation::ratio(moved, least))
}

fn link(run: &Summary) -> Option<String> {
    let possible = run.link_bytes_per_second?;
    let ahead = run.left_ahead? + run.brought_ahead? > 0;
    let (bytes, seconds, sign) = if ahead {
        (run.bytes_in_median?.max(run.bytes_out_median?), run.step_ms_median? / 1e3, "≥ ")
    } else {
        (run.spilled_in? + run.spilled_out?, run.stall_seconds, "")
    };
    if bytes == 0 || seconds <= 0.0 {
        return None;
    }
    let reached = bytes as f64 / seconds;
    let (reached_gb, possible_gb) = (reached / 1e9, possible / 1e9);
    Some(format!("{sign}{reached_gb:.2} of {possible_gb:.2} GB/s, {:.0} %", 100.0 * reached / possible))
}

fn roofline(run: &Summary, reference: &Summary) -> Option<f64> {
    let speed = run.link_bytes_per_second?;
    let copies = [run.bytes_in_median?, run.bytes_out_median?].map(|bytes| bytes as f64 / speed * 1e3);
    Some(run.step_ms_median? / reference.step_ms_median?.max(copies[0]).max(copies[1]))
}

fn brought_ahead(run: &Summary) -> Option<String> {
    let (brought, vain) = (run.brought_ahead?, run.brought_in_vain?);
    (brought > 0).then(|| format!("{} used, {vain} in vain", brought.saturating_sub(vain)))
}

#[cfg(test)]
pub(super) mod tests {
    use super::{
        super::{cell::Outcome, cell::tests::three},
        *,
    };

    fn spilling(cells: &mut [Cell]) -> &mut Summary {
        let Outcome::Fits(run) = &mut cells[1].outcome else { unreachable!("the second one fits") };
        run
    }

    pub(in super::super) fn measured() -> Vec<Cell> {
        let mut cells = three();
        let run = spilling(&mut cells);
        run.step_ms_median = Some(400.5);
        (run.bytes_in_median, run.bytes_out_median) = (Some(220), Some(110));
        (run.spilled_in_median, run.spilled_out_median) = (Some(200), Some(100));
        (run.least_in, run.least_out) = (Some(160), Some(90));
        (run.spilled_in, run.spilled_out) = (Some(2_000_000_000), Some(1_000_000_000));
        (run.left_ahead, run.brought_ahead, run.brought_in_vain) = (Some(0), Some(0), Some(0));
        run.link_bytes_per_second = Some(6e9);
        run.joules_per_kilotoken = Some(12.34);
        cells
    }

    #[test]
    fn a_cell_is_compared_with_the_bound_the_link_and_the_roofline() {
        let table = markdown(&measured());
        let row = "| toy (1.2M) | 50% = 19.1 MiB | 400.5 ms | 50.0 ms | 1.200 | 3.00 of 6.00 GB/s, 50 % | 1.14 | – | 12.3 |";
        assert!(table.contains(row), "{table}");
        assert!(table.contains("| toy (1.2M) | unlimited | 350.5 ms | – | – | – | – | – | – |"), "{table}");
        assert!(!table.contains("25%"), "what does not fit has no figures");
    }

    #[test]
    fn overlapped_copies_reach_at_least_the_rate_of_the_whole_step() {
        let mut cells = measured();
        let run = spilling(&mut cells);
        (run.left_ahead, run.brought_ahead, run.brought_in_vain) = (Some(9), Some(8), Some(3));
        (run.bytes_in_median, run.bytes_out_median) = (Some(801_000_000), Some(1));
        let table = markdown(&cells);
        assert!(table.contains("| ≥ 2.00 of 6.00 GB/s, 33 % | 1.14 | 5 used, 3 in vain |"), "{table}");
    }

    #[test]
    fn a_step_that_the_link_bounds_is_compared_with_the_link() {
        let mut cells = measured();
        spilling(&mut cells).bytes_in_median = Some(2_403_000_000);
        assert!(markdown(&cells).contains("GB/s, 50 % | 1.00 |"), "{}", markdown(&cells));
    }

    #[test]
    fn missing_figures_are_left_out() {
        let mut cells = three();
        for cell in &mut cells {
            if let Outcome::Fits(run) = &mut cell.outcome {
                run.step_ms_median = None;
            }
        }
        assert_eq!(markdown(&cells), "");
        spilling(&mut cells).step_ms_median = Some(1.0);
        assert_eq!(markdown(&cells), "", "the time alone is in the other table");
    }

    #[test]
    fn a_step_that_must_move_nothing_is_compared_without_dividing() {
        let mut cells = measured();
        let run = spilling(&mut cells);
        (run.least_in, run.least_out) = (Some(0), Some(0));
        assert!(markdown(&cells).contains("| none must |"));
    }
}
