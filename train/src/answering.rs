//! Loads trained models for programs that answer many requests, such as `serve`.

use std::sync::Arc;

use backend_offload::{Budget, Offload, Offloadable, Stats, available_host_memory, stats};
use burn::tensor::backend::Backend;
use models::{Continuing, Continuous, Gpt, GptConfig, Lookup};
use runs::Trained;
use runs::device::{self, DeviceChoice, Place, Setup, Work};
use tokenizer::Tokenizer;

pub use crate::kv_room::KvRoom;
use crate::kv_room::bytes_left;

/// How concurrent answers share the model.
#[derive(Debug, Clone, Copy)]
pub struct Batching {
    /// Most answers at once.
    pub slots: usize,
    /// Prompt tokens read between two tokens of the running answers.
    pub prompt_piece: usize,
    /// Memory for keys and values; `None` takes a share of what the weights leave.
    pub kv_budget: Option<Budget>,
}

impl Default for Batching {
    fn default() -> Self {
        Self { slots: 16, prompt_piece: 256, kv_budget: None }
    }
}

impl Batching {
    /// An empty batch of `gpt` within `room`.
    pub fn batch<B: Backend>(
        self,
        gpt: &Gpt<B>,
        room: KvRoom,
        lookup: Option<Arc<dyn Lookup>>,
    ) -> Continuous<'_, B> {
        Continuous::new(gpt, self.prompt_piece, room.positions).looking_up(lookup)
    }
}

/// A model whose weights are on a device.
pub struct Loaded<'a> {
    /// Continues texts.
    pub batch: &'a mut dyn Continuing,
    /// The checkpoint's tokenizer.
    pub tokenizer: Tokenizer,
    /// The model's dimensions.
    pub config: &'a GptConfig,
    /// Memory for keys and values.
    pub room: KvRoom,
    /// The device's name.
    pub device: &'a str,
    /// Reads the device's counters, such as spilled bytes.
    pub stats: Box<dyn Fn() -> Stats + Send + Sync>,
}

/// A use of a [`Loaded`] model; a type parameter would compile the model for each caller.
pub type Use<'a> = Box<dyn FnOnce(Loaded<'_>) -> anyhow::Result<()> + 'a>;

/// Loads a checkpoint's weights to `device` and calls `then`. Only with `disk` the disk is used: the run may use it.
pub fn load(
    trained: Trained,
    device: DeviceChoice,
    disk: bool,
    batching: Batching,
    then: Use<'_>,
) -> anyhow::Result<()> {
    let setup = Setup::from(&trained.config);
    let setup = if disk { setup } else { setup.without_disk() };
    device::with(device, &setup, Loading { trained, batching, then })
}

struct Loading<'a> {
    trained: Trained,
    batching: Batching,
    then: Use<'a>,
}

impl Work for Loading<'_> {
    type Output = ();

    fn on<I: Offloadable>(self, device: &I::Device, place: &Place) -> anyhow::Result<()> {
        let Self { trained, batching, then } = self;
        let gpt = trained.for_inference::<Offload<I>>(device)?;
        let indexes = trained.indexes(|warning| tracing::warn!("{warning}"));
        let lookup = indexes.map(|indexes| Arc::new(indexes) as Arc<dyn Lookup>);
        let config = gpt.config();
        let Stats { device: on_device, host, .. } = stats::<I>(device);
        let context = config.kv_bytes_per_token().saturating_mul(config.n_positions as u64);
        let left = bytes_left(on_device, host, context).or_else(available_host_memory);
        let room = KvRoom::new(config, batching.slots, batching.kv_budget, left)?;
        let mut batch = batching.batch(&gpt, room, lookup);
        let owned = device.clone();
        let stats = Box::new(move || stats::<I>(&owned));
        let tokenizer = trained.tokenizer;
        then(Loaded { batch: &mut batch, tokenizer, config, room, device: &place.name, stats })
    }
}
