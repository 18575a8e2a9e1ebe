//! The planned policy on programs that repeat, depart and return.

use super::*;

const CONTEXT: u64 = 4;

pub(super) struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// A step: permanent parameters and moments, temporary activations.
#[derive(Default)]
pub(super) struct Script {
    pub recording: Recording,
    born: usize,
}

impl Script {
    pub fn born(&mut self, bytes: u64) -> usize {
        self.recording.events.push(Event::Born { bytes, arena: Arena::UNPOOLED });
        self.born += 1;
        self.born - 1
    }

    pub fn operate(&mut self, reads: &[usize], writes: &[usize]) {
        let first = self.recording.operands.len();
        let reads = reads.iter().map(|block| Operand { block: *block, written: false });
        let operands = reads.chain(writes.iter().map(|block| Operand { block: *block, written: true }));
        self.recording.operands.extend(operands);
        let count = self.recording.operands.len() - first;
        self.recording.events.push(Event::Operation { first, count, flops: 0 });
    }

    pub fn free(&mut self, block: usize) {
        self.recording.events.push(Event::Freed(block));
    }

    pub fn step(&mut self) {
        self.recording.events.push(Event::Step);
    }

    /// Forward, backward and update of `weights`, each with a moment. If `reborn`, updates make new blocks, as in Burn.
    pub fn train(&mut self, weights: &mut [usize], moments: &mut [usize], sizes: &[u64], reborn: bool) {
        let mut activations = Vec::new();
        let mut last = self.born(sizes[0]);
        self.operate(&[], &[last]);
        for (weight, bytes) in weights.iter().zip(sizes) {
            let next = self.born(*bytes);
            self.operate(&[*weight, last], &[next]);
            activations.push(last);
            last = next;
        }
        let mut gradients = Vec::new();
        for (weight, (activation, bytes)) in weights.iter().zip(activations.iter().zip(sizes)).rev() {
            let gradient = self.born(*bytes);
            self.operate(&[*weight, *activation, last], &[gradient]);
            self.free(*activation);
            gradients.push(gradient);
        }
        self.free(last);
        let owned = weights.iter_mut().zip(moments.iter_mut()).zip(sizes);
        for ((weight, moment), (bytes, gradient)) in
            owned.zip(gradients.iter().rev()).map(|((o, b), g)| (o, (b, g)))
        {
            if reborn {
                let (w, m) = (self.born(*bytes), self.born(*bytes));
                self.operate(&[*moment, *gradient], &[m]);
                self.operate(&[*weight, m], &[w]);
                self.free(*weight);
                self.free(*moment);
                (*weight, *moment) = (w, m);
            } else {
                self.operate(&[*gradient], &[*moment]);
                self.operate(&[*moment], &[*weight]);
            }
            self.free(*gradient);
        }
    }

    pub fn evaluate(&mut self, weights: &[usize], bytes: u64) {
        let mut last = self.born(bytes);
        self.operate(&[], &[last]);
        for weight in weights {
            let next = self.born(bytes);
            self.operate(&[*weight, last], &[next]);
            self.free(last);
            last = next;
        }
        self.free(last);
    }
}

const LAYERS: usize = 24;

fn sizes(dice: &mut Dice) -> Vec<u64> {
    (0..LAYERS).map(|_| 10 + dice.below(40)).collect()
}

/// `between` runs after each.
pub(super) fn training(
    steps: usize,
    marks: bool,
    reborn: bool,
    mut between: impl FnMut(&mut Script, usize, &[usize]),
) -> Recording {
    let mut dice = Dice(7);
    let sizes = sizes(&mut dice);
    let mut script = Script::default();
    let first = |script: &mut Script| {
        let blocks: Vec<usize> = sizes.iter().map(|bytes| script.born(*bytes)).collect();
        for block in &blocks {
            script.operate(&[], &[*block]);
        }
        blocks
    };
    let (mut weights, mut moments) = (first(&mut script), first(&mut script));
    for step in 0..steps {
        script.train(&mut weights, &mut moments, &sizes, reborn);
        if marks {
            script.step();
        }
        between(&mut script, step, &weights);
    }
    script.step();
    script.recording
}

pub(super) fn peak(recording: &Recording) -> u64 {
    replay(recording, Limit::NONE, Policy::Recency).pager().ledger().resident_peak()
}

