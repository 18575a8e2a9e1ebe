//! The sections' keys, types and defaults. The model's own section is [`models::GptConfig`].

use std::path::{Path, PathBuf};

use backend_offload::Budget;
use serde::{Deserialize, Serialize};

use super::amounts::{Amount, DiskPart, Meaning};

/// The vocabulary.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TokenizerSection {
    /// How ids are made of text.
    pub kind: TokenizerKind,
    /// A tokenizer's folder or `tokenizer.json` (kind `file`).
    pub path: Option<PathBuf>,
    /// The most ids to learn (kind `bpe`).
    pub vocab_size: usize,
    /// Whether the vocabulary has the control tokens of conversations (kinds other than `file`).
    pub chat: bool,
}

/// How ids are made of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TokenizerKind {
    /// Byte-pair encoding, learned from the data before step 1.
    Bpe,
    /// One token per character that occurs.
    Characters,
    /// One token per byte.
    Bytes,
    /// Read from `path`.
    File,
}

/// The text to train on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DataSection {
    /// Where the text comes from.
    pub source: DataSource,
    /// A text file or folder (`text`); what `prepare` made, or a folder of llm.c's or nanoGPT's `.bin` files (`shards`).
    pub path: Option<PathBuf>,
    /// How many conversations are generated (`dialogues`).
    pub dialogues: usize,
    /// The share held out for validation (`text` and `dialogues`).
    pub val_fraction: f64,
    /// How that share is chosen.
    pub split: SplitKind,
    /// Where sequences may begin.
    pub align: AlignKind,
    /// A new order of sequences every epoch.
    pub shuffle: bool,
    /// The fate of a record that cannot be used (`text`).
    pub on_bad_record: OnBadRecordKind,
    /// Texts that are looked up before the training text itself (`model.longest_match`), as `train index build` makes them.
    pub indexes: Vec<IndexEntry>,
}

/// An indexed text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IndexEntry {
    /// The index's folder.
    pub index: PathBuf,
    /// The folder of the prepared set it was built from.
    pub set: PathBuf,
}

/// Where the text comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DataSource {
    /// The embedded corpus: short conversations, generated.
    Dialogues,
    /// Plain text, JSON lines or Parquet at `path`.
    Text,
    /// Token shards at `path`.
    Shards,
}

/// How validation text is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SplitKind {
    /// A seeded hash of each document's text decides; of a single text file, its end.
    Document,
    /// The end of the text.
    Position,
}

/// Where sequences begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AlignKind {
    /// Back to back.
    Anywhere,
    /// At the beginning of a document.
    Document,
}

/// The fate of a record that cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnBadRecordKind {
    /// Skip: the record is counted, named and left out, as long as nine of ten records are clean.
    Skip,
    /// The record ends the preparation.
    Fail,
}

/// The training loop and its optimizer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrainSection {
    /// Optimizer steps.
    pub steps: u64,
    /// Sequences that pass through the network at once.
    pub micro_batch: usize,
    /// Micro-batches per optimizer step.
    pub accumulate: usize,
    /// Tokens per sequence; `null` means the model's `n_positions`.
    pub sequence: Option<usize>,
    /// The optimizer.
    pub optimizer: OptimizerKind,
    /// Peak learning rate; under `muon` hidden matrices have their own.
    pub lr: f64,
    /// Peak learning rate of hidden matrices (`muon`).
    pub matrix_lr: f64,
    /// Decay of the two moments (`adamw`).
    pub betas: [f64; 2],
    /// Added to the root of the second moment (`adamw`).
    pub epsilon: f64,
    /// Momentum (`sgd` and `muon`).
    pub momentum: f64,
    /// Shrinks matrices, never vectors.
    pub weight_decay: f64,
    /// Largest norm of all gradients together; `null` leaves them as they are.
    pub grad_clip: Option<f64>,
    /// The learning rate over the steps.
    pub schedule: ScheduleSection,
    /// Blocks that are run twice instead of kept, at a time; `null` keeps all.
    pub recompute: Option<usize>,
    /// Whether a GPU may round the factors of f32 products to TF32, as Burn does by itself.
    pub tf32: bool,
    /// Weight of the squared log-partition in the loss.
    pub z_loss: f64,
    /// Decides the first weights, the order of sequences and dropout.
    pub seed: u64,
    /// Every step sees the first batch, to check that the model can learn at all.
    pub overfit_one_batch: bool,
    /// Steps in a row with a NaN or infinite loss or gradient norm, after which the run ends.
    pub bad_steps: u64,
}

