//! Kernels of compute capability 8.9 and 9.0: tensor cores, asynchronous copies and tensor maps.

use super::{Machine, Plain, Target, children, counted, install};
use crate::child::{Child, Facts};
use crate::stand_in::{Schedules, run_and_report};
use backend_offload::{OffloadRuntime, stats};
use burn::tensor::{bf16, f16};
use cubecl_common::bytes::Bytes;
use cubecl_common::future::block_on;
use cubecl_core::Runtime;
use cubecl_core::client::ComputeClient;
use cubecl_core::ir::{ElemType, FloatKind, StorageType};
use cubecl_core::prelude::TensorBinding;
use cubecl_core::server::{CopyDescriptor, MemoryLayout};
use cubek::matmul::definition::{MatmulElems, MatmulGlobalElems};
use cubek::matmul::launch::{Strategy, launch_ref};
use cubek::std::InputBinding;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::marker::PhantomData;

children! {
    "cube/strategies" => strategies,
    "cube/resident products" => resident_products,
    "cube/clean products" => clean_products,
}

macro_rules! accelerated {
    ($($name:ident),+ $(,)?) => { [$((stringify!($name), Strategy::$name(Default::default()))),+] };
}

const STRATEGIES: usize = 26;

fn all_strategies() -> [(&'static str, Strategy); STRATEGIES] {
    accelerated![
        SimpleCyclicCmma,
        SimpleCyclicMma,
        SimpleStridedMma,
        SimpleTilewiseMma,
        SimpleAsyncStridedCmma,
        SimpleAsyncStridedMma,
        SimpleAsyncCyclicCmma,
        SimpleAsyncCyclicMma,
        SimpleTmaCmma,
        SimpleTmaMma,
        DoubleCyclicCmma,
        DoubleCyclicMma,
        DoubleTilewiseMma,
        DoubleHybridMma,
        DoubleAsyncCyclicMma,
        DoubleAsyncStridedCmma,
        DoubleAsyncStridedMma,
        DoubleTmaCmma,
        DoubleTmaMma,
        SpecializedCyclicCmma,
        SpecializedCyclicMma,
        SpecializedStridedMma,
        SpecializedTmaCmma,
        SpecializedTmaMma,
        OrderedDoubleCmma,
        OrderedDoubleMma,
    ]
}

fn strategy(name: &str) -> Strategy {
    let found = all_strategies().into_iter().find(|(known, _)| *known == name);
    found.expect("a strategy's name").1
}

#[derive(Debug, Clone, Copy)]
enum Number {
    F32,
    F16,
    BF16,
}

impl Number {
    fn named(name: &str) -> Self {
        match name {
            "f32" => Self::F32,
            "f16" => Self::F16,
            "bf16" => Self::BF16,
            other => panic!("no numbers {other:?}"),
        }
    }

    fn storage(self) -> StorageType {
        StorageType::Scalar(ElemType::Float(match self {
            Self::F32 => FloatKind::F32,
            Self::F16 => FloatKind::F16,
            Self::BF16 => FloatKind::BF16,
        }))
    }

    fn encode(self, x: f32) -> Vec<u8> {
        match self {
            Self::F32 => x.to_le_bytes().to_vec(),
            Self::F16 => f16::from_f32(x).to_le_bytes().to_vec(),
            Self::BF16 => bf16::from_f32(x).to_le_bytes().to_vec(),
        }
    }

    fn decode(self, bytes: &[u8]) -> f64 {
        match self {
            Self::F32 => f32::from_le_bytes(bytes.try_into().expect("four bytes")).into(),
            Self::F16 => f16::from_le_bytes(bytes.try_into().expect("two bytes")).into(),
            Self::BF16 => bf16::from_le_bytes(bytes.try_into().expect("two bytes")).into(),
        }
    }

    fn bytes(self) -> usize {
        self.storage().size()
    }

    /// `sum` is of the terms' magnitudes.
    fn tolerance(self, depth: usize, sum: f64, result: f64) -> f64 {
        // Tensor cores take f32 as tf32.
        let (operands, rounding) = match self {
            Self::F32 => (2.0_f64.powi(-10), 2.0_f64.powi(-24)),
            Self::F16 => (0.0, 2.0_f64.powi(-11)),
            Self::BF16 => (0.0, 2.0_f64.powi(-8)),
        };
        (operands + depth as f64 * 2.0_f64.powi(-23)) * sum + 1.01 * rounding * result.abs() + 1e-7
    }
}

struct Matrix {
    layout: MemoryLayout,
    shape: [usize; 2],
    values: Vec<f64>,
}

impl Matrix {
    fn random<R: Runtime>(client: &ComputeClient<R>, number: Number, shape: [usize; 2], seed: u32) -> Self {
        let mut state = seed;
        let mut draw = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / 8_388_608.0 - 1.0
        };
        let bytes: Vec<u8> = (0..shape[0] * shape[1]).flat_map(|_| number.encode(draw())).collect();
        let layout = client.create_tensor_from_slice(&bytes, shape.into(), number.bytes());
        let values = bytes.chunks(number.bytes()).map(|bytes| number.decode(bytes)).collect();
        Self { layout, shape, values }
    }

    fn binding<R: Runtime>(&self) -> TensorBinding<R> {
        binding(&self.layout, self.shape)
    }
}

