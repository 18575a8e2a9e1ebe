//! States on slices, against a separate AdamW, across formats, threads and instruction sets.

use backend_offload::HostMemory;
use half::bf16;
use host_optim::{AdamW, Format, HostOptimError, HostState, Moments, Saved, Stride, Values, ValuesMut};

const RULE: AdamW = AdamW { betas: [0.9, 0.95], epsilon: 1e-8, weight_decay: 0.1 };

/// Several pieces; the last fills neither a vector nor a block.
const LEN: usize = 3 * (1 << 14) + 77;

fn stride(step: u32) -> Stride {
    Stride { lr: 1e-3 / f64::from(step), scale: if step.is_multiple_of(3) { 0.25 } else { 1.0 } }
}

fn numbers(seed: u32, size: f32) -> Vec<f32> {
    let mut x = seed.wrapping_mul(0x9e37_79b9) | 1;
    let mut next = move || {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        x
    };
    (0..LEN)
        .map(|_| (next() as f32 / u32::MAX as f32 - 0.5) * size * 0.5f32.powi((next() % 12) as i32))
        .collect()
}

/// AdamW of its paper, in Burn's order of operations.
fn by_hand(saved: &mut Saved, gradient: &[f32], stride: Stride) {
    saved.time += 1;
    let unbias = RULE.betas.map(|beta| 1.0 - beta.powi(saved.time as i32));
    for (n, gradient) in gradient.iter().enumerate() {
        let g = gradient * stride.scale as f32;
        let [first, second] = [0, 1].map(|which: usize| saved.moments[which][n]);
        let first = first * RULE.betas[0] + g * (1.0 - RULE.betas[0]);
        let second = second * RULE.betas[1] + (g * g) * (1.0 - RULE.betas[1]);
        let delta = (first / unbias[0]) / ((second / unbias[1]).sqrt() + RULE.epsilon);
        let shrink = (1.0 - stride.lr * RULE.weight_decay) as f32;
        saved.weights[n] = saved.weights[n] * shrink - delta * stride.lr as f32;
        (saved.moments[0][n], saved.moments[1][n]) = (first, second);
    }
}

fn started(weights: &[f32]) -> Saved {
    Saved { time: 0, weights: weights.to_vec(), moments: [vec![0.0; LEN], vec![0.0; LEN]] }
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|x| x.to_bits()).collect()
}

fn narrow(numbers: &[f32]) -> Vec<bf16> {
    numbers.iter().map(|x| bf16::from_f32(*x)).collect()
}

fn trained(format: Format, is_narrow: bool, steps: u32) -> (Vec<f32>, Saved) {
    let memory = HostMemory::unlimited();
    let weights = narrow(&numbers(1, 1.0));
    let mut narrow_weights = weights.clone();
    let mut wide_weights: Vec<f32> = weights.iter().map(|x| x.to_f32()).collect();
    let given = if is_narrow { Values::Bf16(&weights) } else { Values::F32(&wide_weights) };
    let mut state = HostState::new(&memory, "a.weight", format, given).expect("there is memory");
    for step in 1..=steps {
        let gradient = narrow(&numbers(step + 1, 0.1));
        state.arrive(Values::Bf16(&gradient)).expect("there is memory");
        let weights =
            if is_narrow { ValuesMut::Bf16(&mut narrow_weights) } else { ValuesMut::F32(&mut wide_weights) };
        state.step(RULE, stride(step), weights).expect("a gradient is there");
    }
    let weights = if is_narrow { Values::Bf16(&narrow_weights) } else { Values::F32(&wide_weights) };
    let saved = state.save(weights).expect("its own weights");
    (saved.weights.clone(), saved)
}

#[test]
fn a_state_in_f32_has_the_bits_of_adamw_written_out() {
    let memory = HostMemory::unlimited();
    let mut weights = numbers(1, 1.0);
    let mut expected = started(&weights);
    let mut state = HostState::new(&memory, "w", Format::F32, Values::F32(&weights)).expect("memory");
    for step in 1..=7 {
        let gradient = numbers(step + 1, 0.1);
        state.arrive(Values::F32(&gradient)).expect("memory");
        state.step(RULE, stride(step), ValuesMut::F32(&mut weights)).expect("a gradient");
        by_hand(&mut expected, &gradient, stride(step));
    }
    let saved = state.save(Values::F32(&weights)).expect("its own");
    assert_eq!(bits(&weights), bits(&expected.weights));
    assert_eq!(saved.time, 7);
    for which in 0..2 {
        assert_eq!(bits(&saved.moments[which]), bits(&expected.moments[which]), "moment {which}");
    }
}

