//! The memory requests of one step of a run, recorded in a dry run.
//!
//! A process of this program computes nothing on the CPU: any shape takes seconds to minutes and little memory. Memory
//! follows from the shape, so any text will do.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::{env, fs};

use anyhow::{Context, ensure};
use pager::Recording;
use runs::config::{
    CheckpointSection, Config, DataSection, DataSource, EvalSection, RanksSection, SplitKind, TokenizerKind,
    TokenizerSection,
};
use tempfile::TempDir;

/// The first step creates the moments; two more must be equal.
const STEPS: u64 = 3;

const BYTES: usize = 264;

pub(crate) fn recorded(config: &Config) -> anyhow::Result<Recording> {
    let folder = tempfile::tempdir().context("making a folder for a dry run")?;
    let described = folder.path().join("rehearsal.json");
    let text = folder.path().join("text.txt");
    write_text(&text, config.sequence()).with_context(|| format!("writing {}", text.display()))?;
    fs::write(&described, shortened(config, &text).to_json())
        .with_context(|| format!("writing {}", described.display()))?;
    let trace = folder.path().join("raw.trace");
    run_dry(&folder, &described, &trace)?;
    let bytes = fs::read(&trace).with_context(|| format!("reading {}", trace.display()))?;
    let recording = Recording::from_bytes(&bytes).context("the dry run's recording cannot be read")?;
    recording.repeating().context("the dry run's step does not repeat")
}

fn run_dry(folder: &TempDir, config: &Path, trace: &Path) -> anyhow::Result<()> {
    let program = env::current_exe().context("finding this program")?;
    let mut command = Command::new(program);
    for (name, _) in env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("OFFLOAD_")) {
        command.env_remove(name);
    }

    let output = command
        .args(["run", "--device", "cpu", "--config"])
        .arg(config)
        .arg("--out")
        .arg(folder.path().join("run"))
        .env("OFFLOAD_DRY_RUN", "1")
        .env("OFFLOAD_TRACE", trace)
        // Fresh mapped memory costs nothing until touched; glibc's heap would be cleared.
        .env("MALLOC_MMAP_THRESHOLD_", "65536")
        .stdin(Stdio::null())
        .output()
        .context("starting a dry run of this program")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "the dry run failed:\n{}", said.trim_end());
    Ok(())
}

/// `config` with a few steps, without limits, evaluations, samples and checkpoints.
fn shortened(config: &Config, text: &Path) -> Config {
    let mut config = config.clone();
    config.train.steps = STEPS;
    config.train.schedule.warmup = 0.into();
    (config.train.epochs, config.train.tokens) = (None, None);
    // Batches name different numbers of embedding rows.
    config.train.overfit_one_batch = true;
    config.ranks = RanksSection::default();
    config.eval = EvalSection { every: 0, sequences: Some(1), sample_every: 0, ..EvalSection::default() };
    config.checkpoint = CheckpointSection { every: 0, last: false, ..CheckpointSection::default() };
    for budget in [&mut config.memory.device_budget, &mut config.memory.host_budget] {
        *budget = "unlimited".parse().expect("a budget");
    }

    (config.memory.disk, config.memory.max_disk_writes) = (None, None);

    let kind = if config.data.source == DataSource::Dialogues && config.model.vocab_size >= BYTES {
        config.data = DataSection { dialogues: 2000.max(config.sequence()), ..DataSection::default() };
        TokenizerKind::Bytes
    } else {
        config.data = DataSection {
            source: DataSource::Text,
            path: Some(text.to_owned()),
            val_fraction: 0.5,
            split: SplitKind::Position,
            ..DataSection::default()
        };
        TokenizerKind::Characters
    };

    let chat = kind == TokenizerKind::Bytes;
    config.tokenizer = TokenizerSection { kind, chat, ..TokenizerSection::default() };
    config
}

fn write_text(path: &Path, sequence: usize) -> std::io::Result<()> {
    let mut file = fs::File::create(path)?;
    file.write_all(&b"ab".repeat(2 * sequence + 2))
}

#[cfg(test)]
mod tests {
    use backend_offload::Budget;
    use runs::config::presets;

    use super::*;

    #[test]
    fn every_preset_can_be_rehearsed_with_its_own_shape() {
        for (file, _) in presets() {
            let preset = file.trim_end_matches(".json");
            let path = (preset == "shakespeare-char").then(|| "data.path=text.txt".to_owned());
            let config = Config::load(preset, path.as_slice()).expect("a preset");
            let short = shortened(&config, Path::new("text.txt"));
            let read = Config::from_text(&short.to_json(), "a rehearsal", &[]);
            let read = read.unwrap_or_else(|error| panic!("{preset}: {error}"));
            assert_eq!(read.model, config.model, "{preset}");
            assert_eq!(read.tokens_per_step(), config.tokens_per_step(), "{preset}");
            assert_eq!(read.memory.optimizer, config.memory.optimizer, "{preset}");
            assert_eq!(read.memory.device_budget.value(), Some(Budget::Unlimited), "{preset}");
        }
    }
}
