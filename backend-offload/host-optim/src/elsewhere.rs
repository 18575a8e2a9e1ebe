//! Gradients of a parameter that somebody else steps: they arrive and are added up here, and leave again.

use backend_offload::HostMemory;

use crate::error::HostOptimError;
use crate::format::Format;
use crate::kept::StateMemory;
use crate::layout::{Layout, Moments};
use crate::state::HostState;

impl HostState {
    /// Takes gradients of a parameter of `len` elements, and steps nothing. It has no master weights and no moments; memory is
    /// taken when a gradient arrives. `time` is the number of steps that the parameter has taken elsewhere.
    ///
    /// # Errors
    /// If the machine has no memory at all.
    pub fn of_gradients(
        memory: &HostMemory,
        name: &str,
        len: usize,
        time: u32,
    ) -> Result<Self, HostOptimError> {
        // A driver locks no pages of nothing.
        let nothing = HostMemory::unlimited();
        let layout = Layout::of(Format::F32, Moments::Elsewhere, false);
        let mut state = Self::made(&StateMemory::from(&nothing), name, layout, 0, |_, _| {})?;
        (state.memory, state.len, state.time) = (memory.clone(), len, time);
        Ok(state)
    }

    /// Whether the parameter is stepped by somebody else.
    pub fn is_elsewhere(&self) -> bool {
        self.layout.moments == Moments::Elsewhere
    }

    /// Counts a step that the parameter has taken elsewhere. What rounds its gradients follows from that number.
    pub fn pass_step(&mut self) {
        self.time += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AdamW, Sgd, Stride, Values, ValuesMut};

    #[test]
    fn a_gradient_that_is_stepped_elsewhere_takes_memory_for_itself_alone_and_no_step() {
        let memory = HostMemory::unlimited();
        let mut state = HostState::of_gradients(&memory, "w", 3, 7).expect("memory");
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
            refused.expect_err("its state is elsewhere");
        }
        state.pass_step();
        state.drop_gradient();
        assert_eq!((state.time(), memory.usage().in_use), (8, 0));
    }
}