/// Parts of several pages, offset within their buffers.
#[test]
fn a_large_state_has_the_bits_of_arrays_of_the_caller() {
    let len = (1 << 18) + 77;
    let wave = |seed: usize| (0..len).map(move |n| ((n * 7 + seed) as f32 * 0.618).fract() - 0.5);
    let (mut weights, memory) = (wave(1).collect::<Vec<f32>>(), HostMemory::unlimited());
    let mut state = HostState::new(&memory, "w", Format::F32, Values::F32(&weights)).expect("memory");
    assert!(state.host_bytes() > 12 * len as u64, "its parts begin apart");
    let mut expected = [weights.clone(), vec![0.0; len], vec![0.0; len]];
    for step in 1..=3 {
        let gradient: Vec<f32> = wave(step as usize + 1).collect();
        state.arrive(Values::F32(&gradient)).expect("memory");
        state.step(RULE, stride(step), ValuesMut::F32(&mut weights)).expect("a gradient");
        let [weights, first, second] = &mut expected;
        RULE.step(stride(step), step, weights, [first, second], &gradient);
    }
    let saved = state.save(Values::F32(&weights)).expect("its own");
    let found = [&weights, &saved.moments[0], &saved.moments[1]];
    assert!(found.into_iter().zip(&expected).all(|(found, expected)| bits(found) == bits(expected)));
    assert_eq!(bits(&saved.weights), bits(&weights));
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    for (format, is_narrow) in [(Format::F32, false), (Format::Bf16Moments, true), (Format::Compact, true)] {
        let with = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
            pool.install(|| trained(format, is_narrow, 5).1)
        };
        let alone = with(1);
        for threads in [2, 3, 8] {
            assert_eq!(with(threads), alone, "{format:?} on {threads} threads");
        }
    }
}

#[test]
fn narrower_formats_stay_near_the_wide_one_and_differ_from_it() {
    let (expected, _) = trained(Format::F32, true, 60);
    let (start, _) = trained(Format::F32, true, 0);
    let moved: f64 = expected.iter().zip(&start).map(|(a, b)| f64::from(a - b).abs()).sum();
    for (format, margin) in [(Format::Bf16Moments, 0.01), (Format::Compact, 0.05)] {
        let (weights, _) = trained(format, true, 60);
        let off: f64 = weights.iter().zip(&expected).map(|(a, b)| f64::from(a - b).abs()).sum();
        assert!(off > 0.0 && off < margin * moved, "{format:?}: off by {off} after moving by {moved}");
    }
}

#[test]
fn a_saved_state_resumes_bit_for_bit() {
    let memory = HostMemory::unlimited();
    for format in [Format::F32, Format::Bf16Moments, Format::Compact] {
        let (_, saved) = trained(format, true, 4);
        let mut weights = vec![bf16::ZERO; LEN];
        let mut state =
            HostState::restore(&memory, "a.weight", format, &saved, &mut ValuesMut::Bf16(&mut weights))
                .expect("memory");
        let gradient = narrow(&numbers(6, 0.1));
        state.arrive(Values::Bf16(&gradient)).expect("memory");
        state.step(RULE, stride(5), ValuesMut::Bf16(&mut weights)).expect("a gradient");
        let resumed = state.save(Values::Bf16(&weights)).expect("its own");
        assert!(resumed == trained(format, true, 5).1, "{format:?}");
    }
}

#[test]
fn a_saved_state_resumes_in_another_format() {
    let memory = HostMemory::unlimited();
    let (_, saved) = trained(Format::Compact, true, 4);
    let mut weights = vec![0.0; LEN];
    let state = HostState::restore(&memory, "w", Format::F32, &saved, &mut ValuesMut::F32(&mut weights));
    assert_eq!(state.expect("memory").save(Values::F32(&weights)).expect("its own"), saved);
    assert_eq!(bits(&weights), bits(&saved.weights));
}

#[test]
fn each_format_keeps_its_stated_bytes_and_a_gradient_its_own() {
    let weights = narrow(&numbers(1, 1.0));
    let gradient = narrow(&numbers(2, 1.0));
    let len = LEN as u64;
    let bases = 4 * len.div_ceil(256);
    let expected =
        [(Format::F32, 12 * len), (Format::Bf16Moments, 8 * len), (Format::Compact, 4 * len + bases)];
    for (format, bytes) in expected {
        let memory = HostMemory::unlimited();
        let mut state = HostState::new(&memory, "w", format, Values::Bf16(&weights)).expect("memory");
        assert_eq!((state.host_bytes(), memory.usage().in_use), (bytes, bytes), "{format:?}");
        assert_eq!(format.bytes(len, Moments::Two, true), bytes, "{format:?}");
        state.arrive(Values::Bf16(&gradient)).expect("memory");
        assert_eq!(memory.usage().in_use, bytes + 2 * len);
        state.drop_gradient();
        assert_eq!(memory.usage().in_use, bytes);
        drop(state);
        assert_eq!(memory.usage().in_use, 0);
    }
}

