//! Turns a run's lines into a dated record.

use std::{
    env,
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

use crate::records;

use crate::vram;

use super::{
    completeness,
    run::{Outcome, Run},
    stand_in,
    verdict::{self, Answer},
};

/// Written whatever failed; then the error says what.
pub(super) fn make(raw: &Path, device: Option<&str>) -> Result<()> {
    let (run, lines) = read(raw)?;
    let device = device.or(run.gpu()).context("the run names no GPU: name it with --device")?;
    stand_in::check_name(&run, device)?;
    let folder = records::fresh_folder(&records::runs(), &run.date, device)?;
    let measured = raw.with_file_name(MEASURED);
    let answers = verdict::answers(&run, &verdict::trained_models(&run, &measured));
    fs::write(folder.join("README.md"), page(&run, device, &answers))?;
    fs::write(folder.join("raw.jsonl"), lines)?;
    println!("recorded in {}", folder.display());
    if vram::is_record(&measured) {
        let folder = adopt(&measured, &records::runs(), &run.date, device)?;
        println!("and what budgets cost the trainer in {}", folder.display());
    }
    match shortcoming(&run) {
        None => Ok(()),
        Some(shortcoming) => bail!("{shortcoming}; see {}", folder.display()),
    }
}

/// Prints the verdict on a run. Models lie beside its lines, or beside this program where it was carried.
pub(super) fn print_verdict(raw: &Path) -> Result<()> {
    let (run, _) = read(raw)?;
    let beside = [Some(raw.to_owned()), env::current_exe().ok()];
    let mut folders = beside.into_iter().flatten().map(|path| path.with_file_name(MEASURED));
    let measured = folders.find(|folder| vram::is_record(folder)).unwrap_or_else(|| MEASURED.into());
    let answers = verdict::answers(&run, &verdict::trained_models(&run, &measured));
    print!("\n{}", verdict::text(&answers));
    Ok(())
}

fn read(raw: &Path) -> Result<(Run, String)> {
    let lines = fs::read_to_string(raw).with_context(|| format!("{} is unreadable", raw.display()))?;
    let run = Run::parse(&lines).with_context(|| format!("{} holds no run", raw.display()))?;
    Ok((run, lines))
}

const MEASURED: &str = "bench-vram";

fn adopt(measured: &Path, runs: &Path, date: &str, device: &str) -> Result<PathBuf> {
    let folder = records::fresh_folder(runs, date, &format!("{device} budgets"))?;
    for file in fs::read_dir(measured).with_context(|| format!("{} is unreadable", measured.display()))? {
        let file = file?;
        fs::copy(file.path(), folder.join(file.file_name()))
            .with_context(|| format!("{} could not be copied", file.path().display()))?;
    }
    Ok(folder)
}

fn shortcoming(run: &Run) -> Option<String> {
    let missing = completeness::missing(run);
    let missing = (!missing.is_empty()).then(|| format!("missing: {}", missing.join(", ")));
    let said: Vec<String> = run.shortcoming().into_iter().chain(missing).chain(verdict::slow(run)).collect();
    (!said.is_empty()).then(|| said.join("; "))
}

fn page(run: &Run, device: &str, answers: &[Answer]) -> String {
    let mut page = format!("# GPU check: {device}, {}\n\n", run.date);
    let [passed, failed, skipped] =
        [Outcome::Pass, Outcome::Fail, Outcome::Skipped].map(|outcome| run.count(outcome));
    let note = shortcoming(run).map(|shortcoming| format!(" ({shortcoming})")).unwrap_or_default();
    let Run { commit, command, .. } = run;
    let mut line = |text: String| writeln!(page, "{text}").expect("a string takes every line");

    line(verdict::text(answers));
    line(format!("{passed} passed, {failed} failed, {skipped} skipped{note}.\n"));
    if stand_in::ran_on_the_stand_in(run) {
        line(format!("{}\n", stand_in::NOTE));
    }
    line(format!(
        "`{command}`, built by `cargo xtask gpu-check` at commit {commit}. Raw data: [raw.jsonl](raw.jsonl).\n"
    ));

    line("| Machine | |\n|---|---|".to_owned());
    for (name, value) in &run.machine {
        line(format!("| {} | {} |", name.replace('_', " "), value.as_str().unwrap_or_default()));
    }

    line("\n| Program | Budget | Verdict | Losses equal | Weights equal | Seconds per step |".to_owned());
    line("|---|---|---|---|---|---|".to_owned());
    for verdict in &run.verdicts {
        line(format!("| {} |", verdict.cells.join(" | ")));
    }
    line("\nA budget below a program's floor is the floor. Equal budgets are one run.".to_owned());

    match &run.bandwidth {
        Some(bandwidth) => line(format!("\nCopy bandwidth, as measured by the same binary: `{bandwidth}`.")),
        None => line("\nThe copy bandwidth is missing.".to_owned()),
    }
    if let Some(link) = &run.link {
        line(format!("\nPlain copies, by the driver alone: `{link}`."));
    }
    for (name, error) in run.failures() {
        line(format!("\n{name}:\n\n```text\n{}\n```", error.trim()));
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    const RAW: &str = concat!(
        r#"{"date": "2026-01-02", "commit": "abc-dirty", "command": "gpu_check --json","#,
        r#" "machine": {"gpu": "NVIDIA H200", "driver": "570"}}"#,
        "\n",
        r#"{"program": "mlp", "budget": "25%", "verdict": "fail", "seconds_per_step": 0.5}"#,
        "\n",
        r#"{"bandwidth": {"to_host": 50}}"#
    );

    fn page_of(raw: &str, device: &str) -> String {
        let run = Run::parse(raw).unwrap();
        page(&run, device, &verdict::answers(&run, &Err("nothing was trained".to_owned())))
    }

    #[test]
    fn a_record_says_outcome_command_commit_machine_and_numbers() {
        let page = page_of(RAW, "H200");
        let said = [
            "# GPU check: H200, 2026-01-02\n\n1. Is every number plain's at every budget? Not measured",
            "\n5. Does it train as fast as PyTorch under the same cap? Not measured: nothing was trained.\n\n",
            "0 passed, 1 failed, 0 skipped (failed: mlp at 25%).",
            "`gpu_check --json`",
            "commit abc-dirty",
            "| driver | 570 |",
            "| mlp | 25% | fail | n/a | n/a | 0.5 |",
            r#"`{"to_host":50}`"#,
        ];
        for expected in said {
            assert!(page.contains(expected), "{expected} is missing from:\n{page}");
        }
    }

    #[test]
    fn a_run_whose_check_left_nothing_has_a_page_that_says_so() {
        let page = page_of(RAW.lines().next().unwrap(), "H200");
        assert!(page.contains("0 passed, 0 failed, 0 skipped (no program left a verdict"), "{page}");
        assert!(page.contains("The copy bandwidth is missing."), "{page}");
    }

    #[test]
    fn a_step_that_costs_more_without_a_budget_is_a_shortcoming_on_a_real_card() {
        let unlimited =
            r#"{"program": "mlp", "budget": "unlimited", "verdict": "pass", "seconds_per_step": 0.5,"#;
        let row = format!("{unlimited} \"stats\": {{\"bytes_out\": 0, \"bytes_in\": 0}}}}");
        let plain = row.replace("unlimited", "plain").replace("0.5", "0.4");
        let raw = format!("{}\n{row}\n{plain}", RAW.replace("fail", "pass"));
        let said = |raw: &str| shortcoming(&Run::parse(raw).unwrap());
        assert_eq!(said(&raw).unwrap(), "a step without a budget takes more than 1.10 of plain's: mlp");
        assert_eq!(said(&raw.replace("NVIDIA H200", "CUDA stand-in")), None);
    }

    #[test]
    fn a_record_of_the_stand_in_says_that_no_gpu_took_part() {
        let on = |gpu: &str| page_of(&RAW.replace("NVIDIA H200", gpu), gpu);
        assert!(on("CUDA stand-in").contains("**No GPU took part.**"));
        assert!(!on("NVIDIA H200").contains("No GPU"));
    }

    #[test]
    fn a_record_of_budgets_from_the_gpu_is_copied_whole() {
        let place = env::temp_dir().join(format!("gpu-check-adopted-{}", std::process::id()));
        let measured = place.join(MEASURED);
        fs::create_dir_all(&measured).unwrap();
        fs::write(measured.join("cells.csv"), "cells").unwrap();
        fs::write(measured.join("README.md"), "page").unwrap();
        let folder = adopt(&measured, &place, "2026-01-02", "NVIDIA H200").unwrap();
        let read = |name| fs::read_to_string(folder.join(name)).unwrap();
        let (cells, page) = (read("cells.csv"), read("README.md"));
        fs::remove_dir_all(&place).unwrap();
        assert!(folder.ends_with("2026-01-02-nvidia-h200-budgets"), "{}", folder.display());
        assert_eq!((cells.as_str(), page.as_str()), ("cells", "page"));
    }

    #[test]
    fn a_record_names_the_lines_that_are_missing() {
        let raw =
            RAW.replace("gpu_check --json", "gpu_check --budgets 50%,25% --json").replace("fail", "pass");
        let missing = "missing: mlp at plain, mlp at unlimited, mlp at 50%";
        assert_eq!(shortcoming(&Run::parse(&raw).unwrap()).unwrap(), missing);
        assert!(page_of(&raw, "H200").contains(&format!("1 passed, 0 failed, 0 skipped ({missing}).")));
    }
}
