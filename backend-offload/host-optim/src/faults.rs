//! Injected faults for tests.

use crate::state::HostState;

/// Parameter and step that panics, as in `lm_head 4`.
const VARIABLE: &str = "HOST_OPTIM_PANIC_AT";

pub(crate) fn panic_if_asked(state: &HostState) {
    let asked = std::env::var(VARIABLE).unwrap_or_default();
    let at = asked.rsplit_once(' ').and_then(|(name, step)| Some((name, step.parse::<u32>().ok()?)));
    assert!(at != Some((state.name(), state.time() + 1)), "injected into step {asked:?}");
}
