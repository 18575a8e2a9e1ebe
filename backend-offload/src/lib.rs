//! Spilling.

#![cfg_attr(
    not(any(feature = "cube", feature = "router")),
    expect(dead_code, unused_imports, reason = "without a door nothing drives the core but its own tests")
)]

mod backend;
mod bytes;
mod config;
#[cfg(feature = "cube")]
mod cube;
mod error;
#[cfg(feature = "test-util")]
mod faults;
mod host;
mod journal;
mod pager;
mod registry;
#[cfg(feature = "router")]
mod router;
mod stats;

pub use backend::{Door, Offload, Offloadable, largest_holders, mark_step, stats, trim};
#[cfg(feature = "test-util")]
pub use backend::events;
pub use bytes::{Budget, BudgetError, Bytes};
pub use config::OffloadConfig;
pub use error::{Holder, OffloadError, Situation, Tier};
#[cfg(feature = "test-util")]
pub use faults::Faults;
#[cfg(feature = "test-util")]
pub use journal::Event;
pub use pager::{Oversized, Policy};
pub use stats::{Stats, TierStats};
