//! Steps on a background thread.

use backend_offload::{HostMemory, Offload, host_memory};
use burn::backend::{Flex, flex::FlexDevice};
use burn::tensor::{DType, FloatDType, Tensor, TensorData};
use host_optim::{AdamW, Code, Format, HostState, Stride, TileTensors, Updates, tile_tensors};

type B = Offload<Flex>;

const RULE: AdamW = AdamW { betas: [0.9, 0.95], epsilon: 1e-8, weight_decay: 0.1 };
const STRIDE: Stride = Stride { lr: 1e-2, scale: 1.0 };
const SHAPE: [usize; 2] = [300, 41];

fn tensor(seed: u32, kind: FloatDType) -> Tensor<B, 2> {
    let numbers = (0..SHAPE[0] * SHAPE[1]).map(|n| {
        let bits = (n as u32).wrapping_add(seed << 16).wrapping_mul(0x9e37_79b9);
        (bits >> 8) as f32 / 16_777_216.0 - 0.5
    });
    let data = TensorData::new(numbers.collect::<Vec<f32>>(), SHAPE);
    Tensor::<B, 2>::from_data(data, &FlexDevice).cast(kind)
}

fn due(memory: &HostMemory, format: Format, seed: u32, weights: &Tensor<B, 2>) -> HostState {
    let mut state =
        HostState::from_tensor(memory, &format!("parameter {seed}"), format, weights).expect("memory");
    let kind = if weights.dtype() == DType::BF16 { FloatDType::BF16 } else { FloatDType::F32 };
    state.arrive_tensor(tensor(seed + 100, kind)).expect("memory");
    state
}

fn bits(tensor: Tensor<B, 2>) -> Vec<u32> {
    tensor.into_data().iter::<f32>().map(f32::to_bits).collect()
}

#[test]
fn background_steps_have_the_bits_of_steps_in_the_foreground() {
    let memory = host_memory::<Flex>(&FlexDevice);
    for (format, kind) in [
        (Format::F32, FloatDType::F32),
        (Format::F32, FloatDType::BF16),
        (Format::Bf16Moments, FloatDType::BF16),
        (Format::Compact, FloatDType::BF16),
    ] {
        let weights: Vec<_> = (0..4).map(|seed| tensor(seed, kind)).collect();
        let (mut expected, mut updates, mut updated) = (Vec::new(), Vec::new(), Vec::new());

        for (seed, weights) in (0..).zip(&weights) {
            let mut state = due(&memory, format, seed, weights);
            let stepped = state.step_tensor(RULE, STRIDE, weights.clone()).expect("readable");
            expected.push((bits(stepped), state.first_moments().expect("in memory")));
        }
        for (seed, weights) in (0..).zip(weights) {
            let state = due(&memory, format, seed, &weights);
            let (update, promise) = state.begin_tensor(RULE, STRIDE, weights).expect("memory");
            updates.push(update);
            updated.push(promise);
        }

        let updates = Updates::begin(updates).expect("a thread");
        // In reverse: waiting need not follow the order of the steps.
        let mut made: Vec<_> = updated.iter().rev().map(|updated| bits(updated.wait())).collect();
        made.reverse();
        let states = updates.finish().expect("all are due");
        let moments = states.iter().map(|state| state.first_moments().expect("in memory"));
        assert!(made.into_iter().zip(moments).eq(expected), "{format:?} {kind:?}");
        assert_eq!(updated[0].wait().dtype(), DType::from(kind));
    }
}

#[test]
fn a_step_that_cannot_be_taken_is_reported_and_leaves_nan_for_its_parameter() {
    let memory = host_memory::<Flex>(&FlexDevice);
    let weights: Vec<_> = (0..3).map(|seed| tensor(seed, FloatDType::F32)).collect();
    let (mut updates, mut updated) = (Vec::new(), Vec::new());
    for (seed, weights) in (0..).zip(weights) {
        let mut state = due(&memory, Format::F32, seed, &weights);
        if seed == 1 {
            state.drop_gradient();
        }
        let (update, promise) = state.begin_tensor(RULE, STRIDE, weights).expect("memory");
        updates.push(update);
        updated.push(promise);
    }
    let updates = Updates::begin(updates).expect("a thread");
    let numbers = |n: usize| updated[n].wait().into_data().iter::<f32>().collect::<Vec<_>>();
    assert!(numbers(1).iter().all(|x| x.is_nan()));
    for stepped in [0, 2] {
        assert!(numbers(stepped).iter().all(|x| x.is_finite()), "parameter {stepped}");
    }
    let message = updates.finish().expect_err("one gradient is missing").to_string();
    assert_eq!(message, "parameter 1: no gradient has arrived since the last step");
}

#[test]
fn tile_bytes_and_tile_tensors_hold_the_same_weights() {
    let memory = host_memory::<Flex>(&FlexDevice);
    let len = SHAPE[0] * SHAPE[1];
    let numbers = |(codes, scales): TileTensors<B>| {
        let codes: Vec<i64> = codes.into_data().iter().collect();
        (codes, scales.into_data().iter::<f32>().map(f32::to_bits).collect::<Vec<_>>())
    };
    for code in [Code::Int8, Code::Fp8] {
        let state = |seed| due(&memory, Format::F32, seed, &tensor(seed, FloatDType::F32));
        let (one, here) = state(7).begin_tiles::<B>(RULE, STRIDE, code, &FlexDevice).expect("masters");
        let (other, message) = state(7).begin_tile_data(RULE, STRIDE, code).expect("masters");
        let mut due = state(8);
        due.drop_gradient();
        let (failing, missing) = due.begin_tile_data(RULE, STRIDE, code).expect("masters");
        let updates = Updates::begin(vec![one, other, failing]).expect("a thread");
        let [message, missing] = [message.wait(), missing.wait()]
            .map(|message| numbers(tile_tensors::<B>(&message.bytes, len, &FlexDevice)));
        assert!(numbers(here.wait()) == message, "{code:?}");
        assert!(missing.1.iter().all(|scale| f32::from_bits(*scale).is_nan()), "{code:?}");
        assert_eq!(missing.1.len(), message.1.len());
        updates.finish().expect_err("one gradient is missing");
    }
}

#[test]
fn new_weights_reuse_the_memory_of_their_gradients() {
    let memory = HostMemory::unlimited();
    let states = 8;
    let (mut updates, mut updated) = (Vec::new(), Vec::new());
    for seed in 0..states {
        let weights = tensor(seed, FloatDType::F32);
        let state = due(&memory, Format::F32, seed, &weights);
        let (update, promise) = state.begin_tensor(RULE, STRIDE, weights).expect("memory");
        updates.push(update);
        updated.push(promise);
    }
    let before = memory.usage().in_use;
    let states = Updates::begin(updates).and_then(Updates::finish).expect("all are due");
    let one = (4 * SHAPE[0] * SHAPE[1]) as u64;
    let usage = memory.usage();
    assert_eq!((usage.in_use, usage.peak), (before, before + one));
    drop(updated);
    assert_eq!(memory.usage().in_use, states.iter().map(HostState::host_bytes).sum::<u64>());
}