#[test]
fn shares_of_a_gradient_add_up_in_f32() {
    let memory = HostMemory::unlimited();
    let weights = vec![0.0; LEN];
    let mut state = HostState::new(&memory, "w", Format::F32, Values::F32(&weights)).expect("memory");
    // 257 has no bf16: a sum in bf16 would lose the second share.
    for share in [256.0, 1.0] {
        state.arrive(Values::Bf16(&vec![bf16::from_f32(share); LEN])).expect("memory");
    }
    assert_eq!(state.squares().expect("memory").to_bits(), (257.0 * 257.0 * LEN as f64).to_bits());
    let mut stepped = weights.clone();
    let rule = AdamW { betas: [0.0, 0.0], epsilon: 257.0, weight_decay: 0.0 };
    state.step(rule, Stride { lr: 1.0, scale: 1.0 }, ValuesMut::F32(&mut stepped)).expect("a gradient");
    assert_eq!(bits(&stepped), bits(&vec![-0.5; LEN]));
    assert!(!state.has_gradient(), "the step used it up");
}

#[test]
fn an_impossible_step_is_an_error_and_changes_nothing() {
    let weights = narrow(&numbers(1, 1.0));
    let mut stepped = weights.clone();
    let memory = HostMemory::unlimited();
    let mut state = HostState::new(&memory, "w", Format::Compact, Values::Bf16(&weights)).expect("memory");
    let none = state.step(RULE, stride(1), ValuesMut::Bf16(&mut stepped));
    assert!(matches!(none, Err(HostOptimError::NoGradient { .. })), "{none:?}");
    let short = state.arrive(Values::F32(&[1.0]));
    assert!(matches!(short, Err(HostOptimError::Length { expected: LEN, found: 1, .. })), "{short:?}");
    state.arrive(Values::F32(&numbers(2, 1.0))).expect("memory");
    let wide = state.step(RULE, stride(1), ValuesMut::F32(&mut vec![0.0; LEN]));
    assert!(matches!(wide, Err(HostOptimError::NotBf16 { .. })), "{wide:?}");
    assert!(state.has_gradient() && state.time() == 0);
    state.step(RULE, stride(1), ValuesMut::Bf16(&mut stepped)).expect("the gradient waited");
    assert_eq!(state.time(), 1);
}

#[test]
fn a_short_last_block_has_bases_of_its_own() {
    let gradient: Vec<f32> = (0..256 + 10).map(|n| if n < 256 { 1.0 } else { 1e-6 }).collect();
    let mut weights = vec![bf16::ONE; gradient.len()];
    let memory = HostMemory::unlimited();
    let mut state = HostState::new(&memory, "w", Format::Compact, Values::Bf16(&weights)).expect("memory");
    state.arrive(Values::F32(&gradient)).expect("memory");
    state.step(RULE, stride(1), ValuesMut::Bf16(&mut weights)).expect("a gradient");
    for (moment, gradient) in state.first_moments().expect("in memory").iter().zip(&gradient) {
        let share = moment / (gradient * (1.0 - RULE.betas[0]));
        assert!((0.85..1.15).contains(&share), "{moment} after {gradient}");
    }
}

/// One rank adds all shares, or several add neighbours.
#[test]
fn shares_are_added_pairwise_by_their_number() {
    let memory = HostMemory::unlimited();
    let weights = vec![0.0; LEN];
    let shares: Vec<_> = (0..7).map(|seed| numbers(seed + 50, 10f32.powi(seed as i32 % 3))).collect();
    let state = |range: std::ops::Range<usize>| {
        let mut state = HostState::new(&memory, "w", Format::F32, Values::F32(&weights)).expect("memory");
        state.number_shares_from(range.start as u64);
        shares[range].iter().for_each(|share| state.arrive(Values::F32(share)).expect("memory"));
        state
    };
    let sum = |left: &[f32], right: &[f32]| left.iter().zip(right).map(|(a, b)| a + b).collect::<Vec<_>>();
    let pair = |n: usize| sum(&shares[n], &shares[n + 1]);
    let wide = |state: &HostState, n: usize| match state.shares()[n] {
        Values::F32(values) => values.to_vec(),
        Values::Bf16(_) => panic!("shares came in f32"),
    };

    let expected = sum(&sum(&pair(0), &pair(2)), &sum(&pair(4), &shares[6]));
    let mut whole = state(0..7);
    assert_eq!(whole.shares().len(), 3, "four, two and one of seven");
    whole.squares().expect("memory");
    assert_eq!((whole.shares().len(), bits(&wide(&whole, 0))), (1, bits(&expected)));

    let part = state(3..7);
    assert_eq!(part.shares().len(), 3);
    assert_eq!(bits(&wide(&part, 0)), bits(&shares[3]));
    assert_eq!(bits(&wide(&part, 1)), bits(&pair(4)));
    let mut replaced = state(3..7);
    replaced.replace_gradient(Values::F32(&expected)).expect("memory");
    let squares = whole.squares().expect("memory").to_bits();
    assert_eq!(replaced.squares().expect("memory").to_bits(), squares);
}
