//! The models that PyTorch trains, too, on a GPU, and its ways to train them under a cap.

use anyhow::{Context, Result};
use clap::ValueEnum;

use super::super::peer;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Way {
    /// All on the device.
    Memory,
    /// Saved activations in host memory.
    Activations,
    /// Parameters, gradients and moments in host memory, and the optimizer there (FSDP2).
    Fsdp,
}

impl Way {
    /// The script's `--mode`.
    pub(super) fn mode(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Activations => "activations",
            Self::Fsdp => "fsdp",
        }
    }

    /// In a record, after the model's name.
    pub(in super::super) fn name(self) -> &'static str {
        match self {
            Self::Memory => "PyTorch",
            Self::Activations => "PyTorch, activations in host memory",
            Self::Fsdp => "PyTorch, FSDP2 with its parameters in host memory",
        }
    }
}

struct Twin {
    shape: &'static str,
    settings: &'static [&'static str],
    words: &'static [&'static str],
}

/// Both sides compute in f32 with TF32 factors and recompute nothing. The larger one fits a card of 20 GB without a cap.
const TWINS: [Twin; 2] = [
    Twin {
        shape: "gpt-124m",
        settings: &[
            "train.micro_batch=8",
            "train.accumulate=1",
            "train.sequence=1024",
            "train.recompute=null",
            "model.compute=f32",
        ],
        words: &["--batch", "8", "--time", "1024"],
    },
    Twin {
        shape: "llama-1.1b",
        settings: &[
            "train.micro_batch=1",
            "train.accumulate=1",
            "train.sequence=512",
            "train.recompute=null",
            "model.compute=f32",
        ],
        words: &["--batch", "1", "--time", "512"],
    },
];

pub(in super::super) fn default_models() -> Vec<String> {
    TWINS.iter().map(|twin| twin.shape.to_owned()).collect()
}

fn find(shape: &str) -> Result<&'static Twin> {
    TWINS.iter().find(|twin| twin.shape == shape).with_context(|| {
        let known = default_models().join(" and ");
        format!("{shape} has no twin in {} on a GPU, which has {known} there", peer::SCRIPT)
    })
}

/// The trainer's, which make it compute what the twin does.
pub(in super::super) fn settings(shape: &str) -> Result<Vec<String>> {
    Ok(find(shape)?.settings.iter().map(|setting| (*setting).to_owned()).collect())
}

pub(super) fn words(shape: &str) -> Result<&'static [&'static str]> {
    Ok(find(shape)?.words)
}

/// All models', for a page.
pub(super) fn shown() -> String {
    let each: Vec<_> =
        TWINS.iter().map(|twin| format!("{}: {}", twin.shape, twin.settings.join(" "))).collect();
    each.join("; ")
}

#[cfg(test)]
mod tests {
    use xtask::workspace;

    use super::*;

    #[test]
    fn a_model_without_a_twin_is_refused_with_those_that_have_one() {
        let error = settings("gpt-7b").unwrap_err().to_string();
        assert!(
            error.starts_with("gpt-7b has no twin")
                && error.ends_with("which has gpt-124m and llama-1.1b there"),
            "{error}"
        );
    }

    #[test]
    fn each_twin_takes_the_trainers_batch_and_sequence_and_is_in_the_script() {
        let script = std::fs::read_to_string(workspace::root().join(peer::SCRIPT)).unwrap();
        for shape in default_models() {
            let settings = settings(&shape).unwrap();
            let value = |key: &str| {
                settings.iter().find_map(|setting| setting.strip_prefix(&format!("{key}="))).unwrap()
            };
            let expected = ["--batch", value("train.micro_batch"), "--time", value("train.sequence")];
            assert_eq!(words(&shape).unwrap(), expected, "{shape}");
            assert_eq!((value("train.accumulate"), value("model.compute")), ("1", "f32"));
            assert!(script.contains(&format!("    \"{shape}\": dict(")), "{shape}");
        }
    }

    #[test]
    fn the_script_has_every_way() {
        let script = std::fs::read_to_string(workspace::root().join(peer::SCRIPT)).unwrap();
        let modes = Way::value_variants().iter().map(|way| format!("\"{}\"", way.mode()));
        let modes = modes.collect::<Vec<_>>().join(", ");
        assert!(script.contains(&format!("MODES = ({modes})")), "{modes}");
    }
}
