//! Gradients of a parameter that another process steps.

use backend_offload::HostMemory;

use crate::error::HostOptimError;
use crate::format::Format;
use crate::layout::{Layout, Moments};
use crate::state::HostState;
use crate::storage::StateMemory;

impl HostState {
    /// A state without master weights or moments, after `time` steps. An arriving gradient takes memory.
    pub fn for_gradients(
        memory: &HostMemory,
        name: &str,
        len: usize,
        time: u32,
    ) -> Result<Self, HostOptimError> {
        // Unlimited: a driver cannot lock zero pages.
        let nothing = HostMemory::unlimited();
        let layout = Layout::new(Format::F32, Moments::None, false);
        let mut state = Self::build(&StateMemory::from(&nothing), name, layout, 0, |_, _| {})?;
        (state.memory, state.len, state.time) = (memory.clone(), len, time);
        Ok(state)
    }

    /// Whether another process steps the parameter.
    pub fn belongs_to_another_rank(&self) -> bool {
        self.layout.moments == Moments::None
    }

    /// Counts another process's step, which seeds the rounding of gradients.
    pub fn pass_step(&mut self) {
        self.time += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AdamW, Sgd, Stride, Values, ValuesMut};

    #[test]
    fn a_gradient_only_state_holds_gradients_alone_and_refuses_steps() {
        let memory = HostMemory::unlimited();
        let mut state = HostState::for_gradients(&memory, "w", 3, 7).expect("memory");
        assert_eq!((state.host_bytes(), memory.usage().in_use, state.moments()), (0, 0, 0));
        state.arrive(Values::F32(&[1.0, 2.0, 3.0])).expect("memory");
        state.arrive(Values::F32(&[1.0; 3])).expect("memory");
        assert_eq!((state.host_bytes(), memory.usage().in_use), (12, 12));
        let Values::F32(sum) = state.shares()[0] else { panic!("a sum is in f32") };
        assert_eq!(sum, [2.0, 3.0, 4.0]);
        let stride = Stride { lr: 0.1, scale: 1.0 };
        let adamw = AdamW { betas: [0.9, 0.95], epsilon: 1e-8, weight_decay: 0.1 };
        for rule in [adamw.into(), crate::Rule::from(Sgd { momentum: 0.9, weight_decay: 0.0 })] {
            let refused = state.step(rule, stride, ValuesMut::F32(&mut [0.0; 3]));
            refused.expect_err("another process steps it");
        }
        state.pass_step();
        state.drop_gradient();
        assert_eq!((state.time(), memory.usage().in_use), (8, 0));
    }
}
