//! The update rule of each parameter, and its state, for optimizer and plan.

use host_optim::{Format, Moments};
use models::ParameterInfo;
use runs::config::{OptimizerKind, StateKind};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    AdamW,
    Muon,
    Sgd,
}

/// Names of moments in a checkpoint, after the parameter's.
pub(crate) const MOMENT_NAMES: [&str; 2] = ["first", "second"];

impl Rule {
    pub(crate) fn choose(kind: OptimizerKind, name: &str, dims: usize) -> Self {
        match kind {
            OptimizerKind::Sgd => Self::Sgd,
            OptimizerKind::Muon if dims == 2 && name.starts_with("blocks.") => Self::Muon,
            OptimizerKind::Muon | OptimizerKind::AdamW => Self::AdamW,
        }
    }
}

pub(crate) fn steps_on_device_only(kind: OptimizerKind, parameter: &ParameterInfo) -> bool {
    Rule::choose(kind, &parameter.name, parameter.shape.len()) == Rule::Muon
}

pub(crate) fn keeps_second_moment(kind: OptimizerKind, name: &str, dims: usize) -> bool {
    Rule::choose(kind, name, dims) == Rule::AdamW
}

/// Moments of a state on the host.
pub(crate) fn moments(kind: OptimizerKind) -> Moments {
    match kind {
        OptimizerKind::Sgd => Moments::Velocity,
        OptimizerKind::AdamW | OptimizerKind::Muon => Moments::Two,
    }
}

pub(crate) fn format(state: StateKind) -> Format {
    match state {
        StateKind::F32 => Format::F32,
        StateKind::Bf16 => Format::Bf16Moments,
        StateKind::Compact => Format::Compact,
    }
}
