//! States on disk, in small chunks, against states in host memory.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicUsize;
use std::thread::sleep;
use std::time::Duration;

use backend_offload::{DiskFault, HostMemory};
use half::bf16;

use super::*;
use crate::layout::{MASTERS, Moments};
use crate::storage::Storage;
use crate::{AdamW, Code, Format, HostState, Rule, Saved, Sgd, StateMemory, Stride, Values, ValuesMut};

fn rules() -> [Rule; 2] {
    [
        AdamW { betas: [0.9, 0.95], epsilon: 1e-8, weight_decay: 0.1 }.into(),
        Sgd { momentum: 0.9, weight_decay: 0.1 }.into(),
    ]
}

const STRIDE: Stride = Stride { lr: 1e-2, scale: 0.5 };

fn numbers(len: usize, seed: usize) -> Vec<f32> {
    (0..len).map(|n| ((n as f32 + 0.5) * 0.754_877_7 + seed as f32 * 0.3).fract() - 0.5).collect()
}

fn narrow(numbers: &[f32]) -> Vec<bf16> {
    numbers.iter().copied().map(bf16::from_f32).collect()
}

fn disk(bytes: u64) -> (tempfile::TempDir, DiskMemory) {
    let folder = tempfile::tempdir().expect("a folder");
    let memory = HostMemory::above_disk(folder.path(), bytes).expect("there is room");
    let disk = memory.disk().expect("it was named");
    (folder, disk)
}

fn in_chunks_of(disk: &DiskMemory, chunk: usize) -> StateMemory {
    StateMemory { chunk, ..disk.into() }
}

struct Trained {
    state: HostState,
    weights: Vec<bf16>,
    wide: Option<Vec<f32>>,
}

impl Trained {
    fn new(memory: impl Into<StateMemory>, format: Format, rule: Rule, is_narrow: bool, len: usize) -> Self {
        let weights = narrow(&numbers(len, 0));
        let wide = (!is_narrow).then(|| weights.iter().map(|x| x.to_f32()).collect::<Vec<_>>());
        let given = wide.as_deref().map_or(Values::Bf16(&weights), Values::F32);
        let state = match rule {
            Rule::AdamW(_) => HostState::new(memory, "w", format, given),
            Rule::Sgd(_) => HostState::with_velocity(memory, "w", format, given),
        };
        Self { state: state.expect("there is room"), weights, wide }
    }

    fn step(&mut self, rule: Rule, number: usize) {
        let gradient = narrow(&numbers(self.weights.len(), number));
        self.state.arrive(Values::Bf16(&gradient)).expect("memory");
        let weights = match &mut self.wide {
            Some(wide) => ValuesMut::F32(wide),
            None => ValuesMut::Bf16(&mut self.weights),
        };
        self.state.step(rule, STRIDE, weights).expect("the disk is whole");
    }

    fn saved(&self) -> (Vec<u32>, Saved) {
        let given = self.wide.as_deref().map_or(Values::Bf16(&self.weights), Values::F32);
        let bits = |numbers: &[f32]| numbers.iter().map(|x| x.to_bits()).collect();
        let numbers = self.wide.clone().unwrap_or_else(|| self.weights.iter().map(|x| x.to_f32()).collect());
        (bits(&numbers), self.state.save(given).expect("its own weights"))
    }
}

