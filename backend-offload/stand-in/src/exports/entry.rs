//! Entry of each call that uses the driver's state.

use std::sync::MutexGuard;

use crate::{
    driver::{Driver, driver},
    prices::Calls,
    report,
};

/// Locks the driver, counts the call and charges its price to the host.
pub(super) fn enter(call: &'static str, price: fn(&Calls) -> f64) -> MutexGuard<'static, Driver> {
    report::count(|counters| counters.host.called(call));
    let mut driver = driver();
    driver.timeline.charge_call(price);
    driver
}
