//! Keys, types and defaults of the sections. The model's section is [`models::GptConfig`].

use std::path::{Path, PathBuf};

use backend_offload::Budget;
use serde::{Deserialize, Serialize};

use super::amounts::{Amount, DiskPart, Meaning};
use super::together::Together;
use super::warm_up::WarmUp;

/// The vocabulary.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TokenizerSection {
    /// Kind of tokenizer.
    pub kind: TokenizerKind,
    /// A tokenizer's folder or `tokenizer.json` (kind `file`).
    pub path: Option<PathBuf>,
    /// Maximum number of ids to learn (kind `bpe`).
    pub vocab_size: usize,
    /// Whether the vocabulary has chat control tokens (kinds other than `file`).
    pub chat: bool,
}

/// Kind of tokenizer.
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
    /// Source of the text.
    pub source: DataSource,
    /// A text file or folder (`text`); a prepared set, or a folder of llm.c's or nanoGPT's `.bin` files (`shards`).
    pub path: Option<PathBuf>,
    /// Number of generated conversations (`dialogues`).
    pub dialogues: usize,
    /// The share held out for validation (`text` and `dialogues`).
    pub val_fraction: f64,
    /// How the validation text is chosen.
    pub split: SplitKind,
    /// Where sequences may begin.
    pub align: AlignKind,
    /// Whether sequences have a new order in every epoch.
    pub shuffle: bool,
    /// Treatment of records that cannot be used (`text`).
    pub on_bad_record: OnBadRecordKind,
    /// Indexes of `train index build` that are searched before the training text itself (`model.longest_match`).
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

/// Source of the text.
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
    /// By a seeded hash of each document's text; the end of a single text file.
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

/// Treatment of records that cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnBadRecordKind {
    /// The record is counted, named and skipped, as long as nine of ten records are clean.
    Skip,
    /// The record ends the preparation.
    Fail,
}

/// The training loop and its optimizer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrainSection {
    /// Optimizer steps, unless `epochs` or `tokens` gives the length.
    pub steps: u64,
    /// Passes over the training text; the number of steps follows when the text is prepared.
    pub epochs: Option<f64>,
    /// Tokens of all steps.
    pub tokens: Option<u64>,
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
    /// Decay rates of the two moments (`adamw`).
    pub betas: [f64; 2],
    /// Added to the root of the second moment (`adamw`).
    pub epsilon: f64,
    /// Momentum (`sgd` and `muon`).
    pub momentum: f64,
    /// Weight decay of matrices; vectors have none.
    pub weight_decay: f64,
    /// Maximum norm of all gradients together; `null` does not clip.
    pub grad_clip: Option<f64>,
    /// The learning rate over the steps.
    pub schedule: ScheduleSection,
    /// Blocks that the backward pass recomputes at a time; `null` keeps all activations.
    pub recompute: Option<usize>,
    /// Micro-batches that pass each recomputed segment before the next one's weights come: a power of two, or `auto`.
    /// Changes no number.
    pub together: Together,
    /// Whether a GPU may round factors of f32 products to TF32, Burn's default.
    pub tf32: bool,
    /// Weight of the squared log-partition in the loss.
    pub z_loss: f64,
    /// Seed of initial weights, the order of sequences and dropout.
    pub seed: u64,
    /// Whether every step sees the first batch, to check that the model learns.
    pub overfit_one_batch: bool,
    /// Consecutive skipped steps (NaN or infinity as loss or norm) that end the run.
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
    /// Steps from zero to the peak, or their share of all steps. A run shorter than this count warms up for a tenth.
    pub warmup: WarmUp,
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
    /// Validation sequences per evaluation, always the same; `null` takes all.
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
    /// Sampling temperature; 0 always takes the likeliest token.
    pub temperature: f64,
    /// Number of likeliest tokens to sample from; `null` samples from all.
    pub top_k: Option<usize>,
}

