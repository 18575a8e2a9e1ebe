//! Memory for dry runs: address space that takes memory only where written. So a small machine can record programs with
//! optimizer state on the host.

use std::ptr::{NonNull, null_mut};

pub(crate) struct HollowMemory {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: this value alone owns the mapping, and no other mapping shares its pages.
unsafe impl Send for HollowMemory {}
// SAFETY: as above.
unsafe impl Sync for HollowMemory {}

impl HollowMemory {
    /// Zeros. `None` without such a mapping or address space.
    pub(super) fn new(len: usize) -> Option<Self> {
        let (access, private) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh mapping, at an address that the system chooses.
        let start = unsafe { libc::mmap(null_mut(), len, access, private | libc::MAP_NORESERVE, -1, 0) };
        let start = NonNull::new(start.cast::<u8>()).filter(|_| start != libc::MAP_FAILED)?;
        Some(Self { start, len })
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

    /// Bytes that change under a shared reference are undefined behaviour.
    #[test]
    fn a_hollow_buffer_shares_no_byte_with_another_or_with_itself() {
        const LEN: usize = (64 << 20) + 4096;
        let [mut written, other] = [(); 2].map(|()| HollowMemory::new(LEN).expect("a mapping"));
        let unchanged = other.bytes();
        written.bytes_mut()[LEN - 1] = 7;
        assert_eq!((written.bytes().len(), written.bytes()[LEN - 1]), (LEN, 7));
        assert_eq!([unchanged[LEN - 1], unchanged[4095], written.bytes()[4095]], [0; 3]);
    }
}
