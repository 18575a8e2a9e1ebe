//! Fully resident training has the plain runtime's launches and allocations.

use super::{Machine, Plain, Spilling, Target, children, install};
use crate::child::Facts;
use crate::programs::{Size, after_each_step, program};
use crate::stand_in::run_and_watch;
use backend_offload::OffloadRuntime;
use burn::backend::Autodiff;
use burn::tensor::backend::Backend;
use cubecl_core::Runtime;
use std::cell::RefCell;
use std::rc::Rc;

const STEPS: usize = 5;

/// The plain runtime tunes in its first steps.
const SETTLED: usize = 2;

children! { "cube/looked at" => training_memory }

fn training_memory<T: Target>(parameters: &Facts) -> Facts {
    let device = T::device();
    if parameters.text("backend") == "plain" {
        return trained::<Plain<T>, T::Runtime>(&device, parameters);
    }
    install::<T>(parameters, &device);
    trained::<Spilling<T>, OffloadRuntime<T::Runtime>>(&device, parameters)
}

fn trained<B, R>(device: &R::Device, parameters: &Facts) -> Facts
where
    B: Backend<Device = R::Device>,
    R: Runtime,
{
    let usages = Rc::new(RefCell::new(Vec::new()));
    let (noted, client) = (usages.clone(), R::client(device));
    after_each_step(move || {
        let usage = client.memory_usage().expect("a runtime that tells");
        noted.borrow_mut().push((usage.number_allocs, usage.bytes_in_use));
    });
    let run = (program::<Autodiff<B>>(parameters.text("program")).train)(device, Size::Usual, STEPS, 1);
    let usages = format!("{:?}", &usages.borrow()[STEPS - SETTLED..]);
    Facts::default().with("fingerprint", run.fingerprint()).with("usages", usages)
}

#[test]
fn a_step_that_fits_is_launched_and_allocated_as_on_the_plain_runtime() {
    let test = "a_step_that_fits_is_launched_and_allocated_as_on_the_plain_runtime";
    let Some(machine) = Machine::eager(test) else { return };
    for program in suite::size().pick(&["mlp"][..], &["mlp", "transformer"], &["mlp", "transformer"]) {
        let [plain, ours] = ["plain", "spilling"].map(|backend| {
            let child = machine.child("cube/looked at").with("program", program).with("backend", backend);
            let (report, steps) = run_and_watch(child.with("plain fusion", true), SETTLED);
            let launches = steps.work.iter().filter(|work| work.kind == "compute");
            let launches: Vec<String> = launches.map(|work| work.name.clone()).collect();
            (report, launches)
        });
        println!("{program}: {} launches in {SETTLED} steps, {}", plain.1.len(), plain.0.text("usages"));
        let apart = plain.1.iter().zip(&ours.1).find(|(plain, ours)| plain != ours);
        assert_eq!(apart, None, "{program}: launches, the plain runtime's first");
        assert_eq!(plain.1.len(), ours.1.len(), "{program}");
        assert_eq!(plain.0.text("usages"), ours.0.text("usages"), "{program}: allocations and their bytes");
        assert_eq!(plain.0.text("fingerprint"), ours.0.text("fingerprint"), "{program}");
    }
}
