//! A device's pool of freed memory that is still mapped. When the host waits, CUDA unmaps it down to a threshold.

#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Pool {
    /// Includes memory in use.
    pub(crate) release_threshold: u64,
    /// Bytes mapped but not allocated.
    unused: u64,
}

impl Pool {
    pub(crate) fn unused(&self) -> u64 {
        self.unused
    }

    pub(crate) fn allocated(&mut self, bytes: u64) {
        self.unused = self.unused.saturating_sub(bytes);
    }

    pub(crate) fn freed(&mut self, bytes: u64) {
        self.unused += bytes;
    }

    /// Unmaps memory until `mapped` bytes are left, `used` of them allocated. Returns the bytes unmapped.
    pub(crate) fn trim_to(&mut self, mapped: u64, used: u64) -> u64 {
        let unmapped = (used + self.unused).saturating_sub(mapped).min(self.unused);
        self.unused -= unmapped;
        unmapped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_threshold_counts_memory_in_use_and_memory_in_use_is_never_unmapped() {
        let mut pool = Pool::default();
        pool.freed(100);
        assert_eq!((pool.trim_to(250, 200), pool.unused()), (50, 50));
        assert_eq!((pool.trim_to(250, 180), pool.unused()), (0, 50));
        pool.allocated(20);
        assert_eq!((pool.trim_to(0, 200), pool.unused()), (30, 0));
        pool.allocated(20);
        assert_eq!(pool.unused(), 0, "it comes from the driver");
    }
}
