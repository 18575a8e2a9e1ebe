//! The error type for mistakes of the user.

/// Input that cannot work, as opposed to a failure of the program. The text says how to correct it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct BadInput(pub String);