/// Checkpoints: how often, and which are kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CheckpointSection {
    /// Steps between checkpoints; 0 for none but the last.
    pub every: u64,
    /// Latest checkpoints to keep.
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
    /// Budget of device memory: bytes (`"6GiB"`), a share (`"80%"`), `"unlimited"` or `"auto"`.
    pub device_budget: Amount<Option<Budget>>,
    /// Budget of host memory for spilled tensors and an optimizer on the host.
    pub host_budget: Amount<Option<Budget>>,
    /// Folder for tensors and optimizer states beyond the host budget; `null` uses no disk.
    pub disk: Option<PathBuf>,
    /// Disk space reserved when a run begins: bytes, or a share of the free space.
    pub disk_budget: Amount<DiskPart>,
    /// Limit on bytes written to the disk (`"20TiB"`). Before a step would exceed it, the run ends with a checkpoint.
    pub max_disk_writes: Option<Amount<u64>>,
    /// Rated endurance of the drive (`"600TB"`), for the plan's estimate of its lifetime.
    pub disk_endurance: Option<Amount<u64>>,
    /// Place where `adamw` and `sgd` keep state and compute steps. Results differ in their last digits.
    pub optimizer: PlacementKind,
    /// Whether ranks shard the moments: each steps its share of the parameters and sends the weights.
    pub shard: bool,
    /// First blocks whose parameters are stepped on the device (`host`).
    pub device_blocks: usize,
    /// Form of each parameter's state on the host (`host`).
    pub optimizer_state: StateKind,
    /// Transfer format to the device of the blocks' matrices that are stepped on the host (`host`).
    pub stream: StreamKind,
    /// Transfer format of their gradients to the host (`host`).
    pub gradients: CrossingKind,
    /// Storage format of the inputs of recomputed blocks (`train.recompute`).
    pub activations: CrossingKind,
}

/// Place of the optimizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PlacementKind {
    /// On the device, with the weights. State that does not fit spills like any tensor.
    Device,
    /// In host memory: only gradients and new weights cross the link.
    Host,
    /// The place that the plan chooses when a run begins. A resumed run keeps it.
    Auto,
}

/// Form of a parameter's state on the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StateKind {
    /// 12 bytes per parameter, exact; 8 for `sgd`.
    F32,
    /// 8 bytes per parameter, with moments of 16 bits; 6 for `sgd`.
    Bf16,
    /// 4 bytes per parameter: 8-bit moments, and the bits that complete bf16 matrices to f32. Not for `sgd`.
    Compact,
}

/// Transfer format of matrices to the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StreamKind {
    /// The compute type.
    Computed,
    /// An 8-bit integer per parameter, and a scale per 128.
    Int8,
    /// An 8-bit float (e4m3) per parameter, and a scale per 128.
    Fp8,
}

/// Transfer format of gradients of matrices, and storage format of activations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CrossingKind {
    /// The type they are computed in.
    Computed,
    /// An 8-bit integer per number, rounded randomly for gradients, and a scale per 128.
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
            epochs: None,
            tokens: None,
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
            together: Together::Auto,
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
        Self { kind: ScheduleKind::Cosine, warmup: WarmUp::Steps(100), decay: 0.65, floor: 0.1 }
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
    /// Replaces `auto` by the choice in `before`.
    pub fn keep_auto_choice(&mut self, before: &Self) {
        if self.optimizer == PlacementKind::Auto {
            (self.optimizer, self.device_blocks) = (before.optimizer, before.device_blocks);
            self.optimizer_state = before.optimizer_state;
        }
    }

    /// Folder on the disk and the part of the disk to reserve; `None` without a disk.
    pub fn disk_part(&self) -> Option<(&Path, DiskPart)> {
        self.disk.as_deref().map(|folder| (folder, self.disk_budget.value()))
    }
}

fn amount<T: Meaning>(text: &str) -> Amount<T> {
    text.parse().expect("a default that can be read")
}
