//! A run of the check, parsed from JSON lines.

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value};

#[derive(Debug)]
pub(super) struct Run {
    pub(super) date: String,
    pub(super) commit: String,
    pub(super) command: String,
    pub(super) machine: Map<String, Value>,
    pub(super) verdicts: Vec<Verdict>,
    pub(super) bandwidth: Option<Value>,
    /// Plain copies beside it; older runs have none.
    pub(super) link: Option<Value>,
    /// Lines that are none of these, and why.
    unreadable: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Pass,
    Fail,
    Skipped,
}

#[derive(Debug)]
pub(super) struct Verdict {
    pub(super) outcome: Outcome,
    /// Program, budget, verdict, losses equal, weights equal, seconds per step.
    pub(super) cells: [String; 6],
    error: Option<String>,
    line: Value,
}

/// Parts that are no programs.
const NO_PROGRAMS: [&str; 2] = ["bandwidth", "ranks"];

/// After a budget: without overlap.
const IN_LINE: &str = " in line";

impl Run {
    pub(super) fn parse(raw: &str) -> Result<Self> {
        let json =
            |line: &str| serde_json::from_str::<Value>(line).with_context(|| format!("no JSON: {line}"));
        let mut lines = raw.lines();
        let header = json(lines.next().context("the file is empty")?).context("line 1")?;
        let mut run = Self::begin(&header)?;
        for (number, line) in (2..).zip(lines) {
            let read = json(line).and_then(|line| run.take(line));
            if let Err(error) = read {
                run.unreadable.push(format!("line {number}: {error:#}"));
            }
        }
        Ok(run)
    }

    fn take(&mut self, line: Value) -> Result<()> {
        if let Some(bandwidth) = line.get("bandwidth") {
            self.bandwidth = Some(bandwidth.clone());
        } else if let Some(link) = line.get("link") {
            self.link = Some(link.clone());
        } else {
            self.verdicts.push(Verdict::parse(line)?);
        }
        Ok(())
    }

    fn begin(header: &Value) -> Result<Self> {
        let text = |key| {
            let value = header[key].as_str();
            value.map(str::to_owned).with_context(|| {
                format!("the first line lacks `{key}`: the binary must be started through its `run` script")
            })
        };
        Ok(Self {
            date: text("date")?,
            commit: text("commit")?,
            command: text("command")?,
            machine: header["machine"].as_object().cloned().context("the first line lacks `machine`")?,
            verdicts: Vec::new(),
            bandwidth: None,
            link: None,
            unreadable: Vec::new(),
        })
    }

    pub(super) fn gpu(&self) -> Option<&str> {
        self.machine.get("gpu")?.as_str().filter(|name| !name.is_empty())
    }

    pub(super) fn count(&self, outcome: Outcome) -> usize {
        self.verdicts.iter().filter(|verdict| verdict.outcome == outcome).count()
    }

    /// Names with their error; neighbours with the same one share it.
    pub(super) fn failures(&self) -> Vec<(String, &str)> {
        let mut failures: Vec<(String, &str)> = Vec::new();
        for verdict in &self.verdicts {
            let Some(error) = verdict.error.as_deref() else { continue };
            match failures.last_mut() {
                Some((names, same)) if *same == error => *names = format!("{names}, {}", verdict.name()),
                _ => failures.push((verdict.name(), error)),
            }
        }
        failures
    }

    /// Lines of programs: plain, without a budget, under one, and in line.
    pub(super) fn of_programs(&self) -> impl Iterator<Item = &Verdict> {
        self.verdicts.iter().filter(|verdict| !NO_PROGRAMS.contains(&verdict.program()))
    }

    /// In order, each once.
    pub(super) fn programs(&self) -> Vec<&str> {
        let mut programs: Vec<&str> = Vec::new();
        for verdict in self.of_programs() {
            if !programs.contains(&verdict.program()) {
                programs.push(verdict.program());
            }
        }
        programs
    }

