//! Keys, types and defaults of sections but [`models::GptConfig`].

use std::path::{Path, PathBuf};

use backend_offload::Budget;
use models::{BaseForm, InputForm, LoraConfig, ParameterGroup};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokenizer::ChatFormat;

use super::amounts::{Amount, DiskPart, Meaning};
use super::groups::GroupSection;
use super::lora::LoraBase;
use super::shard::ShardKind;
use super::together::Together;
use super::warm_up::WarmUp;

/// The vocabulary.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TokenizerSection {
    /// Kind of tokenizer.
    pub kind: TokenizerKind,
    /// Tokenizer folder or `tokenizer.json` (`file`).
    pub path: Option<PathBuf>,
    /// Most ids to learn (`bpe`).
    pub vocab_size: usize,
    /// Whether chat control tokens are added (not `file`).
    pub chat: bool,
    /// Chat format, in place of the vocabulary's own template.
    pub template: Option<ChatFormat>,
}

/// Kind of tokenizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum TokenizerKind {
    /// Byte-pair encoding, learned before step 1.
    Bpe,
    /// A token per character that occurs.
    Characters,
    /// A token per byte.
    Bytes,
    /// Read from `path`.
    File,
}

/// The training text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DataSection {
    /// Source of the text.
    pub source: DataSource,
    /// A text file or folder (`text`); a prepared set, or a folder of llm.c's or nanoGPT's `.bin` files (`shards`).
    pub path: Option<PathBuf>,
    /// Several of them, in place of `path`.
    pub mixture: Vec<MixturePart>,
    /// A text file, folder or prepared set to validate with, in place of a share of the training text.
    pub val_path: Option<PathBuf>,
    /// Generated conversations (`dialogues`).
    pub dialogues: usize,
    /// Share held out for validation (`text`, `dialogues`).
    pub val_fraction: f64,
    /// How validation text is chosen.
    pub split: SplitKind,
    /// Where sequences may begin.
    pub align: AlignKind,
    /// Whether each epoch has a new order.
    pub shuffle: bool,
    /// Treatment of unusable records (`text`).
    pub on_bad_record: OnBadRecordKind,
    /// Indexes of `train index build`, searched before the training text (`model.longest_match`).
    pub indexes: Vec<IndexEntry>,
}

/// A part of the training text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MixturePart {
    /// A text or a prepared set, as `data.path`.
    pub path: PathBuf,
    /// Share of the sequences, among all weights.
    pub weight: f64,
}

/// An indexed text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IndexEntry {
    /// Index folder.
    pub index: PathBuf,
    /// The prepared set it indexes.
    pub set: PathBuf,
}

/// Source of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DataSource {
    /// The embedded corpus of generated conversations.
    Dialogues,
    /// Plain text, JSON lines or Parquet at `path`.
    Text,
    /// Token shards at `path`.
    Shards,
}

/// How validation text is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SplitKind {
    /// By a seeded hash of each document's text; the end of a single text file.
    Document,
    /// The end of the text.
    Position,
}

/// Where sequences begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AlignKind {
    /// Back to back.
    Anywhere,
    /// At a document's beginning.
    Document,
}

/// Treatment of unusable records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnBadRecordKind {
    /// Counts, names and skips the record, while nine in ten are clean.
    Skip,
    /// Ends the preparation.
    Fail,
}

