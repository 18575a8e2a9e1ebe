//! Records that cannot be used: counted, reported and skipped, unless there are too many.

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// How to handle a record that cannot be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnBadRecord {
    /// Skips the record, unless more than a tenth of all records are bad. A single bad record is always skipped if any
    /// other is clean.
    #[default]
    Skip,
    /// Ends the preparation.
    Fail,
}

/// The records that were skipped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BadRecords {
    /// The number of records.
    pub count: u64,
    /// The first ten: file, line or document, and reason.
    pub first: Vec<String>,
}

const DESCRIBED: usize = 10;
/// At most one record in this many may be bad.
const RECORDS_PER_BAD: u64 = 10;
/// Records after which too large a bad share ends the work early.
const EARLY_CHECK_RECORDS: u64 = 1000;

impl BadRecords {
    /// Whether every record was used.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(super) fn add(&mut self, error: &Error) {
        self.count += 1;
        if self.first.len() < DESCRIBED {
            self.first.push(error.to_string());
        }
    }

    /// Fails early if too many of the first records are bad, even if later ones are clean.
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
