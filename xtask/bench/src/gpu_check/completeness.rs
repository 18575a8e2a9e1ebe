//! Missing lines: each program needs a plain run, one without a budget, and one per budget.

use super::run::Run;

/// An unmeasured bandwidth and one rank per GPU have no budgets.
const NO_PROGRAMS: [&str; 2] = ["bandwidth", "ranks"];

pub(super) fn missing(run: &Run) -> Vec<String> {
    let Some(budgets) = budgets(&run.command) else { return Vec::new() };
    let mut programs: Vec<&str> = run.verdicts.iter().map(|verdict| verdict.cells[0].as_str()).collect();
    programs.dedup();
    let lines = programs.into_iter().filter(|program| !NO_PROGRAMS.contains(program)).flat_map(|program| {
        ["plain", "unlimited"].into_iter().chain(budgets.split(',')).map(move |budget| [program, budget])
    });
    lines
        .filter(|line| !run.verdicts.iter().any(|verdict| verdict.cells[..2] == line[..]))
        .map(|line| line.join(" at "))
        .collect()
}

fn budgets(command: &str) -> Option<&str> {
    command.split_whitespace().skip_while(|word| *word != "--budgets").nth(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing_of(command: &str, lines: &[&str]) -> String {
        let header = format!(r#"{{"date": "d", "commit": "c", "command": "{command}", "machine": {{}}}}"#);
        let lines = lines.iter().map(|line| {
            let (program, budget) = line.split_once(' ').unwrap();
            format!(r#"{{"program": "{program}", "budget": "{budget}", "verdict": "pass"}}"#)
        });
        let raw: Vec<_> = std::iter::once(header).chain(lines).collect();
        missing(&Run::parse(&raw.join("\n")).unwrap()).join(", ")
    }

    const COMMAND: &str = "gpu_check --budgets 50%,25% --json";

    #[test]
    fn a_run_with_every_line_lacks_nothing_even_where_bandwidth_failed() {
        let lines = ["mlp plain", "mlp unlimited", "mlp 50%", "mlp 25%", "bandwidth 800MiB", "ranks 2 GPUs"];
        assert_eq!(missing_of(COMMAND, &lines), "");
    }

    #[test]
    fn every_missing_line_is_named_by_program_and_budget() {
        let lines = ["mlp plain", "mlp unlimited", "mlp 25%", "conv plain", "conv unlimited", "conv 50%"];
        assert_eq!(missing_of(COMMAND, &lines), "mlp at 50%, conv at 25%");
        assert_eq!(missing_of(COMMAND, &["mlp 50%", "mlp 25%"]), "mlp at plain, mlp at unlimited");
    }

    #[test]
    fn a_command_without_budgets_requires_no_lines() {
        assert_eq!(missing_of("gpu_check", &["mlp plain"]), "");
    }
}