/// The optimizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OptimizerKind {
    /// Adam with decoupled weight decay.
    AdamW,
    /// Orthogonalised momentum for hidden matrices, `adamw` for the rest.
    Muon,
    /// Gradient descent with momentum.
    Sgd,
}

/// The learning rate over the steps, as a share of its peak.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ScheduleSection {
    /// The shape of the decay.
    pub kind: ScheduleKind,
    /// Steps from zero to the peak.
    pub warmup: u64,
    /// Share of the steps that the final decay takes (`linear`).
    pub decay: f64,
    /// Final learning rate, as a share of the peak.
    pub floor: f64,
}

/// The shape of the learning rate's decay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScheduleKind {
    /// Half a cosine from the peak to the floor.
    Cosine,
    /// Constant at the peak, then a straight line to the floor.
    Linear,
    /// Constant at the peak.
    Constant,
}

/// Evaluations, samples and the final quiz.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EvalSection {
    /// Steps between evaluations; 0 for none but the last.
    pub every: u64,
    /// Validation sequences per evaluation, always the same ones; `null` takes all.
    pub sequences: Option<u64>,
    /// Steps between samples; 0 for none but the last.
    pub sample_every: u64,
    /// Texts to continue.
    pub prompts: Vec<String>,
    /// Questions to answer, asked as a conversation.
    pub questions: Vec<String>,
    /// Held-out questions of the embedded corpus scored at the end (`dialogues`).
    pub quiz: usize,
    /// Tokens per sample at most.
    pub max_new_tokens: usize,
    /// 0 always takes the likeliest token.
    pub temperature: f64,
    /// Tokens considered; `null` considers all.
    pub top_k: Option<usize>,
}

/// Checkpoints: how often, and which are kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CheckpointSection {
    /// Steps between checkpoints; 0 for none but the last.
    pub every: u64,
    /// How many of the latest are kept.
    pub keep_last: usize,
    /// Checkpoints at multiples of this are never removed.
    pub keep_every: Option<u64>,
    /// Whether the run ends with a checkpoint. An interrupted run always does.
    pub last: bool,
}

/// How much memory may be used.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MemorySection {
    /// Bytes (`"6GiB"`), a share (`"80%"`), `"unlimited"` or `"auto"`.
    pub device_budget: Amount<Option<Budget>>,
    /// Budget of host memory, in the same forms: spilled tensors, and the optimizer where it is there.
    pub host_budget: Amount<Option<Budget>>,
    /// A folder on the disk that spilled tensors sink to when the host budget is used up, and what it does not hold of an optimizer's
    /// states on the host. Without it none is written to.
    pub disk: Option<PathBuf>,
    /// How much of that disk is taken when a run begins: bytes, or a share of what is free.
    pub disk_budget: Amount<DiskPart>,
    /// The run ends with a checkpoint before a step that would have written more than this to the disk since the run began
    /// (`"20TiB"`): drives wear out.
    pub max_disk_writes: Option<Amount<u64>>,
    /// Rated endurance of the drive (`"600TB"`), from which the plan says how long it lasts.
    pub disk_endurance: Option<Amount<u64>>,
    /// Where `adamw` and `sgd` keep their state and compute their steps. Numbers depend on it in their last digits.
    pub optimizer: PlacementKind,
    /// Whether ranks divide the moments: each keeps and steps its share of the parameters, and tells the others their weights.
    pub shard: bool,
    /// Number of first blocks whose parameters are stepped on the device although the optimizer is on the host (`host`).
    pub device_blocks: usize,
    /// Form of each parameter's state on the host (`host`).
    pub optimizer_state: StateKind,
    /// Format in which the blocks' matrices that are stepped on the host cross to the device (`host`).
    pub stream: StreamKind,
    /// Format in which their gradients leave the device (`host`).
    pub gradients: CrossingKind,
    /// Format in which the inputs of recomputed blocks are kept (`train.recompute`).
    pub activations: CrossingKind,
}