/// Training loop and optimizer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TrainSection {
    /// Optimizer steps, unless `epochs` or `tokens` is given.
    pub steps: u64,
    /// Passes over the training text, converted to steps once it is prepared.
    pub epochs: Option<f64>,
    /// Tokens of all steps.
    pub tokens: Option<u64>,
    /// Sequences per pass through the network.
    pub micro_batch: usize,
    /// Micro-batches per optimizer step.
    pub accumulate: usize,
    /// Tokens per sequence; `null` means `n_positions`.
    pub sequence: Option<usize>,
    /// The optimizer.
    pub optimizer: OptimizerKind,
    /// Peak learning rate; another for hidden matrices under `muon`.
    pub lr: f64,
    /// That of hidden matrices (`muon`).
    pub matrix_lr: f64,
    /// Decay rates of both moments (`adamw`).
    pub betas: [f64; 2],
    /// Added to the root of the second moment (`adamw`).
    pub epsilon: f64,
    /// Momentum (`sgd` and `muon`).
    pub momentum: f64,
    /// Decay of matrices; vectors have none.
    pub weight_decay: f64,
    /// Maximum global gradient norm; `null` does not clip.
    pub grad_clip: Option<f64>,
    /// The learning rate over the steps.
    pub schedule: ScheduleSection,
    /// Blocks recomputed at a time; `null` keeps all activations.
    pub recompute: Option<usize>,
    /// Micro-batches that pass a recomputed segment before the next one's weights come: a power of two, or `auto`.
    /// Changes no number.
    pub together: Together,
    /// Whether a GPU may round factors of f32 products to TF32, Burn's default.
    pub tf32: bool,
    /// Weight of the squared log-partition in the loss.
    pub z_loss: f64,
    /// Seed of initial weights, sequence order and dropout.
    pub seed: u64,
    /// Whether all steps see the first batch, to check learning.
    pub overfit_one_batch: bool,
    /// Groups that do not learn: `embedding`, `blocks`, `blocks.N`, `blocks.N-M` (from 0), `attention`, `mlp`, `norms`,
    /// `biases`, `head`, `followers`.
    pub freeze: Vec<ParameterGroup>,
    /// Groups with a learning rate or decay of their own; the last that has a parameter counts.
    pub groups: Vec<GroupSection>,
    /// Adapters, which learn instead of the weights that the run begins with; `null` trains all weights.
    pub lora: Option<LoraConfig>,
    /// The frozen weights (`lora`); the run fills it in. The path may change.
    pub lora_base: Option<LoraBase>,
    /// Consecutive skipped steps (loss or norm NaN or infinite) that end the run.
    pub bad_steps: u64,
}

/// The optimizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OptimizerKind {
    /// Adam with decoupled weight decay.
    AdamW,
    /// Orthogonalised momentum for hidden matrices, `adamw` for the rest.
    Muon,
    /// Gradient descent with momentum.
    Sgd,
}

/// The learning rate over the steps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ScheduleSection {
    /// Shape of the decay.
    pub kind: ScheduleKind,
    /// Steps from zero to the peak, or their share. A shorter run warms up for a tenth.
    pub warmup: WarmUp,
    /// Share of steps in the final decay (`linear`).
    pub decay: f64,
    /// Final share of the peak.
    pub floor: f64,
}

/// Shape of the decay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ScheduleKind {
    /// Half a cosine, from peak to floor.
    Cosine,
    /// Constant, then linear to the floor.
    Linear,
    /// Constant.
    Constant,
}

/// Evaluations, samples and the final quiz.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EvalSection {
    /// Steps between evaluations; 0 for only the last.
    pub every: u64,
    /// Validation sequences per evaluation, the same each time; `null` takes all.
    pub sequences: Option<u64>,
    /// Steps between samples; 0 for only the last.
    pub sample_every: u64,
    /// Texts to continue.
    pub prompts: Vec<String>,
    /// Questions to answer as a conversation.
    pub questions: Vec<String>,
    /// Held-out questions scored at the end (`dialogues`).
    pub quiz: usize,
    /// Most tokens per sample.
    pub max_new_tokens: usize,
    /// Temperature; 0 takes the likeliest token.
    pub temperature: f64,
    /// Likeliest tokens to sample from; `null` takes all.
    pub top_k: Option<usize>,
}

/// How often to save, and what to keep.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CheckpointSection {
    /// Steps between checkpoints; 0 for only the last.
    pub every: u64,
    /// Latest checkpoints to keep.
    pub keep_last: usize,
    /// Multiples of this are never removed.
    pub keep_every: Option<u64>,
    /// Whether the run ends with a checkpoint; an interrupted one always does.
    pub last: bool,
}

