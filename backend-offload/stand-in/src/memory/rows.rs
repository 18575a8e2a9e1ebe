//! Rows of bytes, and all accesses to the program's memory.

use std::{ops::Range, ptr};

/// `height` rows of `width` bytes, `pitch` bytes apart. A plain copy has one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rows {
    pub(crate) start: u64,
    pub(crate) pitch: u64,
    pub(crate) width: u64,
    pub(crate) height: u64,
}

impl Rows {
    pub(crate) fn plain(start: u64, size: u64) -> Self {
        Self { start, pitch: size, width: size, height: 1 }
    }

    pub(crate) fn bytes(self) -> u64 {
        self.width * self.height
    }

    pub(crate) fn extent(self) -> Range<u64> {
        let size = if self.bytes() == 0 { 0 } else { self.pitch * (self.height - 1) + self.width };
        self.start..self.start + size
    }

    pub(crate) fn each(self) -> impl Iterator<Item = Range<u64>> {
        (0..self.height).map(move |row| self.start + row * self.pitch).map(move |at| at..at + self.width)
    }
}

/// Copies row by row, up to the shorter side's end. The sides may overlap.
///
/// # Safety
/// Both sides must be readable, and `to` writable.
pub(crate) unsafe fn copy(to: Rows, from: Rows) {
    for (to, from) in to.each().zip(from.each()) {
        let source = ptr::with_exposed_provenance::<u8>(from.start as usize);
        let target = ptr::with_exposed_provenance_mut::<u8>(to.start as usize);
        // SAFETY: promised by the caller.
        unsafe { ptr::copy(source, target, (to.end - to.start).min(from.end - from.start) as usize) }
    }
}

/// # Safety
/// The bytes must be writable.
pub(crate) unsafe fn fill(rows: Rows, value: u8) {
    for row in rows.each() {
        let target = ptr::with_exposed_provenance_mut::<u8>(row.start as usize);
        // SAFETY: promised by the caller.
        unsafe { target.write_bytes(value, (row.end - row.start) as usize) }
    }
}
