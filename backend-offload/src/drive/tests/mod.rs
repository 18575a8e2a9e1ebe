//! Tests of the drive loop over a device with real bytes.

mod failures;
mod fake_adapter;
mod property;
mod watching;
