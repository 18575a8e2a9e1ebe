//! Random programs against the pager, driven by a small device with real contents.
//!
//! The device and the host are maps from block to a number that stands for the contents; what a program
//! wrote last is kept beside them. Every promise of the pager is checked after every operation.

use super::*;
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::HashMap;

#[derive(Debug, Clone)]
enum Op {
    Allocate {
        bytes: u16,
        arena: u8,
    },
    /// Operands by their number among the live blocks; a bit each says whether it is written.
    Use {
        operands: Vec<u8>,
        writes: u8,
    },
    WriteFromHost {
        block: u8,
    },
    Free {
        block: u8,
    },
    Pin {
        block: u8,
    },
    /// The device says no this many times.
    Refuse {
        times: u8,
    },
    /// The next copies out fail.
    BreakCopies {
        times: u8,
    },
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (1u16..600, 0u8..3).prop_map(|(bytes, arena)| Op::Allocate { bytes, arena }),
        10 => (vec(any::<u8>(), 1..5), any::<u8>()).prop_map(|(operands, writes)| Op::Use { operands, writes }),
        1 => any::<u8>().prop_map(|block| Op::WriteFromHost { block }),
        3 => any::<u8>().prop_map(|block| Op::Free { block }),
        1 => any::<u8>().prop_map(|block| Op::Pin { block }),
        1 => (1u8..4).prop_map(|times| Op::Refuse { times }),
        1 => (1u8..3).prop_map(|times| Op::BreakCopies { times }),
    ]
}

#[derive(Debug, Default)]
struct Model {
    /// Contents after the last write, or none for a block never written.
    written: Option<u64>,
    pinned: bool,
    dead: bool,
}

struct Door {
    pager: Pager,
    host_limit: u64,
    oversized: Oversized,
    device: HashMap<BlockId, u64>,
    host: HashMap<BlockId, u64>,
    live: Vec<BlockId>,
    model: HashMap<BlockId, Model>,
    refusals: u8,
    broken_copies: u8,
    next_value: u64,
    copied_out: u64,
    copied_in: u64,
}

impl Door {
    fn new(budget: u64, host_limit: u64, policy: Policy, oversized: Oversized) -> Self {
        Self {
            pager: Pager::new(budget, policy, oversized),
            host_limit,
            oversized,
            device: HashMap::new(),
            host: HashMap::new(),
            live: Vec::new(),
            model: HashMap::new(),
            refusals: 0,
            broken_copies: 0,
            next_value: 0,
            copied_out: 0,
            copied_in: 0,
        }
    }

    fn nth(&self, n: u8) -> Option<BlockId> {
        (!self.live.is_empty()).then(|| self.live[n as usize % self.live.len()])
    }

    fn host_room(&self) -> u64 {
        self.host_limit - self.host.keys().map(|id| self.pager.bytes(*id)).sum::<u64>()
    }

    fn run(&mut self, op: Op) {
        match op {
            Op::Allocate { bytes, arena } => {
                let id = self.pager.insert(u64::from(bytes), Arena(u32::from(arena)));
                assert!(self.model.insert(id, Model::default()).is_none(), "ids are not reused");
                self.live.push(id);
            }
            Op::Use { operands, writes } => {
                let ids: Vec<_> = operands.iter().filter_map(|n| self.nth(*n)).collect();
                self.operate(&ids, writes);
            }
            Op::WriteFromHost { block } => {
                let Some(id) = self.nth(block) else { return };
                let bytes = self.pager.bytes(id);
                let place = self.pager.place(id);
                let fits = place == Place::Host || bytes <= self.host_room();
                if matches!(place, Place::Host | Place::Nowhere) && fits {
                    self.next_value += 1;
                    self.pager.wrote_on_host(id);
                    self.host.insert(id, self.next_value);
                    self.model.get_mut(&id).unwrap().written = Some(self.next_value);
                }
            }
            Op::Free { block } => {
                let Some(id) = self.nth(block) else { return };
                // Freed late, by a sweep, as a door notices it.
                self.live.retain(|other| *other != id);
                self.model.get_mut(&id).unwrap().dead = true;
            }
            Op::Pin { block } => {
                let Some(id) = self.nth(block) else { return };
                if self.pager.place(id) == (Place::Device { clean: false }) {
                    self.pager.pin(id);
                    self.model.get_mut(&id).unwrap().pinned = true;
                }
            }
            Op::Refuse { times } => self.refusals = times,
            Op::BreakCopies { times } => self.broken_copies = times,
        }
        self.check();
    }

