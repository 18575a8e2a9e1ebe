//! The driver's pool, on CUDA's stand-in.

use super::{Machine, Plain, Target, Unfused, children, install};
use crate::child::Facts;
use crate::stand_in::run_and_report;
use backend_offload::{stats, trim};
use burn::prelude::*;

children! { "cube/pool" => change_sizes }

/// Each round's tensors fit only in returned memory.
fn change_sizes<T: Target>(parameters: &Facts) -> Facts {
    let device = T::device();
    install::<T>(parameters, &device);
    for round in 1..=6 {
        let tensors: Vec<_> =
            (0..3).map(|_| Tensor::<Unfused<T>, 1>::ones([round * 100_000], &device) * 2.0).collect();
        let sums = tensors.into_iter().map(|tensor| tensor.sum().into_scalar().elem::<f32>());
        assert!(sums.into_iter().all(|sum| sum.to_bits() == (round as f32 * 200_000.0).to_bits()));
    }
    if parameters.find("trim").is_some() {
        trim::<Plain<T>>(&device);
    }
    Facts::default().with("trims", stats::<Plain<T>>(&device).trims)
}

#[test]
fn memory_given_back_to_the_driver_stays_mapped_until_the_program_trims_the_device() {
    let name = "memory_given_back_to_the_driver_stays_mapped_until_the_program_trims_the_device";
    let Some(machine) = Machine::eager(name) else { return };
    let unmapped = |child| {
        let (report, stand_in) = run_and_report(child);
        assert_eq!(stand_in["findings"].to_string(), "{}");
        assert!(report.number("trims") > 0, "nothing was given back: {report:?}");
        stand_in["unmapped_bytes"].as_u64().expect("a number")
    };
    let child = || machine.child("cube/pool").with("budget", "8MiB");
    assert_eq!(unmapped(child()), 0);
    assert!(unmapped(child().with("trim", 1)) >= 1 << 20);
}