/// Where the optimizer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PlacementKind {
    /// On the device, with the weights. State that has no room spills like any tensor.
    Device,
    /// In host memory: a gradient goes out and weights come in, and nothing else of a step crosses the link.
    Host,
    /// Where the plan has room for it when a run begins. The run goes on with what was chosen then.
    Auto,
}

/// Form of a parameter's state on the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StateKind {
    /// 12 bytes per parameter, exact; 8 for `sgd`.
    F32,
    /// 8: moments of 16 bits; 6 for `sgd`.
    Bf16,
    /// 4: moments of 8 bits, and of matrices in bf16 only what completes them to f32. Not for `sgd`.
    Compact,
}

/// Format in which matrices cross to the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StreamKind {
    /// The type that products are computed in.
    Computed,
    /// A byte per parameter, a whole number, and a scale for each 128 of them.
    Int8,
    /// The same with floating-point numbers (e4m3).
    Fp8,
}

/// Format in which gradients of matrices leave the device, and activations are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CrossingKind {
    /// The type they are computed in.
    Computed,
    /// A byte each, a whole number (of gradients rounded at random), and a scale for each 128 of them.
    Int8,
}

impl Default for TokenizerSection {
    fn default() -> Self {
        Self { kind: TokenizerKind::Bpe, path: None, vocab_size: 50_257, chat: true }
    }
}

impl Default for DataSection {
    fn default() -> Self {
        Self {
            source: DataSource::Dialogues,
            path: None,
            dialogues: 20_000,
            val_fraction: 0.05,
            split: SplitKind::Document,
            align: AlignKind::Anywhere,
            shuffle: true,
            on_bad_record: OnBadRecordKind::Skip,
            indexes: Vec::new(),
        }
    }
}

impl Default for TrainSection {
    fn default() -> Self {
        Self {
            steps: 1000,
            micro_batch: 8,
            accumulate: 1,
            sequence: None,
            optimizer: OptimizerKind::AdamW,
            lr: 6e-4,
            matrix_lr: 0.02,
            betas: [0.9, 0.95],
            epsilon: 1e-8,
            momentum: 0.95,
            weight_decay: 0.1,
            grad_clip: Some(1.0),
            schedule: ScheduleSection::default(),
            recompute: None,
            tf32: true,
            z_loss: 0.0,
            seed: 1337,
            overfit_one_batch: false,
            bad_steps: 5,
        }
    }
}

impl Default for ScheduleSection {
    fn default() -> Self {
        Self { kind: ScheduleKind::Cosine, warmup: 100, decay: 0.65, floor: 0.1 }
    }
}

impl Default for EvalSection {
    fn default() -> Self {
        Self {
            every: 250,
            sequences: Some(64),
            sample_every: 500,
            prompts: Vec::new(),
            questions: Vec::new(),
            quiz: 0,
            max_new_tokens: 64,
            temperature: 0.8,
            top_k: Some(50),
        }
    }
}

impl Default for CheckpointSection {
    fn default() -> Self {
        Self { every: 250, keep_last: 2, keep_every: None, last: true }
    }
}

impl Default for MemorySection {
    fn default() -> Self {
        Self {
            device_budget: amount("auto"),
            host_budget: amount("auto"),
            disk: None,
            disk_budget: amount("50%"),
            max_disk_writes: None,
            disk_endurance: None,
            optimizer: PlacementKind::Device,
            shard: false,
            device_blocks: 0,
            optimizer_state: StateKind::F32,
            stream: StreamKind::Computed,
            gradients: CrossingKind::Computed,
            activations: CrossingKind::Computed,
        }
    }
}

impl MemorySection {
    /// Where `auto` stands here, what was chosen for it before stays chosen.
    pub fn keep_choice_of(&mut self, before: &Self) {
        if self.optimizer == PlacementKind::Auto {
            (self.optimizer, self.device_blocks) = (before.optimizer, before.device_blocks);
            self.optimizer_state = before.optimizer_state;
        }
    }

    /// The disk's folder and the part of it that is taken; `None` if no disk is named.
    pub fn disk_part(&self) -> Option<(&Path, DiskPart)> {
        self.disk.as_deref().map(|folder| (folder, self.disk_budget.value()))
    }
}

fn amount<T: Meaning>(text: &str) -> Amount<T> {
    text.parse().expect("a default that can be read")
}
