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
    prices::CallKind,
    races::Access,
    report,
    schedule::StreamId,
    settings::settings,
};

#[unsafe(no_mangle)]
pub extern "C" fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) -> Status {
    call("cuMemGetInfo", CallKind::Other, |driver| {
        let used = driver.device.mapped(current_device("cuMemGetInfo"));
        _ = total.put(settings().memory.device as usize);
        free.put((settings().memory.device - used) as usize).result()
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemAllocAsync(out: Out<u64>, size: usize, stream: u64) -> Status {
    let device = current_device("cuMemAllocAsync");
    call("cuMemAllocAsync", CallKind::Allocate, |driver| {
        let stream = driver.stream(stream, "cuMemAllocAsync")?;
        let start = driver.allocate(size as u64, device, stream)?;
        _ = out.put(start);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemAlloc_v2(out: Out<u64>, size: usize) -> Status {
    let device = current_device("cuMemAlloc");
    call("cuMemAlloc", CallKind::Allocate, |driver| {
        // No stream can use fresh memory yet: the default stream suffices.
        let legacy = driver.handles.legacy;
        let start = driver.allocate(size as u64, device, legacy)?;
        _ = out.put(start);
        Ok(driver.host_waits(legacy, "cuMemAlloc")?)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeAsync(start: u64, stream: u64) -> Status {
    call("cuMemFreeAsync", CallKind::Allocate, |driver| {
        let stream = driver.stream(stream, "cuMemFreeAsync")?;
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
    fn allocate(&mut self, size: u64, device: usize, stream: StreamId) -> Result<u64, Status> {
        if size == 0 {
            return Err(Status::InvalidValue);
        }
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
        let when = self.begin_work(stream);
        self.touch(start..start + size, true, when, "the allocation");
        self.push(stream, Work::Poison(start..start + size));
        Ok(start)
    }

    fn free(&mut self, start: u64, stream: StreamId) {
        let range = require(self.device.mark_freed(start));
        report::count(|counters| counters.device.frees += 1);
        let when = self.begin_work(stream);
        self.check_races(start, Access { range, writes: true, actor: "the free".into() }, when);
        self.push(stream, Work::Release(start));
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostAlloc(out: Out<u64>, size: usize, _flags: c_uint) -> Status {
    _ = current_device("cuMemHostAlloc");
    call("cuMemHostAlloc", CallKind::Other, |driver| {
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

/// Waits for all work, as CUDA does. A program that needs this lacks a wait.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeHost(start: u64) -> Status {
    _ = current_device("cuMemFreeHost");
    call("cuMemFreeHost", CallKind::Other, |driver| {
        let range = require(driver.pinned.starting_at(start)).ok_or(Status::InvalidValue)?;
        if driver.schedule.pending().any(|work| work.uses_pinned(&range)) {
            let circumstances = format!("{} bytes at {start:#x}", range.end - range.start);
            Fault::new(Finding::PinnedFreedEarly, circumstances).report();
        }

        let earlier = driver.host_waits_for_all("cuMemFreeHost");
        driver.timeline.charge_bytes(range.end - range.start, |memory| memory.page_unlock);
        driver.pinned.release(start);
        report::count(|counters| counters.pinned.frees += 1);
        Ok(earlier?)
    })
}
