//! Counts, reports and skips unusable records, unless there are too many.

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// Treatment of unusable records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnBadRecord {
    /// Skips up to a tenth of all records, and always a single one if another is clean.
    #[default]
    Skip,
    /// Ends the preparation.
    Fail,
}

/// Skipped records.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BadRecords {
    /// How many.
    pub count: u64,
    /// The first ten: file, line or document, and reason.
    pub first: Vec<String>,
}

const DESCRIBED: usize = 10;
const RECORDS_PER_BAD: u64 = 10;
/// Records before the bad share may end the work.
const EARLY_CHECK_RECORDS: u64 = 1000;

impl BadRecords {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(super) fn add(&mut self, error: &Error) {
        self.count += 1;
        if self.first.len() < DESCRIBED {
            self.first.push(error.to_string());
        }
    }

    pub(super) fn check_early(&self, clean: u64) -> Result<(), Error> {
        if self.count + clean < EARLY_CHECK_RECORDS { Ok(()) } else { self.check(clean) }
    }

    pub(super) fn check(&self, clean: u64) -> Result<(), Error> {
        let records = self.count + clean;
        let tolerated = if clean == 0 { 0 } else { (records / RECORDS_PER_BAD).max(1) };
        if self.count <= tolerated {
            return Ok(());
        }
        let first = self.first.first().cloned().unwrap_or_default();
        Err(Error::BadRecords { bad: self.count, records, first })
    }
}