#[test]
fn a_state_on_the_disk_has_the_bits_of_one_in_memory_whatever_chunk_and_threads() {
    let (_folder, disk) = disk(64 << 20);
    let lens = [1, 300, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE, 4 * PIECE + 77];
    for (format, is_narrow) in
        [(Format::F32, false), (Format::F32, true), (Format::Bf16Moments, true), (Format::Compact, true)]
    {
        for (rule, len) in rules().into_iter().flat_map(|rule| lens.map(|len| (rule, len))) {
            let run = |memory: StateMemory| {
                let mut trained = Trained::new(memory, format, rule, is_narrow, len);
                (1..=3).for_each(|number| trained.step(rule, number));
                (trained.saved(), trained.state.host_bytes(), trained.state.disk_bytes())
            };
            let (expected, in_memory, _) = run((&HostMemory::unlimited()).into());
            assert!(in_memory > 0);

            for (chunk, threads) in [(PIECE, 2), (2 * PIECE, 1), (CHUNK, 3)] {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
                let (found, on_host, on_disk) = pool.install(|| run(in_chunks_of(&disk, chunk)));
                assert!(found == expected, "{format:?} {rule:?}: {len} elements in chunks of {chunk}");
                let layout = Layout::new(
                    format,
                    if let Rule::Sgd(_) = rule { Moments::Velocity } else { Moments::Two },
                    is_narrow,
                );
                assert_eq!((on_host, on_disk), (0, DiskBytes::new(layout, len, chunk).on_disk()));
                assert!(on_disk >= in_memory && on_disk < in_memory + 5 * 4 * 4096, "{on_disk}");
            }
        }
    }
    assert!(disk.take(&[64 << 20], "all of it").is_ok(), "every state gave its place back");
}

#[test]
fn states_move_between_memory_and_disk() {
    let (_folder, disk) = disk(16 << 20);
    let len = 3 * PIECE + 300;
    for (format, rule) in [Format::F32, Format::Bf16Moments, Format::Compact]
        .into_iter()
        .flat_map(|format| rules().map(|rule| (format, rule)))
    {
        let memories = || [StateMemory::from(&HostMemory::unlimited()), in_chunks_of(&disk, PIECE)];
        for (before, after) in memories().into_iter().zip(memories().into_iter().rev()) {
            let mut trained = Trained::new(before, format, rule, true, len);
            (1..=2).for_each(|number| trained.step(rule, number));
            let (_, saved) = trained.saved();
            let mut weights = vec![bf16::ZERO; len];
            let given = &mut ValuesMut::Bf16(&mut weights);
            let state = HostState::restore(after, "w", format, &saved, given).expect("there is room");
            let mut restored = Trained { state, weights, wide: None };
            assert!(restored.saved().1 == saved);
            trained.step(rule, 3);
            restored.step(rule, 3);
            assert!(restored.saved() == trained.saved(), "{format:?}");
        }
    }
}

#[test]
fn records_move_between_memory_and_disk() {
    let (_folder, disk) = disk(16 << 20);
    let (len, [rule, _]) = (3 * PIECE + 300, rules());
    for format in [Format::F32, Format::Bf16Moments, Format::Compact] {
        let memories = || [StateMemory::from(&HostMemory::unlimited()), in_chunks_of(&disk, PIECE)];
        for (before, after) in memories().into_iter().zip(memories().into_iter().rev()) {
            let mut trained = Trained::new(before, format, rule, true, len);
            (1..=2).for_each(|number| trained.step(rule, number));
            let parts = trained.state.to_parts().expect("the disk is whole");
            let state = HostState::from_parts(&after, "w", format, &parts, len).expect("there is room");
            assert_eq!(state.disk_bytes() > 0, trained.state.disk_bytes() == 0);
            let mut restored = Trained { state, weights: trained.weights.clone(), wide: None };
            trained.step(rule, 3);
            restored.step(rule, 3);
            assert!(restored.saved() == trained.saved(), "{format:?}");
        }
    }
}