    pub(super) fn find(&self, program: &str, budget: &str) -> Option<&Verdict> {
        self.verdicts.iter().find(|verdict| verdict.cells[..2] == [program, budget])
    }

    pub(super) fn shortcoming(&self) -> Option<String> {
        let failed: Vec<_> =
            self.verdicts.iter().filter(|verdict| verdict.outcome == Outcome::Fail).collect();
        let whole = if !failed.is_empty() {
            let names: Vec<_> = failed.into_iter().map(Verdict::name).collect();
            Some(format!("failed: {}", names.join(", ")))
        } else if self.verdicts.is_empty() {
            Some("no program left a verdict: the output of `run` says why".to_owned())
        } else if self.bandwidth.is_none() {
            Some("the run broke off before its end: the copy bandwidth is missing".to_owned())
        } else {
            (self.count(Outcome::Pass) == 0).then(|| "every check was skipped".to_owned())
        };
        let link = self.link.as_ref().and_then(|link| link["error"].as_str());
        let link = link.map(|error| format!("no plain copies: {error}"));
        let unreadable = self.unreadable.iter().cloned();
        let said: Vec<String> = whole.into_iter().chain(link).chain(unreadable).collect();
        (!said.is_empty()).then(|| said.join("; "))
    }
}

impl Verdict {
    pub(super) fn name(&self) -> String {
        self.cells[..2].join(" at ")
    }

    pub(super) fn program(&self) -> &str {
        &self.cells[0]
    }

    /// Also `plain`, `unlimited`, and a budget in line.
    pub(super) fn budget(&self) -> &str {
        &self.cells[1]
    }

    /// Under a budget, with overlap.
    pub(super) fn is_at_a_budget(&self) -> bool {
        !["plain", "unlimited"].contains(&self.budget()) && !self.budget().ends_with(IN_LINE)
    }

    /// The same budget's name without overlap.
    pub(super) fn in_line(&self) -> String {
        format!("{}{IN_LINE}", self.budget())
    }

    pub(super) fn has_plain_bits(&self) -> bool {
        self.line["losses_equal"] == true && self.line["weights_equal"] == true
    }

    pub(super) fn number(&self, name: &str) -> Option<f64> {
        self.line[name].as_f64()
    }

    pub(super) fn counted(&self, name: &str) -> Option<f64> {
        self.line["stats"][name].as_f64()
    }

