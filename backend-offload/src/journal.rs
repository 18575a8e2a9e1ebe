//! A record of memory decisions: `tracing` events, and a list in tests.

use crate::bytes::Bytes;
use crate::trace_file::TraceFile;

/// A memory decision.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A block left the device.
    Evicted {
        /// Its size.
        bytes: u64,
        /// False if the host copy was current or nothing was written.
        copied: bool,
    },
    /// A block returned to the device.
    Restored {
        /// Its size.
        bytes: u64,
    },
    /// A host copy was dropped to make room; the block is on the device.
    CopyDropped {
        /// Its size.
        bytes: u64,
    },
    /// A block was spilled from host to disk.
    Spilled {
        /// Its size.
        bytes: u64,
        /// False if the disk already held its contents.
        written: bool,
    },
    /// A block was written to the disk and stays on the host.
    WrittenAhead {
        /// Its size.
        bytes: u64,
    },
    /// A block was loaded from disk to host.
    Loaded {
        /// Its size.
        bytes: u64,
    },
    /// Spare memory was returned to the driver.
    Trimmed,
    /// The driver refused memory within the budget.
    DeviceRefused {
        /// The requested size.
        bytes: u64,
    },
    /// Blocks moved while an autotune sample was timed.
    SampleDiscarded,
    /// An operation failed.
    Failed {
        /// Its message.
        error: String,
    },
}

pub(crate) const TARGET: &str = "backend_offload";

#[derive(Debug, Default)]
pub(crate) struct Journal {
    trace: Option<TraceFile>,
    #[cfg(feature = "test-util")]
    events: std::collections::VecDeque<Event>,
}

impl Journal {
    /// For long runs that never drain events.
    #[cfg(feature = "test-util")]
    const KEPT: usize = 1 << 20;

    pub(crate) fn new(trace: Option<TraceFile>) -> Self {
        Self {
            trace,
            #[cfg(feature = "test-util")]
            events: std::collections::VecDeque::new(),
        }
    }

    pub(crate) fn is_recording(&self) -> bool {
        self.trace.is_some()
    }

    /// A failed write ends the trace. Returns whether it remains.
    pub(crate) fn write_trace(&mut self, bytes: &[u8]) -> bool {
        self.trace.take_if(|trace| !trace.write(bytes));
        self.is_recording()
    }

    #[cfg_attr(
        not(feature = "test-util"),
        expect(
            clippy::unused_self,
            clippy::needless_pass_by_value,
            reason = "without `test-util`, events are only traced"
        )
    )]
    pub(crate) fn record(&mut self, event: Event) {
        match &event {
            Event::Evicted { bytes, copied } => {
                tracing::debug!(target: TARGET, bytes, copied, "evicted");
            }
            Event::Restored { bytes } => tracing::debug!(target: TARGET, bytes, "restored"),
            Event::CopyDropped { bytes } => tracing::debug!(target: TARGET, bytes, "host copy dropped"),
            Event::Spilled { bytes, written } => {
                tracing::debug!(target: TARGET, bytes, written, "spilled to the disk");
            }
            Event::WrittenAhead { bytes } => {
                tracing::debug!(target: TARGET, bytes, "written to the disk ahead");
            }
            Event::Loaded { bytes } => tracing::debug!(target: TARGET, bytes, "loaded from the disk"),
            Event::Trimmed => tracing::debug!(target: TARGET, "spare memory returned to the driver"),
            Event::DeviceRefused { bytes } => {
                tracing::warn!(target: TARGET, "the driver refused {} within the budget", Bytes(*bytes));
            }
            Event::SampleDiscarded => tracing::debug!(target: TARGET, "autotune sample discarded"),
            // The failure's thread gets the error.
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
