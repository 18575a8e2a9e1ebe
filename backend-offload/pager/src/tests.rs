//! The pager, without contents.

use super::*;

mod host_room;
mod load_ahead;
mod planning;
mod refusals;
mod spill;
mod sweep;
mod write_ahead;

trait Reports {
    fn evict(&mut self, id: BlockId) -> Result<Token, Fault>;
    fn bring(&mut self, id: BlockId) -> Result<Token, Fault>;
    fn report(&mut self, step: Step) -> Result<Outcome, Fault>;
}

impl Reports for Pager {
    fn evict(&mut self, block: BlockId) -> Result<Token, Fault> {
        let copy = self.get(block).filter(|block| block.needs_copy()).map(|_| Tier::Host);
        self.started(Step::Evict { block, copy })
    }

    fn bring(&mut self, block: BlockId) -> Result<Token, Fault> {
        self.started(Step::Bring { block, from: None })
    }

    fn report(&mut self, step: Step) -> Result<Outcome, Fault> {
        let token = self.started(step)?;
        self.ended(token, true)
    }
}

fn take_steps(pager: &mut Pager) -> Result<Vec<Step>, Stop> {
    let mut steps = Vec::new();
    loop {
        let step = pager.next_step(&|| Rooms::ENDLESS)?;
        if step == Step::Ready {
            return Ok(steps);
        }
        take(pager, step)?;
        steps.push(step);
    }
}

fn take(pager: &mut Pager, step: Step) -> Result<(), Fault> {
    match step {
        Step::Ready => {}
        Step::Sweep => pager.swept(),
        Step::Trim => pager.trimmed(),
        Step::Wait(_) => panic!("every move landed at once"),
        step => _ = pager.report(step)?,
    }
    Ok(())
}

fn operate(pager: &mut Pager, operands: &[BlockId]) -> Vec<Step> {
    pager.begin(operands).expect("legal operands");
    take_steps(pager).expect("memory suffices")
}

fn written(budget: Limit, policy: Policy, count: usize) -> (Pager, Vec<BlockId>) {
    let mut pager = Pager::new(budget, policy, Oversized::Refuse);
    let mut blocks = Vec::new();
    for _ in 0..count {
        let block = pager.insert(10, Arena(0));
        operate(&mut pager, &[block]);
        pager.wrote(block).expect("on the device");
        blocks.push(block);
    }
    (pager, blocks)
}

/// Writes `count` blocks of 10 bytes, then reads them in order of `uses`.
fn check(budget: u64, policy: Policy, count: usize, uses: &[&[usize]]) -> Counters {
    let (mut pager, blocks) = written(Limit::bytes(budget), policy, count);
    for operands in uses {
        let operands: Vec<_> = operands.iter().map(|n| blocks[*n]).collect();
        operate(&mut pager, &operands);
    }
    pager.counters()
}

#[test]
fn blocks_that_fit_never_move() {
    let counters = check(40, Policy::Recency, 4, &[&[0, 1], &[2, 3], &[0, 3]]);
    assert_eq!((counters.link.evictions, counters.link.restores, counters.link.clean_drops), (0, 0, 0));
}

#[test]
fn a_block_that_was_not_written_since_leaves_without_a_copy() {
    // Room for two of three blocks: later evictions are clean.
    let counters = check(20, Policy::LeastRecentlyUsed, 3, &[&[0], &[1], &[2], &[0], &[1]]);
    assert_eq!(counters.link.evictions, 3, "each block is copied out once");
    assert!(counters.link.clean_drops > 0);
}

#[test]
fn who_is_written_matters_once_blocks_leave_or_somebody_listens() {
    let (mut pager, blocks) = written(Limit::bytes(20), Policy::Planned, 2);
    assert!(!pager.needs_writes());
    pager.record();
    assert!(pager.needs_writes());
    pager.stop_recording();
    assert!(!pager.needs_writes());
    let third = pager.insert(10, Arena::UNPOOLED);
    operate(&mut pager, &[blocks[0], third]);
    assert!(pager.needs_writes());
}

#[test]
fn a_sweep_over_more_than_fits_moves_less_than_least_recently_used_would() {
    let sweep: Vec<Vec<usize>> = (0..10).flat_map(|_| (0..64).map(|n| vec![n])).collect();
    let uses: Vec<&[usize]> = sweep.iter().map(Vec::as_slice).collect();
    let recency = check(480, Policy::Recency, 64, &uses).link.bytes_in;
    let baseline = check(480, Policy::LeastRecentlyUsed, 64, &uses).link.bytes_in;
    assert_eq!(baseline, 10 * 64 * 10, "the baseline misses every time");
    assert!(recency * 2 < baseline, "{recency} of {baseline} bytes");
}

