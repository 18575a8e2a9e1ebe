//! Autotune under a budget fails no run, and keeps only kernels' times.

use super::{Machine, Plain, Spilling, Target, children, counted, install, promises};
use crate::child::{Facts, HASTE};
use crate::folders;
use backend_offload::{Faults, OffloadConfig};
use burn::prelude::*;
use std::path::Path;

children! { "cube/tune too large" => tune_too_large, "cube/tune among panics" => tune_among_panics }

/// The default level, which tunes most operations.
const SETTINGS: &str = "[autotune]\ncache = \"local\"\n";

fn kept(directory: &Path) -> Vec<String> {
    let mut folders = vec![directory.join("autotune")];
    let mut lines = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            if entry.path().is_dir() {
                folders.push(entry.path());
                continue;
            }
            let text = std::fs::read_to_string(entry.path()).expect("a file of the tuner's");
            lines.extend(text.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned));
        }
    }
    lines
}

promises! {
    stand_in {
        an_operation_too_large_to_run_leaves_no_tuned_choice_behind: One,
        a_failing_candidate_does_not_affect_the_others: One,
    }
    gate {
        tuning_under_a_budget_times_kernels_and_not_copies: One,
    }
    vulkan {}
    full {
        tuning_under_a_budget_times_kernels_and_not_copies,
        an_operation_too_large_to_run_leaves_no_tuned_choice_behind,
        a_failing_candidate_does_not_affect_the_others,
    }
}

fn tuning_under_a_budget_times_kernels_and_not_copies(machine: &Machine) {
    let directory = folders::fresh(SETTINGS);
    let tuned = || {
        machine
            .child("cube/train")
            .with("program", "transformer")
            .with("steps", 2)
            // Not tuned before.
            .environment(HASTE, 1)
            .directory(directory.path().to_owned())
    };

    let report = machine.run(tuned().with("budget", "4MiB"));
    println!(
        "tuning under a budget: {} evictions, {} samples discarded, {} unmeasured",
        report.text("evictions"),
        report.text("autotune discards"),
        report.text("autotune unmeasured"),
    );

    assert!(report.number("evictions") > 0, "there was pressure");
    assert_eq!(report.number("failures"), 0, "and nothing failed");
    assert_eq!((report.number("autotune discards"), report.number("autotune unmeasured")), (0, 0));
    assert!(!kept(directory.path()).is_empty(), "results are kept where the runtime keeps them");

    let again = machine.run(tuned());
    assert_eq!(again.number("autotune discards"), 0);
    assert_eq!(again.text("fingerprint"), report.text("fingerprint"), "the same choices, the same bits");
}

fn tune_too_large<T: Target>(parameters: &Facts) -> Facts {
    let device = T::device();
    install::<T>(parameters, &device);
    let ones = Tensor::<Spilling<T>, 2>::ones([256, 256], &device);
    let product = ones.clone().matmul(ones.transpose());
    let sums = product.clone().sum_dim(1);
    let outcome = |tensor: Tensor<Spilling<T>, 2>| match tensor.try_into_data() {
        Ok(data) => format!("{:?}", data.iter::<f32>().next()),
        Err(error) => error.to_string(),
    };
    let facts = Facts::default().with("product", outcome(product)).with("sums", outcome(sums));
    counted::<T>(&device, facts)
}

fn an_operation_too_large_to_run_leaves_no_tuned_choice_behind(machine: &Machine) {
    let directory = folders::fresh(SETTINGS);
    let child = |budget| {
        let child = machine.child("cube/tune too large").with("budget", budget);
        machine.run(child.directory(directory.path().to_owned()))
    };
    let report = child("400KiB");
    for name in ["product", "sums"] {
        assert!(report.text(name).contains("budget"), "{}", report.text(name));
    }
    assert!(report.number("autotune unmeasured") > 0, "there was something to tune");
    assert_eq!(kept(directory.path()), Vec::<String>::new(), "nothing was measured");
    let report = child("unlimited");
    assert_eq!((report.text("product"), report.text("sums")), ("Some(256.0)", "Some(65536.0)"));
    assert_eq!(report.number("autotune unmeasured"), 0);
    assert!(kept(directory.path()).len() >= 2);
}

fn tune_among_panics<T: Target>(_: &Facts) -> Facts {
    let device = T::device();
    let faults = Faults { panic_in_launch_every: 11, ..Faults::default() };
    OffloadConfig::new().faults(faults).install::<Plain<T>>(&device).expect("installs");
    for rows in [192, 320, 448] {
        let ones = Tensor::<Spilling<T>, 2>::ones([rows, 256], &device);
        let _outcome = ones.clone().matmul(ones.transpose()).try_into_data();
    }
    counted::<T>(&device, Facts::default())
}

fn a_failing_candidate_does_not_affect_the_others(machine: &Machine) {
    let directory = folders::fresh(SETTINGS);
    let report = machine.run(machine.child("cube/tune among panics").directory(directory.path().to_owned()));
    assert_eq!(report.number("autotune unmeasured"), 0, "every candidate wrote to buffers that exist");
    assert!(!kept(directory.path()).is_empty());
}
