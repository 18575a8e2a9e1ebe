//! Requests to a running device, on real kernels.

use super::{Machine, Plain, Target, children, promises};
use crate::child::Facts;
use crate::requests;

children! { "cube/budgets" => budgets, "cube/hints" => hints }

promises! {
    stand_in {
        a_budget_changes_while_the_program_runs: Every,
        hints_decide_which_tensor_is_evicted_first: One,
    }
    vulkan {}
    full {
        a_budget_changes_while_the_program_runs,
        hints_decide_which_tensor_is_evicted_first,
    }
}

fn budgets<T: Target>(_: &Facts) -> Facts {
    requests::budgets::<Plain<T>>(&T::device());
    Facts::default()
}

fn a_budget_changes_while_the_program_runs(machine: &Machine) {
    machine.run(machine.child("cube/budgets"));
}

fn hints<T: Target>(facts: &Facts) -> Facts {
    requests::hints::<Plain<T>>(facts, &T::device())
}

fn hints_decide_which_tensor_is_evicted_first(machine: &Machine) {
    requests::hints_decide_which_tensor_is_evicted(|hint, asked| {
        let report = machine.run(machine.child("cube/hints").with("hint", hint).with("asked", asked));
        assert_eq!(report.number("failures"), 0);
        report.number("restores")
    });
}