fn binding<R: Runtime>(layout: &MemoryLayout, shape: [usize; 2]) -> TensorBinding<R> {
    TensorBinding {
        handle: layout.memory.clone().binding(),
        strides: layout.strides.clone(),
        shape: shape.into(),
        runtime: PhantomData,
    }
}

fn multiply<R: Runtime>(
    client: &ComputeClient<R>,
    strategy: &Strategy,
    number: Number,
    [a, b]: [&Matrix; 2],
) -> Result<MemoryLayout, String> {
    let shape = [a.shape[0], b.shape[1]];
    let product = client.empty_tensor(shape.into(), number.bytes());
    let storage = number.storage();
    let input = |matrix: &Matrix| InputBinding::new(matrix.binding(), storage);
    let mut elements =
        MatmulElems::from_globals(&MatmulGlobalElems { lhs: storage, rhs: storage, out: storage });
    let product_binding = binding(&product, shape);
    launch_ref(strategy, client, input(a), input(b), product_binding, &mut elements)
        .map_err(|refused| format!("{refused:?}"))?;
    Ok(product)
}

fn read<R: Runtime>(
    client: &ComputeClient<R>,
    number: Number,
    shape: [usize; 2],
    product: &MemoryLayout,
) -> Bytes {
    let (memory, strides) = (product.memory.clone().binding(), product.strides.clone());
    let from = CopyDescriptor::new(memory, shape.into(), strides, number.bytes());
    block_on(client.read_tensor_async(vec![from])).expect("the kernel ran").remove(0)
}

fn check<R: Runtime>(
    client: &ComputeClient<R>,
    number: Number,
    [a, b]: [&Matrix; 2],
    product: &MemoryLayout,
) {
    let [[rows, depth], [_, columns]] = [a.shape, b.shape];
    let bytes = read(client, number, [rows, columns], product);
    let found = bytes.chunks(number.bytes()).map(|bytes| number.decode(bytes));
    for (at, found) in found.enumerate() {
        let (row, column) = (at / columns, at % columns);
        let term = |k: usize| a.values[row * depth + k] * b.values[k * columns + column];
        let exact: f64 = (0..depth).map(term).sum();
        let magnitudes: f64 = (0..depth).map(|k| term(k).abs()).sum();
        let tolerance = number.tolerance(depth, magnitudes, exact);
        assert!(
            (found - exact).abs() <= tolerance,
            "row {row}, column {column} of {rows}x{depth}x{columns} {number:?}: {found}, not {exact} ± {tolerance}"
        );
    }
}

const SHAPES: [[usize; 3]; 5] = [[130, 72, 100], [64, 64, 64], [65, 33, 47], [128, 192, 96], [16, 520, 8]];

fn strategies<T: Target>(parameters: &Facts) -> Facts {
    let client = <T::Runtime as Runtime>::client(&T::device());
    let number = Number::named(parameters.text("number"));
    let names: Vec<&str> = parameters.text("strategies").split(' ').collect();
    let mut facts = Facts::default();
    for name in names {
        let mut taken = 0;
        for [m, k, n] in SHAPES.into_iter().take(parameters.value("shapes")) {
            let a = Matrix::random(&client, number, [m, k], 1);
            let b = Matrix::random(&client, number, [k, n], 2);
            match multiply(&client, &strategy(name), number, [&a, &b]) {
                Ok(product) => {
                    println!("{name} of {m}x{k}x{n}");
                    check(&client, number, [&a, &b], &product);
                    taken += 1;
                }
                Err(refused) => {
                    println!("{name} refuses {m}x{k}x{n}: {}", &refused[..refused.len().min(200)]);
                }
            }
        }
        facts = facts.with(name, taken);
    }
    facts
}

fn on_card(child: Child, capability: u32) -> Child {
    child.environment("STAND_IN_CC", capability)
}

