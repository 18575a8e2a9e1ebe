//! Faults on request, to prove that every one of them is survived or reported.

#[cfg(any(test, feature = "test-util"))]
use std::io;

/// Faults to inject, and how often. Counted per device from its start; zero is never.
#[cfg(feature = "test-util")]
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
    /// Every so many pieces of blocks that this fault is about has it. Counted per disk, which devices share.
    pub break_disk_every: Option<(DiskFault, u64)>,
    /// Every so many launches panics inside the runtime, before the kernel runs.
    pub panic_in_launch_every: u64,
    /// Nothing waits for copies that run beside the device's work.
    pub copies_out_of_order: bool,
}

/// A transfer to or from the disk that goes wrong on purpose.
#[cfg(any(test, feature = "test-util"))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskFault {
    /// The drive cannot read (EIO).
    Read,
    /// It gives less than was asked for.
    ShortRead,
    /// A bit is another one than was written.
    Damage,
    /// It cannot write (EIO).
    Write,
    /// It has no space for what is written (ENOSPC).
    Full,
}

#[cfg(any(test, feature = "test-util"))]
impl DiskFault {
    /// Whether it is writes that have the fault.
    #[must_use]
    pub fn is_of_writes(self) -> bool {
        matches!(self, Self::Write | Self::Full)
    }

    /// The end of a transfer of `bytes` that has the fault. The first of them is content, and no filling up to a page.
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

/// The most memory the runtime underneath reported, asked after every launch. All streams together, small
/// buffers included.
#[cfg(feature = "test-util")]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RuntimePeaks {
    /// Bytes in use.
    pub in_use: u64,
    /// Bytes taken from the driver.
    pub reserved: u64,
}

/// Injects the faults asked for. Compiled without `test-util` it never does.
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

/// Counts an occasion. True for every so many of them; zero is never.
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