#[test]
fn going_back_and_forth_moves_no_more_than_least_recently_used() {
    let there_and_back: Vec<Vec<usize>> =
        (0..10).flat_map(|_| (0..64).chain((0..64).rev()).map(|n| vec![n])).collect();
    let uses: Vec<&[usize]> = there_and_back.iter().map(Vec::as_slice).collect();
    let recency = check(320, Policy::Recency, 64, &uses).link.bytes_in;
    let baseline = check(320, Policy::LeastRecentlyUsed, 64, &uses).link.bytes_in;
    assert!(recency <= baseline + baseline / 10, "{recency} of {baseline} bytes");
}

#[test]
fn new_data_begins_where_it_evicts_no_block() {
    let places = |pager: &Pager, bytes| {
        [Preference::Policy, Preference::Host].map(|hint| pager.place_new(bytes, Arena(0), hint))
    };
    let (mut pager, _) = written(Limit::bytes(30), Policy::Planned, 2);
    assert_eq!(places(&pager, 10), [Tier::Device; 2], "everything fits");
    assert_eq!(places(&pager, 11), [Tier::Host; 2], "a block would have to leave");
    pager.expect_spilling();
    assert_eq!(places(&pager, 10), [Tier::Device, Tier::Host], "a preference counts once blocks spill");

    let (mut spilling, _) = written(Limit::bytes(30), Policy::Planned, 4);
    let last = spilling.insert(10, Arena::UNPOOLED);
    operate(&mut spilling, &[last]);
    spilling.remove(last).expect("it lives");
    assert_eq!(places(&spilling, 10), [Tier::Device, Tier::Host]);
    pager.set_budget(Limit::NONE);
    assert_eq!(places(&pager, u64::MAX / 2), [Tier::Device, Tier::Host], "without a budget there is room");
}

#[test]
fn the_program_may_say_who_leaves_first_and_last() {
    let (mut pager, blocks) = written(Limit::bytes(40), Policy::LeastRecentlyUsed, 4);
    pager.prefer(blocks[0], Preference::Device).expect("it lives");
    pager.prefer(blocks[3], Preference::Host).expect("it lives");
    let mut left = Vec::new();
    let mut others = Vec::new();
    for _ in 0..4 {
        let other = pager.insert(10, Arena(0));
        let evicted = |step: &Step| match step {
            Step::Evict { block, .. } => blocks.iter().position(|known| known == block),
            _ => None,
        };
        others.push(other);
        left.extend(operate(&mut pager, &others).iter().filter_map(evicted));
        pager.wrote(other).expect("on the device");
    }
    assert_eq!(left, [3, 1, 2, 0], "a hint is no pin: the one to be kept leaves last");
    let fault = pager.remove(blocks[1]).and_then(|()| pager.prefer(blocks[1], Preference::Host));
    assert_eq!(fault, Err(Fault::UnknownBlock(blocks[1])));
}

#[test]
fn making_room_in_advance_is_no_operation() {
    let (mut pager, blocks) = written(Limit::bytes(20), Policy::Recency, 2);
    let before = pager.counters().operations;
    pager.begin_room(10, Arena(0));
    let steps = take_steps(&mut pager).expect("a block can leave");
    assert!(steps.contains(&Step::Evict { block: blocks[0], copy: Some(Tier::Host) }));
    assert!(pager.ledger().has_room(10, Arena(0)));
    assert_eq!(pager.counters().operations, before);
}

#[test]
fn no_live_block_is_copied_out_before_dead_ones_were_looked_for() {
    // With so many blocks not every operation is due for a sweep.
    let (mut pager, blocks) = written(Limit::bytes(5_000), Policy::Recency, 500);
    for round in 0..20 {
        let more = pager.insert(10, Arena(0));
        let steps = operate(&mut pager, &[more]);
        let sweeps = steps.iter().filter(|step| **step == Step::Sweep).count();
        let copies = steps.iter().position(|step| matches!(step, Step::Evict { copy: Some(_), .. }));
        let sweep = steps.iter().position(|step| *step == Step::Sweep);
        assert!(copies.is_some(), "round {round}: {} dirty blocks fill the budget", blocks.len());
        assert!(sweep < copies && sweep.is_some(), "round {round}: {steps:?}");
        assert_eq!(sweeps, 1, "round {round}");
        pager.wrote(more).expect("on the device");
    }
}

