//! Loading a run and serving it on the inference thread.

use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use anyhow::Context;
use backend_offload::{Stats, TierStats};
use runs::checkpoint::Which;
use runs::device::DeviceChoice;
use runs::{Trained, Wanted};
use train::answering::{self, Batching, KvRoom, Loaded};
use web::{Counter, Counters, InferenceWorker, KvMemory, Model};

use crate::engine::answer;
use crate::newest::newest_run;
use crate::toy;

const RUNS: &str = "runs";

/// The model to serve.
#[derive(Debug)]
pub struct ServeOptions {
    /// A run's directory or a checkpoint; `None` is the newest run.
    pub from: Option<PathBuf>,
    /// Name of the model for clients; `None` is the folder's name.
    pub alias: Option<String>,
    /// One of the run's checkpoints; `None` is the latest.
    pub which: Option<Which>,
    /// Adapters for its weights, in PEFT's layout.
    pub adapter: Option<PathBuf>,
    /// Changes to the run's configuration.
    pub set: Vec<String>,
    /// Device that the model runs on.
    pub device: DeviceChoice,
    /// How answers share the device.
    pub batching: Batching,
}

/// Loads the model, or trains the toy, and answers until the server ends.
pub fn serve(mut worker: InferenceWorker, options: ServeOptions) -> anyhow::Result<()> {
    let ServeOptions { from, alias, which, adapter, set, device, batching } = options;
    let complete = |run: &Path| run != Path::new(toy::RUN) || !toy::is_unfinished(run);
    let trained = || newest_run(Path::new(RUNS), complete);
    let from = match from.or_else(trained) {
        Some(from) => from,
        None => match toy::train(&worker)? {
            Some(run) => run,
            None => return Ok(()),
        },
    };

    // Without its path: `/health` needs no key.
    worker.report_progress(&format!("reading {}", name_of(&from)));
    let trained = Trained::open(Wanted {
        from: Some(&from),
        which,
        config: None,
        set: &set,
        adapter: adapter.as_deref(),
    })?;
    worker.offer_examples(trained.config.eval.questions.clone());
    let checkpoint = trained.checkpoint.path.clone();
    let written = checkpoint.metadata().and_then(|data| data.modified());
    let written = written.with_context(|| format!("looking at {}", checkpoint.display()))?;
    let created = written.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());

    let disk = set.iter().any(|set| set.starts_with("memory.disk="));
    let answer = Box::new(move |Loaded { batch, tokenizer, config, room, device, stats }: Loaded<'_>| {
        let id = alias.unwrap_or_else(|| name_of(&from));
        tracing::info!("{} answers on {device}, as `{id}`", checkpoint.display());
        tracing::info!("{} (--kv-budget)", room.describe(config, batching.slots));
        let KvRoom { bytes: budget, bytes_per_token, positions: tokens } = room;
        let kv = Some(KvMemory { budget, bytes_per_token, tokens });
        let model = Model { id, created, context: config.n_positions, vocabulary: config.vocab_size, kv };
        answer(worker, batch, batching.slots, tokenizer, model, counters(stats));
        Ok(())
    });
    answering::load(trained, device, disk, batching, answer)
}

fn name_of(path: &Path) -> String {
    let path = path.canonicalize().unwrap_or_else(|_gone| path.to_owned());
    path.file_name().map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned())
}

fn counters(stats: Box<dyn Fn() -> Stats + Send + Sync>) -> Counters {
    Box::new(move || {
        let stats = stats();
        let count = |name, help, total, value: u64| Counter { name, help, total, value: value as f64 };
        let budget = |tier: TierStats| tier.budget.unwrap_or(0);
        vec![
            count("device_bytes", "Bytes of tensors on the device.", false, stats.device.in_use),
            count("host_bytes", "Bytes of tensors in host memory.", false, stats.host.in_use),
            count("disk_bytes", "Bytes of tensors on the disk.", false, stats.disk.in_use),
            count("device_budget_bytes", "Limit on device_bytes; 0 is none.", false, budget(stats.device)),
            count("host_budget_bytes", "Limit on host_bytes; 0 is none.", false, budget(stats.host)),
            count("disk_budget_bytes", "Limit on disk_bytes.", false, budget(stats.disk)),
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
