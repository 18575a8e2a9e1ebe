//! Settings incompatible with an exchange between ranks.

use super::Refusals;
use crate::config::{Config, ExchangeKind, PlacementKind, ShardKind};

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
        match config.ranks.exchange {
            ExchangeKind::Exact | ExchangeKind::Bf16 => {}
            ExchangeKind::OneBit => self.one_bit(config),
            ExchangeKind::Rarely => self.rarely(config),
        }
    }

    fn rarely(&mut self, Config { ranks, memory, .. }: &Config) {
        self.unless(ranks.local_steps > 0, "ranks.local_steps", ranks.local_steps, "at least 1");
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

        if memory.optimizer == PlacementKind::Host {
            let text = "`memory.optimizer` = \"host\" keeps weights where `ranks.exchange` = \"rarely\" does not average them; set \
                        `memory.optimizer` to \"device\", or `ranks.exchange` to \"exact\"";
            self.add(&["ranks.exchange", "memory.optimizer"], text.to_owned());
        }
    }

    fn one_bit(&mut self, Config { ranks, train, memory, .. }: &Config) {
        if memory.shard.has_owners() {
            let text = "`memory.shard` sends whole weights in every step, so `ranks.exchange` = \"one_bit\" saves next to nothing; \
                        set `memory.shard` to false, or `ranks.exchange` to \"exact\"";
            self.add(&["ranks.exchange", "memory.shard"], text.to_owned());
        }
        if ranks.warm_up >= train.steps {
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
