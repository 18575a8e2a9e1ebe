//! Faults on request, to prove that every one of them is survived or reported.

/// Faults to inject, and how often. Counted per device from its start; zero is never.
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    /// Every so many device allocations is refused once.
    pub refuse_allocation_every: u64,
    /// After this many device allocations, every further one is refused.
    pub refuse_allocations_after: u64,
    /// Every so many copies from device to host fails.
    pub break_copy_out_every: u64,
    /// Every so many copies from host to device fails.
    pub break_copy_in_every: u64,
    /// Every so many launches panics inside the runtime, before the kernel runs.
    pub panic_in_launch_every: u64,
}

/// The most memory the runtime underneath reported, asked after every launch. All streams together, small
/// buffers included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RuntimePeaks {
    /// Bytes in use.
    pub in_use: u64,
    /// Bytes taken from the driver.
    pub reserved: u64,
}

/// Counts occasions and says when it is time.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Occasions(u64);

impl Occasions {
    pub(crate) fn strikes(&mut self, every: u64) -> bool {
        self.0 += 1;
        every > 0 && self.0.is_multiple_of(every)
    }

    pub(crate) fn count(self) -> u64 {
        self.0
    }
}
