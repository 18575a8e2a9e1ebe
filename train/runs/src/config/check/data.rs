//! Settings of several texts, and of a validation text.

use super::{Refusals, json};
use crate::config::{Config, DataSource};

/// Weights below this share would round to no sequence.
const LEAST_SHARE: f64 = 1e-3;

impl Refusals {
    pub(super) fn mixture(&mut self, Config { data, model, .. }: &Config) {
        let has_parts = !data.mixture.is_empty();
        let extras = [(has_parts, "data.mixture"), (data.val_path.is_some(), "data.val_path")];
        for (_, key) in extras.into_iter().filter(|(is_given, _)| *is_given) {
            if model.longest_match {
                let text = format!(
                    "`{key}` and `model.longest_match` = true exclude each other: a run indexes one text"
                );
                self.add(&[key, "model.longest_match"], text);
            }
            if data.source == DataSource::Dialogues {
                let text = format!(
                    "`{key}` does nothing with `data.source` = {}; set that to \"text\" or \"shards\"",
                    json(&data.source)
                );
                self.add(&[key, "data.source"], text);
            }
        }
        if !has_parts {
            return;
        }
        if data.path.is_some() {
            let text =
                "`data.path` and `data.mixture` both name the training text; set one of them to null or []";
            self.add(&["data.path", "data.mixture"], text.to_owned());
        }
        let all: f64 = data.mixture.iter().map(|part| part.weight).sum();
        for part in &data.mixture {
            let fine = part.weight > 0.0 && part.weight / all >= LEAST_SHARE;
            let value = format_args!("a weight of {} for {}", part.weight, json(&part.path));
            self.unless(fine, "data.mixture", value, "above 0, and at least a thousandth of all weights");
        }
    }
}