    fn sweep(&mut self) {
        let dead: Vec<_> = self.model.iter().filter(|(_, m)| m.dead).map(|(id, _)| *id).collect();
        for id in dead {
            self.model.remove(&id);
            self.device.remove(&id);
            self.host.remove(&id);
            self.pager.remove(id);
        }
        self.pager.swept();
    }

    fn operate(&mut self, ids: &[BlockId], writes: u8) {
        if self.pager.begin(ids).and_then(|_| self.make_resident()).is_err() {
            return;
        }
        for (n, id) in ids.iter().enumerate() {
            let expected = self.model[id].written;
            if let Some(expected) = expected {
                assert_eq!(self.device.get(id), Some(&expected), "an operand reads as last written");
            }
            assert!(self.device.contains_key(id), "an operand is on the device while its operation runs");
            if writes >> (n % 8) & 1 == 1 {
                self.next_value += 1;
                self.device.insert(*id, self.next_value);
                self.model.get_mut(id).unwrap().written = Some(self.next_value);
                if self.pager.wrote(*id) {
                    self.host.remove(id);
                }
            }
        }
    }

    fn make_resident(&mut self) -> Result<(), Shortage> {
        for _ in 0..10_000 {
            match self.pager.next_step(self.host_room())? {
                Step::Ready => return Ok(()),
                Step::Sweep => self.sweep(),
                Step::Trim => self.pager.trimmed(),
                Step::DropCopy { block } => {
                    self.host.remove(&block).expect("a copy to drop");
                    self.pager.copy_dropped(block);
                }
                Step::Evict { block, copy } => {
                    if copy && self.broken_copies > 0 {
                        self.broken_copies -= 1;
                        self.pager.evict_failed(block);
                        continue;
                    }
                    assert!(!self.model[&block].pinned, "what is pinned stays");
                    let contents = self.device.remove(&block).expect("a victim is on the device");
                    if copy {
                        self.copied_out += self.pager.bytes(block);
                        assert!(self.pager.bytes(block) <= self.host_room(), "the host limit is a limit");
                        self.host.insert(block, contents);
                    } else if let Some(written) = self.model[&block].written {
                        assert_eq!(
                            self.host.get(&block),
                            Some(&written),
                            "a block drops free only if copied"
                        );
                    }
                    self.pager.evicted(block, copy);
                }
                Step::Bring { block, fill } => {
                    if self.refusals > 0 {
                        self.refusals -= 1;
                        self.pager.device_refused();
                        continue;
                    }
                    let contents = if fill { self.host[&block] } else { u64::MAX };
                    self.copied_in += if fill { self.pager.bytes(block) } else { 0 };
                    self.device.insert(block, contents);
                    self.pager.brought(block);
                }
            }
        }
        panic!("an operation comes to an end");
    }

    fn check(&self) {
        let sum = |map: &HashMap<BlockId, u64>| map.keys().map(|id| self.pager.bytes(*id)).sum::<u64>();
        let ledger = self.pager.ledger();
        assert_eq!(ledger.resident(), sum(&self.device), "the ledger is the sum of the blocks");
        assert_eq!(ledger.host(), sum(&self.host), "the host ledger is the sum of the copies");
        if self.oversized == Oversized::Refuse {
            assert!(ledger.reserved_peak() <= ledger.budget(), "the budget holds at every moment");
        }
        let counters = self.pager.counters();
        assert_eq!((counters.bytes_out, counters.bytes_in), (self.copied_out, self.copied_in));
        for (id, model) in &self.model {
            let current = match self.pager.place(*id) {
                Place::Device { clean } => {
                    assert_eq!(clean, self.host.contains_key(id), "clean means the host has it too");
                    self.device.get(id)
                }
                Place::Host => self.host.get(id),
                Place::Nowhere => None,
                Place::Leaving => panic!("nothing is leaving between operations"),
            };
            if model.written.is_some() {
                assert_eq!(current.copied(), model.written, "contents are where the pager says");
            }
        }
    }
}

