//! Copies and fills.

use std::{
    ffi::{c_uchar, c_uint, c_void},
    ops::Range,
};

use super::{entry::call, status::Status};
use crate::{
    driver::{Copy, CopyEnd, Driver, Work},
    failures::CopyFailed,
    findings::require,
    memory::{FRESH, Rows, fill},
    prices::CallKind,
    report,
    schedule::StreamId,
    timeline::{Engine, Task},
};

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyHtoDAsync_v2(to: u64, from: u64, size: usize, stream: u64) -> Status {
    copy_bytes(Direction::ToDevice, to, from, size, Some(stream), "cuMemcpyHtoDAsync")
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoHAsync_v2(to: u64, from: u64, size: usize, stream: u64) -> Status {
    copy_bytes(Direction::ToHost, to, from, size, Some(stream), "cuMemcpyDtoHAsync")
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, size: usize, stream: u64) -> Status {
    copy_bytes(Direction::Within, to, from, size, Some(stream), "cuMemcpyDtoDAsync")
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyHtoD_v2(to: u64, from: u64, size: usize) -> Status {
    copy_bytes(Direction::ToDevice, to, from, size, None, "cuMemcpyHtoD")
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoH_v2(to: u64, from: u64, size: usize) -> Status {
    copy_bytes(Direction::ToHost, to, from, size, None, "cuMemcpyDtoH")
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoD_v2(to: u64, from: u64, size: usize) -> Status {
    copy_bytes(Direction::Within, to, from, size, None, "cuMemcpyDtoD")
}

/// One side of `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Side {
    x: usize,
    y: usize,
    /// 1 is the host, 2 the device.
    kind: c_uint,
    host: u64,
    device: u64,
    array: *mut c_void,
    pitch: usize,
}

/// `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Pitched {
    from: Side,
    to: Side,
    width: usize,
    height: usize,
}

impl Side {
    fn rows(&self, width: usize, height: usize) -> Rows {
        let pitch = if self.pitch == 0 { width } else { self.pitch } as u64;
        let start = if self.kind == 1 { self.host } else { self.device };
        let start = start + self.y as u64 * pitch + self.x as u64;
        Rows { start, pitch, width: width as u64, height: height as u64 }
    }
}

/// # Safety
/// `copy` must point to a valid description; its host memory must be the caller's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpy2DAsync_v2(copy: *const Pitched, stream: u64) -> Status {
    // SAFETY: promised by the caller.
    let Some(Pitched { from, to, width, height }) = (unsafe { copy.as_ref() }) else {
        return Status::InvalidValue;
    };
    let kind = match (from.kind, to.kind) {
        (1, 2) => Direction::ToDevice,
        (2, 1) => Direction::ToHost,
        (2, 2) => Direction::Within,
        _ => return Status::NotSupported,
    };
    let [to, from] = [to, from].map(|side| side.rows(*width, *height));
    if to.pitch < to.width || from.pitch < from.width {
        return Status::InvalidValue;
    }
    copy_on_stream(kind, to, from, Some(stream), "cuMemcpy2DAsync")
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD8Async(to: u64, value: c_uchar, size: usize, stream: u64) -> Status {
    call("cuMemsetD8Async", CallKind::Copy, |driver| {
        let stream = driver.stream(stream, "cuMemsetD8Async")?.id;
        driver.fill_rows(Rows::plain(to, size as u64), value, stream);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD8_v2(to: u64, value: c_uchar, size: usize) -> Status {
    call("cuMemsetD8", CallKind::Copy, |driver| {
        let legacy = driver.stream(0, "cuMemsetD8")?.id;
        driver.fill_rows(Rows::plain(to, size as u64), value, legacy);
        Ok(driver.host_waits(legacy, "cuMemsetD8")?)
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    ToDevice,
    ToHost,
    Within,
}

fn copy_bytes(
    kind: Direction,
    to: u64,
    from: u64,
    size: usize,
    stream: Option<u64>,
    actor: &'static str,
) -> Status {
    copy_on_stream(kind, Rows::plain(to, size as u64), Rows::plain(from, size as u64), stream, actor)
}

fn copy_on_stream(kind: Direction, to: Rows, from: Rows, stream: Option<u64>, actor: &'static str) -> Status {
    call(actor, CallKind::Copy, |driver| {
        let id = driver.stream(stream.unwrap_or_default(), actor)?.id;
        driver.copy_rows(kind, to, from, id, actor)?;
        if stream.is_none() {
            driver.host_waits(id, actor)?;
        }
        Ok(())
    })
}

impl Driver {
    fn copy_rows(
        &mut self,
        kind: Direction,
        to: Rows,
        from: Rows,
        stream: StreamId,
        actor: &'static str,
    ) -> Result<(), CopyFailed> {
        let bytes = to.bytes();
        let when = self.begin_work(stream);
        if kind != Direction::ToHost {
            self.touch(to.extent(), true, when, actor);
        }
        if kind != Direction::ToDevice {
            self.touch(from.extent(), false, when, actor);
        }

        let engine = match kind {
            Direction::ToDevice => Engine::ToDevice,
            Direction::ToHost => Engine::ToHost,
            Direction::Within => Engine::Compute,
        };
        let (to, from) = match kind {
            Direction::ToDevice => (CopyEnd::Device(to), self.host_source(from, actor)),
            Direction::ToHost => (self.host_target(to, actor), CopyEnd::Device(from)),
            Direction::Within => (CopyEnd::Device(to), CopyEnd::Device(from)),
        };
        for (end, writes) in [(&to, true), (&from, false)] {
            self.touch_pinned(end, writes, when, actor);
        }

        let pageable = matches!(to, CopyEnd::Pageable(_)) || matches!(from, CopyEnd::Staged { .. });
        self.timeline
            .book(stream, Task { call: actor, name: actor, engine, bytes, touched: 2 * bytes, pageable });
        report::count(|counters| {
            match kind {
                Direction::ToDevice => counters.copies.to_device.add(bytes),
                Direction::ToHost => counters.copies.to_host.add(bytes),
                Direction::Within => counters.copies.within_device.add(bytes),
            }
            if pageable {
                counters.copies.pageable.add(bytes);
            }
        });

        if bytes == 0 {
            return Ok(());
        }
        let returns_when_done = matches!(to, CopyEnd::Pageable(_));
        let fails = self.failures.fails_copy(when);
        report::count(|counters| counters.copies.failed += u64::from(fails));
        self.push(stream, Work::Copy(Copy { actor, to, from, fails }));
        if returns_when_done { self.host_waits(stream, actor) } else { Ok(()) }
    }

    fn host_source(&self, rows: Rows, actor: &str) -> CopyEnd {
        if require(self.pinned.check(&rows.extent(), actor)) {
            return CopyEnd::Pinned(rows);
        }
        let extent = rows.extent();
        let start = std::ptr::with_exposed_provenance::<u8>(extent.start as usize);
        let size = (extent.end - extent.start) as usize;
        let bytes = if size == 0 {
            Vec::new()
        } else {
            // SAFETY: the caller permits reads until the call returns.
            unsafe { std::slice::from_raw_parts(start, size) }.to_vec()
        };
        CopyEnd::Staged { bytes, rows }
    }

    fn host_target(&self, rows: Rows, actor: &str) -> CopyEnd {
        if !require(self.pinned.check(&rows.extent(), actor)) {
            return CopyEnd::Pageable(rows);
        }
        // Undefined until the copy, unless another pending copy uses the target.
        let is_used = || self.schedule.pending().any(|work| work.uses_pinned(&rows.extent()));
        if self.settings.device.computes && !is_used() {
            // SAFETY: pinned memory, checked just now.
            unsafe { fill(rows, FRESH) };
        }
        CopyEnd::Pinned(rows)
    }

    fn fill_rows(&mut self, rows: Rows, value: u8, stream: StreamId) {
        let when = self.begin_work(stream);
        self.touch(rows.extent(), true, when, "cuMemsetD8");
        let call = "cuMemsetD8";
        let (engine, bytes) = (Engine::Compute, rows.bytes());
        let task = Task { call, name: call, engine, bytes, touched: bytes, pageable: false };
        self.timeline.book(stream, task);
        if rows.bytes() > 0 {
            self.push(stream, Work::Fill(rows, value));
        }
    }
}

impl Work {
    pub(super) fn uses_pinned(&self, range: &Range<u64>) -> bool {
        let Self::Copy(Copy { to, from, .. }) = self else { return false };
        [to, from].into_iter().any(|place| {
            let CopyEnd::Pinned(rows) = place else { return false };
            let extent = rows.extent();
            extent.start < range.end && range.start < extent.end
        })
    }
}
