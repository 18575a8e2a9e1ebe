//! Loads a run from the disk and serves it on the inference thread.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use anyhow::Context;
use backend_offload::{Offload, Offloadable, stats};
use models::Lookup;
use runs::checkpoint::Which;
use runs::device::{self, DeviceChoice, Place, Setup, Work};
use runs::{Trained, Wanted};
use web::{Counter, Counters, Desk, Model};

use crate::engine::{Batching, answer};
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
    let setup = Setup::from(&trained.config).without_disk();
    device::with(device, &setup, Answering { desk, trained, from, batching })
}

struct Answering {
    desk: Desk,
    trained: Trained,
    from: PathBuf,
    batching: Batching,
}

impl Work for Answering {
    type Output = ();

    fn on<I: Offloadable>(self, device: &I::Device, place: &Place) -> anyhow::Result<()> {
        let Self { desk, trained, from, batching } = self;
        let gpt = trained.weights::<Offload<I>>(device)?;
        let checkpoint = &trained.checkpoint.path;
        let written = checkpoint.metadata().and_then(|data| data.modified());
        let written = written.with_context(|| format!("looking at {}", checkpoint.display()))?;
        let model = Model {
            id: name_of(&from),
            created: written.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
            context: gpt.config().n_positions,
            vocabulary: gpt.config().vocab_size,
        };
        tracing::info!("{} answers on {}, as `{}`", checkpoint.display(), place.name, model.id);
        let indexes = trained.indexes(|told| tracing::warn!("{told}"));
        let lookup = indexes.map(|indexes| Arc::new(indexes) as Arc<dyn Lookup>);
        answer(desk, &gpt, trained.tokenizer, model, counters::<I>(device), batching, lookup);
        Ok(())
    }
}

/// A run is called as its directory is; a checkpoint as itself.
fn name_of(path: &Path) -> String {
    let path = path.canonicalize().unwrap_or_else(|_gone| path.to_owned());
    path.file_name().map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned())
}

/// How much spills, for whoever watches.
fn counters<I: Offloadable>(device: &I::Device) -> Counters {
    let device = device.clone();
    Box::new(move || {
        let stats = stats::<I>(&device);
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
