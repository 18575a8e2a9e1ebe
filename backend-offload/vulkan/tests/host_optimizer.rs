//! The optimizer on host memory, with a device that spills: equal numbers at every budget.
//!
//! A device is configured once per process: each run starts this binary again, for the ignored test.

use std::env;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::catch_unwind;
use std::path::Path;
use std::process::Command;

use backend_offload::{Offload, OffloadConfig, host_memory, stats};
use burn::backend::Autodiff;
use burn::module::{Module, Param};
use burn::optim::{GradientsParams, Optimizer};
use burn::tensor::{Tensor, TensorData, backend::Backend};
use burn_cubecl::CubeBackend;
use burn_fusion::Fusion;
use cubecl_core::Runtime;
use cubecl_wgpu::{WgpuDevice, WgpuRuntime};
use host_optim::{AdamW, Arrivals, Format, HostAdamWConfig, HostState, Incoming, Stride, Updated, Updates};
use suite::Need;

type Plain = Fusion<CubeBackend<WgpuRuntime, f32, i32, u32>>;
type B = Offload<Plain>;

const LAYERS: usize = 6;
const STEPS: usize = 4;
/// Large enough to be moved.
const SHAPE: [usize; 2] = [128, 192];

/// A child's device budget; if empty, it reports its device.
const BUDGET: &str = "HOST_OPTIM_TEST_BUDGET";
const MARK: &str = "report> ";

#[derive(Module, Debug)]
struct Net<B: Backend> {
    layers: Vec<Param<Tensor<B, 2>>>,
}

impl<B: Backend> Net<B> {
    fn loss(&self, step: usize, device: &B::Device) -> Tensor<B, 1> {
        let input = Tensor::<B, 2>::from_data(numbers(100 + step as u32), device);
        let scale = |x: Tensor<B, 2>, layer: &Param<Tensor<B, 2>>| (x * layer.val() + 0.5).tanh();
        self.layers.iter().fold(input, scale).powf_scalar(2.0).mean()
    }
}

fn numbers(seed: u32) -> TensorData {
    let mut x = seed.wrapping_mul(0x9e37_79b9) | 1;
    let numbers = (0..SHAPE.iter().product()).map(|_| {
        x = x.wrapping_mul(0x915f_77f5).wrapping_add(0x6a09_e667);
        (x >> 8) as f32 / 16_777_216.0 - 0.5
    });
    TensorData::new(numbers.collect::<Vec<f32>>(), SHAPE)
}

fn matrix<B: Backend>(seed: usize, device: &B::Device) -> Tensor<B, 2> {
    Tensor::from_data(numbers(seed as u32), device)
}

fn bits<B: Backend>(tensor: Tensor<B, 2>) -> Vec<u32> {
    tensor.into_data().iter::<f32>().map(f32::to_bits).collect()
}

/// Two gradient shares are clipped together.
fn through_burns_optimizer(format: Format, device: &WgpuDevice) -> Vec<u32> {
    let layers = (0..LAYERS).map(|n| Param::from_tensor(matrix(n, device)));
    let mut net = Net::<Autodiff<B>> { layers: layers.collect() };
    let config = HostAdamWConfig::new().with_format(format).with_max_norm(1e-4);
    let mut optimizer = config.init(host_memory::<Plain>(device));
    for step in 0..STEPS {
        let gradients =
            |share| GradientsParams::from_grads(net.loss(2 * step + share, device).backward(), &net);
        optimizer.arrive(&net, &mut gradients(0)).expect("there is room");
        let last = gradients(1);
        net = optimizer.step(1e-2, net, last);
    }
    net.layers.iter().flat_map(|layer| bits(layer.val())).collect()
}

