//! Replays recorded programs under budgets, and bounds any pager.
//!
//! - [`Replay`] runs a [`Recording`](pager::Recording) with the real pager.
//! - [`bound`](bound()) and [`disk_bound`] return the fewest bytes of a step, [`Pace`] its least time.

mod bound;
mod pace;
mod replay;
mod step_bytes;
#[cfg(test)]
mod tests;
mod timeline;

pub use bound::{bound, disk_bound};
pub use pace::Pace;
pub use replay::Replay;
pub use step_bytes::Moved;
pub use timeline::{Elapsed, Machine, StepTimeline};
