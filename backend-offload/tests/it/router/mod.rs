//! The router door, over the CPU backend as a simulated device.

use crate::child::Scenario;

pub fn scenarios() -> Vec<Scenario> {
    Vec::new()
}
