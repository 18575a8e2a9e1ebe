//! Fault injection: each fault must be survived or reported.

#[cfg(any(test, feature = "test-util"))]
use std::io;

/// Injected faults per device; zero is never.
#[cfg(feature = "test-util")]
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    /// Refuses every n-th device allocation.
    pub refuse_allocation_every: u64,
    /// Refuses all device allocations after so many.
    pub refuse_allocations_after: u64,
    /// Fails every n-th copy from device to host.
    pub break_copy_out_every: u64,
    /// Fails every n-th copy from host to device.
    pub break_copy_in_every: u64,
    /// Fails every n-th piece in the fault's direction, counted per disk.
    pub break_disk_every: Option<(DiskFault, u64)>,
    /// Panics in the runtime at every n-th launch, before the kernel.
    pub panic_in_launch_every: u64,
    /// Skips waits for copies that overlap work.
    pub copies_out_of_order: bool,
}

/// A fault of a disk transfer.
#[cfg(any(test, feature = "test-util"))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskFault {
    /// EIO while reading.
    Read,
    /// Fewer bytes than requested.
    ShortRead,
    /// One flipped bit.
    Damage,
    /// EIO while writing.
    Write,
    /// ENOSPC while writing.
    Full,
}

#[cfg(any(test, feature = "test-util"))]
impl DiskFault {
    /// Whether the fault affects writes.
    #[must_use]
    pub fn is_of_writes(self) -> bool {
        matches!(self, Self::Write | Self::Full)
    }

    /// The first byte must be content, not padding.
    pub(crate) fn strike(self, bytes: &mut [u8]) -> io::Result<()> {
        match self {
            Self::Read | Self::Write => Err(io::Error::from_raw_os_error(5)),
            Self::ShortRead => Err(io::ErrorKind::UnexpectedEof.into()),
            Self::Full => Err(io::Error::from_raw_os_error(28)),
            Self::Damage => {
                bytes.iter_mut().take(1).for_each(|byte| *byte ^= 4);
                Ok(())
            }
        }
    }
}

/// Peaks that the device runtime reported after launches, over all streams and small buffers.
#[cfg(feature = "test-util")]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RuntimePeaks {
    /// Bytes in use.
    pub in_use: u64,
    /// Bytes taken from the driver.
    pub reserved: u64,
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Injector {
    #[cfg(feature = "test-util")]
    faults: Faults,
    #[cfg(feature = "test-util")]
    allocations: u64,
    #[cfg(feature = "test-util")]
    copies_out: u64,
    #[cfg(feature = "test-util")]
    copies_in: u64,
    #[cfg(feature = "test-util")]
    launches: u64,
}

#[cfg(feature = "test-util")]
impl Injector {
    pub(crate) fn new(faults: Faults) -> Self {
        Self { faults, ..Self::default() }
    }

    pub(crate) fn refuses_allocation(&mut self) -> bool {
        let after = self.faults.refuse_allocations_after;
        let strikes = is_due(&mut self.allocations, self.faults.refuse_allocation_every);
        strikes || (after > 0 && self.allocations > after)
    }

    pub(crate) fn breaks_copy_out(&mut self) -> bool {
        is_due(&mut self.copies_out, self.faults.break_copy_out_every)
    }

    pub(crate) fn breaks_copy_in(&mut self) -> bool {
        is_due(&mut self.copies_in, self.faults.break_copy_in_every)
    }

    pub(crate) fn forgets_copies(&self) -> bool {
        self.faults.copies_out_of_order
    }

    pub(crate) fn panics_in_launch(&mut self) -> bool {
        is_due(&mut self.launches, self.faults.panic_in_launch_every)
    }
}

#[cfg(feature = "test-util")]
fn is_due(occasions: &mut u64, every: u64) -> bool {
    *occasions += 1;
    every > 0 && occasions.is_multiple_of(every)
}

#[cfg(not(feature = "test-util"))]
#[expect(clippy::unused_self, reason = "with the feature it counts")]
impl Injector {
    pub(crate) fn refuses_allocation(&mut self) -> bool {
        false
    }

    pub(crate) fn breaks_copy_out(&mut self) -> bool {
        false
    }

    pub(crate) fn breaks_copy_in(&mut self) -> bool {
        false
    }

    pub(crate) fn forgets_copies(&self) -> bool {
        false
    }

    pub(crate) fn panics_in_launch(&mut self) -> bool {
        false
    }
}
