//! `bench-vram --peer pytorch` on the CPU: the trainer and PyTorch in turn. For GPUs see `capped`.
//!
//! A round runs each once: other load affects both. Ratios are within a round.

use std::{
    env,
    path::{Path, PathBuf},
};

use anyhow::{Context, Error, Result, bail, ensure};
use serde::Deserialize;

use xtask::{invocation::Invocation, workspace};

use super::{
    limits::Limits,
    suite::{Model, Place},
    trainer::Trainer,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Peer {
    Pytorch,
}

/// Models that the script has too.
const SHAPES: [&str; 2] = ["toy", "gpt-124m"];

/// Odd, for a median.
const ROUNDS: usize = 3;

pub(crate) const SCRIPT: &str = "xtask/peers/pytorch_gpt.py";

/// Carried by `cargo xtask gpu-check`.
pub(crate) const CARRIED: &str = "pytorch_gpt.py";

pub(super) struct Twin {
    pub(super) program: Invocation,
    pub(super) name: String,
    pub(super) steps: u64,
}

impl Twin {
    /// `python` must have PyTorch, and see a GPU unless `device` is the CPU.
    pub(super) fn pytorch(python: &str, device: &str, steps: u64) -> Result<Self> {
        let look = "import torch; print(torch.__version__, torch.cuda.is_available())";
        let found = Invocation::new(python).arguments(["-c", look]).output(Path::new("."));
        let found = found.with_context(|| {
            format!("`{python}` has no PyTorch; name another by --python, or `{python} -m pip install torch`")
        })?;
        let (version, cuda) = found.trim().split_once(' ').context("PyTorch named no version")?;
        ensure!(
            device == "cpu" || cuda == "True",
            "PyTorch {version} of `{python}` has no CUDA that works here, so that nothing was compared; name another by --python, or add \
             --device cpu"
        );
        let program = Invocation::new(python).arguments([script().to_string_lossy()]);
        Ok(Self { program, name: format!("PyTorch {version}"), steps })
    }

    fn ask(&self, shape: &str) -> Result<PeerReport> {
        let steps = self.steps.to_string();
        let asked = self.program.clone().arguments(["--shape", shape, "--steps", &steps]);
        let printed = asked.output(Path::new("."))?;
        serde_json::from_str(printed.trim()).with_context(|| format!("`{asked}` printed something else"))
    }
}

fn script() -> PathBuf {
    let carried = env::current_exe().ok().map(|program| program.with_file_name(CARRIED));
    carried.filter(|path| path.is_file()).unwrap_or_else(|| workspace::root().join(SCRIPT))
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
struct PeerReport {
    peer: String,
    parameters: u64,
    tokens_per_second: f64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Round {
    ours: f64,
    theirs: f64,
}

impl Round {
    fn ratio(self) -> f64 {
        self.ours / self.theirs
    }
}

pub(super) fn run(twin: &Twin, trainer: &Trainer, models: &[Model], limits: &Limits) -> Result<String> {
    let mut lines = Vec::new();
    for model in models {
        let mut rounds = Vec::new();
        let mut peer = String::new();
        for _ in 0..ROUNDS {
            let outcome = trainer.train(model, None, &[], limits.next().map_err(Error::msg)?)?;
            let ours = outcome.summary().with_context(|| {
                format!("{} {}: {}", model.name, outcome.name(), outcome.reason().unwrap_or_default())
            })?;
            let median = ours.step_ms_median.context("the trainer named no median step")?;
            let ours_per_second = ours.tokens as f64 / ours.steps as f64 / median * 1000.0;
            let theirs = twin.ask(&model.shape)?;
            ensure!(
                theirs.parameters == ours.parameters,
                "{} has {} parameters and its twin {}: two different models cannot be compared",
                model.name,
                ours.parameters,
                theirs.parameters
            );
            peer = theirs.peer;
            rounds.push(Round { ours: ours_per_second, theirs: theirs.tokens_per_second });
        }
        lines.push(shown(&model.name, &peer, &rounds));
    }
    Ok(lines.join("\n"))
}

/// Refuses, before the build, models and devices that PyTorch lacks.
pub(super) fn check(models: &[Model], place: &Place) -> Result<()> {
    if place.device != "cpu" {
        bail!("--peer compares on the CPU and on CUDA, and not on {}; add --device cpu", place.device);
    }
    for model in models {
        ensure!(
            SHAPES.contains(&model.shape.as_str()),
            "{} has no twin in {SCRIPT}, which knows {}",
            model.shape,
            SHAPES.join(" and ")
        );
    }
    Ok(())
}

fn shown(model: &str, peer: &str, rounds: &[Round]) -> String {
    let mut lines = vec![format!("{model} against {peer}, tokens/s")];
    for round in rounds {
        let Round { ours, theirs } = *round;
        lines.push(format!("  {ours:.0} to {theirs:.0}: {:.2} times", round.ratio()));
    }
    let mut ratios: Vec<f64> = rounds.iter().map(|round| round.ratio()).collect();
    ratios.sort_by(f64::total_cmp);
    lines.push(format!("  median {:.2} times", ratios[ratios.len() / 2]));
    lines.join("\n")
}

#[cfg(all(test, unix))]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use crate::records::machine::Machine;

    use super::{
        super::{
            suite,
            summary::tests::PRINTED,
            trainer::tests::{StandIn, toy},
        },
        *,
    };

    /// Ten steps of 1,024 tokens, 120 ms each, against a script that prints `said`.
    fn compared(test: &str, said: &str) -> Result<String> {
        let trainer = StandIn::new(test, &format!("cat <<'END'\n{PRINTED}\nEND\n"));
        let script = trainer.folder.join("twin.sh");
        fs::write(&script, format!("cat <<'END'\n{said}\nEND\n")).unwrap();
        let program = Invocation::new("sh").arguments([script.to_string_lossy()]);
        let twin = Twin { program, name: "PyTorch 2".to_owned(), steps: 10 };
        let hour = std::time::Duration::from_hours(1);
        run(&twin, &trainer.trainer, &[toy()], &Limits::begin(hour, hour))
    }

    #[test]
    fn both_are_compared_by_the_median_step_round_by_round() {
        let said = r#"{"peer": "PyTorch 2", "parameters": PARAMETERS, "tokens_per_second": 1000.0}"#;
        let printed = PeerReport::from_trainer();
        let text = compared("peer", &said.replace("PARAMETERS", &printed.parameters.to_string())).unwrap();
        let line = format!("  median {:.2} times", printed.tokens_per_second / 1000.0);
        assert!(text.starts_with("toy against PyTorch 2, tokens/s\n") && text.ends_with(&line), "{text}");
        assert_eq!(text.lines().count(), 2 + ROUNDS);
    }

    #[test]
    fn a_twin_of_another_size_is_refused() {
        let said = r#"{"peer": "PyTorch 2", "parameters": 7, "tokens_per_second": 1000.0}"#;
        let error = compared("no-twin", said).unwrap_err().to_string();
        assert!(error.contains("and its twin 7"), "{error}");
        let error = compared("no-json", "Traceback").unwrap_err().to_string();
        assert!(error.ends_with("printed something else"), "{error}");
    }

    #[test]
    fn a_model_without_a_twin_and_another_device_are_refused() {
        let machine =
            Machine { gpu: None, evidence: String::new(), processor: String::new(), facts: Vec::new() };
        let refused = |config: &str, device: &str| {
            let place = Place::choose(device, &machine);
            let models = suite::models(&[config.to_owned()], None, suite::Turns::default(), &[], &place);
            check(&models, &place).map_err(|error| error.to_string())
        };
        assert_eq!(refused("toy", "cpu"), Ok(()));
        for shape in ["gpt-350m", "llama-1.1b"] {
            assert!(refused(shape, "cpu").unwrap_err().contains("knows toy and gpt-124m"), "{shape}");
        }
        assert!(refused("toy", "vulkan").unwrap_err().contains("not on vulkan; add --device cpu"));
    }

    #[test]
    fn a_python_without_pytorch_is_named() {
        let error = Twin::pytorch("false", "cpu", 2).err().unwrap().to_string();
        assert!(error.starts_with("`false` has no PyTorch"), "{error}");
    }

    #[test]
    fn a_peer_without_cuda_says_so_in_one_line() {
        let trainer = StandIn::new("peer-without-cuda", "");
        let python = trainer.folder.join("python");
        fs::write(&python, "#!/bin/sh\necho 2.15.0+cpu False\n").unwrap();
        fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
        let python = python.to_string_lossy().into_owned();
        let error = Twin::pytorch(&python, "cuda", 2).err().unwrap().to_string();
        assert!(
            error.starts_with("PyTorch 2.15.0+cpu of `") && error.contains("has no CUDA that works here"),
            "{error}"
        );
        assert_eq!(error.lines().count(), 1);
        assert_eq!(Twin::pytorch(&python, "cpu", 2).unwrap().name, "PyTorch 2.15.0+cpu");
    }

    impl PeerReport {
        fn from_trainer() -> Self {
            let summary = super::super::summary::Summary::parse(PRINTED).unwrap();
            let tokens = summary.tokens as f64 / summary.steps as f64;
            let tokens_per_second = tokens / summary.step_ms_median.unwrap() * 1000.0;
            Self { peer: String::new(), parameters: summary.parameters, tokens_per_second }
        }
    }
}
