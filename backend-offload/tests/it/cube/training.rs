//! Losses and weights are bit-identical under every budget.

use super::{Machine, Plain, Spilling, Target, children, counted, install, promises};
use crate::child::{Child, Facts, Report};
#[cfg(feature = "cuda")]
use crate::programs::after_each_step;
use crate::programs::{Size, program};
use backend_offload::{Budget, reset_peaks, set_device_budget, stats};
use burn::backend::Autodiff;
use burn::tensor::backend::Backend;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

const STEPS: usize = 6;

fn largest_block(program: &str) -> u64 {
    if program == "normalised" { 2 << 20 } else { 5 << 18 }
}

const SMALL_BUFFERS: u64 = 1 << 20;

children! { "cube/train plain" => train_plain, "cube/train" => train, "cube/train at shares" => train_at_shares }

fn train_plain<T: Target>(parameters: &Facts) -> Facts {
    let device = T::device();
    let program = program::<Autodiff<Plain<T>>>(parameters.text("program"));
    let run = (program.train)(&device, Size::Usual, parameters.value("steps"), 1);
    Facts::default().with("fingerprint", run.fingerprint())
}

fn train<T: Target>(parameters: &Facts) -> Facts {
    let device = T::device();
    install::<T>(parameters, &device);
    #[cfg(feature = "cuda")]
    if parameters.find("marked").is_some() {
        let device = device.clone();
        after_each_step(move || backend_offload::mark_step::<Plain<T>>(&device));
    }
    if parameters.find("synchronise first").is_some() {
        <Spilling<T> as Backend>::sync(&device).expect("nothing is under way");
    }
    let program = program::<Autodiff<Spilling<T>>>(parameters.text("program"));
    let size = parameters.find("size").map_or(Size::Usual, |name| name.parse().expect("a size"));
    let run = (program.train)(&device, size, parameters.value("steps"), 1);
    counted::<T>(&device, Facts::default().with("fingerprint", run.fingerprint()))
}

fn plain(machine: &Machine, program: &str, steps: usize) -> Report {
    machine.run(machine.child("cube/train plain").with("program", program).with("steps", steps))
}

fn spilling(machine: &Machine, program: &str, steps: usize) -> Child {
    machine.child("cube/train").with("program", program).with("steps", steps)
}

promises! {
    stand_in {
        an_mlp_trains_to_the_same_bits_at_every_budget: Every,
        a_transformer_trains_to_the_same_bits_at_every_budget: EveryInGate,
    }
    gate {
        an_mlp_trains_to_the_same_bits_with_and_without_a_plan: One,
        an_mlp_trains_to_the_same_bits_with_paranoid_checks: Every,
        a_convolutional_net_trains_to_the_same_bits_at_every_budget: Every,
        a_net_with_batch_norm_trains_to_the_same_bits_at_every_budget: Every,
        a_tied_transformer_trains_to_the_same_bits_at_every_budget: Every,
        a_transformer_trains_to_the_same_bits_with_and_without_a_plan: One,
    }
    longest { a_recurrent_net_trains_to_the_same_bits_at_every_budget: Every }
    vulkan { a_transformer_trains_to_the_same_bits_at_every_budget }
    full {
        an_mlp_trains_to_the_same_bits_at_every_budget,
        a_convolutional_net_trains_to_the_same_bits_at_every_budget,
        a_net_with_batch_norm_trains_to_the_same_bits_at_every_budget,
        a_recurrent_net_trains_to_the_same_bits_at_every_budget,
        a_tied_transformer_trains_to_the_same_bits_at_every_budget,
        an_mlp_trains_to_the_same_bits_with_paranoid_checks,
        an_mlp_trains_to_the_same_bits_with_and_without_a_plan,
        a_transformer_trains_to_the_same_bits_with_and_without_a_plan,
    }
}

fn is_bit_identical_at_every_budget(machine: &Machine, program: &str) {
    if machine.is_vulkan() {
        return is_bit_identical_at_shares(machine, program);
    }

    let with_plain_fusion = |child: Child| child.with("plain fusion", true);
    let (default, plain_again) = unlimited(machine, program, with_plain_fusion);
    let ours = check_bits_at_every_budget(machine, program, &default, |child| child);
    let theirs = check_bits_at_every_budget(machine, program, &plain_again, with_plain_fusion);

    // A cut may add a small operand to the largest kernel.
    assert!(
        ours.floor <= theirs.floor + theirs.floor / 20,
        "a kernel of few operands has no higher floor: {} and {}",
        ours.floor,
        theirs.floor
    );

    if program == "mlp" || !machine.follows_another() {
        check_bits_above_a_disk(machine, program, &theirs, with_plain_fusion);
    }
    if program == "mlp" {
        check_bits_above_a_disk(machine, program, &ours, |child| child);
    }
}

struct Tightest {
    /// Bytes of the largest launch.
    floor: u64,
    budget: u64,
    host_peak: u64,
    run: Report,
}

