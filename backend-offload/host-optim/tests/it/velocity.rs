//! States stepped along a velocity.

use backend_offload::HostMemory;
use half::bf16;
use host_optim::{AdamW, Format, HostOptimError, HostState, Moments, Saved, Sgd, Stride, Values, ValuesMut};

const RULE: Sgd = Sgd { momentum: 0.9, weight_decay: 0.1 };

/// Two pieces; the last fills no vector.
const LEN: usize = 2 * (1 << 14) + 77;

fn stride(step: u32) -> Stride {
    Stride { lr: 0.1 / f64::from(step), scale: if step.is_multiple_of(3) { 0.25 } else { 1.0 } }
}

fn numbers(seed: u32) -> Vec<f32> {
    (0..LEN).map(|n| ((n as f32 + 0.5) * 0.754_877_7 + seed as f32 * 0.3).fract() - 0.5).collect()
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|x| x.to_bits()).collect()
}

fn step(state: &mut HostState, number: u32, weights: &mut [bf16]) {
    let gradient: Vec<bf16> = numbers(number).into_iter().map(bf16::from_f32).collect();
    state.arrive(Values::Bf16(&gradient)).expect("memory");
    state.step(RULE, stride(number), ValuesMut::Bf16(weights)).expect("a gradient");
}

fn trained(format: Format) -> [Saved; 2] {
    let mut weights: Vec<bf16> = numbers(0).into_iter().map(bf16::from_f32).collect();
    let memory = HostMemory::unlimited();
    let mut state = HostState::with_velocity(&memory, "w", format, Values::Bf16(&weights)).expect("memory");
    let mut saved = Vec::new();
    for number in 1..=5 {
        step(&mut state, number, &mut weights);
        saved.push(state.save(Values::Bf16(&weights)).expect("its own weights"));
    }
    [saved.remove(4), saved.remove(2)]
}

#[test]
fn f32_has_the_bits_of_gradient_descent_written_out() {
    let mut weights = numbers(0);
    let mut expected = (weights.clone(), vec![0.0; LEN]);
    let memory = HostMemory::unlimited();
    let mut state =
        HostState::with_velocity(&memory, "w", Format::F32, Values::F32(&weights)).expect("memory");
    for number in 1..=4 {
        let (gradient, Stride { lr, scale }) = (numbers(number), stride(number));
        state.arrive(Values::F32(&gradient)).expect("memory");
        state.step(RULE, stride(number), ValuesMut::F32(&mut weights)).expect("a gradient");
        let elements = expected.0.iter_mut().zip(&mut expected.1).zip(gradient);
        for ((weight, velocity), gradient) in elements {
            *velocity = *velocity * RULE.momentum + gradient * scale as f32;
            *weight = *weight * (1.0 - lr * RULE.weight_decay) as f32 - *velocity * lr as f32;
        }
    }
    assert_eq!(bits(&weights), bits(&expected.0));
    assert_eq!(bits(&state.first_moments().expect("in memory")), bits(&expected.1));
    assert!(state.second_moments().expect("in memory").is_empty());
}

#[test]
fn a_saved_velocity_resumes_to_the_same_bits_on_any_number_of_threads() {
    for format in [Format::F32, Format::Bf16Moments, Format::Compact] {
        let [expected, saved] = trained(format);
        let memory = HostMemory::unlimited();
        let mut weights = vec![bf16::ZERO; LEN];
        let restored = HostState::restore(&memory, "w", format, &saved, &mut ValuesMut::Bf16(&mut weights));
        let mut state = restored.expect("memory");
        (4..=5).for_each(|number| step(&mut state, number, &mut weights));
        assert!(state.save(Values::Bf16(&weights)).expect("its own") == expected, "{format:?}");
        for threads in [1, 3] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
            assert!(pool.install(|| trained(format)) == [expected.clone(), saved.clone()], "{format:?}");
        }
    }
}

#[test]
fn each_format_keeps_its_stated_bytes_and_stays_near_the_wide_one() {
    let [wide, _] = trained(Format::F32);
    let weights: Vec<bf16> = numbers(0).into_iter().map(bf16::from_f32).collect();
    for (format, bytes) in [(Format::F32, 8), (Format::Bf16Moments, 6), (Format::Compact, 6)] {
        let memory = HostMemory::unlimited();
        let state = HostState::with_velocity(&memory, "w", format, Values::Bf16(&weights)).expect("memory");
        let bytes = bytes * LEN as u64;
        assert_eq!((state.host_bytes(), memory.usage().in_use), (bytes, bytes), "{format:?}");
        assert_eq!((format.bytes(LEN as u64, Moments::Velocity, true), state.moments()), (bytes, 1));
        let [narrow, _] = trained(format);
        let apart = narrow.weights.iter().zip(&wide.weights).map(|(a, b)| (a - b).abs());
        let apart = apart.fold(0.0, f32::max);
        assert!(apart < 1e-3 && (apart > 0.0) == (format != Format::F32), "{format:?}: {apart}");
    }
}

#[test]
fn a_state_accepts_only_the_rule_it_was_made_for() {
    let memory = HostMemory::unlimited();
    let adamw = AdamW { betas: [0.9, 0.95], epsilon: 1e-8, weight_decay: 0.1 };
    let mut weights = [1.0];
    let mut velocity =
        HostState::with_velocity(&memory, "v", Format::F32, Values::F32(&weights)).expect("memory");
    let mut moments = HostState::new(&memory, "m", Format::F32, Values::F32(&weights)).expect("memory");
    for state in [&mut velocity, &mut moments] {
        state.arrive(Values::F32(&[1.0])).expect("memory");
    }
    let refused = [
        velocity.step(adamw, stride(1), ValuesMut::F32(&mut weights)),
        moments.step(RULE, stride(1), ValuesMut::F32(&mut weights)),
    ];
    for refused in refused {
        assert!(matches!(refused, Err(HostOptimError::OtherRule { .. })), "{refused:?}");
    }
    assert!(velocity.has_gradient() && moments.has_gradient(), "nothing was used up");
    velocity.step(RULE, stride(1), ValuesMut::F32(&mut weights)).expect("its own rule");
}