/// Memory budgets and placement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MemorySection {
    /// Device memory: bytes (`"6GiB"`), a share (`"80%"`), `"unlimited"` or `"auto"`.
    pub device_budget: Amount<Option<Budget>>,
    /// Host memory for spilled tensors and a host optimizer.
    pub host_budget: Amount<Option<Budget>>,
    /// Folder for tensors and optimizer states beyond the host budget; `null` for none.
    pub disk: Option<PathBuf>,
    /// Disk space reserved at the start: bytes, or a share of the free space.
    pub disk_budget: Amount<DiskPart>,
    /// Limit on disk writes (`"20TiB"`). Before a step would exceed it, the run ends with a checkpoint.
    pub max_disk_writes: Option<Amount<u64>>,
    /// The drive's rated endurance (`"600TB"`), for the plan's estimate of its lifetime.
    pub disk_endurance: Option<Amount<u64>>,
    /// Where `adamw` and `sgd` keep state and step. Results differ in their last digits.
    pub optimizer: PlacementKind,
    /// What ranks divide: nothing, the optimizer (`"states"`, also `true`), or also the blocks' matrices (`"weights"`).
    pub shard: ShardKind,
    /// First blocks stepped on the device (`host`).
    pub device_blocks: usize,
    /// Form of state on the host (`host`).
    pub optimizer_state: StateKind,
    /// Transfer format of host-stepped blocks' matrices (`host`).
    pub stream: StreamKind,
    /// Transfer format of their gradients (`host`).
    pub gradients: CrossingKind,
    /// Storage format of recomputed blocks' inputs (`train.recompute`).
    pub activations: InputForm,
    /// Form of the blocks' frozen matrices (`train.lora`), rounded once.
    pub base: BaseForm,
}

/// Place of the optimizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PlacementKind {
    /// With the weights. State that does not fit spills like any tensor.
    Device,
    /// In host memory: only gradients and new weights cross the link.
    Host,
    /// The plan's choice at the start. A resumed run keeps it.
    Auto,
}

/// Form of host state, per parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum StateKind {
    /// 12 bytes, exact; 8 for `sgd`.
    F32,
    /// 8 bytes, with 16-bit moments; 6 for `sgd`.
    Bf16,
    /// 4 bytes: 8-bit moments, and the bits that complete bf16 matrices to f32. Not for `sgd`.
    Compact,
}

/// Transfer format of matrices to the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum StreamKind {
    /// The compute type.
    Computed,
    /// 8-bit integers and a scale per 128.
    Int8,
    /// 8-bit floats (e4m3) and a scale per 128.
    Fp8,
}

/// Format of gradients in transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CrossingKind {
    /// The type they are computed in.
    Computed,
    /// 8-bit integers, rounded randomly, and a scale per 128.
    Int8,
}

/// What a run writes for other programs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ReportSection {
    /// Whether `TensorBoard`'s event files are written beside `metrics.jsonl`.
    pub tensorboard: bool,
}

impl Default for TokenizerSection {
    fn default() -> Self {
        Self { kind: TokenizerKind::Bpe, path: None, vocab_size: 50_257, chat: true, template: None }
    }
}

impl Default for DataSection {
    fn default() -> Self {
        Self {
            source: DataSource::Dialogues,
            path: None,
            mixture: Vec::new(),
            val_path: None,
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
            freeze: Vec::new(),
            groups: Vec::new(),
            lora: None,
            lora_base: None,
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
            shard: ShardKind::None,
            device_blocks: 0,
            optimizer_state: StateKind::F32,
            stream: StreamKind::Computed,
            gradients: CrossingKind::Computed,
            activations: InputForm::Computed,
            base: BaseForm::Computed,
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

    /// Disk folder, and the part to reserve.
    pub fn disk_part(&self) -> Option<(&Path, DiskPart)> {
        self.disk.as_deref().map(|folder| (folder, self.disk_budget.value()))
    }
}

fn amount<T: Meaning>(text: &str) -> Amount<T> {
    text.parse().expect("a default that can be read")
}