#[test]
fn dead_blocks_that_nobody_tells_of_take_little_beside_the_live_ones() {
    let (mut pager, live) = written(Limit::NONE, Policy::Recency, 64);
    let alive = 10 * live.len() as u64;
    let (mut dead, mut sweeps) = (Vec::new(), 0);
    for _ in 0..1000 {
        if pager.sweep_pays() {
            for block in dead.drain(..) {
                pager.remove(block).expect("it is there");
            }
            pager.swept();
            sweeps += 1;
        }
        let block = pager.insert(10, Arena(0));
        operate(&mut pager, &[block]);
        pager.wrote(block).expect("on the device");
        dead.push(block);
        let held = pager.ledger().resident();
        assert!(held <= alive + alive / 32 + 10, "{held} bytes where {alive} live");
    }
    assert!(sweeps <= 500, "{sweeps} sweeps");
}

#[test]
fn many_small_blocks_make_a_sweep_worth_while_too() {
    let mut pager = Pager::new(Limit::NONE, Policy::Recency, Oversized::Refuse);
    let large = pager.insert(1 << 30, Arena(0));
    operate(&mut pager, &[large]);
    pager.swept();
    (0..63).for_each(|_| _ = pager.insert(1, Arena(0)));
    assert!(!pager.sweep_pays());
    pager.insert(1, Arena(0));
    assert!(pager.sweep_pays());
}

#[test]
fn a_move_holds_its_bytes_on_both_sides_until_it_lands() {
    let (mut pager, blocks) = written(Limit::bytes(20), Policy::Recency, 2);
    let leaving = pager.evict(blocks[0]).expect("idle");
    assert_eq!((pager.ledger().resident(), pager.ledger().held(Tier::Host)), (20, 10));
    pager.ended(leaving, true).expect("under way");
    assert_eq!((pager.ledger().resident(), pager.ledger().spare()), (10, 10));
    let returning = pager.bring(blocks[0]).expect("away");
    assert_eq!((pager.ledger().resident(), pager.ledger().spare()), (20, 0));
    pager.ended(returning, false).expect("under way");
    assert_eq!(
        (pager.ledger().resident(), pager.ledger().spare()),
        (10, 10),
        "the allocator keeps the slice"
    );
    assert_eq!(pager.get(blocks[0]).map(Block::place), Some(Place::Away(Tier::Host)));
}

#[test]
fn a_leaving_block_is_no_victim_again() {
    let (mut pager, blocks) = written(Limit::bytes(10), Policy::Recency, 1);
    let more = pager.insert(10, Arena(0));
    assert_eq!(pager.begin(&[more]), Ok(false));
    pager.swept();
    let leaving = pager.evict(blocks[0]).expect("idle");
    assert_eq!(pager.next_step(&|| Rooms::ENDLESS), Ok(Step::Wait(leaving)), "its only copy is being made");
    pager.ended(leaving, false).expect("under way");
    assert_eq!(pager.get(blocks[0]).map(Block::place), Some(Place::Device { clean: None }));
}

#[test]
fn a_block_that_could_not_leave_is_as_dirty_or_clean_as_it_was() {
    let (mut pager, blocks) = written(Limit::bytes(20), Policy::LeastRecentlyUsed, 3);
    operate(&mut pager, &[blocks[0]]);
    let clean = Place::Device { clean: Some(Tier::Host) };
    let dirty = Place::Device { clean: None };
    for (block, place) in [(blocks[0], clean), (blocks[2], dirty)] {
        assert_eq!(pager.get(block).map(Block::place), Some(place));
        pager.begin(&[]).expect("no operand");
        let held = pager.ledger().held(Tier::Host);
        let token = pager.evict(block).expect("idle");
        pager.ended(token, false).expect("under way");
        assert_eq!(pager.get(block).map(Block::place), Some(place));
        assert_eq!(pager.ledger().held(Tier::Host), held);
    }
}

