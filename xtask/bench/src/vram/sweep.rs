//! Measures cells in turn. A model's unlimited run comes first: shares refer to its peak.

use std::io::{self, Write as _};

use anyhow::Result;
use pager_replay::bound;

use crate::records::bytes::Bytes;

use super::{
    budget::{Budget, Limit},
    cell::{Cell, Outcome},
    limits::Limits,
    simulation::ROUNDS,
    suite::Model,
    table,
    trainer::Trainer,
};

/// `limited` changes the configuration under a budget. `after_each` gets all cells so far.
pub(super) fn run(
    trainer: &Trainer,
    models: &[Model],
    budgets: &[Budget],
    limited: &[String],
    limits: &Limits,
    mut after_each: impl FnMut(&[Cell]) -> Result<()>,
) -> Result<Vec<Cell>> {
    let mut cells: Vec<Cell> = Vec::new();
    for model in models {
        let first = cells.len();
        for budget in with_reference(budgets) {
            let peak = cells.get(first).and_then(|reference| Some(reference.summary()?.peak_device_bytes));
            let (limit, outcome) = match budget.resolve(peak) {
                Ok(limit) => (limit, measure(trainer, model, (budget, limit), limited, limits)?),
                Err(reason) => (None, Outcome::Skipped(reason.to_string())),
            };
            cells.push(Cell { model: model.name.clone(), budget, limit, outcome });
            println!("{}", table::short(cells.last().expect("one was pushed"), &cells));
            after_each(&cells)?;
        }
        if let Some(why) = note_bounds(trainer, model, &mut cells[first..], limited, limits) {
            println!("{}: no bound on the bytes of a step: {why}", model.name);
        }
        after_each(&cells)?;
    }
    Ok(cells)
}

/// Why bounds are missing. Recordings are equal under all budgets that fit and leave the plan's choices alone.
fn note_bounds(
    trainer: &Trainer,
    model: &Model,
    cells: &mut [Cell],
    limited: &[String],
    limits: &Limits,
) -> Option<String> {
    let fitting = || cells.iter().filter_map(|cell| Some((cell.limit, cell.summary()?)));
    if !fitting().any(|(limit, _)| limit.is_some()) {
        return None;
    }
    let (limit, recorded) = fitting().max_by_key(|(limit, _)| limit.unwrap_or(u64::MAX))?;
    let recorded = recorded.clone();
    let time = match limits.next() {
        Ok(time) => time,
        Err(reason) => return Some(reason),
    };
    let step = match trainer.record(model, limit, if limit.is_some() { limited } else { &[] }, time) {
        Ok(step) => step,
        Err(error) => return Some(format!("{error:#}")),
    };
    let mut others = Vec::new();
    for cell in cells {
        let (Outcome::Fits(run), Some(bytes)) = (&mut cell.outcome, cell.limit) else { continue };
        if run.has_steps_of(&recorded) {
            let least = bound(&step, bytes, ROUNDS)[ROUNDS - 1];
            (run.least_in, run.least_out) = (Some(least.bytes_in), Some(least.bytes_out));
        } else {
            others.push(cell.budget.to_string());
        }
    }
    let others = (!others.is_empty()).then(|| others.join(", "));
    others.map(|budgets| format!("the plan chose other steps than the recorded one at {budgets}"))
}

pub(super) fn cell_count(models: &[Model], budgets: &[Budget]) -> usize {
    models.len() * with_reference(budgets).count()
}

pub(super) fn with_reference(budgets: &[Budget]) -> impl Iterator<Item = Budget> {
    let limited = budgets.iter().copied().filter(|budget| *budget != Budget::Unlimited);
    std::iter::once(Budget::Unlimited).chain(limited)
}

fn measure(
    trainer: &Trainer,
    model: &Model,
    (budget, limit): (Budget, Limit),
    limited: &[String],
    limits: &Limits,
) -> Result<Outcome> {
    let time = match limits.next() {
        Ok(time) => time,
        Err(reason) => return Ok(Outcome::Skipped(reason)),
    };
    let bytes = limit.map(|bytes| format!(" = {}", Bytes(bytes))).unwrap_or_default();
    print!("{} at {budget}{bytes} … ", model.name);
    io::stdout().flush()?;
    trainer.train(model, limit, if limit.is_some() { limited } else { &[] }, time)
}

#[cfg(all(test, unix))]
mod tests {
    use std::time::Duration;

    use super::{
        super::{
            summary::tests::PRINTED,
            trainer::tests::{NO_ROOM, StandIn, toy},
        },
        *,
    };

    /// Peaks at 40 MB or its budget.
    fn fits_above_15_mb() -> String {
        let summary = PRINTED.replace("40000000", "$peak");
        let summary = summary.replace('\n', "");
        format!(
            "for word; do case $word in memory.device_budget=*) budget=${{word#*=}};; memory.host_budget=7B) host=7;; esac; done\n\
             peak=${{budget%B}}; [ $peak = unlimited ] && peak=40000000 && host=${{host:-7}}\n\
             [ $host = 7 ] || exit 3\n\
             if [ $peak -lt 15000000 ]; then echo 'train: {NO_ROOM}' >&2; exit 1; fi\n\
             cat <<END\n{summary}\nEND\n"
        )
    }

