//! Entry of each call that uses the driver's state.

use std::sync::MutexGuard;

use crate::{
    driver::{Driver, driver},
    report,
};

/// Counts the call and locks the driver.
pub(super) fn enter(call: &'static str) -> MutexGuard<'static, Driver> {
    report::count(|counters| counters.host.called(call));
    driver()
}
