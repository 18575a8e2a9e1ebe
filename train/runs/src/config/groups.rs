//! `train.groups`: learning rate and decay of groups of parameters.

use models::ParameterGroup;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::TrainSection;

/// A group with a rate or decay of its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GroupSection {
    /// The group, as in `train.freeze`.
    #[serde(rename = "match")]
    pub matches: ParameterGroup,
    /// Factor on the learning rate.
    #[serde(default = "one")]
    pub lr_scale: f64,
    /// In place of `train.weight_decay`.
    #[serde(default)]
    pub weight_decay: Option<f64>,
}

fn one() -> f64 {
    1.0
}

impl TrainSection {
    /// Whether `train.freeze` names a group of the parameter.
    pub fn freezes(&self, name: &str) -> bool {
        self.freeze.iter().any(|group| group.contains(name))
    }

    /// Factor on the learning rate, and decay of a matrix: the last group that has the parameter decides.
    pub fn rate_and_decay(&self, name: &str) -> (f64, f64) {
        let group = self.groups.iter().rev().find(|group| group.matches.contains(name));
        let decay = group.and_then(|group| group.weight_decay).unwrap_or(self.weight_decay);
        (group.map_or(1.0, |group| group.lr_scale), decay)
    }
}