    fn sweep(test: &str, script: &str, budgets: &[&str], limits: &Limits) -> Vec<Cell> {
        let stand_in = StandIn::new(test, script);
        let budgets: Vec<Budget> = budgets.iter().map(|text| text.parse().unwrap()).collect();
        let mut kept = Vec::new();
        let limited = ["memory.host_budget=7B".to_owned()];
        let cells = run(&stand_in.trainer, &[toy()], &budgets, &limited, limits, |cells| {
            kept = cells.to_vec();
            Ok(())
        });
        let cells = cells.unwrap();
        assert_eq!(kept, cells, "the last record holds every cell");
        assert_eq!(cells.len(), cell_count(&[toy()], &budgets));
        cells
    }

    fn outcomes(cells: &[Cell]) -> Vec<(String, Limit, &'static str)> {
        cells.iter().map(|cell| (cell.budget.to_string(), cell.limit, cell.outcome.name())).collect()
    }

    fn hour() -> Limits {
        Limits::begin(Duration::from_hours(1), Duration::from_hours(1))
    }

    #[test]
    fn shares_are_of_the_peak_that_the_unlimited_run_measured() {
        let cells = sweep("shares", &fits_above_15_mb(), &["50%", "unlimited", "25%", "1GiB"], &hour());
        let expected = [
            ("unlimited", None, "fits"),
            ("50%", Some(20_000_000), "fits"),
            ("25%", Some(10_000_000), "does not fit"),
            ("1GiB", Some(1 << 30), "fits"),
        ];
        assert_eq!(outcomes(&cells), expected.map(|(budget, limit, name)| (budget.to_owned(), limit, name)));
        assert_eq!(cells[1].summary().map(|run| run.peak_device_bytes), Some(20_000_000));
    }

    fn recorded() -> String {
        let trace = xtask::workspace::root().join("backend-offload/pager/replay/traces/toy.trace");
        format!(
            "[ -z \"$OFFLOAD_TRACE\" ] || cp '{}' \"$OFFLOAD_TRACE\"\n{}",
            trace.display(),
            fits_above_15_mb()
        )
    }

    #[test]
    fn each_fitting_budget_gets_its_lower_bound() {
        let cells = sweep("bounds", &recorded(), &["75%", "50%", "25%"], &hour());
        let least = |cell: &Cell| cell.summary().and_then(|run| Some((run.least_in?, run.least_out?)));
        let found: Vec<_> = cells.iter().map(least).collect();
        let [None, Some(more), Some(less), None] = found[..] else { panic!("{found:?}") };
        let step = xtask::workspace::root().join("backend-offload/pager/replay/traces/toy.trace");
        let step = super::super::simulation::read(&step).unwrap();
        let bound = bound(&step, 20_000_000, ROUNDS)[ROUNDS - 1];
        assert_eq!(less, (bound.bytes_in, bound.bytes_out));
        assert!(more.0 < less.0 && less.0 > 0, "{found:?}");
    }

    #[test]
    fn a_budget_that_moves_the_optimizer_gets_no_bound_of_another_step() {
        let journal = r#"mkdir -p "$7"
place=device; [ $peak -lt 25000000 ] && place=host
echo '{"kind": "start", "optimizer_on": "'$place'"}' >"$7/metrics.jsonl"
cat <<END
"#;
        let script = recorded().replace("cat <<END\n", journal);
        let cells = sweep("other-place", &script, &["75%", "50%"], &hour());
        let least: Vec<_> =
            cells.iter().map(|cell| cell.summary().is_some_and(|run| run.least_in.is_some())).collect();
        assert_eq!(least, [false, true, false]);
        let place = |cell: &Cell| cell.summary().and_then(|run| run.optimizer_on.clone()).unwrap();
        assert_eq!(cells.iter().map(place).collect::<Vec<_>>(), ["device", "device", "host"]);
    }

    #[test]
    fn a_step_that_cannot_be_recorded_leaves_cells_without_a_bound() {
        let cells = sweep("no-trace", &fits_above_15_mb(), &["50%"], &hour());
        assert_eq!(cells[1].summary().map(|run| run.least_in), Some(None));
    }

    #[test]
    fn without_an_unlimited_run_shares_are_skipped_and_bytes_still_measured() {
        let refused = format!("&& echo 'train: {NO_ROOM}' >&2 && exit 1");
        let script = fits_above_15_mb().replace("&& peak=40000000", &refused);
        let cells = sweep("no-reference", &script, &["50%", "20MB"], &hour());
        let names: Vec<_> = cells.iter().map(|cell| cell.outcome.name()).collect();
        assert_eq!(names, ["does not fit", "skipped", "fits"]);
        assert!(cells[1].outcome.reason().unwrap().contains("give bytes"));
    }

    #[test]
    fn cells_without_time_left_are_skipped() {
        let none = Limits::begin(Duration::from_mins(1), Duration::ZERO);
        let cells = sweep("no-time", &fits_above_15_mb(), &["20MB"], &none);
        for cell in &cells {
            assert_eq!(cell.outcome.reason(), Some("the 0 s for all cells were used up"));
        }
        assert_eq!(cells.len(), 2);
    }
}
