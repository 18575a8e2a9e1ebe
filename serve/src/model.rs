//! Loads a run from the disk and serves it on the inference thread.

use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use anyhow::Context;
use backend_offload::Stats;
use runs::checkpoint::Which;
use runs::device::DeviceChoice;
use runs::{Trained, Wanted};
use train::answering::{self, Batching, Loaded};
use web::{Counter, Counters, Desk, Model};

use crate::engine::answer;
use crate::newest::newest;
use crate::toy;

/// Where runs are made that are not told where.
const RUNS: &str = "runs";

/// Which model is to answer, and how.
#[derive(Debug)]
pub struct Asked {
    /// A run's directory or a checkpoint; else the newest run.
    pub from: Option<PathBuf>,
    /// One of the run's checkpoints; else the latest.
    pub which: Option<Which>,
    /// Changes to the run's configuration.
    pub set: Vec<String>,
    /// Device that the model runs on.
    pub device: DeviceChoice,
    /// How answers share it.
    pub batching: Batching,
}

/// Loads the model that is asked for, training the toy if there is none, and has it answer until the server ends.
pub fn serve(desk: Desk, asked: Asked) -> anyhow::Result<()> {
    let Asked { from, which, set, device, batching } = asked;
    let trained =
        || newest(Path::new(RUNS)).filter(|run| run != Path::new(toy::RUN) || !toy::is_unfinished(run));
    let from = match from.or_else(trained) {
        Some(from) => from,
        None => match toy::train(&desk)? {
            Some(run) => run,
            // Asked to end meanwhile.
            None => return Ok(()),
        },
    };
    // `/health` tells it to anybody: the name, and not where it lies.
    desk.doing(&format!("reading {}", name_of(&from)));
    let trained = Trained::open(Wanted { from: Some(&from), which, config: None, set: &set })?;
    let checkpoint = trained.checkpoint.path.clone();
    let written = checkpoint.metadata().and_then(|data| data.modified());
    let written = written.with_context(|| format!("looking at {}", checkpoint.display()))?;
    let created = written.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let answer = Box::new(move |Loaded { batch, tokenizer, config, device, stats }: Loaded<'_>| {
        let id = name_of(&from);
        tracing::info!("{} answers on {device}, as `{id}`", checkpoint.display());
        let model = Model { id, created, context: config.n_positions, vocabulary: config.vocab_size };
        answer(desk, batch, batching.slots, tokenizer, model, counters(stats));
        Ok(())
    });
    answering::load(trained, device, batching, answer)
}

/// A run is called as its directory is; a checkpoint as itself.
fn name_of(path: &Path) -> String {
    let path = path.canonicalize().unwrap_or_else(|_gone| path.to_owned());
    path.file_name().map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned())
}

/// How much spills, for whoever watches.
fn counters(stats: Box<dyn Fn() -> Stats + Send + Sync>) -> Counters {
    Box::new(move || {
        let stats = stats();
        let count = |name, help, total, value: u64| Counter { name, help, total, value: value as f64 };
        vec![
            count("device_bytes", "Bytes of tensors on the device.", false, stats.device.in_use),
            count("host_bytes", "Bytes of tensors in host memory.", false, stats.host.in_use),
            count("evictions_total", "Blocks copied from the device to the host.", true, stats.evictions),
            count("restores_total", "Blocks brought back.", true, stats.restores),
            count("bytes_out_total", "Bytes copied to the host.", true, stats.bytes_out),
            count("bytes_in_total", "Bytes brought back.", true, stats.bytes_in),
            Counter {
                name: "stall_seconds_total",
                help: "Time spent waiting for blocks to move.",
                total: true,
                value: stats.stall.as_secs_f64(),
            },
        ]
    })
}
