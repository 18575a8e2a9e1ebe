//! Entry of each call that uses the driver's state.

use std::sync::MutexGuard;

use super::status::{Status, status};
use crate::{
    driver::{Driver, driver},
    failures::CopyFailed,
    prices::CallKind,
    report,
};

/// Counts and charges the call. Refuses calls after an error that stays.
pub(super) fn enter(name: &'static str, kind: CallKind) -> Result<MutexGuard<'static, Driver>, Status> {
    report::count(|counters| counters.host.called(name));
    let mut driver = driver();
    driver.host_calls();
    driver.timeline.charge_call(kind);
    driver.failures.check()?;
    Ok(driver)
}

pub(super) fn call(
    name: &'static str,
    kind: CallKind,
    body: impl FnOnce(&mut Driver) -> Result<(), Status>,
) -> Status {
    status(|| body(&mut *enter(name, kind)?))
}

impl From<CopyFailed> for Status {
    fn from(_: CopyFailed) -> Self {
        Self::EccUncorrectable
    }
}