#[test]
fn tiles_from_disk_equal_tiles_from_memory() {
    let (_folder, disk) = disk(16 << 20);
    let [rule, _] = rules();
    let len = 3 * PIECE + 300;
    let tiles = |memory: StateMemory| {
        let mut state = Trained::new(memory, Format::F32, rule, true, len).state;
        let mut first = vec![0; crate::tiles::tile_bytes(len)];
        state.encode_masters(Code::Int8, &mut first).expect("the disk is whole");
        state.arrive(Values::F32(&numbers(len, 1))).expect("memory");
        let mut second = vec![0; first.len()];
        let stepped = state.with_own_pipeline(|state, pipeline| {
            state.step_to_tiles(pipeline, &rule, STRIDE, Code::Fp8, &mut second)
        });
        stepped.expect("the disk is whole");
        [first, second]
    };
    assert!(tiles(in_chunks_of(&disk, PIECE)) == tiles((&HostMemory::unlimited()).into()));
}

#[test]
fn three_chunks_are_in_host_memory_at_a_time_and_no_more() {
    let (_folder, disk) = disk(16 << 20);
    let [rule, _] = rules();
    for (chunks, slabs) in [(1, 1), (2, 2), (3, 3), (7, 3)] {
        let folder = tempfile::tempdir().expect("a folder");
        let memory = HostMemory::above_disk(folder.path(), 16 << 20).expect("there is room");
        let disk = memory.disk().expect("it was named");
        let len = chunks * PIECE;
        let mut trained = Trained::new(in_chunks_of(&disk, PIECE), Format::F32, rule, true, len);
        assert_eq!(memory.usage().in_use, 0);
        trained.step(rule, 1);
        let slab = DiskMemory::buffer_bytes(12 * PIECE) as u64;
        let gradient = 2 * len as u64;
        assert_eq!((memory.usage().in_use, memory.usage().peak), (0, gradient + slabs * slab));
        let layout = Layout::new(Format::F32, Moments::Two, true);
        let bytes = DiskBytes::new(layout, len, PIECE);
        assert_eq!((bytes.on_disk(), bytes.on_host()), (12 * len as u64, slabs * slab));
    }
    drop(disk);
}

#[test]
fn a_panic_within_a_step_makes_the_state_unreadable() {
    let (_folder, disk) = disk(16 << 20);
    let layout = Layout::new(Format::F32, Moments::Two, true);
    let state = OnDisk::new(&disk, "w", layout, (5 * PIECE, PIECE), |_, _| {}).expect("there is room");
    let mut kept = Storage::Disk(state);
    let panicking = catch_unwind(AssertUnwindSafe(|| {
        let mut pipeline = Storage::pipeline([&kept]).expect("memory");
        kept.change(&mut pipeline, layout, 5 * PIECE, |range, _| {
            assert!(range.start < 2 * PIECE, "the memory went away");
        })
    }));
    assert!(panicking.is_err());
    assert_eq!(disk.host().usage().in_use, 0, "what the step had is free");
    let message = kept.read(0..1, 5 * PIECE, |_, _| {}).expect_err("it is torn").to_string();
    assert!(message.contains("w: the disk failed within an earlier step of its state"), "{message}");
    let mut pipeline = Storage::pipeline([&kept]).expect("memory");
    let again = kept.change(&mut pipeline, layout, 5 * PIECE, |_, _| {});
    assert!(matches!(again, Err(HostOptimError::Torn { .. })));
}

const LAYOUT: Layout = Layout { format: Format::F32, moments: Moments::Two };

fn in_line(disk: &DiskMemory, chunks: [usize; 3]) -> [Storage; 3] {
    let mut names = ["a", "b", "c"].into_iter();
    chunks.map(|chunks| {
        let (name, sizes) = (names.next().expect("one each"), (chunks * PIECE, PIECE));
        Storage::Disk(OnDisk::new(disk, name, LAYOUT, sizes, |_, _| {}).expect("there is room"))
    })
}