fn check_strategies(test: &str, capability: u32, number: &str, names: &[&str]) -> serde_json::Value {
    let Some(machine) = Machine::eager(test) else { return serde_json::Value::Null };
    let child = machine.child("cube/strategies").with("number", number).with("strategies", names.join(" "));
    let child = child.with("shapes", suite::size().pick(1, 2, SHAPES.len()));
    let (taken, report) = run_and_report(on_card(child, capability));
    println!("{capability}, {number}: {taken:?}, {}", report["instructions"]);
    for name in names {
        assert!(taken.number(name) > 0, "{name} at {capability} with {number}");
    }
    assert_eq!(report["findings"].to_string(), "{}", "{capability}, {number}");
    report["instructions"].clone()
}

fn ran(instructions: &serde_json::Value, names: &[&str]) -> bool {
    instructions.is_null() || names.iter().all(|name| instructions[name].as_u64() > Some(0))
}

#[test]
fn products_of_tensor_cores_asynchronous_copies_and_tensor_maps_agree_with_f64() {
    let test = "products_of_tensor_cores_asynchronous_copies_and_tensor_maps_agree_with_f64";
    let ada = check_strategies(test, 89, "f32", &["SimpleAsyncStridedMma"]);
    assert!(ran(&ada, &["mma", "cp.async"]), "{ada}");
    let ada = check_strategies(test, 89, "f16", &["SimpleCyclicMma"]);
    assert!(ran(&ada, &["mma", "ldmatrix"]), "{ada}");
    let hopper = check_strategies(test, 90, "f16", &["SimpleTmaMma", "SimpleCyclicCmma"]);
    assert!(ran(&hopper, &["mma", "ldmatrix", "tensor load", "wmma"]), "{hopper}");
    let hopper = check_strategies(test, 90, "bf16", &["SpecializedTmaMma"]);
    assert!(ran(&hopper, &["mma", "ldmatrix", "tensor load"]), "{hopper}");
}

const SIDE: usize = 64;

/// Smaller than the smallest managed block by default.
const OPERAND_BYTES: usize = SIDE * SIDE * 2;

fn resident_products<T: Target>(parameters: &Facts) -> Facts {
    let device = T::device();
    install::<T>(parameters, &device);
    let client = OffloadRuntime::<T::Runtime>::client(&device);
    let [a, b] = [1, 2].map(|seed| Matrix::random(&client, Number::F16, [SIDE, SIDE], seed));
    let strategy = strategy("SimpleTmaMma");
    for _ in 0..parameters.value("products") {
        multiply(&client, &strategy, Number::F16, [&a, &b]).expect("maps are offered");
    }
    let product = multiply(&client, &strategy, Number::F16, [&a, &b]).expect("maps are offered");
    check(&client, Number::F16, [&a, &b], &product);
    counted::<T>(&device, Facts::default())
}

#[test]
fn resident_products_with_tensor_maps_wait_for_nothing_and_move_nothing() {
    let test = "resident_products_with_tensor_maps_wait_for_nothing_and_move_nothing";
    let Some(machine) = Machine::eager(test) else { return };
    let [few, many] = [4, 104].map(|products| {
        let child = machine.child("cube/resident products").with("products", products);
        let (report, stand_in) = run_and_report(on_card(child.with("smallest", OPERAND_BYTES), 90));
        let managed = report.number("device in use");
        assert!(managed >= 2 * OPERAND_BYTES as u64, "{managed} bytes are managed, of two operands");
        assert_eq!(report.number("bytes out") + report.number("bytes in"), 0);
        assert_eq!(stand_in["findings"].to_string(), "{}");
        stand_in
    });
    let more = |name: &str| many[name].as_u64().expect(name) - few[name].as_u64().expect(name);
    let loads =
        [&few, &many].map(|report| report["instructions"]["tensor load"].as_u64().unwrap_or_default());
    assert!(loads[0] > 0 && loads[0] * 105 == loads[1] * 5, "{loads:?}");
    println!(
        "100 more products: {} kernels, {} waits, {} bytes",
        more("kernels"),
        more("host_waits"),
        more("bytes")
    );
    assert_eq!(more("kernels"), 100);
    assert_eq!((more("host_waits"), more("bytes_to_host"), more("bytes_within_device")), (0, 0, 0));
}

const ROUNDS: u64 = 4;

