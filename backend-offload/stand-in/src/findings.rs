//! Errors of the program under test, counted and printed. Fatal ones end the process; with `STAND_IN_STRICT`, all do.

use crate::{report, settings::settings};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Finding {
    MissingWait,
    UnwrittenRead,
    UseAfterFree,
    DoubleFree,
    OutsideMemory,
    OtherDevice,
    WrittenOutside,
    FreedPinned,
    PinnedFreedEarly,
    LaunchRefused,
    KernelRefused,
    PartOfWarp,
    AbsentLane,
    EndlessWait,
    NoContext,
    InvalidHandle,
}

impl Finding {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::MissingWait => "missing wait",
            Self::UnwrittenRead => "read of unwritten memory",
            Self::UseAfterFree => "use after free",
            Self::DoubleFree => "double free",
            Self::OutsideMemory => "access outside device memory",
            Self::OtherDevice => "memory of another device",
            Self::WrittenOutside => "write past an allocation",
            Self::FreedPinned => "use of freed pinned memory",
            Self::PinnedFreedEarly => "pinned memory freed under a pending copy",
            Self::LaunchRefused => "launch refused",
            Self::KernelRefused => "kernel refused",
            Self::PartOfWarp => "part of a warp met",
            Self::AbsentLane => "shuffle from an absent lane",
            Self::EndlessWait => "endless wait in a kernel",
            Self::NoContext => "no current context",
            Self::InvalidHandle => "invalid handle",
        }
    }

    fn is_fatal(self) -> bool {
        matches!(
            self,
            Self::UseAfterFree
                | Self::DoubleFree
                | Self::OutsideMemory
                | Self::OtherDevice
                | Self::WrittenOutside
                | Self::FreedPinned
                | Self::EndlessWait
        )
    }
}

#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) finding: Finding,
    pub(crate) circumstances: String,
}

/// Further findings of a kind are counted only.
const PRINTED_PER_KIND: u64 = 8;

impl Fault {
    pub(crate) fn new(finding: Finding, circumstances: impl Into<String>) -> Self {
        Self { finding, circumstances: circumstances.into() }
    }

    pub(crate) fn report(&self) {
        let count = report::count_finding(self.finding);
        let fatal = self.finding.is_fatal() || settings().checks.strict;
        if count <= PRINTED_PER_KIND || fatal {
            eprintln!("stand-in: {}: {}", self.finding.name(), self.circumstances);
        }
        if fatal {
            report::write();
            std::process::abort();
        }
    }
}

pub(crate) fn require<T>(checked: Result<T, Fault>) -> T {
    checked.unwrap_or_else(|fault| {
        fault.report();
        unreachable!("faults of memory are fatal")
    })
}
