//! Prices of the simulated clock: seconds of calls on the host, and speeds of a device and its link.
//!
//! [`Prices::FLAT`], the default, charges only for submitting work and waiting. A card's bandwidth and FLOP/s come from
//! NVIDIA's data sheets, its page-locked speed from the trainer's plan. All else is estimated: it compares programs and
//! does not predict a step's time.

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Prices {
    pub(crate) calls: Calls,
    pub(crate) memory: Memory,
    pub(crate) link: Link,
    pub(crate) kernels: Kernels,
    /// Most work queued on a stream. The next call waits for the oldest.
    pub(crate) queue_depth: usize,
    /// Waits of CubeCL's collector thread leave the clock alone, instead of holding up the program.
    pub(crate) collector_is_apart: bool,
}

/// Seconds of a call on the host, without waits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Calls {
    launch: f64,
    copy: f64,
    event: f64,
    record: f64,
    query: f64,
    stream_wait: f64,
    synchronise: f64,
    allocate: f64,
    other: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallKind {
    Launch,
    Copy,
    Event,
    Record,
    Query,
    StreamWait,
    Synchronise,
    Allocate,
    Other,
    /// Charged elsewhere.
    Free,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Memory {
    pub(crate) page_lock: Price,
    pub(crate) page_unlock: Price,
    /// Device memory that the pool lacks or gives back.
    pub(crate) map: Price,
    pub(crate) unmap: Price,
}

/// Seconds, and bytes per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Price {
    base: f64,
    speed: f64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Link {
    /// Seconds of a copy of no bytes.
    pub(crate) latency: f64,
    /// Bytes per second.
    pub(crate) pinned: f64,
    /// Bytes per second through the driver's staging buffer. `None`: as from page-locked memory.
    pub(crate) pageable: Option<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Kernels {
    /// Seconds of a kernel without bytes and FLOPs.
    pub(crate) fixed: f64,
    /// Bytes per second.
    pub(crate) memory: f64,
    /// FLOP/s.
    pub(crate) arithmetic: f64,
    /// FLOPs for each byte, which a kernel's source does not reveal.
    pub(crate) intensity: f64,
}

const FREE: Price = Price { base: 0.0, speed: f64::INFINITY };

/// Estimates for Linux and a fast core.
const CALLS: Calls = Calls {
    launch: 2.5e-6,
    copy: 2e-6,
    event: 0.5e-6,
    record: 0.7e-6,
    query: 0.5e-6,
    stream_wait: 0.6e-6,
    synchronise: 2e-6,
    allocate: 1e-6,
    other: 0.2e-6,
};

/// Estimates: locking 100 MB takes 40 ms; a mapping costs by the call.
const MEMORY: Memory = Memory {
    page_lock: Price { base: 50e-6, speed: 2.5e9 },
    page_unlock: Price { base: 100e-6, speed: f64::INFINITY },
    map: Price { base: 50e-6, speed: 4e12 },
    unmap: Price { base: 50e-6, speed: 4e12 },
};

impl Prices {
    pub(crate) const FLAT: Self = Self {
        calls: Calls { launch: 2e-6, copy: 2e-6, query: 2e-6, ..CALLS.times(0.0) },
        memory: Memory { page_lock: FREE, page_unlock: FREE, map: FREE, unmap: FREE },
        link: Link { latency: 2e-6, pinned: 20e9, pageable: None },
        kernels: Kernels { fixed: 5e-6, memory: f64::INFINITY, arithmetic: f64::INFINITY, intensity: 0.0 },
        queue_depth: usize::MAX,
        collector_is_apart: false,
    };

    pub(crate) fn of_card(name: &str) -> Option<Self> {
        Some(match name {
            // RTX 4090: PCIe 4 x16; FLOP/s of bf16 factors with f32 sums.
            "4090" => Self::card(1008e9, 165.2e12, 25e9, 9e9),
            // RTX 4060 Laptop at its highest clock: PCIe 4 x8, a slower core.
            "laptop" => Self { calls: CALLS.times(1.5), ..Self::card(256e9, 29.1e12, 12e9, 6e9) },
            // H100 SXM, dense: PCIe 5 x16.
            "h100" => Self::card(3350e9, 989e12, 50e9, 10e9),
            _ => return None,
        })
    }

    const fn card(memory: f64, arithmetic: f64, pinned: f64, pageable: f64) -> Self {
        Self {
            calls: CALLS,
            memory: MEMORY,
            link: Link { latency: 2.5e-6, pinned, pageable: Some(pageable) },
            kernels: Kernels { fixed: 3e-6, memory, arithmetic, intensity: 0.0 },
            // NVIDIA documents no number.
            queue_depth: 1024,
            collector_is_apart: true,
        }
    }
}

impl Calls {
    pub(crate) fn of(&self, kind: CallKind) -> f64 {
        match kind {
            CallKind::Launch => self.launch,
            CallKind::Copy => self.copy,
            CallKind::Event => self.event,
            CallKind::Record => self.record,
            CallKind::Query => self.query,
            CallKind::StreamWait => self.stream_wait,
            CallKind::Synchronise => self.synchronise,
            CallKind::Allocate => self.allocate,
            CallKind::Other => self.other,
            CallKind::Free => 0.0,
        }
    }

    const fn times(self, factor: f64) -> Self {
        Self {
            launch: self.launch * factor,
            copy: self.copy * factor,
            event: self.event * factor,
            record: self.record * factor,
            query: self.query * factor,
            stream_wait: self.stream_wait * factor,
            synchronise: self.synchronise * factor,
            allocate: self.allocate * factor,
            other: self.other * factor,
        }
    }
}

impl Price {
    pub(crate) fn of(self, bytes: u64) -> f64 {
        self.base + bytes as f64 / self.speed
    }
}

impl Link {
    pub(crate) fn seconds(&self, bytes: u64, pageable: bool) -> f64 {
        let staged = if pageable { self.pageable } else { None };
        self.latency + bytes as f64 / staged.unwrap_or(self.pinned).min(self.pinned)
    }
}

impl Kernels {
    pub(crate) fn seconds(&self, bytes: u64) -> f64 {
        let bytes = bytes as f64;
        self.fixed + (bytes / self.memory).max(bytes * self.intensity / self.arithmetic)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_takes_the_longer_of_memory_and_arithmetic_after_its_fixed_time() {
        let kernels = Kernels { fixed: 1.0, memory: 100.0, arithmetic: 1000.0, intensity: 2.0 };
        assert_eq!(kernels.seconds(300).to_bits(), 4.0_f64.to_bits());
        assert_eq!(Kernels { intensity: 20.0, ..kernels }.seconds(300).to_bits(), 7.0_f64.to_bits());
        assert_eq!(Prices::FLAT.kernels.seconds(1 << 40).to_bits(), 5e-6_f64.to_bits());
    }

    #[test]
    fn a_pageable_copy_is_never_faster_than_a_pinned_one() {
        let link = Link { latency: 1.0, pinned: 100.0, pageable: Some(50.0) };
        assert_eq!(
            [false, true].map(|pageable| link.seconds(200, pageable).to_bits()),
            [3.0, 5.0].map(f64::to_bits)
        );
        let slow = Link { pinned: 10.0, ..link };
        assert_eq!(slow.seconds(200, true).to_bits(), slow.seconds(200, false).to_bits());
    }

    #[test]
    fn without_a_card_only_submitting_and_asking_take_time() {
        let Calls { launch, copy, query, .. } = Prices::FLAT.calls;
        assert_eq!(Prices::FLAT.calls, Calls { launch, copy, query, ..CALLS.times(0.0) });
        assert!(launch > 0.0 && copy > 0.0 && query > 0.0);
        assert_eq!(Prices::FLAT.memory.page_lock.of(1 << 40).to_bits(), 0);
    }
}