pub(super) fn replay(recording: &Recording, budget: Limit, policy: Policy) -> Replay<'_> {
    Replay::new(recording, budget, policy).run(1).expect("every operation fits")
}

fn totals(recording: &Recording, budget: Limit, policy: Policy) -> Vec<u64> {
    replay(recording, budget, policy).steps().iter().map(|moved| moved.total()).collect()
}

#[test]
fn a_step_is_learned_once_and_then_foretold() {
    for (marks, reborn) in [(true, false), (true, true), (false, false), (false, true)] {
        let recording = training(10, marks, reborn, |_, _, _| {});
        let played = replay(&recording, Limit::bytes(peak(&recording) / 2), Policy::Planned);
        let counters = played.pager().counters();
        let step = counters.operations / 10;
        assert!(
            counters.ahead.predicted > 8 * step - 2 * CONTEXT,
            "marks {marks}, reborn {reborn}: {} of {} operations",
            counters.ahead.predicted,
            counters.operations
        );
        // Like operations make weights and moments; the first step resembles nothing before.
        assert!(
            counters.ahead.diverged <= 2,
            "marks {marks}, reborn {reborn}: {} times",
            counters.ahead.diverged
        );
    }
}

#[test]
fn steps_that_are_foretold_move_little_more_than_they_must() {
    for reborn in [false, true] {
        let recording = training(8, true, reborn, |_, _, _| {});
        let peak = peak(&recording);
        for share in [75, 50, 25] {
            let budget = peak * share / 100;
            let planned = totals(&recording, Limit::bytes(budget), Policy::Planned);
            let recency = totals(&recording, Limit::bytes(budget), Policy::Recency);
            let least = bound(&recording, budget, 1);
            for step in 1..7 {
                let (steady, planned, recency, least) =
                    (planned[4], planned[step], recency[step], least[3].total());
                assert!(
                    step < 4 || planned.abs_diff(steady) * 100 <= steady,
                    "{share} %: {planned} in step {step}, {steady} before"
                );
                assert!(planned * 10 <= steady * 11, "{share} %: {planned} in step {step}, later {steady}");
                assert!(step < 3 || planned * 5 <= least * 6, "{share} %: {planned} of at least {least}");
                assert!(planned < recency, "{share} %: {planned}, by recency {recency}");
            }
        }
    }
}

#[test]
fn a_program_that_fits_moves_nothing_however_it_is_planned() {
    let recording = training(4, true, true, |_, _, _| {});
    let moved = totals(&recording, Limit::bytes(peak(&recording)), Policy::Planned);
    assert_eq!(moved, [0, 0, 0, 0, 0]);
}

#[test]
fn without_a_budget_nothing_is_learned() {
    let recording = training(4, true, true, |_, _, _| {});
    assert_eq!(replay(&recording, Limit::NONE, Policy::Planned).pager().counters().ahead.predicted, 0);
}

#[test]
fn an_interruption_costs_no_more_than_itself() {
    let evaluates = |script: &mut Script, step: usize, weights: &[usize]| {
        for _ in 0..if step % 4 == 3 { 5 } else { 0 } {
            script.evaluate(weights, 17);
        }
        script.step();
    };
    for reborn in [false, true] {
        let with = training(25, false, reborn, evaluates);
        let without = training(25, false, reborn, |script, _, _| script.step());
        let budget = Limit::bytes(peak(&without) / 2);
        let (with, without) =
            (replay(&with, budget, Policy::Planned), replay(&without, budget, Policy::Planned));
        let steady = without.steps()[20].total();
        for step in [13, 14, 17, 18, 21, 22] {
            assert_eq!(with.steps()[step].total(), steady, "reborn {reborn}, step {step}");
        }
        for step in [12, 16, 20] {
            let after = with.steps()[step].total();
            assert!(after * 4 < steady * 5, "reborn {reborn}, step {step}: {after}, else {steady}");
        }
        assert!(
            with.pager().counters().ahead.diverged <= 14,
            "twice for each of six evaluations, at most, and once more"
        );
    }
}

const STEPS: usize = 12;

/// Bytes; smaller blocks look equal in a trace.
const UNIT: u64 = 512;