/// The device holds one pair of operands and a product.
fn clean_products<T: Target>(parameters: &Facts) -> Facts {
    let device = T::device();
    install::<T>(parameters, &device);
    let client = OffloadRuntime::<T::Runtime>::client(&device);
    let pair = |seeds: [u32; 2]| seeds.map(|seed| Matrix::random(&client, Number::F16, [256, 256], seed));
    let pairs = [pair([1, 2]), pair([3, 4])];
    let strategy = strategy("SimpleTmaMma");
    let multiply_all = || {
        pairs.each_ref().map(|[a, b]| {
            let product = multiply(&client, &strategy, Number::F16, [a, b]).expect("maps are offered");
            read(&client, Number::F16, [256, 256], &product)
        })
    };
    let first = multiply_all();
    multiply_all();
    let before = stats::<Plain<T>>(&device);
    for _ in 0..ROUNDS {
        assert!(multiply_all() == first, "the same products in each round");
    }
    let settled = stats::<Plain<T>>(&device).since(&before);
    let mut hasher = DefaultHasher::new();
    for bytes in &first {
        bytes[..].hash(&mut hasher);
    }
    Facts::default()
        .with("clean drops", settled.clean_drops)
        .with("bytes out", settled.bytes_out)
        .with("fingerprint", hasher.finish())
}

mod gate {
    use super::*;

    #[test]
    #[ignore = "gate: under a budget"]
    fn operands_of_tensor_maps_leave_without_a_copy_and_come_back_to_the_same_bits() {
        let test = "operands_of_tensor_maps_leave_without_a_copy_and_come_back_to_the_same_bits";
        let Some(machine) = Machine::eager(test) else { return };
        let [whole, tight] = ["unlimited", "448KiB"].map(|budget| {
            let child = machine.child("cube/clean products").with("budget", budget);
            let (report, stand_in) = run_and_report(on_card(child, 90));
            assert_eq!(stand_in["findings"].to_string(), "{}");
            report
        });
        println!("{tight:?}");
        assert_eq!(tight.text("fingerprint"), whole.text("fingerprint"));
        assert_eq!(tight.number("bytes out"), 0, "{tight:?}");
        assert!(tight.number("clean drops") >= 4 * ROUNDS, "{tight:?}");
    }

    #[test]
    #[ignore = "gate: compiles some hundred kernels"]
    fn an_mlp_trains_to_plain_bits_at_9_0() {
        trains_to_plain_bits(90, "mlp");
    }
}

mod full {
    use super::*;

    #[test]
    #[ignore = "full: compiles some hundred kernels"]
    fn every_strategy_agrees_with_f64_at_8_9_and_9_0() {
        let test = "every_strategy_agrees_with_f64_at_8_9_and_9_0";
        for capability in [89, 90] {
            for number in ["f32", "f16", "bf16"] {
                let mut names = all_strategies().map(|(name, _)| name).to_vec();
                names.retain(|name| capability >= 90 || !name.contains("Tma"));
                let instructions = check_strategies(test, capability, number, &names);
                assert!(ran(&instructions, &["mma", "wmma", "cp.async"]), "{instructions}");
            }
        }
    }

    #[test]
    #[ignore = "full: trains for minutes"]
    fn every_program_trains_to_plain_bits_at_7_0_8_9_and_9_0() {
        for capability in [70, 89, 90] {
            for program in ["mlp", "conv", "normalised", "recurrent", "transformer", "tied transformer"] {
                trains_to_plain_bits(capability, program);
            }
        }
    }
}

const STEPS: usize = 3;
fn trains_to_plain_bits(capability: u32, program: &str) {
    // Other tests run 7.0 under every schedule.
    let schedules = if capability == 70 { Schedules::One } else { Schedules::OneOrEvery };
    let machines = Machine::stand_in(&format!("cards-{capability}-{program}"), schedules);
    let Some((eager, others)) = machines.split_first() else { return };
    let child = |machine: &Machine, scenario| {
        on_card(machine.child(scenario).with("program", program).with("steps", STEPS), capability)
    };
    let (plain, stand_in) = run_and_report(child(eager, "cube/train plain"));
    println!("{capability}, {program}: {}, findings {}", stand_in["instructions"], stand_in["findings"]);
    let train = |machine: &Machine| child(machine, "cube/train").with("plain fusion", true);
    let whole = eager.run(train(eager));
    let largest = whole.number("largest launch");
    let budget = (whole.number("device peak") / 2).max(largest + largest / 20);
    let half = |machine: &Machine| machine.run(train(machine).with("budget", budget));
    let spilling = half(eager);
    assert!(spilling.number("evictions") > 0, "{program} at {capability}: half the memory spills");
    for report in [whole, spilling].into_iter().chain(others.iter().map(half)) {
        assert_eq!(report.text("fingerprint"), plain.text("fingerprint"), "{program} at {capability}");
    }
}
