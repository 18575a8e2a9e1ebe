//! Allocation of device memory and page-locked host memory.

use std::ffi::c_uint;

use super::{
    device::current_device,
    entry::call,
    status::{Out, Status},
};
use crate::{
    driver::{Driver, Work},
    findings::{Fault, Finding, require},
    handles::Stream,
    prices::CallKind,
    races::Access,
    report,
    schedule::{Goal, StreamId},
    settings::settings,
};

#[unsafe(no_mangle)]
pub extern "C" fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) -> Status {
    call("cuMemGetInfo", CallKind::Other, |driver| {
        let used = driver.device.mapped(current_device("cuMemGetInfo")?);
        _ = total.put(settings().memory.device as usize);
        free.put((settings().memory.device - used) as usize).result()
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemAllocAsync(out: Out<u64>, size: usize, stream: u64) -> Status {
    call("cuMemAllocAsync", CallKind::Allocate, |driver| {
        let stream = driver.stream(stream, "cuMemAllocAsync")?;
        let start = driver.allocate(size as u64, stream)?;
        _ = out.put(start);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemAlloc_v2(out: Out<u64>, size: usize) -> Status {
    call("cuMemAlloc", CallKind::Allocate, |driver| {
        // No stream can use fresh memory yet: the default stream suffices.
        let legacy = driver.stream(0, "cuMemAlloc")?;
        let start = driver.allocate(size as u64, legacy)?;
        _ = out.put(start);
        Ok(driver.host_waits(legacy.id, "cuMemAlloc")?)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeAsync(start: u64, stream: u64) -> Status {
    call("cuMemFreeAsync", CallKind::Allocate, |driver| {
        let stream = driver.stream(stream, "cuMemFreeAsync")?.id;
        driver.free(start, stream);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFree_v2(start: u64) -> Status {
    call("cuMemFree", CallKind::Allocate, |driver| {
        let earlier = driver.host_waits_for_all("cuMemFree");
        let legacy = driver.handles.legacy;
        driver.free(start, legacy);
        driver.host_waits(legacy, "cuMemFree")?;
        Ok(earlier?)
    })
}

impl Driver {
    /// On the stream's device.
    fn allocate(&mut self, size: u64, stream: Stream) -> Result<u64, Status> {
        if size == 0 {
            return Err(Status::InvalidValue);
        }
        let Stream { id, device, .. } = stream;
        let refused = self.failures.refuses_allocation();
        self.make_room(size, device);
        let mapped = self.device.mapped(device);
        let start = if refused { None } else { self.device.allocate(size, device) };
        let mapped = self.device.mapped(device) - mapped;
        if mapped > 0 {
            self.timeline.charge_bytes(mapped, |memory| memory.map);
        }
        report::count(|counters| match start {
            Some(_) => counters.device.allocations += 1,
            None => counters.device.refused_allocations += 1,
        });
        let start = start.ok_or(Status::OutOfMemory)?;
        self.count_peaks();
        let when = self.begin_work(id);
        self.touch(start..start + size, true, when, "the allocation");
        self.push(id, Work::Poison(start..start + size));
        Ok(start)
    }

    fn free(&mut self, start: u64, stream: StreamId) {
        let range = require(self.device.mark_freed(start));
        report::count(|counters| counters.device.frees += 1);
        let when = self.begin_work(stream);
        let access = Access { range, writes: true, actor: "the free".into(), on_host: false };
        self.check_races(start, access, when);
        self.push(stream, Work::Release(start));
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostAlloc(out: Out<u64>, size: usize, _flags: c_uint) -> Status {
    call("cuMemHostAlloc", CallKind::Other, |driver| {
        current_device("cuMemHostAlloc")?;
        if size == 0 {
            return Err(Status::InvalidValue);
        }
        let Some(start) = driver.pinned.allocate(size as u64) else {
            report::count(|counters| counters.pinned.refused += 1);
            driver.timeline.charge_bytes(0, |memory| memory.page_lock);
            return Err(Status::OutOfMemory);
        };
        report::count(|counters| counters.pinned.allocations.add(size as u64));
        driver.count_peaks();
        driver.timeline.charge_bytes(size as u64, |memory| memory.page_lock);
        out.put(start).result()
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemAllocHost_v2(out: Out<u64>, size: usize) -> Status {
    cuMemHostAlloc(out, size, 0)
}

/// Takes the time of a wait for all work, as CUDA does, but runs only the copies of this memory and orders nothing: a
/// program that needs more lacks a wait.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeHost(start: u64) -> Status {
    call("cuMemFreeHost", CallKind::Other, |driver| {
        current_device("cuMemFreeHost")?;
        let range = require(driver.pinned.starting_at(start)).ok_or(Status::InvalidValue)?;
        let users = driver.schedule.last_pending(|work| work.uses_pinned(&range));
        if !users.is_empty() {
            let circumstances = format!("{} bytes at {start:#x}", range.end - range.start);
            Fault::new(Finding::PinnedFreedEarly, circumstances).report();
        }
        for mark in users {
            driver.run(Goal::Mark(mark));
        }

        let earlier = driver.time_passes_for_all("cuMemFreeHost");
        driver.timeline.charge_bytes(range.end - range.start, |memory| memory.page_unlock);
        driver.release_pinned(start);
        report::count(|counters| counters.pinned.frees += 1);
        Ok(earlier?)
    })
}
