//! Tests of the loop, over a device with real bytes.

mod failures;
mod fake_door;
mod property;
mod watching;
