//! One record per decision: to `tracing` for people, and to a list for tests.

use crate::bytes::Bytes;
use crate::timeline::Watch;
use crate::trace_file::TraceFile;

/// A decision about memory, in the order they were made.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A block left the device; `copied` if its contents had to be copied out first.
    Evicted {
        /// Its size.
        bytes: u64,
        /// False if the host copy was current or nothing had been written.
        copied: bool,
    },
    /// A block came back from the host.
    Restored {
        /// Its size.
        bytes: u64,
    },
    /// A host copy of a block on the device was given up to make room on the host.
    CopyDropped {
        /// Its size.
        bytes: u64,
    },
    /// A block sank from the host to the disk; `written` unless the disk had it already.
    Sunk {
        /// Its size.
        bytes: u64,
        /// Whether its contents had to be written.
        written: bool,
    },
    /// A block was written to the disk and stays on the host.
    WrittenAhead {
        /// Its size.
        bytes: u64,
    },
    /// A block was read from the disk to the host.
    Raised {
        /// Its size.
        bytes: u64,
    },
    /// Spare memory went back to the driver.
    Trimmed,
    /// The driver refused memory the budget allows.
    DeviceRefused {
        /// The size asked for.
        bytes: u64,
    },
    /// A timing sample of autotune was discarded because blocks moved during it.
    SampleDiscarded,
    /// An operation could not run.
    Failed {
        /// The whole error.
        error: String,
    },
}

/// The `tracing` target of all our events.
pub(crate) const TARGET: &str = "backend_offload";

#[derive(Debug, Default)]
pub(crate) struct Journal {
    /// Where the program's accesses are recorded.
    trace: Option<TraceFile>,
    /// The step that is being watched.
    pub(crate) watch: Option<Box<Watch>>,
    /// The latest events, at most [`KEPT`](Self::KEPT).
    #[cfg(feature = "test-util")]
    events: std::collections::VecDeque<Event>,
}

impl Journal {
    /// A run of days whose events nobody takes must not fill the memory with them.
    #[cfg(feature = "test-util")]
    const KEPT: usize = 1 << 20;

    pub(crate) fn new(trace: Option<TraceFile>) -> Self {
        Self {
            trace,
            watch: None,
            #[cfg(feature = "test-util")]
            events: std::collections::VecDeque::new(),
        }
    }

    /// Whether the program's accesses are recorded.
    pub(crate) fn is_recording(&self) -> bool {
        self.trace.is_some()
    }

    /// Continues the recording. False if there is none, or none any more.
    pub(crate) fn write_trace(&mut self, bytes: &[u8]) -> bool {
        self.trace.take_if(|trace| !trace.write(bytes));
        self.is_recording()
    }

    #[cfg_attr(
        not(feature = "test-util"),
        expect(
            clippy::unused_self,
            clippy::needless_pass_by_value,
            reason = "with nobody to keep events for, they are only traced"
        )
    )]
    pub(crate) fn record(&mut self, event: Event) {
        match &event {
            Event::Evicted { bytes, copied } => {
                tracing::debug!(target: TARGET, bytes, copied, "evicted");
            }
            Event::Restored { bytes } => tracing::debug!(target: TARGET, bytes, "restored"),
            Event::CopyDropped { bytes } => tracing::debug!(target: TARGET, bytes, "host copy dropped"),
            Event::Sunk { bytes, written } => {
                tracing::debug!(target: TARGET, bytes, written, "sunk to the disk");
            }
            Event::WrittenAhead { bytes } => {
                tracing::debug!(target: TARGET, bytes, "written to the disk ahead");
            }
            Event::Raised { bytes } => tracing::debug!(target: TARGET, bytes, "raised from the disk"),
            Event::Trimmed => tracing::debug!(target: TARGET, "spare memory returned to the driver"),
            Event::DeviceRefused { bytes } => {
                tracing::warn!(target: TARGET, "the driver refused {} within the budget", Bytes(*bytes));
            }
            Event::SampleDiscarded => tracing::debug!(target: TARGET, "autotune sample discarded"),
            // The thread that caused it gets the error; a warning in the log would only repeat it.
            Event::Failed { error } => tracing::debug!(target: TARGET, "{error}"),
        }
        #[cfg(feature = "test-util")]
        {
            if self.events.len() == Self::KEPT {
                self.events.pop_front();
            }
            self.events.push_back(event);
        }
    }

    #[cfg(feature = "test-util")]
    pub(crate) fn drain(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events).into()
    }
}
