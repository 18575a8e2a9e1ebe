//! Events. A record marks a position in a stream and the work known to precede it.

use std::{
    ffi::c_uint,
    sync::{MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use super::{
    device::current_device,
    entry::{call, enter},
    status::{Out, Status, invalid_handle, require_same_device, status},
};
use crate::{
    driver::{Driver, WORK_DONE},
    handles::{Event, Record},
    prices::CallKind,
    races::Clock,
    report,
    schedule::{Goal, Mark, StreamId},
    settings::Mode,
};

#[unsafe(no_mangle)]
pub extern "C" fn cuEventCreate(event: Out<u64>, _flags: c_uint) -> Status {
    call("cuEventCreate", CallKind::Event, |driver| {
        let device = current_device("cuEventCreate")?;
        let handle = driver.handles.next();
        driver.handles.events.insert(handle, Event { device, record: None });
        event.put(handle).result()
    })
}

/// Pending waits keep the record.
#[unsafe(no_mangle)]
pub extern "C" fn cuEventDestroy_v2(event: u64) -> Status {
    call("cuEventDestroy", CallKind::Event, |driver| {
        let known = driver.handles.events.remove(&event).is_some();
        known.then_some(()).ok_or_else(|| invalid_handle(event, "event", "cuEventDestroy"))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventRecord(event: u64, stream: u64) -> Status {
    call("cuEventRecord", CallKind::Record, |driver| {
        let stream = driver.stream(stream, "cuEventRecord")?;
        let device = driver.event(event, "cuEventRecord")?.device;
        require_same_device("an event", device, stream, "cuEventRecord")?;
        let record = Record {
            mark: driver.schedule.mark(stream.id),
            clock: driver.order.record(stream.id),
            time: driver.timeline.record(stream.id),
            called: driver.timeline.now(),
            recorder: thread::current().id(),
        };
        driver.handles.events.insert(event, Event { device, record: Some(record) });
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamWaitEvent(stream: u64, event: u64, _flags: c_uint) -> Status {
    call("cuStreamWaitEvent", CallKind::StreamWait, |driver| {
        let stream = driver.stream(stream, "cuStreamWaitEvent")?.id;
        if let Some(record) = driver.record(event, "cuStreamWaitEvent")? {
            driver.timeline.host_waits(record.called, "cuStreamWaitEvent");
            driver.stream_waits(stream, &record);
            driver.run(Goal::Optional);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventSynchronize(event: u64) -> Status {
    status(|| {
        let mut driver = enter("cuEventSynchronize", CallKind::Free)?;
        let Some(record) = driver.record(event, "cuEventSynchronize")? else { return Ok(()) };
        // CubeCL's collector thread waits at once for a stream that only waits.
        let collects = !record.mark.after_work && record.recorder != thread::current().id();
        if collects && driver.settings.order.mode != Mode::Eager {
            driver = wait_for_others(driver, record.mark);
            driver.host_calls();
        }

        driver.run(Goal::Mark(record.mark));
        if collects && driver.timeline.prices().collector_is_apart {
            report::count(|counters| counters.host.collector_waits += 1);
        } else {
            driver.host_meets_waiters();
            driver.timeline.charge_call(CallKind::Synchronise);
            driver.timeline.host_waits(record.time, "cuEventSynchronize");
        }
        Ok(driver.host_knows(&record.clock)?)
    })
}

/// A delay that lets other threads see the work undone.
fn wait_for_others(mut driver: MutexGuard<'static, Driver>, mark: Mark) -> MutexGuard<'static, Driver> {
    let end = Instant::now() + Duration::from_millis(driver.settings.order.patience_ms);
    while !driver.schedule.is_done(mark) {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        driver = WORK_DONE.wait_timeout(driver, left).unwrap_or_else(PoisonError::into_inner).0;
    }
    driver
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventQuery(event: u64) -> Status {
    call("cuEventQuery", CallKind::Query, |driver| {
        let Some(record) = driver.record(event, "cuEventQuery")? else { return Ok(()) };
        driver.run(Goal::Optional);
        let is_done = driver.schedule.is_done(record.mark);
        driver.answer(is_done, record.time, record.mark.stream, &record.clock)
    })
}

/// Simulated time.
#[unsafe(no_mangle)]
pub extern "C" fn cuEventElapsedTime_v2(milliseconds: Out<f32>, start: u64, end: u64) -> Status {
    call("cuEventElapsedTime", CallKind::Other, |driver| {
        let start = driver.record(start, "cuEventElapsedTime")?.ok_or(Status::InvalidHandle)?;
        let end = driver.record(end, "cuEventElapsedTime")?.ok_or(Status::InvalidHandle)?;
        _ = milliseconds.put(((end.time - start.time) * 1e3) as f32);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventElapsedTime(milliseconds: Out<f32>, start: u64, end: u64) -> Status {
    cuEventElapsedTime_v2(milliseconds, start, end)
}

impl Driver {
    fn event(&self, event: u64, call: &str) -> Result<&Event, Status> {
        self.handles.events.get(&event).ok_or_else(|| invalid_handle(event, "event", call))
    }

    fn record(&self, event: u64, call: &str) -> Result<Option<Record>, Status> {
        Ok(self.event(event, call)?.record.clone())
    }

    /// After a no, pending work runs, so repeated queries end.
    pub(super) fn answer(
        &mut self,
        is_done: bool,
        time: f64,
        stream: StreamId,
        clock: &Clock,
    ) -> Result<(), Status> {
        // Eager: only the simulated time may lie ahead, and repeated queries advance it.
        let is_time = self.timeline.has_passed(time) || self.settings.order.mode != Mode::Eager;
        if !(is_time && is_done) {
            self.run(Goal::Progress(stream));
            return Err(Status::NotReady);
        }
        self.timeline.host_reaches(time);
        Ok(self.host_knows(clock)?)
    }
}
