//! Refuses values out of range or incompatible, without opening files. Refusals name keys, values and the way out.

mod data;
mod groups;
mod lora;
mod ranks;

use std::fmt::Display;

use models::{Compute, InputForm};
use serde::Serialize;
use tokenizer::CHAT_SPECIALS;

use super::error::Combination;
use super::{
    AlignKind, Config, CrossingKind, DataSource, MemorySection, OptimizerKind, PlacementKind, Purpose,
    StateKind, StreamKind, TokenizerKind, TrainSection,
};

/// The corpus is made in memory.
const MAX_DIALOGUES: usize = 1_000_000;
const MAX_QUESTIONS: usize = 100_000;

/// Beyond any text.
const MOST_TOKENS: u64 = 1 << 60;

/// Limit on tokens per continuation.
pub const MOST_NEW_TOKENS: u64 = 1_000_000;

pub(super) fn combinations(config: &Config, purpose: Purpose) -> Vec<Combination> {
    let mut refusals = Refusals(Vec::new());
    refusals.counts(config);
    refusals.lengths(config);
    refusals.optimizer(config);
    refusals.schedule(config);
    refusals.sampling(config);
    refusals.paths(config);
    refusals.mixture(config);
    refusals.vocabulary(config);
    refusals.conversations(config);
    refusals.memory(config);
    refusals.ranks(config);
    refusals.lora(config, purpose);
    refusals.groups(config);
    refusals.0
}

struct Refusals(Vec<Combination>);

/// What else an optimizer needs that a remedy moves to the device.
fn state_of_device(memory: &MemorySection) -> &'static str {
    if memory.optimizer_state == StateKind::F32 { "" } else { " and `memory.optimizer_state` to \"f32\"" }
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("names, numbers and paths that were read from JSON serialise")
}

