//! Tests of paging over a device with real bytes.

mod failures;
mod fake_adapter;
mod fake_device;
mod property;
mod watching;
