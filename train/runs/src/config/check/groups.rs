//! Groups of parameters that a model lacks, and rates that change nothing.

use models::{ParameterGroup, ParameterInfo};

use super::{Refusals, json};
use crate::config::Config;

impl Refusals {
    pub(super) fn groups(&mut self, config: &Config) {
        let Config { model, train, .. } = config;
        if train.freeze.is_empty() && train.groups.is_empty() || model.validate().is_err() {
            return;
        }
        let parameters =
            train.lora.as_ref().map_or_else(|| model.parameters(), |lora| lora.parameters(model));
        if train.lora.is_some() && !train.freeze.is_empty() {
            let text = "`train.freeze` does nothing with `train.lora`, which freezes all weights; remove it, or choose \
                        `train.lora.targets`";
            self.add(&["train.freeze", "train.lora"], text.to_owned());
        } else {
            self.lacking("train.freeze", (&train.freeze, model.n_layer), &parameters);
            if parameters.iter().all(|parameter| train.freezes(&parameter.name)) {
                let text =
                    "`train.freeze` names all parameters, so nothing would learn; remove some of its groups";
                self.add(&["train.freeze"], text.to_owned());
            }
        }

        let matched: Vec<_> = train.groups.iter().map(|group| group.matches.clone()).collect();
        self.lacking("train.groups", (&matched, model.n_layer), &parameters);
        for group in &train.groups {
            let matched = parameters.iter().filter(|parameter| group.matches.contains(&parameter.name));
            let mut learning = matched.clone().filter(|parameter| !train.freezes(&parameter.name)).peekable();
            if learning.peek().is_none() {
                if matched.count() > 0 {
                    let name = json(&group.matches);
                    let text = format!(
                        "`train.groups`: {name} is stopped by `train.freeze`; remove it from one of them"
                    );
                    self.add(&["train.groups", "train.freeze"], text);
                }
                continue;
            }
            let decays = learning.any(|parameter| parameter.shape.len() > 1);
            let scale = group.lr_scale;
            if !(scale > 0.0 && ((scale * train.lr) as f32).is_normal()) {
                let text =
                    format!("a factor above 0, and not {scale}; `train.freeze` stops a group's learning");
                self.unfit(&group.matches, "lr_scale", &text);
            }
            let decay = group.weight_decay.unwrap_or_default();
            if !(decay == 0.0 || decay > 0.0 && (decay as f32).is_normal()) {
                self.unfit(&group.matches, "weight_decay", &format!("at least 0, and not {decay}"));
            } else if group.weight_decay.is_some() && !decays {
                self.unfit(&group.matches, "weight_decay", "left out: only matrices decay");
            }
        }
    }

    fn unfit(&mut self, group: &ParameterGroup, key: &str, range: &str) {
        self.add(&["train.groups"], format!("`train.groups`: `{key}` of {} must be {range}", json(group)));
    }

    fn lacking(
        &mut self,
        key: &'static str,
        (groups, blocks): (&[ParameterGroup], usize),
        parameters: &[ParameterInfo],
    ) {
        for group in groups {
            if parameters.iter().any(|parameter| group.contains(&parameter.name)) {
                if matches!(group, ParameterGroup::BlockRange(_, last) if *last >= blocks) {
                    let text =
                        format!("`{key}`: {} names blocks beyond the last, {}", json(group), blocks - 1);
                    self.add(&[key, "model"], text);
                }
                continue;
            }
            let tied = if *group == ParameterGroup::Head { "; a tied head is in `embedding`" } else { "" };
            let text = format!("`{key}`: the group {} has no parameter of this model{tied}", json(group));
            self.add(&[key, "model"], text);
        }
    }
}
