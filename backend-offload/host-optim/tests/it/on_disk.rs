//! States on disk: a step when the disk fails.

use std::path::Path;

use backend_offload::{DiskFault, DiskMemory, HostMemory, Offload};
use burn::backend::{Flex, flex::FlexDevice};
use burn::tensor::{Tensor, TensorData};
use half::bf16;
use host_optim::{AdamW, Format, HostOptimError, HostRows, HostState, Stride, Updates, Values, ValuesMut};

type B = Offload<Flex>;

const RULE: AdamW = AdamW { betas: [0.9, 0.95], epsilon: 1e-8, weight_decay: 0.1 };
const STRIDE: Stride = Stride { lr: 1e-2, scale: 1.0 };

/// More than one chunk.
const LEN: usize = (1 << 19) + 77;
const BYTES: u64 = 32 << 20;

fn disk(folder: &Path) -> DiskMemory {
    let memory = HostMemory::above_disk(folder, BYTES).expect("there is room");
    memory.disk().expect("it was named")
}

fn numbers(seed: usize) -> Vec<bf16> {
    let number = |n: usize| ((n * 7 + seed) as f32 * 0.618).fract() - 0.5;
    (0..LEN).map(|n| bf16::from_f32(number(n))).collect()
}

fn due(disk: &DiskMemory, format: Format, seed: usize) -> (HostState, Vec<bf16>) {
    let weights = numbers(seed);
    let name = format!("parameter {seed}");
    let mut state = HostState::new(disk, &name, format, Values::Bf16(&weights)).expect("there is room");
    state.arrive(Values::Bf16(&numbers(seed + 1))).expect("memory");
    (state, weights)
}

/// Each fault, with the number of reads or writes before it.
fn faults() -> impl Iterator<Item = (DiskFault, u64)> {
    use DiskFault::{Damage, Full, Read, ShortRead, Write};
    let kinds = [Read, ShortRead, Damage, Write, Full];
    kinds.into_iter().flat_map(|kind| [(kind, 0), (kind, 1)])
}

#[test]
fn a_step_whose_disk_fails_leaves_nan_and_one_error_with_the_parameter_the_folder_and_the_place() {
    let folder = tempfile::tempdir().expect("a folder");
    for (fault, after) in faults() {
        let disk = disk(folder.path());
        let format = [Format::F32, Format::Compact][after as usize];
        let (mut state, mut weights) = due(&disk, format, 3);
        disk.fail_after(after, fault);
        let failed = state.step(RULE, STRIDE, ValuesMut::Bf16(&mut weights));
        let message = failed.expect_err("the disk failed").to_string();

        let attempted = if fault.is_of_writes() { "writing" } else { "reading" };
        let reason = match fault {
            DiskFault::Read | DiskFault::Write => "os error 5",
            DiskFault::ShortRead => "end of file",
            DiskFault::Damage => "not those that were written",
            DiskFault::Full => "os error 28",
        };
        let place = format!("of the state of parameter 3 at byte {}", if after == 0 { "0" } else { "" });
        for part in [attempted, &place, &folder.path().display().to_string(), reason] {
            assert!(message.contains(part), "{fault:?}: {part:?} is not in {message}");
        }

        assert!(weights.iter().all(|x| x.is_nan()), "{fault:?} after {after}");
        assert!(matches!(state.own_masters(), Err(HostOptimError::Torn { .. })) || format == Format::Compact);
        assert!(matches!(state.first_moments(), Err(HostOptimError::Torn { .. })));
        state.arrive(Values::Bf16(&numbers(1))).expect("memory");
        let again = state.step(RULE, STRIDE, ValuesMut::Bf16(&mut weights));
        assert!(matches!(again, Err(HostOptimError::Torn { .. })), "{again:?}");

        drop(state);
        assert_eq!(disk.host().usage().in_use, 0);
        assert!(disk.take(&[BYTES as usize], "all of it").is_ok(), "its place is free");
    }
}

#[test]
fn a_failing_disk_under_updates_leaves_nan_for_its_parameter_alone_and_reports_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let stepped = |seed: usize| {
        let memory = HostMemory::unlimited();
        let (name, mut wide) = (format!("parameter {seed}"), vec![0.0; LEN]);
        let state = HostState::new(&memory, &name, Format::Bf16Moments, Values::Bf16(&numbers(seed)));
        let mut state = state.expect("memory");
        state.arrive(Values::Bf16(&numbers(seed + 1))).expect("memory");
        state.step(RULE, STRIDE, ValuesMut::F32(&mut wide)).expect("it is due");
        wide
    };
    let expected = [0, 1, 2].map(stepped);

    for (fault, after) in faults() {
        let disk = disk(folder.path());
        let prepared = (0..3).map(|seed| {
            let (state, weights) = due(&disk, Format::Bf16Moments, seed);
            let weights = Tensor::<B, 1>::from_data(TensorData::new(weights, [LEN]), &FlexDevice);
            state.begin_tensor(RULE, STRIDE, weights).expect("memory")
        });
        let (updates, updated): (Vec<_>, Vec<_>) = prepared.unzip();

        // A state has two chunks: the fault hits the second state.
        disk.fail_after(2 + after, fault);
        let updates = Updates::begin(updates).expect("a thread");
        let numbers = |n: usize| updated[n].wait().into_data().to_vec::<f32>().expect("its type");
        assert!(numbers(1).iter().all(|x| x.is_nan()), "{fault:?} after {after}");
        for whole in [0, 2] {
            assert!(numbers(whole) == expected[whole], "{fault:?} after {after}: parameter {whole}");
        }
        let message = updates.finish().expect_err("the disk failed").to_string();
        assert!(message.contains("the state of parameter 1 at byte"), "{message}");
        assert!(disk.take(&[BYTES as usize], "all of it").is_ok(), "their places are free");
    }
}

#[test]
fn a_failed_save_is_reported_and_later_saves_succeed() {
    let folder = tempfile::tempdir().expect("a folder");
    let disk = disk(folder.path());
    let (mut state, mut weights) = due(&disk, Format::F32, 5);
    state.step(RULE, STRIDE, ValuesMut::Bf16(&mut weights)).expect("the disk is whole");
    for fault in [DiskFault::Read, DiskFault::ShortRead, DiskFault::Damage] {
        disk.fail_after(1, fault);
        let message = state.save(Values::Bf16(&weights)).expect_err("the disk failed").to_string();
        assert!(message.contains("of the state of parameter 5 at byte"), "{message}");
        assert!(state.save(Values::Bf16(&weights)).is_ok());
    }
}

#[test]
fn rows_refuse_a_state_on_disk_by_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let disk = disk(folder.path());
    let weights = vec![0.5; 12];
    let state = HostState::new(&disk, "wte", Format::F32, Values::F32(&weights)).expect("there is room");
    let message = HostRows::new(state, 4).expect_err("it is on the disk").to_string();
    assert!(message.starts_with("wte: rows are found by their numbers in host memory"), "{message}");
}

#[test]
fn a_state_that_the_disk_budget_has_no_room_for_is_refused_with_its_name_and_sizes() {
    let folder = tempfile::tempdir().expect("a folder");
    let disk = disk(folder.path());
    let _held: Vec<_> = (0..5).map(|seed| due(&disk, Format::F32, seed)).collect();
    let message = HostState::new(&disk, "wte", Format::F32, Values::Bf16(&numbers(1)));
    let message = message.expect_err("six are too many").to_string();
    for part in ["finding 6.01 MiB for the state of wte", "the disk budget has 1.94 MiB left"] {
        assert!(message.contains(part), "{message}");
    }
}
