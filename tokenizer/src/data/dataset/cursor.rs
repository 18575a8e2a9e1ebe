//! A run's position in its data.

use serde::{Deserialize, Serialize};

/// A position in the endless stream of windows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cursor {
    /// Complete passes.
    pub epoch: u64,
    /// Windows read in this epoch.
    pub index: u64,
    /// Seeds shuffled epochs.
    pub seed: u64,
}

impl Cursor {
    /// The first window.
    pub fn start(seed: u64) -> Self {
        Self { epoch: 0, index: 0, seed }
    }
}
