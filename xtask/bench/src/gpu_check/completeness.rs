//! Missing lines: each program needs a plain run, one without a budget, and one per budget.

use super::run::Run;

pub(super) fn missing(run: &Run) -> Vec<String> {
    let Some(budgets) = budgets(&run.command) else { return Vec::new() };
    let lines = run.programs().into_iter().flat_map(|program| {
        ["plain", "unlimited"].into_iter().chain(budgets.split(',')).map(move |budget| [program, budget])
    });
    lines
        .filter(|[program, budget]| run.find(program, budget).is_none())
        .map(|line| line.join(" at "))
        .collect()
}

pub(super) fn budgets(command: &str) -> Option<&str> {
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
    fn lines_in_line_come_after_all_programs_and_are_not_required() {
        let all = ["mlp", "conv"]
            .map(|program| ["plain", "unlimited", "50%", "25%"].map(|budget| format!("{program} {budget}")));
        let all = all.concat();
        let lines: Vec<&str> = all.iter().map(String::as_str).chain(["mlp 25% in line"]).collect();
        assert_eq!(missing_of(COMMAND, &lines), "");
        assert_eq!(missing_of(COMMAND, &[&lines[1..], &["conv 25% in line"]].concat()), "mlp at plain");
    }

    #[test]
    fn a_command_without_budgets_requires_no_lines() {
        assert_eq!(missing_of("gpu_check", &["mlp plain"]), "");
    }
}