/// Returns each state's result, and the states reported as written. `within` gets each chunk's number over all states.
fn step_in_line(
    kept: &mut [Storage; 3],
    within: impl Fn(usize),
) -> ([Result<(), HostOptimError>; 3], Vec<usize>) {
    let mut pipeline = Storage::pipeline(kept.iter()).expect("memory");
    let (completed, mut first, mut number) = (Arc::new(AtomicUsize::new(0)), 0, 0..);
    let stepped = kept.each_mut().map(|kept| {
        let (len, completed, bit) =
            (kept.chunk_store().expect("there").len, completed.clone(), 1 << number.next().expect("endless"));
        let stepped = kept.change(&mut pipeline, LAYOUT, len, |range, arrays| {
            within(first + range.start / PIECE);
            let Arrays::F32 { masters, .. } = arrays else { unreachable!("of the layout") };
            masters.fill(1.0);
        });
        first += len / PIECE;
        stepped.map(|()| kept.when_written(&mut pipeline, move || _ = completed.fetch_or(bit, Relaxed)))
    });
    drop(pipeline);
    let completed = completed.load(Relaxed);
    (stepped, (0..3).filter(|n| completed & (1 << n) > 0).collect())
}

fn is_stepped(kept: &Storage) -> bool {
    let (len, mut ones) = (kept.chunk_store().expect("there").len, 0);
    kept.read(MASTERS..MASTERS + 1, len, |_, parts| {
        ones +=
            bytemuck::cast_slice::<_, f32>(parts[0]).iter().filter(|x| x.to_bits() == 1f32.to_bits()).count();
    })
    .is_ok()
        && ones == len
}

fn wait_until(what: &str, is_there: impl Fn() -> bool) {
    for _ in 0..6000 {
        if is_there() {
            return;
        }
        sleep(Duration::from_millis(10));
    }
    panic!("{what} did not happen");
}

#[test]
fn the_next_states_chunks_are_read_during_a_step_within_three_chunks() {
    let folder = tempfile::tempdir().expect("a folder");
    let memory = HostMemory::above_disk(folder.path(), 16 << 20).expect("there is room");
    let disk = memory.disk().expect("it was named");
    let mut kept = in_line(&disk, [1, 2, 1]);
    let (chunk, before) = (12 * PIECE as u64, disk.moved());
    let moved = || [0, 1].map(|n| (disk.moved()[n] - before[n]) / chunk);
    let (stepped, completed) = step_in_line(&mut kept, |number| match number {
        0 => {
            wait_until("reading the second state within the first one's step", || moved()[0] == 3);
            assert_eq!(moved()[1], 0);
        }
        1 => wait_until("reading the third state within the second one's step", || moved() == [4, 1]),
        _ => {}
    });
    assert!(stepped.iter().all(Result::is_ok));
    assert_eq!((completed, moved()), (vec![0, 1, 2], [4, 4]));
    assert!(kept.iter().all(is_stepped));
    let slab = DiskMemory::buffer_bytes(12 * PIECE) as u64;
    assert_eq!((memory.usage().in_use, memory.usage().peak), (0, 3 * slab));
    let of = |chunks: usize| DiskBytes::new(LAYOUT, chunks * PIECE, PIECE);
    let bytes = of(1) + of(2) + of(1);
    assert_eq!((bytes.on_disk(), bytes.on_host()), (4 * chunk, 3 * slab));
}

#[test]
fn a_failed_chunk_transfer_fails_its_own_state_and_no_other() {
    let (_folder, disk) = disk(16 << 20);
    // The second state's faults, during the step of the first or the third.
    for (fault, transfers, seen_in) in [
        (DiskFault::Read, 1, 0),
        (DiskFault::ShortRead, 1, 0),
        (DiskFault::Damage, 2, 0),
        (DiskFault::Write, 1, 3),
        (DiskFault::Write, 2, 3),
    ] {
        let mut kept = in_line(&disk, [1, 2, 2]);
        let before = disk.moved()[1];
        disk.fail_after(transfers, fault);
        let (mut stepped, completed) = step_in_line(&mut kept, |number| {
            if number == seen_in {
                wait_until("the fault", || disk.has_failed());
            }
        });

        if fault == DiskFault::Write {
            assert!(stepped[1].is_ok(), "its chunks came");
            stepped[1] = kept[1].check_written();
            let written = (disk.moved()[1] - before) / (12 * PIECE as u64);
            assert_eq!(
                written,
                3 + transfers - 1,
                "chunks of the first and the third, and {transfers} transfers"
            );
        }

        let [first, second, third] = stepped;
        assert!(first.is_ok() && third.is_ok(), "{fault:?}");
        let failure = second.expect_err("the disk failed").to_string();
        assert!(failure.contains("of the state of b at byte"), "{failure}");
        assert_eq!(completed, [0, 2], "{fault:?}: a failed state is not reported as written");
        assert!(kept[1].is_torn() && is_stepped(&kept[0]) && is_stepped(&kept[2]), "{fault:?}");
        assert!(kept[0].check_written().is_ok() && kept[2].check_written().is_ok());
    }
}

