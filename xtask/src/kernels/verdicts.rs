//! NVRTC's verdicts, parsed from the JSON lines of `compile.py`.

use std::{fmt, time::Duration};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

#[derive(Debug, Deserialize)]
pub(super) struct Compiler {
    pub(super) version: String,
    architectures: Vec<u32>,
}

#[derive(Debug)]
pub(super) struct Verdicts {
    architecture: String,
    accepted: usize,
    /// File names and the log's reasons.
    pub(super) refused: Vec<(String, String)>,
    took: Duration,
}

/// One fault often fails a hundred kernels alike.
const SHOWN_KERNELS: usize = 10;
const SHOWN_LINES: usize = 3;

impl Compiler {
    pub(super) fn parse(line: &str) -> Result<Self> {
        serde_json::from_str(line).with_context(|| format!("the compiler printed no version: {line:?}"))
    }

    pub(super) fn require(&self, architecture: u32) -> Result<()> {
        let Self { version, architectures } = self;
        ensure!(
            architectures.contains(&architecture),
            "NVRTC {version} compiles for {architectures:?} and not for {architecture} (120 needs 12.8 or later): \
             choose a release with --cuda, or others of its architectures with --architectures"
        );
        Ok(())
    }
}

impl Verdicts {
    pub(super) fn parse(architecture: String, lines: &str, took: Duration) -> Result<Self> {
        #[derive(Deserialize)]
        struct Line {
            kernel: String,
            log: Option<String>,
        }
        let mut verdicts = Self { architecture, accepted: 0, refused: Vec::new(), took };
        for line in lines.lines() {
            let Line { kernel, log } =
                serde_json::from_str(line).with_context(|| format!("no verdict on a kernel: {line:?}"))?;
            match log {
                None => verdicts.accepted += 1,
                Some(log) => verdicts.refused.push((kernel, reasons(&log))),
            }
        }
        Ok(verdicts)
    }
}

/// The first errors, else the first lines.
fn reasons(log: &str) -> String {
    let errors: Vec<&str> =
        log.lines().filter(|line| line.contains("error:")).take(SHOWN_LINES).map(str::trim).collect();
    if errors.is_empty() {
        return log.lines().take(SHOWN_LINES).collect::<Vec<_>>().join("\n");
    }
    errors.join("\n")
}

impl fmt::Display for Verdicts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { architecture, accepted, refused, took } = self;
        let seconds = took.as_secs_f64();
        writeln!(f, "{architecture:8} {accepted} accepted, {} refused, {seconds:.1} s", refused.len())?;
        for (kernel, reasons) in refused.iter().take(SHOWN_KERNELS) {
            writeln!(f, "  {kernel}: {}", reasons.replace('\n', "\n    "))?;
        }
        match refused.len().saturating_sub(SHOWN_KERNELS) {
            0 => Ok(()),
            more => writeln!(f, "  and {more} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdicts(lines: &str) -> Result<Verdicts> {
        Verdicts::parse("sm_80".to_owned(), lines, Duration::from_millis(1500))
    }

    #[test]
    fn a_refused_kernel_is_named_with_its_first_errors() {
        let lines = concat!(
            r#"{"kernel": "a.cu", "log": null}"#,
            "\n",
            r#"{"kernel": "b.cu", "log": "In file included\nx(3): error: one\nx(4): warning\nx(5): error: two\n"}"#
        );
        assert_eq!(
            verdicts(lines).unwrap().to_string(),
            "sm_80    1 accepted, 1 refused, 1.5 s\n  b.cu: x(3): error: one\n    x(5): error: two\n"
        );
    }

    #[test]
    fn the_first_of_many_refused_kernels_are_shown_and_the_others_counted() {
        let lines: Vec<_> =
            (0..12).map(|n| format!(r#"{{"kernel": "{n}.cu", "log": "no reason"}}"#)).collect();
        let shown = verdicts(&lines.join("\n")).unwrap().to_string();
        assert!(shown.contains("  9.cu: no reason\n  and 2 more\n") && !shown.contains("10.cu"), "{shown}");
    }

    #[test]
    fn a_line_without_a_verdict_is_an_error() {
        assert!(verdicts("Killed").unwrap_err().to_string().contains("\"Killed\""));
    }

    #[test]
    fn a_compiler_too_old_for_an_architecture_is_refused_and_says_which_one_is_needed() {
        let compiler = Compiler::parse(r#"{"version": "12.4", "architectures": [80, 90]}"#).unwrap();
        compiler.require(90).unwrap();
        let error = compiler.require(120).unwrap_err().to_string();
        assert!(error.starts_with("NVRTC 12.4") && error.contains("12.8 or later"), "{error}");
    }
}
