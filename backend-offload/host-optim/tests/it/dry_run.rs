//! Host memory of a dry run: bytes are counted, arithmetic is skipped.

use backend_offload::HostMemory;
use half::bf16;
use host_optim::{AdamW, Format, HostRows, HostState, Stride, Values, ValuesMut};

const RULE: AdamW = AdamW { betas: [0.9, 0.95], epsilon: 1e-8, weight_decay: 0.1 };
const STRIDE: Stride = Stride { lr: 1e-2, scale: 1.0 };
const LEN: usize = 1 << 10;

/// Returns state, weights, squares, and bytes before and after.
fn stepped(memory: &HostMemory, format: Format) -> (HostState, Vec<bf16>, f64, [u64; 2]) {
    let ones = vec![bf16::ONE; LEN];
    let mut weights = ones.clone();
    let mut state = HostState::new(memory, "w", format, Values::Bf16(&ones)).expect("memory");
    for _ in 0..2 {
        state.arrive(Values::Bf16(&ones)).expect("memory");
    }
    let (squares, before) = (state.squares().expect("memory"), memory.usage().in_use);
    state.step(RULE, STRIDE, ValuesMut::Bf16(&mut weights)).expect("it is due");
    (state, weights, squares, [before, memory.usage().in_use])
}

#[test]
fn a_dry_run_step_takes_memory_and_changes_no_number() {
    for format in [Format::F32, Format::Bf16Moments, Format::Compact] {
        let (_state, weights, squares, bytes) = stepped(&HostMemory::unlimited(), format);
        assert!(weights.iter().all(|weight| *weight != bf16::ONE) && squares > 0.0);
        let (state, weights, squares, dry) = stepped(&HostMemory::dry_run(), format);
        assert!(weights.iter().all(|weight| *weight == bf16::ONE), "{format:?}");
        assert_eq!((squares.to_bits(), state.time(), dry), (0, 1, bytes), "{format:?}");
    }
}

#[test]
fn a_dry_run_steps_rows_without_arithmetic() {
    let rows = |memory: &HostMemory| {
        let state = HostState::new(memory, "wte", Format::F32, Values::F32(&[1.0; LEN])).expect("memory");
        let mut rows = HostRows::new(state, 8).expect("rows of a matrix");
        rows.arrive(&[3], &[1.0; 8]).expect("memory");
        rows.step(RULE, STRIDE).expect("it is due");
        let read = rows.read(&[3]).expect("it is there");
        (read, rows.whole().time())
    };
    let (stepped, time) = rows(&HostMemory::unlimited());
    assert!(time == 1 && stepped.iter().all(|weight| (0.9..1.0).contains(weight)), "{stepped:?}");
    // Not even the first weights are written.
    assert_eq!(rows(&HostMemory::dry_run()), (vec![0.0; 8], 1));
}
