//! The error type for user mistakes.

use std::path::Path;

/// Unusable input, with the correction.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct BadInput(pub String);

/// `path` as text: configurations and records hold paths so, and ranks send them so.
pub fn text_of(path: &Path) -> Result<&str, BadInput> {
    path.to_str().ok_or_else(|| {
        BadInput(format!("the path {} is not UTF-8; rename what is not, or take another", path.display()))
    })
}