/// Each update is awaited where its weights are used.
fn on_background_threads(device: &WgpuDevice) -> Vec<u32> {
    let rule = AdamW { betas: [0.9, 0.95], epsilon: 1e-8, weight_decay: 0.1 };
    let memory = host_memory::<Plain>(device);
    let mut weights: Vec<Tensor<B, 2>> = (0..LAYERS).map(|n| matrix(n, device)).collect();
    let begin = |(n, weights)| HostState::from_tensor(&memory, &format!("layer {n}"), Format::F32, weights);
    let mut states: Vec<_> =
        weights.iter().enumerate().map(begin).collect::<Result<_, _>>().expect("there is room");
    let arrivals = Arrivals::begin().expect("a thread");
    for _ in 0..STEPS {
        let arriving = states.into_iter().zip(&weights).map(|(state, weights)| {
            let gradient = (weights.clone() * 3.0).tanh();
            let share = Incoming::begin(state.name(), gradient).expect("it can be read");
            arrivals.take_in(state, share, true)
        });
        let arriving: Vec<_> = arriving.collect();
        let prepared = arriving.into_iter().zip(weights).map(|(arriving, weights)| {
            let (state, outcome) = arriving.wait().expect("no panic");
            outcome.expect("there is room");
            state.begin_tensor(rule, Stride { lr: 1e-2, scale: 1.0 }, weights).expect("f32")
        });
        let (updates, updated): (Vec<_>, Vec<_>) = prepared.unzip();
        let updates = Updates::begin(updates).expect("a thread");
        weights = updated.iter().map(Updated::wait).collect();
        states = updates.finish().expect("all are due");
    }
    weights.into_iter().flat_map(bits).collect()
}

#[test]
#[ignore = "started by the other test, in processes of its own"]
fn trains_under_the_budget_it_was_started_for() {
    let Ok(budget) = env::var(BUDGET) else { return };
    let device = WgpuDevice::default();
    if budget.is_empty() {
        let found = catch_unwind(|| format!("{:?}", WgpuRuntime::client(&device).info()));
        println!("{MARK}{}", found.unwrap_or_default());
        return;
    }
    let config = OffloadConfig::new().device_budget(budget.parse().expect("a budget"));
    config.install::<Plain>(&device).expect("a budget that the device has");
    let mut hasher = DefaultHasher::new();
    for weights in [
        through_burns_optimizer(Format::F32, &device),
        through_burns_optimizer(Format::Bf16Moments, &device),
        on_background_threads(&device),
    ] {
        assert!(weights.iter().all(|bits| f32::from_bits(*bits).is_finite()));
        weights.hash(&mut hasher);
    }
    let stats = stats::<Plain>(&device);
    assert_eq!((stats.over_budget, stats.failures), (0, 0));
    let reserved = stats.device.peak_reserved;
    println!("{MARK}{} {} {} {reserved}", hasher.finish(), stats.restores, stats.largest_launch);
}

fn run(folder: &Path, budget: &str) -> String {
    let child = Command::new(env::current_exe().expect("this test's own path"))
        .args(["trains_under_the_budget_it_was_started_for", "--exact", "--ignored", "--nocapture"])
        .current_dir(folder)
        .env(BUDGET, budget)
        .output()
        .expect("a child process");
    let [said, complained] =
        [child.stdout, child.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(child.status.success(), "{budget}: {said}\n{complained}");
    // The test harness may begin the line.
    said.lines().find_map(|line| line.split_once(MARK)).expect("a report").1.to_owned()
}

#[test]
fn a_budget_changes_no_bit_of_weights_that_the_host_steps() {
    // Both runs share one choice of kernels: others may round differently.
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("cubecl.toml"), "[autotune]\ncache = \"local\"\nlevel = \"minimal\"\n")
        .expect("written");
    let missing = (run(folder.path(), "") != "Vulkan").then_some("this machine has no Vulkan device");
    if !Need::Vulkan.is_met(missing) {
        return;
    }
    let report = |budget: &str| -> [u64; 4] {
        let numbers = run(folder.path(), budget);
        let numbers: Vec<_> = numbers.split(' ').map(|number| number.parse().expect("a number")).collect();
        numbers.try_into().expect("four of them")
    };
    let [roomy, restores, largest, _] = report("unlimited");
    assert_eq!(restores, 0, "everything fits");
    // The largest launch needs little besides its operands.
    let budget = largest + largest / 20;
    let [tight, restores, _, reserved] = report(&budget.to_string());
    assert!(restores > 20 && reserved <= budget, "{restores} restores, {reserved} of {budget} bytes");
    assert_eq!(tight, roomy, "at {budget} bytes");
}
