//! The planned policy on small programs, and the bounds.

use crate::{Machine, Moved, Pace, Replay, bound, disk_bound};
use pager::{Arena, BadRecording, BlockId, Event, Limit, Operand, Policy, Recording, Step, Tier};

mod bounds;
mod decisions;
mod disk_bounds;
mod hints;
mod planning;
mod pools;
mod recordings;