/// Where each process compiles for seconds.
fn is_bit_identical_at_shares(machine: &Machine, program: &str) {
    let plain = plain(machine, program, STEPS);
    let at_shares = || machine.child("cube/train at shares").with("program", program);
    let default = machine.run(at_shares());
    let plain_again = machine.run(at_shares().with("plain fusion", true));
    assert_eq!(plain_again.text("fingerprint"), plain.text("fingerprint"), "with plain's fusion");
    for report in [&default, &plain_again] {
        println!("{program}: {report:?}");
        assert_eq!(report.number(&format!("moved at {FITS}")), 0, "{program}: everything fits");
        assert!(report.number("moved at 0") > 0, "{program}: the barely sufficient budget spills");
    }
    let (budget, host_peak) = (plain_again.number("budget at 0"), plain_again.number("host peak at 0"));
    let with_plain_fusion = |child: Child| child.with("plain fusion", true);
    check_bits_above_a_disk(
        machine,
        program,
        &Tightest { floor: 0, budget, host_peak, run: plain_again },
        with_plain_fusion,
    );
}

/// Later schedules reuse the reports, except in the full suite.
fn unlimited(
    machine: &Machine,
    program: &str,
    with_plain_fusion: impl Fn(Child) -> Child,
) -> (Report, Report) {
    static KNOWN: Mutex<BTreeMap<String, (Report, Report)>> = Mutex::new(BTreeMap::new());
    let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if machine.follows_another()
        && let Some(reports) = known().get(program)
    {
        return reports.clone();
    }
    let plain = plain(machine, program, STEPS);
    let default = machine.run(spilling(machine, program, STEPS));
    let plain_again = machine.run(with_plain_fusion(spilling(machine, program, STEPS)));
    assert_eq!(plain_again.text("fingerprint"), plain.text("fingerprint"), "unlimited, with plain's fusion");
    if machine.is_thorough() {
        known().insert(program.to_owned(), (default.clone(), plain_again.clone()));
    }
    (default, plain_again)
}

fn check_bits_at_every_budget(
    machine: &Machine,
    program: &str,
    unlimited: &Report,
    configured: impl Fn(Child) -> Child,
) -> Tightest {
    assert_eq!(unlimited.number("bytes out") + unlimited.number("bytes in"), 0, "everything fits");
    let (peak, largest) = (unlimited.number("device peak"), unlimited.number("largest launch"));
    let barely = largest + largest / 20;
    let takes_all = machine.is_thorough() && (program == "mlp" || suite::size() > suite::Size::Quick);

    let budgets = if takes_all { vec![peak / 2, peak / 4, barely] } else { vec![barely] };
    let (mut evictions, mut ahead, mut tightest) = (0, 0, None);

    for budget in budgets.into_iter().map(|budget| budget.max(largest)) {
        let tight = configured(spilling(machine, program, STEPS)).with("budget", budget).with("watch", true);
        let tight = machine.run(tight);
        println!(
            "{program}: {budget} of {peak} bytes: {} evictions, {} ahead, {} restores, {} ahead, {} out, {} in; \
             runtime held {}",
            tight.text("evictions"),
            tight.text("left ahead"),
            tight.text("restores"),
            tight.text("brought ahead"),
            tight.text("bytes out"),
            tight.text("bytes in"),
            tight.text("runtime reserved"),
        );

        assert_eq!(tight.text("fingerprint"), unlimited.text("fingerprint"), "at {budget} of {peak} bytes");
        evictions += tight.number("evictions");
        ahead += tight.number("left ahead") + tight.number("brought ahead");
        assert!(tight.number("device peak reserved") <= budget, "the ledger keeps the budget");
        assert!(tight.number("runtime reserved") <= budget + SMALL_BUFFERS, "and the runtime agrees");
        assert_eq!((tight.number("over budget"), tight.number("failures")), (0, 0));
        let host_peak = tight.number("host peak");
        tightest = Some(Tightest { floor: largest, budget, host_peak, run: tight });
    }

    // The unlimited peak includes dead buffers.
    assert_eq!(ahead > 0, machine.overlaps_copies(), "{program}: {ahead} moves ahead of their operations");
    assert!(evictions > 0, "{program}: the barely sufficient budget of {barely} bytes spills");
    tightest.expect("it is the last budget")
}

fn check_bits_above_a_disk(
    machine: &Machine,
    program: &str,
    roomy: &Tightest,
    configured: impl Fn(Child) -> Child,
) {
    let host = (roomy.host_peak / 4).max(largest_block(program));
    let child = configured(spilling(machine, program, STEPS)).with("budget", roomy.budget);
    let spilling = machine.run(child.with("host", host).with("disk", "256MiB"));
    println!(
        "{program}: {} bytes on the device and {host} of {} on the host: {} spilled, {} of them written before, {} loaded, {} of them ahead",
        roomy.budget,
        roomy.host_peak,
        spilling.text("spilled"),
        spilling.text("written ahead"),
        spilling.text("loaded"),
        spilling.text("loaded ahead")
    );
    assert_eq!(spilling.text("fingerprint"), roomy.run.text("fingerprint"), "{program} above a disk");
    assert!(spilling.number("spilled") > 0 && spilling.number("loaded") > 0);
    assert!(spilling.number("device peak reserved") <= roomy.budget);
    assert!(spilling.number("host peak reserved") <= host);
    assert_eq!((spilling.number("over budget"), spilling.number("failures")), (0, 0));
}

