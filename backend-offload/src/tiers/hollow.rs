//! Memory for dry runs: an address range that repeats the same 64 MiB, so a small machine can record programs with
//! optimizer state on the host.

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::OnceLock;

/// A process has about 65,000 mappings: less would limit the range.
const REAL: usize = 64 << 20;

pub(super) const SMALLEST: usize = 1 << 20;

pub(crate) struct HollowMemory {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: this value alone owns the mapping.
unsafe impl Send for HollowMemory {}
// SAFETY: as above.
unsafe impl Sync for HollowMemory {}

impl HollowMemory {
    /// `None` without such a mapping or address space.
    pub(super) fn new(len: usize) -> Option<Self> {
        static PAGES: OnceLock<Option<OwnedFd>> = OnceLock::new();
        let pages = PAGES.get_or_init(|| {
            let pages = memfd_create("spillway-dry-run", MemfdFlags::CLOEXEC).ok()?;
            ftruncate(&pages, REAL as u64).ok()?;
            Some(pages)
        });

        let pages = pages.as_ref()?.as_raw_fd();
        let reserved = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a fresh mapping, at an address that the system chooses.
        let start = unsafe { libc::mmap(null_mut(), len, libc::PROT_NONE, reserved, -1, 0) };
        let start = NonNull::new(start.cast::<u8>()).filter(|_| start != libc::MAP_FAILED)?;
        let hollow = Self { start, len };

        for first in (0..len).step_by(REAL) {
            let (access, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
            let bytes = REAL.min(len - first);
            // SAFETY: the range lies within the mapping; the file has enough bytes.
            let mapped =
                unsafe { libc::mmap(start.as_ptr().add(first).cast(), bytes, access, shared, pages, 0) };
            if mapped == libc::MAP_FAILED {
                return None;
            }
        }
        Some(hollow)
    }

    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: `len` bytes are mapped and readable, and any value is valid.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the bytes are writable.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for HollowMemory {
    fn drop(&mut self) {
        // SAFETY: mapped with this length; no reference outlives it.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hollow_buffer_has_the_requested_length_and_repeats_its_pages() {
        let len = 3 * REAL + 5;
        let mut hollow = HollowMemory::new(len).expect("a mapping");
        assert_eq!(hollow.bytes().len(), len);
        hollow.bytes_mut()[len - 1] = 7;
        assert_eq!([hollow.bytes()[4], hollow.bytes()[REAL + 4], hollow.bytes()[5]], [7, 7, 0]);
    }
}
