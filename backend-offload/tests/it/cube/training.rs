//! The same losses and weights, to the last bit, however little of the memory is on the device.

use super::{Plain, Spilling, counted, install, run, vulkan};
use crate::child::{Child, Facts, Report, Scenario};
use crate::programs::{Size, program};
use burn::backend::Autodiff;
use cubecl_wgpu::WgpuDevice;

const STEPS: usize = 20;

/// Fused kernels of all offloaded runs name at most this many buffers, whatever the budget, so that they run
/// the same kernels.
const BINDINGS: u64 = 8;

/// Buffers below the managed size are the runtime's own and come on top of the budget.
const SMALL_BUFFERS: u64 = 1 << 20;

pub fn scenarios() -> Vec<Scenario> {
    vec![
        Scenario { name: "vulkan/train plain", run: train_plain },
        Scenario { name: "vulkan/train", run: train },
    ]
}

fn train_plain(parameters: &Facts) -> Facts {
    let device = WgpuDevice::default();
    let program = program::<Autodiff<Plain>>(parameters.text("program"));
    let run = (program.train)(&device, Size::Usual, parameters.value("steps"), 1);
    Facts::default().with("fingerprint", run.fingerprint())
}

fn train(parameters: &Facts) -> Facts {
    let device = WgpuDevice::default();
    install(parameters, &device);
    let program = program::<Autodiff<Spilling>>(parameters.text("program"));
    let run = (program.train)(&device, Size::Usual, parameters.value("steps"), 1);
    counted(&device, Facts::default().with("fingerprint", run.fingerprint()))
}

fn plain(program: &str, steps: usize) -> Report {
    run(Child::new("vulkan/train plain").with("program", program).with("steps", steps))
}

fn spilling(program: &str, steps: usize) -> Child {
    Child::new("vulkan/train").with("program", program).with("steps", steps).with("bindings", BINDINGS)
}

fn is_bit_identical_at_every_budget(program: &str) {
    if !vulkan(program) {
        return;
    }
    let plain = plain(program, STEPS);
    let unlimited = run(spilling(program, STEPS));
    assert_eq!(unlimited.text("fingerprint"), plain.text("fingerprint"), "unlimited");
    assert_eq!(unlimited.number("bytes out") + unlimited.number("bytes in"), 0, "everything fits");
    let (peak, largest) = (unlimited.number("device peak"), unlimited.number("largest launch"));
    // A twentieth above the largest launch: what it brings besides its operands is nothing.
    for (budget, spills) in [(peak * 6 / 10, false), (peak * 3 / 10, true), (largest + largest / 20, true)] {
        let budget = budget.max(largest);
        let tight = run(spilling(program, STEPS).with("budget", budget).with("watch", true));
        println!(
            "{program}: {budget} of {peak} bytes: {} evictions, {} restores, {} out, {} in; runtime held {}",
            tight.text("evictions"),
            tight.text("restores"),
            tight.text("bytes out"),
            tight.text("bytes in"),
            tight.text("runtime reserved"),
        );
        assert_eq!(tight.text("fingerprint"), plain.text("fingerprint"), "at {budget} of {peak} bytes");
        // Part of the unlimited peak is dead buffers that nobody had to look for.
        assert!(!spills || tight.number("evictions") > 0, "a budget well below the peak spills");
        assert!(tight.number("device peak reserved") <= budget, "the ledger keeps the budget");
        assert!(tight.number("runtime reserved") <= budget + SMALL_BUFFERS, "and the runtime agrees");
        assert_eq!((tight.number("over budget"), tight.number("failures")), (0, 0));
    }
}

#[test]
fn an_mlp_trains_to_the_same_bits_at_every_budget() {
    is_bit_identical_at_every_budget("mlp");
}

#[test]
fn a_convolutional_net_trains_to_the_same_bits_at_every_budget() {
    is_bit_identical_at_every_budget("conv");
}

#[test]
fn a_transformer_trains_to_the_same_bits_at_every_budget() {
    is_bit_identical_at_every_budget("transformer");
}

#[test]
fn an_mlp_trains_to_the_same_bits_when_nothing_is_trusted() {
    if !vulkan("paranoid training") {
        return;
    }
    let paranoid = run(spilling("mlp", 5).with("budget", "8MiB").with("paranoid", true));
    assert!(paranoid.number("restores") > 0);
    assert_eq!(paranoid.text("fingerprint"), plain("mlp", 5).text("fingerprint"));
}
