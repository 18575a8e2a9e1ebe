//! Tests of paging over a device with real bytes.

mod failures;
mod fake_adapter;
mod fake_device;
mod host_room;
mod property;
mod watching;
