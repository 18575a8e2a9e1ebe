//! Faults on request, to prove that they are reported and damage no checkpoint.

use crate::state::HostState;

/// Names a parameter and a step, as in `lm_head 4`: that step of it panics.
const VARIABLE: &str = "HOST_OPTIM_PANIC_AT";

/// Panics where the environment asks for it at the step that `state` is about to take.
pub(crate) fn panic_if_asked(state: &HostState) {
    let asked = std::env::var(VARIABLE).unwrap_or_default();
    let at = asked.rsplit_once(' ').and_then(|(name, step)| Some((name, step.parse::<u32>().ok()?)));
    assert!(at != Some((state.name(), state.time() + 1)), "injected into step {asked:?}");
}
