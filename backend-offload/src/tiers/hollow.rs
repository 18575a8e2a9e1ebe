//! Memory for dry runs: as long as was asked for, and a few mebibytes in truth, which appear in it again and again.
//!
//! A dry run computes nothing, so nobody minds what is in a buffer, and a program whose optimizer keeps its state in host memory
//! can be recorded on a machine that has a small part of that memory.

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::OnceLock;

/// Bytes there are in truth. A process may have some 65,000 mappings, each of which shows these once.
const TRUE: usize = 64 << 20;

/// Buffers below this are not worth a mapping.
pub(super) const SMALLEST: usize = 1 << 20;

/// A buffer whose pages are those of all others like it. Its bytes change when others are written.
pub(crate) struct HollowMemory {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is owned by this value alone, and may be used from any thread.
unsafe impl Send for HollowMemory {}
// SAFETY: as above.
unsafe impl Sync for HollowMemory {}

impl HollowMemory {
    /// `None` where the system has no such mapping, or no room for its address.
    pub(super) fn of(len: usize) -> Option<Self> {
        static PAGES: OnceLock<Option<OwnedFd>> = OnceLock::new();
        let pages = PAGES.get_or_init(|| {
            let pages = memfd_create("spillway-dry-run", MemfdFlags::CLOEXEC).ok()?;
            ftruncate(&pages, TRUE as u64).ok()?;
            Some(pages)
        });
        let pages = pages.as_ref()?.as_raw_fd();
        let nothing = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping, at an address that the system chooses.
        let start = unsafe { libc::mmap(null_mut(), len, libc::PROT_NONE, nothing, -1, 0) };
        let start = NonNull::new(start.cast::<u8>()).filter(|_| start != libc::MAP_FAILED)?;
        // From here on it is unmapped when it is dropped.
        let hollow = Self { start, len };
        for first in (0..len).step_by(TRUE) {
            let (access, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
            let bytes = TRUE.min(len - first);
            // SAFETY: it lies within the mapping made above, which nobody knows yet; the file has as many bytes.
            let mapped =
                unsafe { libc::mmap(start.as_ptr().add(first).cast(), bytes, access, shared, pages, 0) };
            if mapped == libc::MAP_FAILED {
                return None;
            }
        }
        Some(hollow)
    }

    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: `len` bytes are mapped and readable. Others change them; any byte is as good as another here.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and they are writable.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for HollowMemory {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and no reference to it outlives its owner.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hollow_buffer_is_as_long_as_was_asked_for_and_shows_the_same_pages_again() {
        let len = 3 * TRUE + 5;
        let mut hollow = HollowMemory::of(len).expect("a mapping");
        assert_eq!(hollow.bytes().len(), len);
        hollow.bytes_mut()[len - 1] = 7;
        assert_eq!([hollow.bytes()[4], hollow.bytes()[TRUE + 4], hollow.bytes()[5]], [7, 7, 0]);
    }
}