#[test]
fn chunks_of_a_skipped_step_are_discarded() {
    let (_folder, disk) = disk(16 << 20);
    for fault in [None, Some(DiskFault::Read)] {
        let mut kept = in_line(&disk, [4, 5, 2]);
        step_alone(&mut kept[2], |masters| masters.fill(2.0));
        if let Some(fault) = fault {
            disk.fail_after(1, fault);
        }
        let mut pipeline = Storage::pipeline(kept.iter()).expect("memory");
        let mut ranges = Vec::new();
        let stepped = kept[2].change(&mut pipeline, LAYOUT, 2 * PIECE, |range, arrays| {
            let Arrays::F32 { masters, .. } = arrays else { unreachable!("of the layout") };
            assert!(masters.iter().all(|x| x.to_bits() == 2f32.to_bits()), "{range:?} is another state's");
            ranges.push(range);
        });
        stepped.expect("what cannot be read of another state is that one's");
        kept[2].when_written(&mut pipeline, || {});
        drop(pipeline);
        assert_eq!((ranges, disk.has_failed()), (vec![0..PIECE, PIECE..2 * PIECE], true));
        assert!(
            kept.iter().all(|kept| kept.check_written().is_ok()),
            "no state that was not stepped is harmed"
        );
    }
}

fn step_alone(kept: &mut Storage, change: impl Fn(&mut [f32])) {
    let mut pipeline = Storage::pipeline([&*kept]).expect("memory");
    let len = kept.chunk_store().expect("there").len;
    let changed = kept.change(&mut pipeline, LAYOUT, len, |_, arrays| {
        let Arrays::F32 { masters, .. } = arrays else { unreachable!("of the layout") };
        change(masters);
    });
    changed.expect("the disk is whole");
    kept.when_written(&mut pipeline, || {});
}

#[test]
fn buffers_fit_the_largest_state_and_match_disk_bytes() {
    let folder = tempfile::tempdir().expect("a folder");
    let memory = HostMemory::above_disk(folder.path(), 16 << 20).expect("there is room");
    let disk = memory.disk().expect("it was named");
    let lens = [300, PIECE + 300];
    let made = |len| OnDisk::new(&disk, "w", LAYOUT, (len, PIECE), |_, _| {}).expect("there is room");
    let mut kept = lens.map(|len| Storage::Disk(made(len)));
    let mut pipeline = Storage::pipeline(kept.iter()).expect("memory");
    for (kept, len) in kept.iter_mut().zip(lens) {
        kept.change(&mut pipeline, LAYOUT, len, |_, _| {}).expect("the disk is whole");
        kept.when_written(&mut pipeline, || {});
    }
    drop(pipeline);
    let bytes =
        lens.map(|len| DiskBytes::new(LAYOUT, len, PIECE)).into_iter().fold(DiskBytes::default(), Add::add);
    assert_eq!(memory.usage().peak, bytes.on_host());
    assert_eq!(kept.iter().map(Storage::disk_bytes).sum::<u64>(), bytes.on_disk());
}
