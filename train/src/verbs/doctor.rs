//! `train doctor`: this machine's means for training, its lacks, and remedies.
//!
//! The device comes from the function that starts a run (`doctor_names_the_device_and_the_reason_of_a_start`).

mod cuda;
mod disk;
mod memory;
mod mpi;

use std::fmt::{self, Write as _};
use std::path::Path;

use anyhow::Context;
use runs::device::{self, Automatic};
use serde::Serialize;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print the findings as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Fine,
    /// Absent or small; training starts without it.
    Note,
    /// Training needs it, at least on a GPU.
    Missing,
}

#[derive(Debug, Serialize)]
struct Finding {
    subject: &'static str,
    verdict: Verdict,
    found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

impl Finding {
    fn fine(subject: &'static str, found: impl Into<String>) -> Self {
        Self { subject, verdict: Verdict::Fine, found: found.into(), remedy: None }
    }

    fn note(subject: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { subject, verdict: Verdict::Note, found: found.into(), remedy: Some(remedy.into()) }
    }

    fn missing(subject: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { verdict: Verdict::Missing, ..Self::note(subject, found, remedy) }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = match self.verdict {
            Verdict::Fine => "fine",
            Verdict::Note => "note",
            Verdict::Missing => "missing",
        };
        write!(f, "{verdict:<8} {:<18} {}", self.subject, self.found)?;
        self.remedy.as_ref().map_or(Ok(()), |remedy| write!(f, "; {remedy}"))
    }
}

#[derive(Debug, Serialize)]
struct Report {
    findings: Vec<Finding>,
    device: String,
    conclusion: String,
}

/// Fails if training cannot start, even on the CPU.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let (device, conclusion) = conclusion();
    let mut findings = cuda::findings();
    findings.extend(memory::findings(Path::new("/")));
    let disks = disk::findings();
    let blocked = disks.iter().find(|finding| finding.verdict == Verdict::Missing);
    let blocked = blocked.map(|finding| finding.found.clone());
    findings.extend(disks);
    findings.push(mpi::finding());

    let report = Report { findings, device, conclusion };
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report).context("describing the findings")?);
    } else {
        print!("{}", report.text());
    }
    blocked.map_or(Ok(()), |found| Err(anyhow::anyhow!("training cannot start here: {found}")))
}

impl Report {
    fn text(&self) -> String {
        let mut text = String::new();
        for finding in &self.findings {
            _ = writeln!(text, "{finding}");
        }
        text + "\n" + &self.conclusion + "\n"
    }
}

/// The device without `--device`, and the reason.
fn conclusion() -> (String, String) {
    match device::automatic(0) {
        Automatic::Cuda(facts) => {
            let model = facts.model.map(|model| format!(" ({model})")).unwrap_or_default();
            let said = format!(
                "`train` would use {}{model}, because driver, NVRTC and headers are complete.",
                facts.name
            );
            (facts.name, said)
        }
        Automatic::Cpu(Some(error)) => {
            ("the CPU".to_owned(), format!("`train` would use the CPU, because {error}."))
        }
        Automatic::Cpu(None) if cfg!(feature = "cuda") => {
            let said = "`train` would use the CPU, because this machine has no NVIDIA driver.";
            ("the CPU".to_owned(), said.to_owned())
        }
        Automatic::Cpu(None) => {
            let said = "`train` would use the CPU, because it was built without the feature `cuda`.";
            ("the CPU".to_owned(), said.to_owned())
        }
    }
}
