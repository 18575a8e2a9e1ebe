//! The user's mistakes, told apart from everything else that goes wrong.

/// Something the user gave that cannot work, as opposed to something that went wrong. The text says what to do instead.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct BadInput(pub String);
