//! Errors of the host optimizer.

use backend_offload::OffloadError;

use crate::format::Format;

/// Weights and moments are unchanged, unless the disk fails within a step: then weights become NaN and the state is
/// lost.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum HostOptimError {
    /// The host tier has no room.
    #[error(transparent)]
    Memory(#[from] OffloadError),
    /// Two lengths of one parameter differ.
    #[error("{name}: {what} has {found} elements where its parameter has {expected}")]
    Length {
        /// Parameter.
        name: String,
        /// Array with the wrong length.
        what: &'static str,
        /// Length of the parameter.
        expected: usize,
        /// Length of the array.
        found: usize,
    },
    /// A step without a gradient.
    #[error("{name}: no gradient has arrived since the last step")]
    NoGradient {
        /// Parameter.
        name: String,
    },
    /// The compact format requires bf16 weights.
    #[error(
        "{name}: the format `compact` completes bf16 weights and was given {found}; keep these weights in f32"
    )]
    NotBf16 {
        /// Parameter.
        name: String,
        /// Type of the weights.
        found: &'static str,
    },
    /// The format has no master weights to encode as tiles.
    #[error(
        "{name}: the format `compact` has no master weights on the host to encode as eight-bit tiles; keep the state in \
         another format"
    )]
    NoMasters {
        /// Parameter.
        name: String,
    },
    /// The state was not made for this rule.
    #[error("{name}: its state was not made for steps of {rule}")]
    OtherRule {
        /// Parameter.
        name: String,
        /// Rule of the step.
        rule: &'static str,
    },
    /// The disk failed within an earlier step of this state.
    #[error(
        "{name}: the disk failed within an earlier step of its state, which is lost; resume from a saved state"
    )]
    Torn {
        /// Parameter.
        name: String,
    },
    /// Rows require a state in host memory.
    #[error("{name}: rows are found by their numbers in host memory; keep this state there")]
    RowsOnDisk {
        /// Matrix.
        name: String,
    },
    /// Rows out of range or not in ascending order.
    #[error("{name}: rows are named in ascending order, each once, below {has}")]
    Rows {
        /// Matrix.
        name: String,
        /// Number of rows.
        has: usize,
    },
    /// The record has another format.
    #[error(
        "{name}: the record's state is in the format {found:?} and this optimizer keeps {wanted:?}; configure the same"
    )]
    OtherFormat {
        /// Parameter.
        name: String,
        /// The optimizer's format.
        wanted: Format,
        /// The record's format.
        found: Format,
    },
    /// The thread that takes steps failed.
    #[error("the optimizer's steps on the host ended early: {reason}")]
    Updates {
        /// Cause.
        reason: String,
    },
    /// The thread that receives gradients failed.
    #[error("gradients could not be taken to the host: {reason}")]
    Gradients {
        /// Cause.
        reason: String,
    },
    /// A tensor could not be read from its device.
    #[error("{name}: {reason}")]
    Unreadable {
        /// Parameter.
        name: String,
        /// The device's error.
        reason: String,
    },
}
