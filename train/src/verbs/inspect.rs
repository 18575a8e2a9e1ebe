//! `train inspect`: what is in a run directory or a checkpoint, every byte checked.

use std::path::{Path, PathBuf};

use backend_offload::Bytes;
use models::Footprint;
use serde_json::{Value, json};

use crate::checkpoint::{CheckpointError, Checkpoints, Verified};
use crate::config::Config;
use crate::run_directory::{is_checkpoint, neither};
use crate::training::CONFIG;

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
    let checkpoints: Vec<(PathBuf, Result<Verified, CheckpointError>)> = if is_checkpoint(path) {
        vec![(path.clone(), Ok(Checkpoints::open(path)?))]
    } else if path.join(CONFIG).exists() {
        let folders = Checkpoints::in_run(path).folders()?;
        folders.into_iter().map(|folder| (folder.clone(), Checkpoints::open(&folder))).collect()
    } else {
        return Err(neither(path).into());
    };
    // After the checksums: a flipped bit in it is damage, not a wrong key.
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
                Err(error) => println!("{}: {error}", path.display()),
            }
        }
        if checkpoints.is_empty() {
            println!("no checkpoint yet");
        }
    }
    anyhow::ensure!(damaged == 0, "{damaged} of {} checkpoints are damaged", checkpoints.len());
    Ok(())
}

fn describe<E: std::fmt::Display>(path: &Path, verified: &Result<Verified, E>) -> Value {
    match verified {
        Ok(found) => json!({ "path": path, "step": found.step, "bytes": found.bytes, "whole": true }),
        Err(error) => json!({ "path": path, "whole": false, "error": error.to_string() }),
    }
}
