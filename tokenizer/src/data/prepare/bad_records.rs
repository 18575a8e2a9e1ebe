//! Records that cannot be used: counted, named and left out, unless they are too many.

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// The consequence of a record that cannot be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnBadRecord {
    /// The record is left out, as long as nine of ten records are clean. One bad record among clean ones is always left
    /// out.
    #[default]
    Skip,
    /// The record ends the preparation.
    Fail,
}

/// The records that were left out of a set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BadRecords {
    /// The number of records.
    pub count: u64,
    /// The first few: file, line or document, and reason.
    pub first: Vec<String>,
}

/// Records that are named; the others are counted.
const NAMED: usize = 10;
/// At most one of so many records may be bad.
const RECORDS_PER_BAD: u64 = 10;
/// Records after which a bad share ends the work early.
const ENOUGH_TO_JUDGE: u64 = 1000;

impl BadRecords {
    /// Whether every record was used.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(super) fn add(&mut self, error: &Error) {
        self.count += 1;
        if self.first.len() < NAMED {
            self.first.push(error.to_string());
        }
    }

    /// Refuses a bad share among the first records; the rest may not make up for it.
    pub(super) fn check_early(&self, clean: u64) -> Result<(), Error> {
        if self.count + clean < ENOUGH_TO_JUDGE { Ok(()) } else { self.check(clean) }
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
