//! The pool that device memory is allocated from, as far as it shows: memory that was freed and is still mapped.
//!
//! CUDA unmaps it when somebody waits for work, unless the program has said how much to keep. To map it again takes long.

#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Pool {
    /// Bytes that stay mapped when somebody waits, those in use included.
    pub(crate) keeps: u64,
    /// Bytes that are mapped, and nobody's.
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

    /// Unmaps what is nobody's until so many bytes are mapped in all, of which some are `used`. Returns how many those were.
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
