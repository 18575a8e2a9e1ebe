//! Streams: create, destroy, query and wait.

use std::ffi::{c_int, c_uint};

use super::{
    device::current_device,
    entry::call,
    status::{Out, Status},
};
use crate::{handles::Stream, prices::CallKind, schedule::Goal};

const NON_BLOCKING: c_uint = 1;

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamCreate(stream: Out<u64>, flags: c_uint) -> Status {
    call("cuStreamCreate", CallKind::Other, |driver| {
        let device = current_device("cuStreamCreate")?;
        driver.host_creates_stream(device);
        let (handle, id) = (driver.handles.next(), driver.schedule.create_stream());
        driver.handles.streams.insert(handle, Stream { id, blocking: flags & NON_BLOCKING == 0, device });
        stream.put(handle).result()
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamCreateWithPriority(stream: Out<u64>, flags: c_uint, _priority: c_int) -> Status {
    cuStreamCreate(stream, flags)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamDestroy_v2(stream: u64) -> Status {
    call("cuStreamDestroy", CallKind::Other, |driver| {
        let id = driver.stream(stream, "cuStreamDestroy")?.id;
        driver.run(Goal::Stream(id));
        driver.handles.streams.remove(&stream);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamSynchronize(stream: u64) -> Status {
    call("cuStreamSynchronize", CallKind::Synchronise, |driver| {
        let id = driver.stream(stream, "cuStreamSynchronize")?.id;
        Ok(driver.host_waits(id, "cuStreamSynchronize")?)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamQuery(stream: u64) -> Status {
    call("cuStreamQuery", CallKind::Query, |driver| {
        let id = driver.stream(stream, "cuStreamQuery")?.id;
        driver.run(Goal::Optional);
        let is_done = driver.schedule.is_idle(id);
        let time = driver.timeline.end_of(id);
        let clock = driver.order.clock(id).clone();
        driver.answer(is_done, time, id, &clock)
    })
}
