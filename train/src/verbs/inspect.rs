//! `train inspect`: the contents of a run directory or a checkpoint, with every byte checked.

use std::path::{Path, PathBuf};

use anyhow::Context;
use backend_offload::Bytes;
use models::Footprint;
use runs::checkpoint::CONFIG;
use runs::checkpoint::{Checkpoints, Verified};
use runs::config::Config;
use runs::directory::{is_checkpoint, neither};
use serde_json::{Value, json};

use crate::training;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A run's directory or a checkpoint.
    path: PathBuf,
    /// Print as JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let path = &args.path;
    let checkpoints: Vec<(PathBuf, anyhow::Result<Verified>)> = if is_checkpoint(path) {
        vec![(path.clone(), Ok(whole(path)?))]
    } else if path.join(CONFIG).exists() {
        let folders = Checkpoints::in_run(path).folders()?;
        folders.into_iter().map(|folder| (folder.clone(), whole(&folder))).collect()
    } else {
        return Err(neither(path, "train inspect").into());
    };
    // After the checksums: a flipped bit is damage, not a wrong key.
    let config = Config::load(&path.join(CONFIG).to_string_lossy(), &[])?;
    let parameters = Footprint::of(&config.model)?.parameters;
    let damaged = checkpoints.iter().filter(|(_, verified)| verified.is_err()).count();

    if args.json {
        let described: Vec<Value> =
            checkpoints.iter().map(|(path, verified)| describe(path, verified)).collect();
        let record =
            json!({ "parameters": parameters, "steps": config.train.steps, "checkpoints": described });
        println!("{record:#}");
    } else {
        println!("{}: {parameters} parameters, {} steps planned", path.display(), config.train.steps);
        for (path, verified) in &checkpoints {
            match verified {
                Ok(found) => {
                    println!("{}: step {}, {}, whole", path.display(), found.step, Bytes(found.bytes));
                }
                Err(error) => println!("{}: {error:#}", path.display()),
            }
        }
        if checkpoints.is_empty() {
            println!("no checkpoint yet");
        }
    }

    anyhow::ensure!(damaged == 0, "{damaged} of {} checkpoints are damaged", checkpoints.len());
    Ok(())
}

/// Fails unless the checkpoint is undamaged and has the tensors of a resume.
fn whole(path: &Path) -> anyhow::Result<Verified> {
    let verified = Checkpoints::open(path)?;
    training::check(path).with_context(|| format!("the checkpoint {} cannot be used", path.display()))?;
    Ok(verified)
}

fn describe(path: &Path, verified: &anyhow::Result<Verified>) -> Value {
    match verified {
        Ok(found) => json!({ "path": path, "step": found.step, "bytes": found.bytes, "whole": true }),
        Err(error) => json!({ "path": path, "whole": false, "error": format!("{error:#}") }),
    }
}
