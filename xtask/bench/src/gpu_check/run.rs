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
}

impl Run {
    pub(super) fn parse(raw: &str) -> Result<Self> {
        let mut lines = (1..).zip(raw.lines()).map(|(number, line): (usize, _)| {
            serde_json::from_str::<Value>(line).with_context(|| format!("line {number} is no JSON: {line}"))
        });
        let header = lines.next().context("the file is empty")??;
        let mut run = Self::begin(&header)?;
        for (number, line) in (2..).zip(lines) {
            let line = line?;
            if let Some(bandwidth) = line.get("bandwidth") {
                run.bandwidth = Some(bandwidth.clone());
            } else {
                run.verdicts.push(Verdict::parse(&line).with_context(|| format!("line {number}"))?);
            }
        }
        if run.verdicts.is_empty() {
            bail!("no program left a verdict: the output of `run` says why");
        }
        Ok(run)
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
        })
    }

    pub(super) fn gpu(&self) -> Option<&str> {
        self.machine.get("gpu")?.as_str().filter(|name| !name.is_empty())
    }

    pub(super) fn count(&self, outcome: Outcome) -> usize {
        self.verdicts.iter().filter(|verdict| verdict.outcome == outcome).count()
    }

    pub(super) fn failures(&self) -> impl Iterator<Item = (String, &str)> {
        self.verdicts.iter().filter_map(|verdict| Some((verdict.name(), verdict.error.as_deref()?)))
    }

    pub(super) fn shortcoming(&self) -> Option<String> {
        let failed: Vec<_> =
            self.verdicts.iter().filter(|verdict| verdict.outcome == Outcome::Fail).collect();
        if !failed.is_empty() {
            let names: Vec<_> = failed.into_iter().map(Verdict::name).collect();
            Some(format!("failed: {}", names.join(", ")))
        } else if self.bandwidth.is_none() {
            Some("the run broke off before its end: the copy bandwidth is missing".to_owned())
        } else {
            (self.count(Outcome::Pass) == 0).then(|| "every check was skipped".to_owned())
        }
    }
}

impl Verdict {
    fn name(&self) -> String {
        self.cells[..2].join(" at ")
    }

    fn parse(line: &Value) -> Result<Self> {
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
        Ok(Self { outcome, cells: columns.map(cell), error })
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
        assert_eq!(run.failures().collect::<Vec<_>>(), [("bandwidth at 800MiB".to_owned(), "no device")]);
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
    fn lines_that_prove_nothing_are_refused() {
        let error = |lines: &[&str]| format!("{:#}", run(lines).unwrap_err());
        assert!(error(&[]).contains("empty"));
        assert!(error(&[PASS]).contains("`run` script"));
        assert!(error(&[HEADER, END]).contains("no program left a verdict"));
        assert!(error(&[HEADER, "Killed"]).contains("line 2 is no JSON"));
        assert!(error(&[HEADER, r#"{"verdict": "fine"}"#]).contains("line 2: `verdict` is none of"));
    }
}