#[test]
fn an_operation_takes_a_leaving_block_back() {
    let (mut pager, blocks) = written(Limit::bytes(20), Policy::Recency, 2);
    for overwrite in [false, true] {
        pager.begin(&[]).expect("no operand");
        let token = pager.evict(blocks[0]).expect("idle");
        assert_eq!(pager.begin(&[blocks[0]]), Ok(true), "its device memory is valid");
        if overwrite {
            pager.wrote(blocks[0]).expect("on the device");
        }
        let outcome = pager.ended(token, true).expect("under way");
        let copied = Some(Tier::Host);
        let current = !overwrite;
        assert_eq!(outcome, Outcome::Rescued { block: blocks[0], bytes: 10, copied, current });
        let clean = copied.filter(|_| current);
        assert_eq!(pager.get(blocks[0]).map(Block::place), Some(Place::Device { clean }));
        assert_eq!(pager.ledger().held(Tier::Host), if current { 10 } else { 0 });
        pager.wrote(blocks[0]).expect("on the device");
    }
    assert_eq!(
        (pager.counters().link.evictions, pager.counters().link.bytes_out),
        (0, 20),
        "copied, but never gone"
    );
}

#[test]
fn a_block_removed_on_its_way_counts_until_its_move_ends() {
    for land in [true, false] {
        for clean in [false, true] {
            // The clean block left; its host copy remains.
            let (mut pager, blocks) = written(Limit::bytes(20), Policy::LeastRecentlyUsed, 3);
            let block = if clean { blocks[0] } else { blocks[2] };
            if clean {
                operate(&mut pager, &[block]);
            }
            pager.begin(&[]).expect("no operand");
            let held = pager.ledger().held(Tier::Host);
            let token = pager.evict(block).expect("idle");
            pager.remove(block).expect("it lives");
            assert_eq!(pager.ledger().resident(), 20);
            let ended = if land { pager.ended(token, true) } else { pager.ended(token, false) };
            assert_eq!(ended, Ok(Outcome::Removed { block }));
            assert_eq!(pager.ledger().resident(), 10);
            assert_eq!(pager.ledger().held(Tier::Host), if clean { held - 10 } else { held });
            for other in blocks.iter().filter(|other| **other != block) {
                pager.remove(*other).expect("it lives");
            }
            assert_eq!((pager.ledger().resident(), pager.ledger().held(Tier::Host)), (0, 0));
        }
    }
}

#[test]
fn a_block_removed_on_its_way_back_gives_everything_up_when_it_lands() {
    let (mut pager, blocks) = written(Limit::bytes(10), Policy::Recency, 2);
    operate(&mut pager, &[]);
    let token = pager.evict(blocks[1]).expect("idle");
    pager.ended(token, true).expect("under way");
    let token = pager.bring(blocks[0]).expect("away");
    pager.remove(blocks[0]).expect("it lives");
    assert_eq!((pager.ledger().resident(), pager.ledger().held(Tier::Host)), (10, 20));
    assert_eq!(pager.ended(token, true), Ok(Outcome::Removed { block: blocks[0] }));
    assert_eq!((pager.ledger().resident(), pager.ledger().held(Tier::Host)), (0, 10));
}

#[test]
fn a_discarded_block_frees_its_host_copy_at_once_and_the_device_when_its_memory_is_unused() {
    for clean in [false, true] {
        let (mut pager, blocks) = written(Limit::bytes(20), Policy::LeastRecentlyUsed, 3);
        let block = if clean { blocks[0] } else { blocks[2] };
        operate(&mut pager, &[block]);
        let held = pager.ledger().held(Tier::Host);
        let token = pager.discard(block).expect("on the device").expect("in no move");
        assert_eq!(pager.ledger().held(Tier::Host), if clean { held - 10 } else { held });
        assert_eq!(pager.ledger().resident(), 20, "its memory is in use");
        let other =
            *blocks.iter().find(|id| pager.get(**id).is_some_and(|b| !b.is_on_device())).expect("away");
        pager.begin(&[other]).expect("a legal operand");
        assert_eq!(pager.next_step(&|| Rooms::ENDLESS), Ok(Step::Sweep));
        pager.swept();
        assert_eq!(
            pager.next_step(&|| Rooms::ENDLESS),
            Ok(Step::Wait(token)),
            "no other block leaves for it"
        );
        assert_eq!(pager.ended(token, true), Ok(Outcome::Removed { block }));
        assert_eq!(pager.ledger().resident(), 10);
        assert_eq!(pager.discard(block), Err(Fault::UnknownBlock(block)));
        assert!(pager.discard(other).is_err(), "it is away");
    }
}

