//! Groups of parameters that a model lacks, and rates that change nothing.

use models::ParameterGroup;

use super::{Refusals, json};
use crate::config::Config;

impl Refusals {
    pub(super) fn groups(&mut self, config: &Config) {
        let Config { model, train, .. } = config;
        if train.freeze.is_empty() && train.groups.is_empty() || model.validate().is_err() {
            return;
        }
        let names: Vec<String> = match &train.lora {
            Some(lora) => lora.parameters(model).into_iter().map(|parameter| parameter.name).collect(),
            None => model.parameters().into_iter().map(|parameter| parameter.name).collect(),
        };
        if train.lora.is_some() && !train.freeze.is_empty() {
            let text = "`train.freeze` does nothing with `train.lora`, which freezes all weights; remove it, or choose \
                        `train.lora.targets`";
            self.add(&["train.freeze", "train.lora"], text.to_owned());
        } else {
            self.lacking("train.freeze", &train.freeze, &names);
            if names.iter().all(|name| train.freezes(name)) {
                let text =
                    "`train.freeze` names all parameters, so nothing would learn; remove some of its groups";
                self.add(&["train.freeze"], text.to_owned());
            }
        }

        let matched: Vec<_> = train.groups.iter().map(|group| group.matches.clone()).collect();
        self.lacking("train.groups", &matched, &names);
        for group in &train.groups {
            let scale = group.lr_scale;
            if !(scale > 0.0 && ((scale * train.lr) as f32).is_normal()) {
                let text =
                    format!("a factor above 0, and not {scale}; `train.freeze` stops a group's learning");
                self.unfit(&group.matches, "lr_scale", &text);
            }
            let decay = group.weight_decay.unwrap_or_default();
            if !(decay == 0.0 || decay > 0.0 && (decay as f32).is_normal()) {
                self.unfit(&group.matches, "weight_decay", &format!("at least 0, and not {decay}"));
            }
        }
    }

    fn unfit(&mut self, group: &ParameterGroup, key: &str, range: &str) {
        self.add(&["train.groups"], format!("`train.groups`: `{key}` of {} must be {range}", json(group)));
    }

    fn lacking(&mut self, key: &'static str, groups: &[ParameterGroup], names: &[String]) {
        for group in groups.iter().filter(|group| !names.iter().any(|name| group.contains(name))) {
            let tied = if *group == ParameterGroup::Head { "; a tied head is in `embedding`" } else { "" };
            let text = format!("`{key}`: the group {} has no parameter of this model{tied}", json(group));
            self.add(&[key, "model"], text);
        }
    }
}
