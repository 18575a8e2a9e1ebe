//! The update rule of each parameter, and the state that it keeps. Optimizer and plan take it from here.

use host_optim::Format;
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

/// Whether only the device has a rule for the parameter.
pub(crate) fn steps_on_device_only(kind: OptimizerKind, parameter: &ParameterInfo) -> bool {
    Rule::choose(kind, &parameter.name, parameter.shape.len()) == Rule::Muon
}

/// Whether a parameter has two moments.
pub(crate) fn keeps_second_moment(kind: OptimizerKind, name: &str, dims: usize) -> bool {
    Rule::choose(kind, name, dims) == Rule::AdamW
}

/// The format of a state on the host.
pub(crate) fn format(state: StateKind) -> Format {
    match state {
        StateKind::F32 => Format::F32,
        StateKind::Bf16 => Format::Bf16Moments,
        StateKind::Compact => Format::Compact,
    }
}