#[test]
fn a_block_that_was_kept_while_it_left_is_not_discarded() {
    let (mut pager, blocks) = written(Limit::bytes(20), Policy::LeastRecentlyUsed, 2);
    operate(&mut pager, &[]);
    let token = pager.evict(blocks[0]).expect("idle");
    operate(&mut pager, &[blocks[0]]);
    let books = format!("{:?}", pager.ledger());
    assert_eq!(pager.discard(blocks[0]), Ok(None));
    assert_eq!(format!("{:?}", pager.ledger()), books);
    assert!(matches!(pager.ended(token, true), Ok(Outcome::Rescued { .. })));
    assert!(matches!(pager.discard(blocks[0]), Ok(Some(_))));
}

#[test]
fn reports_that_contradict_the_books_are_faults_and_change_nothing() {
    let (mut pager, blocks) = written(Limit::bytes(20), Policy::Recency, 3);
    let (away, here) = (blocks[0], blocks[2]);
    let token = {
        pager.begin(&[]).expect("no operand");
        let token = pager.evict(blocks[1]).expect("idle");
        pager.ended(token, true).expect("under way");
        token
    };
    let never = BlockId { index: 99, generation: 0 };
    let stale = BlockId { index: here.index, generation: 7 };
    let books = format!("{pager:?}");
    let illegal = [
        pager.evict(away).map(drop),
        pager.bring(here).map(drop),
        pager.ended(token, true).map(drop),
        pager.ended(token, false).map(drop),
        pager.wrote(away).map(drop),
        pager.wrote_on_host(here),
        pager.report(Step::DropCopy { block: here, tier: Tier::Host }).map(drop),
        pager.report(Step::DropCopy { block: away, tier: Tier::Host }).map(drop),
        pager.pin(away),
    ];
    assert!(illegal.iter().all(Result::is_err), "{illegal:?}");
    for unknown in [never, stale] {
        assert_eq!(pager.remove(unknown), Err(Fault::UnknownBlock(unknown)));
        assert_eq!(pager.wrote(unknown), Err(Fault::UnknownBlock(unknown)));
        assert_eq!(pager.begin(&[here, unknown]), Err(Fault::UnknownBlock(unknown).into()));
    }
    assert_eq!(format!("{pager:?}"), books);
}

#[test]
fn a_drop_of_a_copy_is_no_eviction_and_no_spill() {
    let (mut pager, blocks) = written(Limit::bytes(20), Policy::Recency, 1);
    let block = blocks[0];
    pager.begin(&[]).expect("no operand");
    let token = pager.evict(block).expect("idle");
    pager.ended(token, true).expect("under way");
    pager.report(Step::WriteAhead { block }).expect("it rests on the host");
    let books = format!("{pager:?}");
    let spills = pager.report(Step::DropCopy { block, tier: Tier::Host });
    assert!(spills.is_err() && format!("{pager:?}") == books, "{spills:?}");

    let token = pager.bring(block).expect("it rests on the host");
    pager.ended(token, true).expect("under way");
    let books = format!("{pager:?}");
    let evicts = pager.report(Step::DropCopy { block, tier: Tier::Device });
    let spills = pager.report(Step::Spill { block });
    assert!(evicts.is_err() && spills.is_err(), "{evicts:?} {spills:?}");
    assert_eq!(format!("{pager:?}"), books);
    pager.report(Step::DropCopy { block, tier: Tier::Host }).expect("the disk and the device keep theirs");
}

#[test]
fn an_operand_or_a_pinned_block_cannot_be_evicted() {
    let (mut pager, blocks) = written(Limit::NONE, Policy::Recency, 2);
    pager.pin(blocks[1]).expect("on the device");
    operate(&mut pager, &[blocks[0]]);
    assert!(pager.evict(blocks[0]).is_err() && pager.evict(blocks[1]).is_err());
}

#[test]
fn a_lowered_budget_drives_blocks_out_and_peaks_start_anew() {
    let (mut pager, blocks) = written(Limit::bytes(40), Policy::LeastRecentlyUsed, 4);
    pager.set_budget(Limit::bytes(25));
    pager.begin_room(0, Arena(0));
    take_steps(&mut pager).expect("everything may leave");
    assert_eq!((pager.ledger().resident(), pager.ledger().reserved()), (20, 20));
    let oldest = pager.get(blocks[0]).expect("alive").place();
    assert!(matches!(oldest, Place::Away(_)), "{oldest:?}");
    assert_eq!(pager.ledger().resident_peak(), 40);
    pager.reset_peaks();
    assert_eq!(pager.ledger().resident_peak(), 20);
}