impl Refusals {
    fn add(&mut self, keys: &[&'static str], text: String) {
        self.0.push(Combination { keys: keys.to_vec(), text });
    }

    fn unless(&mut self, fine: bool, key: &'static str, value: impl Display, range: &str) {
        if !fine {
            self.add(&[key], format!("`{key}` = {value} must be {range}"));
        }
    }

    fn counts(&mut self, Config { data, train, eval, checkpoint, .. }: &Config) {
        for (key, count) in [
            ("train.steps", train.steps),
            ("train.micro_batch", train.micro_batch as u64),
            ("train.accumulate", train.accumulate as u64),
            ("train.bad_steps", train.bad_steps),
            ("eval.max_new_tokens", eval.max_new_tokens as u64),
            ("checkpoint.keep_last", checkpoint.keep_last as u64),
        ] {
            self.unless(count > 0, key, count, "at least 1");
        }

        for (key, count) in [
            ("train.sequence", train.sequence.map(|tokens| tokens as u64)),
            ("train.recompute", train.recompute.map(|blocks| blocks as u64)),
            ("train.tokens", train.tokens),
            ("eval.sequences", eval.sequences),
            ("eval.top_k", eval.top_k.map(|tokens| tokens as u64)),
            ("checkpoint.keep_every", checkpoint.keep_every),
        ] {
            self.unless(count != Some(0), key, 0, "at least 1, or null");
        }

        for (key, count, most) in [
            ("data.dialogues", data.dialogues as u64, MAX_DIALOGUES as u64),
            ("eval.quiz", eval.quiz as u64, MAX_QUESTIONS as u64),
            ("eval.max_new_tokens", eval.max_new_tokens as u64, MOST_NEW_TOKENS),
        ] {
            self.unless(count <= most, key, count, &format!("at most {most}"));
        }
    }

    fn lengths(&mut self, config: &Config) {
        let (train, positions) = (&config.train, config.model.n_positions);
        if let Some(sequence) = train.sequence.filter(|sequence| *sequence > positions) {
            self.add(
                &["train.sequence", "model.n_positions"],
                format!(
                    "`train.sequence` = {sequence} is longer than `model.n_positions` = {positions}; \
                     set `train.sequence` to at most {positions}, or raise `model.n_positions`"
                ),
            );
        }

        let (micro_batch, accumulate, sequence) = (train.micro_batch, train.accumulate, config.sequence());
        let tokens =
            micro_batch.checked_mul(accumulate).and_then(|sequences| sequences.checked_mul(sequence));

        if tokens.and_then(|tokens| (tokens as u64).checked_mul(train.steps)).is_none() {
            self.add(
                &["train.micro_batch", "train.accumulate", "train.sequence", "train.steps"],
                format!(
                    "`train.steps` = {}, `train.micro_batch` = {micro_batch}, `train.accumulate` = {accumulate} and \
                     sequences of {sequence} make more tokens than can be counted; check them for stray digits",
                    train.steps
                ),
            );
        }
    }

    fn optimizer(&mut self, Config { train, model, .. }: &Config) {
        self.unless(train.lr > 0.0, "train.lr", train.lr, "above 0");
        let [first, second] = train.betas;
        let betas = format_args!("[{first}, {second}]");
        let decay = 0.0..1.0;
        let both = decay.contains(&first) && decay.contains(&second);
        self.unless(both, "train.betas", betas, "at least 0 and below 1, both");

        self.unless(train.epsilon > 0.0, "train.epsilon", train.epsilon, "above 0");
        self.unless(
            decay.contains(&train.momentum),
            "train.momentum",
            train.momentum,
            "at least 0 and below 1",
        );
        self.unless(train.weight_decay >= 0.0, "train.weight_decay", train.weight_decay, "at least 0");
        self.unless(train.z_loss >= 0.0, "train.z_loss", train.z_loss, "at least 0");
        if let Some(norm) = train.grad_clip {
            self.unless(norm > 0.0, "train.grad_clip", norm, "above 0, or null not to clip");
        }

        self.f32_rounding(train);
        if train.optimizer == OptimizerKind::Muon && train.matrix_lr <= 0.0 {
            self.add(
                &["train.optimizer", "train.matrix_lr"],
                format!(
                    "`train.matrix_lr` = {} must be above 0 with `train.optimizer` = \"muon\", which learns hidden \
                     matrices at that rate; 0.02 is usual",
                    train.matrix_lr
                ),
            );
        }

        if model.compute == Compute::F16 {
            self.add(
                &["model.compute"],
                "`model.compute` = \"f16\" cannot train: gradients below 6e-8 vanish in it and the loss is not \
                 scaled; set it to \"bf16\" or \"f32\""
                    .to_owned(),
            );
        }
    }

    /// Refuses numbers that round to 0, 1 or infinity in f32, the parameters' type.
    fn f32_rounding(&mut self, train: &TrainSection) {
        for (key, value) in [
            ("train.lr", train.lr),
            ("train.matrix_lr", train.matrix_lr),
            ("train.epsilon", train.epsilon),
            ("train.weight_decay", train.weight_decay),
            ("train.z_loss", train.z_loss),
            ("train.grad_clip", train.grad_clip.unwrap_or(1.0)),
        ] {
            let fine = value <= 0.0 || (value as f32).is_normal();
            self.unless(fine, key, format_args!("{value:e}"), "between 1.2e-38 and 3.4e38, as f32 has it");
        }

        let rate =
            if train.optimizer == OptimizerKind::Muon { train.lr.max(train.matrix_lr) } else { train.lr };
        let decay = rate * train.weight_decay;
        let is_a_number = (train.weight_decay as f32).is_normal();
        if is_a_number && decay > 0.0 && (1.0 - decay) as f32 >= 1.0 {
            self.add(
                &["train.weight_decay", "train.lr"],
                format!(
                    "`train.weight_decay` = {:e} at a learning rate of {rate:e} changes no weight: in f32 one step leaves \
                     all of it; set `train.weight_decay` to 0, or to {:.0e} and more",
                    train.weight_decay,
                    5e-8 / rate
                ),
            );
        }

        let [first, second] = train.betas;
        for (key, value) in
            [("train.betas", first), ("train.betas", second), ("train.momentum", train.momentum)]
        {
            let fine = value >= 1.0 || (value as f32) < 1.0;
            self.unless(fine, key, value, "below 1 in f32 too, which rounds it up; 0.9999999 is the most");
        }
    }

    fn schedule(&mut self, Config { train, .. }: &Config) {
        let schedule = &train.schedule;
        if train.epochs.is_some() && train.tokens.is_some() {
            let text =
                "`train.epochs` and `train.tokens` both give the length of the run; set one of them to null";
            self.add(&["train.epochs", "train.tokens"], text.to_owned());
        }
        if let Some(tokens) = train.tokens {
            self.unless(tokens <= MOST_TOKENS, "train.tokens", tokens, &format!("at most {MOST_TOKENS}"));
        }
        if let Some(epochs) = train.epochs {
            self.unless(epochs > 0.0 && epochs <= 1e6, "train.epochs", epochs, "above 0 and at most 1000000");
        }

        let share = 0.0..=1.0;
        for (key, value) in
            [("train.schedule.decay", schedule.decay), ("train.schedule.floor", schedule.floor)]
        {
            self.unless(share.contains(&value), key, value, "a share from 0 to 1");
        }
    }

    fn sampling(&mut self, Config { eval, .. }: &Config) {
        let temperature = eval.temperature;
        self.unless(
            temperature >= 0.0,
            "eval.temperature",
            temperature,
            "at least 0 (0 takes the likeliest)",
        );
    }

    fn paths(&mut self, Config { data, tokenizer, model, .. }: &Config) {
        if !data.indexes.is_empty() && !model.longest_match {
            self.add(
                &["data.indexes", "model.longest_match"],
                "`data.indexes` does nothing with `model.longest_match` = false; remove it, or set `model.longest_match` \
                 to true"
                    .to_owned(),
            );
        }

        let source = json(&data.source);
        match (&data.path, data.source) {
            (None, DataSource::Text | DataSource::Shards) if data.mixture.is_empty() => self.add(
                &["data.path", "data.source"],
                format!(
                    "`data.path` is missing: `data.source` = {source} reads what it names; \
                     give it with --set data.path=PATH"
                ),
            ),
            (Some(path), DataSource::Dialogues) => self.add(
                &["data.path", "data.source"],
                format!(
                    "`data.path` = {} does nothing with `data.source` = {source}; remove it, or set `data.source` to \
                     \"text\" or \"shards\"",
                    json(path)
                ),
            ),
            _ => {}
        }

        let kind = json(&tokenizer.kind);
        match (&tokenizer.path, tokenizer.kind) {
            (None, TokenizerKind::File) => self.add(
                &["tokenizer.path", "tokenizer.kind"],
                format!(
                    "`tokenizer.path` is missing: `tokenizer.kind` = {kind} reads the tokenizer it names; \
                     give it with --set tokenizer.path=PATH"
                ),
            ),
            (Some(path), TokenizerKind::Bpe | TokenizerKind::Characters | TokenizerKind::Bytes) => self.add(
                &["tokenizer.path", "tokenizer.kind"],
                format!(
                    "`tokenizer.path` = {} does nothing with `tokenizer.kind` = {kind}; remove it, or set \
                     `tokenizer.kind` to \"file\"",
                    json(path)
                ),
            ),
            _ => {}
        }

        let learned = matches!(tokenizer.kind, TokenizerKind::Bpe | TokenizerKind::Characters);
        if data.source == DataSource::Shards && learned {
            self.add(
                &["tokenizer.kind", "data.source"],
                format!(
                    "`tokenizer.kind` = {kind} is learned from text, and `data.source` = {source} has none; set \
                     `tokenizer.kind` to \"file\" and `tokenizer.path` to the shards' folder, which holds theirs, or for \
                     another program's shards to the tokenizer that made them"
                ),
            );
        }

        let fraction = data.val_fraction;
        let between = fraction > 0.0 && fraction < 1.0;
        self.unless(between, "data.val_fraction", fraction, "above 0 and below 1");
        if data.source == DataSource::Dialogues {
            self.unless(data.dialogues > 0, "data.dialogues", 0, "at least 1");
        }
    }

    fn vocabulary(&mut self, Config { tokenizer, model, .. }: &Config) {
        let room = model.vocab_size;
        let smallest = 256 + if tokenizer.chat { CHAT_SPECIALS.len() } else { 0 };
        let made_of = if tokenizer.chat { "256 bytes and 5 control tokens" } else { "256 bytes" };

        match tokenizer.kind {
            TokenizerKind::Bpe if tokenizer.vocab_size < smallest => self.add(
                &["tokenizer.vocab_size", "tokenizer.chat", "tokenizer.kind"],
                format!(
                    "`tokenizer.vocab_size` = {} is too small: {made_of} need {smallest}, before any is learned",
                    tokenizer.vocab_size
                ),
            ),
            TokenizerKind::Bpe if tokenizer.vocab_size > room => self.add(
                &["tokenizer.vocab_size", "tokenizer.kind", "model.vocab_size"],
                format!(
                    "`tokenizer.vocab_size` = {} is more than the model knows, `model.vocab_size` = {room}; \
                     make them equal",
                    tokenizer.vocab_size
                ),
            ),
            TokenizerKind::Bytes if smallest > room => self.add(
                &["tokenizer.kind", "tokenizer.chat", "model.vocab_size"],
                format!(
                    "`tokenizer.kind` = \"bytes\" makes {smallest} tokens ({made_of}), and `model.vocab_size` = \
                     {room}; set the latter to at least {smallest}"
                ),
            ),
            _ => {}
        }
    }

    /// Refuses settings that need absent chat control tokens. Reading a tokenizer file checks it.
    fn conversations(&mut self, Config { tokenizer, data, eval, .. }: &Config) {
        let chat_keys = ["tokenizer.chat", "tokenizer.kind"];
        if tokenizer.kind != TokenizerKind::File && !tokenizer.chat {
            let without = "needs control tokens, which `tokenizer.chat` = false leaves out; set that to true";
            if data.source == DataSource::Dialogues {
                let text = format!("`data.source` = \"dialogues\" {without}");
                self.add(&[chat_keys[0], chat_keys[1], "data.source"], text);
            }
            if data.align == AlignKind::Document {
                let text = format!(
                    "`data.align` = \"document\" {without}, or `data.align` to {}",
                    json(&AlignKind::Anywhere)
                );
                self.add(&[chat_keys[0], chat_keys[1], "data.align"], text);
            }
            if !eval.questions.is_empty() {
                let text = format!("`eval.questions` {without}, or `eval.questions` to []");
                self.add(&[chat_keys[0], chat_keys[1], "eval.questions"], text);
            }
        }
    }

    fn narrow_transfers(&mut self, memory: &MemorySection, train: &TrainSection) {
        let of_weights = memory.stream != StreamKind::Computed;
        let used = [
            (of_weights, "memory.stream", json(&memory.stream)),
            (memory.gradients != CrossingKind::Computed, "memory.gradients", json(&memory.gradients)),
        ];
        for (_, key, value) in used.iter().filter(|(used, ..)| *used) {
            if memory.optimizer != PlacementKind::Host {
                let text = format!(
                    "`{key}` = {value} is for an optimizer on the host; set `memory.optimizer` to \"host\""
                );
                self.add(&[key, "memory.optimizer"], text);
            } else if train.optimizer == OptimizerKind::Muon {
                let text = format!(
                    "`{key}` = {value} is for matrices that are stepped on the host, and muon steps them on the device; \
                     set `train.optimizer` to \"adamw\""
                );
                self.add(&[key, "train.optimizer"], text);
            }
        }

        if memory.activations != InputForm::Computed && train.recompute.is_none() {
            let text = format!(
                "`memory.activations` = {} is for blocks that run twice, and `train.recompute` = null runs none; set that to 1",
                json(&memory.activations)
            );
            self.add(&["memory.activations", "train.recompute"], text);
        }

        if let Some(count) = train.together.count().filter(|count| *count > 1 && train.recompute.is_none()) {
            let text = format!(
                "`train.together` = {count} is for blocks that run twice, and `train.recompute` = null runs none; set that to 1"
            );
            self.add(&["train.together", "train.recompute"], text);
        }

        if of_weights && memory.optimizer_state == StateKind::Compact {
            let text = format!(
                "`memory.stream` = {} needs master weights on the host, and `memory.optimizer_state` = \"compact\" keeps only what \
                 completes the device's own; set that to \"bf16\" or \"f32\"",
                json(&memory.stream)
            );
            self.add(&["memory.stream", "memory.optimizer_state"], text);
        }
    }

    fn memory(&mut self, Config { memory, train, model, .. }: &Config) {
        if memory.optimizer_state == StateKind::Compact && train.optimizer == OptimizerKind::Sgd {
            let text = "`memory.optimizer_state` = \"compact\" is for the two moments of adamw, not for \
                        `train.optimizer` = \"sgd\"; set it to \"bf16\" or \"f32\"";
            self.add(&["memory.optimizer_state", "train.optimizer"], text.to_owned());
        }
        if memory.optimizer == PlacementKind::Device && memory.optimizer_state != StateKind::F32 {
            let text = format!(
                "`memory.optimizer_state` = {} is for an optimizer on the host; set it to \"f32\", or \
                 `memory.optimizer` to \"host\"",
                json(&memory.optimizer_state)
            );
            self.add(&["memory.optimizer_state", "memory.optimizer"], text);
        }

        self.narrow_transfers(memory, train);
        let (blocks, all) = (memory.device_blocks, model.n_layer);
        if blocks > 0 && memory.optimizer != PlacementKind::Host {
            let text = format!(
                "`memory.device_blocks` = {blocks} is for an optimizer on the host; set `memory.optimizer` to \"host\""
            );
            self.add(&["memory.device_blocks", "memory.optimizer"], text);
        } else if blocks > all {
            let text =
                format!("`memory.device_blocks` = {blocks} is more than the model's `n_layer` = {all}");
            self.add(&["memory.device_blocks", "model.n_layer"], text);
        }

        for (key, bytes) in [
            ("memory.max_disk_writes", &memory.max_disk_writes),
            ("memory.disk_endurance", &memory.disk_endurance),
        ] {
            if bytes.is_some() && memory.disk.is_none() {
                let text = format!("`{key}` does nothing without a disk; name a folder by `memory.disk`");
                self.add(&[key, "memory.disk"], text);
            }
        }
    }
}