/// 256 programs of 4,096 operations: over a million.
const PROGRAM: usize = 4096;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn any_program_under_any_budget_reads_what_it_wrote(
        budget in prop_oneof![1u64..64, 64u64..4000, Just(u64::MAX)],
        host_limit in prop_oneof![Just(0u64), 1u64..4000, Just(u64::MAX / 4)],
        policy in prop_oneof![Just(Policy::Recency), Just(Policy::LeastRecentlyUsed)],
        oversized in prop_oneof![Just(Oversized::Refuse), Just(Oversized::RunAlone)],
        program in vec(op(), PROGRAM),
    ) {
        let mut door = Door::new(budget, host_limit, policy, oversized);
        for op in program {
            door.run(op);
        }
        door.live.clear();
        door.model.values_mut().for_each(|model| model.dead = true);
        door.sweep();
        prop_assert_eq!((door.pager.ledger().resident(), door.pager.ledger().host()), (0, 0));
    }
}

fn check(budget: u64, policy: Policy, sizes: &[u64], uses: &[&[usize]]) -> Counters {
    let mut door = Door::new(budget, u64::MAX / 4, policy, Oversized::Refuse);
    for &bytes in sizes {
        let id = door.pager.insert(bytes, Arena(0));
        door.model.insert(id, Model::default());
        door.live.push(id);
        door.operate(&[id], 1);
    }
    for operands in uses {
        let ids: Vec<_> = operands.iter().map(|n| door.live[*n]).collect();
        door.operate(&ids, 0);
        door.check();
    }
    door.pager.counters()
}

#[test]
fn what_fits_never_moves() {
    let counters = check(40, Policy::Recency, &[10; 4], &[&[0, 1], &[2, 3], &[0, 3]]);
    assert_eq!((counters.evictions, counters.restores, counters.clean_drops), (0, 0, 0));
}

#[test]
fn a_block_that_was_not_written_since_leaves_without_a_copy() {
    // Three blocks, room for two: writing them evicts one; every later eviction is of a clean block.
    let counters = check(20, Policy::LeastRecentlyUsed, &[10; 3], &[&[0], &[1], &[2], &[0], &[1]]);
    assert_eq!(counters.evictions, 3, "each block is copied out once");
    assert!(counters.clean_drops > 0);
}

#[test]
fn a_sweep_over_more_than_fits_moves_less_than_least_recently_used_would() {
    let sizes = [10u64; 64];
    let sweep: Vec<Vec<usize>> = (0..10).flat_map(|_| (0..64).map(|n| vec![n])).collect();
    let uses: Vec<&[usize]> = sweep.iter().map(Vec::as_slice).collect();
    let recency = check(480, Policy::Recency, &sizes, &uses).bytes_in;
    let baseline = check(480, Policy::LeastRecentlyUsed, &sizes, &uses).bytes_in;
    assert_eq!(baseline, 10 * 64 * 10, "the baseline misses every time");
    assert!(recency * 2 < baseline, "{recency} of {baseline} bytes");
}

#[test]
fn going_back_and_forth_moves_no_more_than_least_recently_used() {
    let sizes = [10u64; 64];
    let there_and_back: Vec<Vec<usize>> =
        (0..10).flat_map(|_| (0..64).chain((0..64).rev()).map(|n| vec![n])).collect();
    let uses: Vec<&[usize]> = there_and_back.iter().map(Vec::as_slice).collect();
    let recency = check(320, Policy::Recency, &sizes, &uses).bytes_in;
    let baseline = check(320, Policy::LeastRecentlyUsed, &sizes, &uses).bytes_in;
    assert!(recency <= baseline + baseline / 10, "{recency} of {baseline} bytes");
}