    fn parse(line: Value) -> Result<Self> {
        let cell = |key| match &line[key] {
            Value::Null => "n/a".to_owned(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let outcome = match line["verdict"].as_str() {
            Some("pass") => Outcome::Pass,
            Some("fail") => Outcome::Fail,
            Some("skipped") => Outcome::Skipped,
            _ => bail!("`verdict` is none of pass, fail, skipped: {line}"),
        };
        let columns = ["program", "budget", "verdict", "losses_equal", "weights_equal", "seconds_per_step"];
        let error = line["error"].as_str().map(str::to_owned);
        Ok(Self { outcome, cells: columns.map(cell), error, line })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = r#"{"date": "2026-01-02", "commit": "abc", "command": "gpu_check", "machine": {"gpu": "NVIDIA H200"}}"#;
    const PASS: &str = r#"{"program": "mlp", "budget": "50%", "verdict": "pass", "losses_equal": true}"#;
    const END: &str = r#"{"bandwidth": {"to_host": 50}}"#;

    fn run(lines: &[&str]) -> Result<Run> {
        Run::parse(&lines.join("\n"))
    }

    #[test]
    fn a_complete_run_has_no_shortcoming() {
        let run = run(&[HEADER, PASS, END]).unwrap();
        assert_eq!((run.gpu(), run.shortcoming()), (Some("NVIDIA H200"), None));
        assert_eq!(run.verdicts[0].cells, ["mlp", "50%", "pass", "true", "n/a", "n/a"]);
    }

    #[test]
    fn one_failed_check_outweighs_those_that_passed() {
        let run = run(&[HEADER, PASS, &PASS.replace("pass", "fail"), END]).unwrap();
        assert_eq!(run.shortcoming().unwrap(), "failed: mlp at 50%");
    }

    #[test]
    fn a_part_that_did_not_run_is_named() {
        let missing =
            r#"{"program": "bandwidth", "budget": "800MiB", "verdict": "fail", "error": "no device"}"#;
        let run = run(&[HEADER, PASS, missing]).unwrap();
        assert_eq!(run.shortcoming().unwrap(), "failed: bandwidth at 800MiB");
        assert_eq!(run.failures(), [("bandwidth at 800MiB".to_owned(), "no device")]);
    }

    #[test]
    fn neighbours_that_failed_alike_share_their_error() {
        let skipped = |budget: &str, error: &str| {
            let line = PASS.replace("50%", budget).replace("pass", "skipped");
            line.replace("true", &format!("null, \"error\": \"{error}\""))
        };
        let lines = [skipped("50%", "late"), skipped("25%", "late"), skipped("floor", "no peak")];
        let run = run(&[HEADER, &lines[0], &lines[1], &lines[2]]).unwrap();
        let expected =
            [("mlp at 50%, mlp at 25%".to_owned(), "late"), ("mlp at floor".to_owned(), "no peak")];
        assert_eq!(run.failures(), expected);
    }

    #[test]
    fn programs_and_their_lines_are_told_from_other_parts() {
        let ranks = PASS.replace("mlp", "ranks");
        let in_line = PASS.replace("50%", "50% in line");
        let run = run(&[HEADER, PASS, &PASS.replace("mlp", "conv"), &in_line, &ranks]).unwrap();
        assert_eq!((run.programs(), run.of_programs().count()), (vec!["mlp", "conv"], 3));
        let at_a_budget: Vec<_> = run.of_programs().map(Verdict::is_at_a_budget).collect();
        assert_eq!(at_a_budget, [true, true, false]);
        let overlapped = run.find("mlp", "50%").unwrap();
        assert!(run.find("mlp", &overlapped.in_line()).is_some());
        assert!(run.find("conv", "50% in line").is_none());
    }

    #[test]
    fn skipped_checks_alone_are_no_proof() {
        let skipped = PASS.replace("pass", "skipped");
        assert_eq!(run(&[HEADER, &skipped, END]).unwrap().shortcoming().unwrap(), "every check was skipped");
        assert_eq!(run(&[HEADER, &skipped, PASS, END]).unwrap().shortcoming(), None);
    }

    #[test]
    fn a_run_without_its_last_line_broke_off() {
        let shortcoming = run(&[HEADER, PASS]).unwrap().shortcoming().unwrap();
        assert!(shortcoming.contains("broke off") && shortcoming.contains("bandwidth"), "{shortcoming}");
    }

    #[test]
    fn lines_without_a_machine_are_refused() {
        let error = |lines: &[&str]| format!("{:#}", run(lines).unwrap_err());
        assert!(error(&[]).contains("empty"));
        assert!(error(&[PASS]).contains("`run` script"));
        assert!(error(&["Killed"]).contains("line 1: no JSON: Killed"));
    }

    #[test]
    fn a_part_that_left_nothing_readable_is_named_and_spoils_no_other() {
        let shortcoming = |lines: &[&str]| run(lines).unwrap().shortcoming().unwrap();
        assert!(shortcoming(&[HEADER, END]).contains("no program left a verdict"));
        let link = r#"{"link": {"error": "no driver"}}"#;
        assert_eq!(shortcoming(&[HEADER, PASS, END, link]), "no plain copies: no driver");
        let torn = [HEADER, "Killed", PASS, r#"{"verdict": "fine"}"#, END];
        assert_eq!(run(&torn).unwrap().verdicts.len(), 1);
        let said = shortcoming(&torn);
        assert!(said.starts_with("line 2: no JSON: Killed"), "{said}");
        assert!(said.contains("; line 4: `verdict` is none of"), "{said}");
    }
}