fn an_mlp_trains_to_the_same_bits_at_every_budget(machine: &Machine) {
    is_bit_identical_at_every_budget(machine, "mlp");
}

fn a_convolutional_net_trains_to_the_same_bits_at_every_budget(machine: &Machine) {
    is_bit_identical_at_every_budget(machine, "conv");
}

fn a_net_with_batch_norm_trains_to_the_same_bits_at_every_budget(machine: &Machine) {
    is_bit_identical_at_every_budget(machine, "normalised");
}

fn a_recurrent_net_trains_to_the_same_bits_at_every_budget(machine: &Machine) {
    is_bit_identical_at_every_budget(machine, "recurrent");
}

fn a_transformer_trains_to_the_same_bits_at_every_budget(machine: &Machine) {
    is_bit_identical_at_every_budget(machine, "transformer");
}

fn a_tied_transformer_trains_to_the_same_bits_at_every_budget(machine: &Machine) {
    is_bit_identical_at_every_budget(machine, "tied transformer");
}

fn an_mlp_trains_to_the_same_bits_with_paranoid_checks(machine: &Machine) {
    let plain = plain(machine, "mlp", 5);
    let paranoid = machine.run(
        spilling(machine, "mlp", 5).with("plain fusion", true).with("budget", "8MiB").with("paranoid", true),
    );
    assert!(paranoid.number("restores") > 0);
    assert_eq!(paranoid.text("fingerprint"), plain.text("fingerprint"));
}

/// The program drops buffers beside the device's work, so the peaks of two runs differ by some.
const FITS: u64 = 125;

/// Percentages of the unlimited peak, but at least the barely sufficient budget.
fn train_at_shares<T: Target>(parameters: &Facts) -> Facts {
    let device = T::device();
    install::<T>(parameters, &device);
    let program = program::<Autodiff<Spilling<T>>>(parameters.text("program"));
    let train = || (program.train)(&device, Size::Usual, STEPS, 1).fingerprint();

    let unlimited = train();
    let all = stats::<Plain<T>>(&device);
    let mut facts = Facts::default().with("fingerprint", unlimited);

    for share in [FITS, 60, 30, 0] {
        let budget = (all.device.peak * share / 100).max(all.largest_launch + all.largest_launch / 20);
        set_device_budget::<Plain<T>>(&device, Budget::Bytes(budget)).expect("a budget");
        reset_peaks::<Plain<T>>(&device);
        let before = stats::<Plain<T>>(&device);
        assert_eq!(train(), unlimited, "at {share} %");
        let now = stats::<Plain<T>>(&device).since(&before);
        assert!(now.device.peak_reserved <= budget, "{} of {budget} at {share} %", now.device.peak_reserved);
        assert_eq!((now.over_budget, now.failures), (0, 0), "at {share} %");
        facts = facts
            .with(&format!("budget at {share}"), budget)
            .with(&format!("host peak at {share}"), now.host.peak)
            .with(&format!("predicted at {share}"), now.predicted)
            .with(&format!("moved at {share}"), now.bytes_out + now.bytes_in)
            .with(&format!("ahead at {share}"), now.left_ahead + now.brought_ahead);
    }
    facts
}

fn trains_to_the_same_bits_with_and_without_a_plan(machine: &Machine, program: &str) {
    let ways = [("planned", true), ("recency", false), ("planned", false), ("recency", true)];
    let ways = if machine.overlaps_copies() { &ways[..] } else { &ways[..2] };
    let mut fingerprint = None;

    for (policy, overlap) in ways {
        let child = machine.child("cube/train at shares").with("program", program);
        let report = machine.run(child.with("policy", policy).with("overlap", overlap));
        println!("{program}, {policy}, copies beside the work {overlap}: {report:?}");

        let count = |name: &str, share: u64| report.number(&format!("{name} at {share}"));
        let first = fingerprint.get_or_insert_with(|| report.text("fingerprint").to_owned());
        assert_eq!(report.text("fingerprint"), *first, "{program}, {policy}");
        assert_eq!(count("moved", FITS), 0, "{program}, {policy}: everything fits");
        assert!(count("moved", 30) > 0, "{program}, {policy}: not everything fits");

        for share in [60, 30] {
            assert_eq!(
                count("predicted", share) > 0,
                *policy == "planned",
                "{program} at {share} %, {policy}"
            );
        }

        let looks_ahead = machine.overlaps_copies() && *overlap && *policy == "planned";
        assert_eq!(count("ahead", 30) > 0, looks_ahead, "{program}, {policy}: moves ahead");
    }
}

fn an_mlp_trains_to_the_same_bits_with_and_without_a_plan(machine: &Machine) {
    trains_to_the_same_bits_with_and_without_a_plan(machine, "mlp");
}

fn a_transformer_trains_to_the_same_bits_with_and_without_a_plan(machine: &Machine) {
    trains_to_the_same_bits_with_and_without_a_plan(machine, "transformer");
}
