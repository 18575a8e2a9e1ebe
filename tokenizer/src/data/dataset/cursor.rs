//! The position of a run in its data.

use serde::{Deserialize, Serialize};

/// A position in the endless stream of windows; a checkpoint keeps it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cursor {
    /// Number of whole passes over all windows.
    pub epoch: u64,
    /// Windows seen in this epoch.
    pub index: u64,
    /// Decides the order of a shuffled epoch.
    pub seed: u64,
}

impl Cursor {
    /// The very beginning.
    pub fn start(seed: u64) -> Self {
        Self { epoch: 0, index: 0, seed }
    }
}
