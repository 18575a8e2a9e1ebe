//! The error type for user mistakes.

/// Unusable input, with the correction.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct BadInput(pub String);
