//! Settings incompatible with adapters on frozen weights.

use models::BaseForm;

use super::{Refusals, json, state_of_device};
use crate::config::{Config, ExchangeKind, OptimizerKind, PlacementKind, Purpose};

impl Refusals {
    pub(super) fn lora(&mut self, config: &Config, purpose: Purpose) {
        let Config { model, train, memory, ranks, .. } = config;
        let Some(lora) = &train.lora else {
            if train.lora_base.is_some() {
                let text = "`train.lora_base` does nothing without `train.lora`; remove it";
                self.add(&["train.lora_base", "train.lora"], text.to_owned());
            }
            if memory.base != BaseForm::Computed && purpose == Purpose::Training {
                let text = format!(
                    "`memory.base` = {} is for frozen weights under `train.lora`, which this run lacks; set it to \"computed\"",
                    json(&memory.base)
                );
                self.add(&["memory.base", "train.lora"], text);
            }
            return;
        };
        if let Err(error) = lora.check(model) {
            self.add(&["train.lora", "model"], format!("`train.lora`: {error}"));
        }

        if memory.optimizer == PlacementKind::Host && config.needs_device_optimizer() {
            let text = format!(
                "`memory.optimizer` = \"host\" is for weights that learn, and `train.lora` freezes them; set it to \"device\"{}",
                state_of_device(memory)
            );
            self.add(&["train.lora", "memory.optimizer"], text);
        }
        if memory.shard.has_owners() {
            let text = "`memory.shard` divides the optimizer of all weights, and `train.lora` freezes them; set it to false";
            self.add(&["train.lora", "memory.shard"], text.to_owned());
        }
        if train.optimizer == OptimizerKind::Muon {
            let text = "`train.optimizer` = \"muon\" is for whole matrices, and `train.lora` freezes them; set it to \"adamw\"";
            self.add(&["train.lora", "train.optimizer"], text.to_owned());
        }
        if ranks.exchange != ExchangeKind::Exact {
            let text = format!(
                "`ranks.exchange` = {} saves bytes of whole models, and `train.lora` sends only adapters; set it to \"exact\"",
                json(&ranks.exchange)
            );
            self.add(&["train.lora", "ranks.exchange"], text);
        }
    }
}