/// Training of like layers with an embedding by rows. Sizes of the rows and both gradient blocks differ in every step.
fn by_rows(rows: impl Fn(usize) -> u64) -> Recording {
    let mut script = Script::default();
    let (sizes, rows) = ([30 * UNIT; LAYERS], |step| rows(step) * UNIT);
    let first = |script: &mut Script| sizes.map(|bytes| script.born(bytes)).to_vec();
    let (mut weights, mut moments) = (first(&mut script), first(&mut script));
    for step in 0..STEPS {
        let (named, embedded) = (script.born(rows(step)), script.born(30 * UNIT));
        script.recording.events.push(Event::WrittenInTier(named));
        script.operate(&[named], &[embedded]);
        script.train(&mut weights, &mut moments, &sizes, false);
        let (zeros, gradient) = (script.born(rows(step)), script.born(rows(step)));
        script.operate(&[], &[zeros]);
        script.operate(&[zeros, embedded], &[gradient]);
        script.recording.events.push(Event::Read { block: gradient, bytes: rows(step) });
        for block in [named, embedded, zeros, gradient] {
            script.free(block);
        }
        script.step();
    }
    script.recording
}

#[test]
fn a_step_is_foretold_although_some_blocks_have_other_sizes_each_time() {
    const MACHINE: Machine =
        Machine { link: 60.0 * UNIT as f64, memory: 100.0 * UNIT as f64, ..Machine::INSTANT };
    let same = by_rows(|_| 20);
    let other = by_rows(|step| 17 + (7 * step as u64) % 13);
    let budget = peak(&same) / 2;
    let played = |recording| {
        let replay = Replay::new(recording, Limit::bytes(budget), Policy::Planned);
        let moved = replay.run(1).expect("it fits");
        let replay = Replay::new(recording, Limit::bytes(budget), Policy::Planned).on(MACHINE);
        (moved, replay.run(1).expect("it fits"))
    };
    let ((same, same_ahead), (other, other_ahead)) = (played(&same), played(&other));
    for (same, other) in [(&same, &other), (&same_ahead, &other_ahead)] {
        let (same, other) = (same.pager().counters(), other.pager().counters());
        assert_eq!(
            (other.ahead.predicted, other.ahead.diverged),
            (same.ahead.predicted, same.ahead.diverged)
        );
        assert!(
            other.ahead.predicted * 10 > other.operations * 8,
            "{} of {}",
            other.ahead.predicted,
            other.operations
        );
    }
    // The rows themselves come in, up to ten units more.
    for step in 3..STEPS {
        let (same, other) = (same.steps()[step].total(), other.steps()[step].total());
        assert!(other <= same + 100 * UNIT, "step {step}: {other} bytes, {same} with as many rows in each");
        let [same, other] = [&same_ahead, &other_ahead].map(|replay| replay.elapsed()[step].step);
        assert!(other <= 1.05 * same, "step {step}: {other} s, {same} with as many rows in each");
    }
    let bytes = |replay: &Replay| replay.steps()[4..].iter().map(|step| step.total()).sum::<u64>();
    assert_eq!(bytes(&same_ahead), bytes(&same), "what moves ahead would have moved anyway");
    let (same, other) = (same_ahead.pager().counters(), other_ahead.pager().counters());
    assert!(other.ahead.brought_ahead * 20 > same.ahead.brought_ahead * 19, "{other:?}, not as {same:?}");
    assert!(
        other.ahead.brought_in_vain <= same.ahead.brought_in_vain + STEPS as u64,
        "{other:?}, not as {same:?}"
    );
}

#[test]
fn a_program_that_never_repeats_is_left_to_recency() {
    let mut dice = Dice(3);
    let mut script = Script::default();
    let blocks: Vec<usize> = (0..40).map(|n| script.born(100 + n)).collect();
    for _ in 0..2000 {
        let (read, written) = (dice.below(40) as usize, dice.below(40) as usize);
        script.operate(&[blocks[read]], &[blocks[written]]);
    }
    script.step();
    let budget = Limit::bytes(2000);
    let planned = replay(&script.recording, budget, Policy::Planned);
    assert_eq!(planned.pager().counters().ahead.predicted, 0);
    assert_eq!(
        planned.steps(),
        replay(&script.recording, budget, Policy::Recency).steps(),
        "recency decides from the first operation to the last"
    );
}
