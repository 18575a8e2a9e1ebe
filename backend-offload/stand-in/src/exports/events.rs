//! Events. A record stores a mark in a stream and the work known to precede it.

use std::{
    ffi::c_uint,
    sync::PoisonError,
    thread,
    time::{Duration, Instant},
};

use super::{
    entry::enter,
    status::{Out, Status, invalid_handle, status},
};
use crate::{
    driver::{Driver, WORK_DONE},
    handles::{Event, Record},
    races::Clock,
    report,
    schedule::{Goal, StreamId},
    settings::Mode,
};

#[unsafe(no_mangle)]
pub extern "C" fn cuEventCreate(event: Out<u64>, _flags: c_uint) -> Status {
    let mut driver = enter("cuEventCreate", |calls| calls.event);
    let handle = driver.handles.next();
    driver.handles.events.insert(handle, Event::default());
    event.put(handle)
}

/// Pending waits keep the record.
#[unsafe(no_mangle)]
pub extern "C" fn cuEventDestroy_v2(event: u64) -> Status {
    match enter("cuEventDestroy", |calls| calls.event).handles.events.remove(&event) {
        Some(_) => Status::Success,
        None => invalid_handle(event, "event", "cuEventDestroy"),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventRecord(event: u64, stream: u64) -> Status {
    let mut driver = enter("cuEventRecord", |calls| calls.record);
    status(|| {
        let stream = driver.stream(stream, "cuEventRecord")?;
        _ = driver.record(event, "cuEventRecord")?;
        let record = Record {
            mark: driver.schedule.mark(stream),
            clock: driver.order.clock(stream).clone(),
            time: driver.timeline.record(stream),
            recorder: thread::current().id(),
        };
        driver.handles.events.insert(event, Event { record: Some(record) });
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamWaitEvent(stream: u64, event: u64, _flags: c_uint) -> Status {
    let mut driver = enter("cuStreamWaitEvent", |calls| calls.stream_wait);
    status(|| {
        let stream = driver.stream(stream, "cuStreamWaitEvent")?;
        if let Some(record) = driver.record(event, "cuStreamWaitEvent")? {
            driver.stream_waits(stream, &record);
            driver.run(Goal::Optional);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventSynchronize(event: u64) -> Status {
    let mut driver = enter("cuEventSynchronize", |_| 0.0);
    let record = match driver.record(event, "cuEventSynchronize") {
        Ok(Some(record)) => record,
        Ok(None) => return Status::Success,
        Err(status) => return status,
    };
    // CubeCL's collector thread waits at once for a stream that only waits. The delay lets others see the work undone.
    let collects = !record.mark.after_work && record.recorder != thread::current().id();
    if collects && driver.settings.order.mode != Mode::Eager {
        let end = Instant::now() + Duration::from_millis(driver.settings.order.patience_ms);
        while !driver.schedule.is_done(record.mark) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            driver = WORK_DONE.wait_timeout(driver, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
    driver.run(Goal::Mark(record.mark));
    if collects && driver.timeline.prices().collector_is_apart {
        report::count(|counters| counters.host.collector_waits += 1);
    } else {
        driver.timeline.charge_call(|calls| calls.synchronise);
        driver.timeline.host_waits(record.time, "cuEventSynchronize");
    }
    driver.host_knows(&record.clock);
    Status::Success
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventQuery(event: u64) -> Status {
    let mut driver = enter("cuEventQuery", |calls| calls.query);
    status(|| {
        let Some(record) = driver.record(event, "cuEventQuery")? else { return Ok(()) };
        driver.run(Goal::Optional);
        let is_done = driver.schedule.is_done(record.mark);
        driver.answer(is_done, record.time, record.mark.stream, &record.clock)
    })
}

/// Milliseconds of simulated time.
#[unsafe(no_mangle)]
pub extern "C" fn cuEventElapsedTime_v2(milliseconds: Out<f32>, start: u64, end: u64) -> Status {
    let driver = enter("cuEventElapsedTime", |calls| calls.other);
    status(|| {
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
    fn record(&self, event: u64, call: &str) -> Result<Option<Record>, Status> {
        let event = self.handles.events.get(&event).ok_or_else(|| invalid_handle(event, "event", call))?;
        Ok(event.record.clone())
    }

    /// Answers a query. If the answer is no, runs some of the pending work, so that repeated queries end.
    pub(super) fn answer(
        &mut self,
        is_done: bool,
        time: f64,
        stream: StreamId,
        clock: &Clock,
    ) -> Result<(), Status> {
        // In eager mode only the simulated time may lie ahead. Repeated queries advance it.
        let is_time = self.timeline.has_passed(time) || self.settings.order.mode != Mode::Eager;
        if !(is_time && is_done) {
            self.run(Goal::Progress(stream));
            return Err(Status::NotReady);
        }
        self.timeline.host_reaches(time);
        self.host_knows(clock);
        Ok(())
    }
}
