//! The error type for mistakes of the user.

/// Input that cannot work, with the correction; no failure of the program.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct BadInput(pub String);
