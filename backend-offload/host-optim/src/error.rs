//! Errors of the host optimizer.

use backend_offload::OffloadError;

use crate::format::Format;

/// A state that could not be made, or a step that could not be taken. Weights and moments are as they were before, but where the
/// disk failed within a step of a state that is there: its weights are NaN then, and the state is of no use.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum HostOptimError {
    /// The host tier has no room.
    #[error(transparent)]
    Memory(#[from] OffloadError),
    /// Two things that belong to one parameter differ in length.
    #[error("{name}: {what} has {found} elements where its parameter has {expected}")]
    Length {
        /// The parameter.
        name: String,
        /// The thing that differs.
        what: &'static str,
        /// The parameter's elements.
        expected: usize,
        /// The elements found.
        found: usize,
    },
    /// A step without a gradient to step along.
    #[error("{name}: no gradient has arrived since the last step")]
    NoGradient {
        /// The parameter.
        name: String,
    },
    /// A format that completes bf16 weights was given others.
    #[error(
        "{name}: the format `compact` completes bf16 weights and was given {found}; keep these weights in f32"
    )]
    NotBf16 {
        /// The parameter.
        name: String,
        /// The type found.
        found: &'static str,
    },
    /// Weights that are only on the device, as it computes with them, were to be given to it in another form.
    #[error(
        "{name}: the format `compact` keeps what completes the device's bf16 weights, and tiles of eight bits are no such \
         weights; keep the state in another format"
    )]
    NoMasters {
        /// The parameter.
        name: String,
    },
    /// A state that keeps what another rule needs.
    #[error("{name}: its state was not made for steps of {rule}")]
    OtherRule {
        /// The parameter.
        name: String,
        /// The rule of the step.
        rule: &'static str,
    },
    /// A state on the disk, which failed within a step of it.
    #[error(
        "{name}: the disk failed within an earlier step of its state, which is lost; go on from what was saved"
    )]
    Torn {
        /// The parameter.
        name: String,
    },
    /// A matrix that is stepped by rows and whose state is on the disk.
    #[error("{name}: rows are found by their numbers in host memory; keep this state there")]
    RowsOnDisk {
        /// The matrix.
        name: String,
    },
    /// Rows that a matrix does not have, or in no order.
    #[error("{name}: rows are named in ascending order, each once, below {has}")]
    Rows {
        /// The matrix.
        name: String,
        /// Its rows.
        has: usize,
    },
    /// A record of an optimizer in another format.
    #[error(
        "{name}: the record's state is in the format {found:?} and this optimizer keeps {wanted:?}; configure the same"
    )]
    OtherFormat {
        /// The parameter.
        name: String,
        /// The optimizer's format.
        wanted: Format,
        /// The record's format.
        found: Format,
    },
    /// Steps on a thread of their own that ended before they were all taken.
    #[error("the optimizer's steps on the host ended early: {reason}")]
    Updates {
        /// The cause.
        reason: String,
    },
    /// Gradients that a thread of their own could not take in.
    #[error("gradients could not be taken to the host: {reason}")]
    Gradients {
        /// The failure, as the thread reported it.
        reason: String,
    },
    /// A tensor that cannot be read from its device.
    #[error("{name}: {reason}")]
    Unreadable {
        /// The parameter.
        name: String,
        /// The device's error.
        reason: String,
    },
}
