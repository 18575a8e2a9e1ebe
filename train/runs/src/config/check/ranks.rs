//! Settings incompatible with an exchange between ranks.

use std::time::Duration;

use super::{Refusals, state_of_device};
use crate::config::{Config, ExchangeKind, PlacementKind, Round, ShardKind, Together};

impl Refusals {
    pub(super) fn ranks(&mut self, config: &Config) {
        if config.memory.shard == ShardKind::Weights && config.train.recompute.is_none() {
            let text = "`memory.shard` = \"weights\" gathers the weights of blocks that run twice, and `train.recompute` = null \
                        runs none; set that to 1";
            self.add(&["memory.shard", "train.recompute"], text.to_owned());
        }
        if config.memory.shard == ShardKind::Weights && !config.train.freeze.is_empty() {
            let text = "`memory.shard` = \"weights\" gathers the weights that learn, and `train.freeze` stops some of them; set the \
                        former to \"states\"";
            self.add(&["memory.shard", "train.freeze"], text.to_owned());
        }
        self.pipeline(config);
        match config.ranks.exchange {
            ExchangeKind::Exact | ExchangeKind::Bf16 => {}
            ExchangeKind::OneBit => self.one_bit(config),
            ExchangeKind::Rarely => self.rarely(config),
        }
    }

    fn pipeline(&mut self, Config { ranks, memory, train, model, .. }: &Config) {
        let stages = ranks.pipeline;
        self.unless(stages > 0, "ranks.pipeline", stages, "at least 1");
        if stages <= 1 {
            return;
        }
        let mut refuse = |is_refused: bool, key: &'static str, why: &str| {
            if is_refused {
                let or = if key == "model.n_layer" { "" } else { ", or `ranks.pipeline` to 1" };
                let text = format!("`ranks.pipeline` = {stages} {why}{or}");
                self.add(&["ranks.pipeline", key], text);
            }
        };
        refuse(
            train.recompute.is_none(),
            "train.recompute",
            "divides segments of recomputed blocks, and `train.recompute` = null makes none; set `train.recompute` to 1",
        );
        let (blocks, segments) = (model.n_layer, model.n_layer.div_ceil(train.recompute.unwrap_or(1).max(1)));
        let too_few =
            format!("needs a segment for each stage, and `train.recompute` makes {segments}; set it to 1");
        refuse(segments < stages && stages <= blocks, "train.recompute", &too_few);
        let too_deep =
            format!("needs a block for each stage, and the model has {blocks}; set it to at most {blocks}");
        refuse(stages > blocks, "model.n_layer", &too_deep);
        refuse(
            memory.device_blocks > 0,
            "memory.device_blocks",
            "steps all blocks of a stage in one place; set `memory.device_blocks` to 0",
        );
        refuse(
            ranks.exchange != ExchangeKind::Exact,
            "ranks.exchange",
            "sums gradients exactly; set `ranks.exchange` to \"exact\"",
        );
        refuse(
            memory.shard.has_owners(),
            "memory.shard",
            "already divides weights and states by stages; set `memory.shard` to false",
        );
        refuse(
            matches!(train.together, Together::Count(count) if count > 1),
            "train.together",
            "passes micro-batches one by one; set `train.together` to \"auto\"",
        );
        refuse(train.lora.is_some(), "train.lora", "trains whole stages; leave out `train.lora`");
        refuse(!train.freeze.is_empty(), "train.freeze", "trains whole stages; set `train.freeze` to []");
    }

    fn rarely(&mut self, config: &Config) {
        let Config { ranks, memory, .. } = config;
        let is_empty = matches!(&ranks.round, Round::Steps(0) | Round::Time(Duration::ZERO));
        self.unless(!is_empty, "ranks.round", format!("\"{}\"", ranks.round), "longer");
        self.unless(
            ranks.outer_rate > 0.0 && ranks.outer_rate <= 1.0,
            "ranks.outer_rate",
            ranks.outer_rate,
            "above 0 and at most 1",
        );
        self.unless(
            (0.0..1.0).contains(&ranks.outer_momentum),
            "ranks.outer_momentum",
            ranks.outer_momentum,
            "at least 0 and below 1",
        );

        if memory.shard.has_owners() {
            let text = "`memory.shard` divides the moments of one optimizer, and with `ranks.exchange` = \"rarely\" every process has \
                        its own; set `memory.shard` to false, or `ranks.exchange` to \"exact\"";
            self.add(&["ranks.exchange", "memory.shard"], text.to_owned());
        }

        if memory.optimizer == PlacementKind::Host && config.needs_device_optimizer() {
            let text = format!(
                "`memory.optimizer` = \"host\" keeps weights where `ranks.exchange` = \"rarely\" does not average them; set \
                 `memory.optimizer` to \"device\"{}, or `ranks.exchange` to \"exact\"",
                state_of_device(memory)
            );
            self.add(&["ranks.exchange", "memory.optimizer"], text);
        }
    }

    fn one_bit(&mut self, Config { ranks, train, memory, .. }: &Config) {
        if memory.shard.has_owners() {
            let text = "`memory.shard` sends whole weights in every step, so `ranks.exchange` = \"one_bit\" saves next to nothing; \
                        set `memory.shard` to false, or `ranks.exchange` to \"exact\"";
            self.add(&["ranks.exchange", "memory.shard"], text.to_owned());
        }
        // Steps of epochs follow from the text.
        if ranks.warm_up >= train.steps && train.epochs.is_none() && train.tokens.is_none() {
            let text = format!(
                "`ranks.warm_up` = {} leaves no step to `ranks.exchange` = \"one_bit\": `train.steps` = {}; set the former to \
                 at most {}, or `ranks.exchange` to \"exact\"",
                ranks.warm_up,
                train.steps,
                train.steps.saturating_sub(1)
            );
            self.add(&["ranks.warm_up", "ranks.exchange", "train.steps"], text);
        }
    }
}
