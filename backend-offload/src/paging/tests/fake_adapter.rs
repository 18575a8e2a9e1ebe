//! An adapter over the fake device, with checks of its promises.

use super::fake_device::FakeDevice;
use crate::error::OffloadError;
use crate::paging::attempt::Attempt;
use crate::paging::{Device, Paging, PagingSettings};
use crate::tiers::{ALIGNMENT, Disk, Draft, HostPool, Share, SlabSource};
use pager::{Arena, BlockId, Limit, Oversized, Place, Policy, Tier, TierSet};
use std::sync::Arc;

#[derive(Debug)]
pub(super) struct FakeAdapter {
    pub paging: Paging,
    pub device: FakeDevice,
    oversized: Oversized,
    next_value: u64,
    pub taken: Vec<Draft>,
}

impl FakeAdapter {
    pub fn new(
        budget: Limit,
        host: Limit,
        policy: Policy,
        oversized: Oversized,
        (takes_time, paranoid): (bool, bool),
    ) -> Self {
        Self::above_a_disk(budget, host, None, policy, oversized, (takes_time, paranoid))
    }

    pub fn above_a_disk(
        budget: Limit,
        host: Limit,
        disk: Option<Arc<Disk>>,
        policy: Policy,
        oversized: Oversized,
        (takes_time, paranoid): (bool, bool),
    ) -> Self {
        let settings = PagingSettings {
            device_budget: budget,
            policy,
            oversized,
            host: HostPool::new(host, Limit::NONE),
            disk,
            paranoid,
            dry_run: false,
            trace: None,
        };
        let mut paging = Paging::new(&settings, SlabSource::Heap);
        paging.pager.look_ahead(takes_time);
        let device = FakeDevice::new(takes_time);
        Self { paging, device, oversized, next_value: 0, taken: Vec::new() }
    }

    pub fn nth(&self, n: u8) -> Option<BlockId> {
        (!self.device.live.is_empty()).then(|| self.device.live[n as usize % self.device.live.len()])
    }

    pub fn bytes(&self, id: BlockId) -> usize {
        self.paging.pager.get(id).expect("a block that lives").bytes as usize
    }

    /// Different from all earlier blocks' contents.
    pub fn new_contents(&mut self, bytes: usize) -> Vec<u8> {
        self.next_value += 1;
        let mut contents = vec![self.next_value as u8; bytes];
        for (byte, word) in contents.iter_mut().zip(self.next_value.to_le_bytes()) {
            *byte = word;
        }
        contents
    }

    pub fn insert(&mut self, bytes: u64, arena: u8) -> BlockId {
        let id = self.paging.insert(bytes, Arena(u32::from(arena)));
        self.device.insert(id, bytes as usize);
        id
    }

    /// `writes` has a bit for each operand.
    pub fn operate(&mut self, ids: &[BlockId], writes: u8) -> Result<(), OffloadError> {
        self.device.operands = ids.to_vec();
        self.paging.make_resident(&mut self.device, ids, &|| "an operation".to_owned()).inspect_err(
            |error| {
                assert!(!matches!(error, OffloadError::Bookkeeping { .. }), "{error}");
            },
        )?;

        for (n, id) in ids.iter().enumerate() {
            let bytes = self.bytes(*id);
            let shadow = self.device.shadow(*id);
            let memory = shadow.memory.as_ref().expect("an operand is on the device");
            if let Some(written) = &shadow.written {
                assert_eq!(memory, written, "an operand reads as last written");
            }
            if writes >> (n % 8) & 1 == 1 {
                let new = self.new_contents(bytes);
                let shadow = self.device.shadow(*id);
                shadow.memory = Some(new.clone());
                shadow.written = Some(new);
                self.paging.wrote(*id).expect("on the device");
            }
        }
        Ok(())
    }

    pub fn write_from_host(&mut self, id: BlockId) {
        let block = *self.paging.pager.get(id).expect("a block that lives");
        if !matches!(block.place(), Place::Away(_) | Place::Nowhere) {
            return;
        }
        let mut new = self.new_contents(block.bytes as usize);
        // Every other write changes half of a block.
        let share = if self.next_value.is_multiple_of(2) { Share::Part } else { Share::Whole };
        let from = if share == Share::Part
            && let Some(before) = &self.device.shadow(id).written
        {
            let half = before.len() / 2;
            new[..half].copy_from_slice(&before[..half]);
            half
        } else {
            0
        };
        let edit = |bytes: &mut [u8]| bytes[from..].copy_from_slice(&new[from..]);
        if self.paging.edit_on_host(id, new.len(), share, edit).expect("nowhere or there") {
            self.device.shadow(id).written = Some(new);
        }
    }

    pub fn read_on_host(&mut self, id: BlockId) {
        self.device.operands.clear();
        let loaded = self.paging.load_to_host(&mut self.device, id, &|| "reading".to_owned());
        let place = self.paging.pager.get(id).expect("a block that lives").place();
        match loaded {
            Ok(()) => assert_ne!(place, Place::Away(Tier::Disk)),
            Err(error) => assert!(!matches!(error, OffloadError::Bookkeeping { .. }), "{error}"),
        }
        if place == Place::Away(Tier::Host) {
            let read = self.paging.tiers.verified(id).expect("undamaged");
            assert_eq!(Some(read.bytes()), self.device.shadow(id).written.as_deref());
        }
    }

    /// A refusal leaves all blocks in place.
    pub fn take_host(&mut self, len: usize) {
        self.device.operands.clear();
        let spilled = self.paging.pager.counters().disk.spilled;
        let at_rest = self.at_rest();
        match self.paging.draft(&mut self.device, len) {
            Ok(Some(draft)) => self.taken.push(draft),
            Ok(None) => {
                assert_eq!(
                    self.paging.pager.counters().disk.spilled,
                    spilled,
                    "no block spills if that cannot make room"
                );
                let before =
                    at_rest.iter().filter_map(|before| Some((before, self.paging.pager.get(before.0)?)));
                for ((_, place, held), block) in before {
                    assert_eq!((block.place(), block.held()), (*place, *held), "nothing is given up for it");
                }
                assert!(!self.all_could_spill(len as u64), "a room that can be made is not refused");
            }
            Err(error) => assert!(matches!(error, OffloadError::Disk { .. }), "{error}"),
        }
    }

    fn at_rest(&self) -> Vec<(BlockId, Place, TierSet)> {
        let moves = |id: BlockId| self.device.flights.iter().any(|flight| flight.block == id);
        let blocks = self.device.shadows.iter().flatten().filter(|shadow| !moves(shadow.id));
        let place = |id: BlockId| self.paging.pager.get(id).map(|block| (id, block.place(), block.held()));
        blocks.filter_map(|shadow| place(shadow.id)).collect()
    }

    /// Whether `len` bytes of the host are free once every block has spilled.
    fn all_could_spill(&self, len: u64) -> bool {
        let taken: usize = self.taken.iter().map(|draft| draft.len()).sum();
        let blocks =
            self.device.shadows.iter().flatten().filter_map(|shadow| self.paging.pager.get(shadow.id));
        let unwritten = blocks
            .filter(|block| block.place() == Place::Away(Tier::Host) && !block.held().contains(Tier::Disk));
        let pages = unwritten.map(|block| block.bytes.next_multiple_of(ALIGNMENT)).sum();
        let limit = self.paging.tiers.pool().usage().limit;
        limit.allows_more(taken as u64, len) && self.paging.tiers.rooms().disk.allows(pages)
    }

    pub fn make_room(&mut self, bytes: u64, arena: u8) {
        self.device.operands.clear();
        self.paging.make_room(&mut self.device, bytes, Arena(u32::from(arena)));
    }

    pub fn forget(&mut self, id: BlockId) {
        self.device.forget(&mut self.paging, id);
    }

    pub fn check(&mut self) {
        assert_eq!(self.device.broken_promises, [""; 0], "promises broken within moves");
        let ledger = self.paging.pager.ledger();
        let orphans = self.device.flights.iter().filter_map(|flight| flight.orphan.as_ref());
        let memories = self.device.shadows.iter().flatten().filter_map(|shadow| shadow.memory.as_ref());
        let resident: usize = memories.chain(orphans).map(Vec::len).sum();
        assert_eq!(ledger.resident(), resident as u64, "the ledger is the sum of the memories");

        let host = self.paging.tiers.pool().usage();
        let taken: usize = self.taken.iter().map(|draft| draft.len()).sum();
        let loading = self.paging.tiers.loading();
        assert_eq!(self.paging.pager.loading().map(|(_, block)| block), loading.map(|(block, _)| block));
        let copies = host.in_use - taken as u64;
        assert_eq!(ledger.held(Tier::Host), copies, "the tier's account is the sum of its copies");
        assert!(host.limit.allows(host.in_use), "the host limit is a limit");
        assert_eq!(ledger.held(Tier::Disk), self.paging.tiers.held_on_disk(), "and so is the disk's");

        if self.oversized == Oversized::Refuse {
            assert!(ledger.budget().allows(ledger.reserved_peak()), "the budget holds at every moment");
        }

        // An ended flight counts only when the loop asks.
        if self.device.ended.is_empty() {
            let counters = self.paging.pager.counters();
            assert_eq!(
                (counters.link.bytes_out, counters.link.bytes_in),
                (self.device.copied_out, self.device.copied_in)
            );
        }

        for shadow in self.device.shadows.iter().flatten() {
            let block = self.paging.pager.get(shadow.id).expect("a block that lives");
            let tier = match block.place() {
                Place::Device { clean } | Place::Leaving { clean } => clean,
                Place::Returning { from } => from,
                Place::Away(tier) => Some(tier),
                Place::Nowhere => None,
            };
            let below = self.paging.tiers.on_disk(shadow.id);
            assert_eq!(below.is_some(), block.held().contains(Tier::Disk), "{block:?}");
            let copy = tier.map(|tier| match (&below, tier) {
                (Some(below), Tier::Disk) => below,
                _ => self.paging.tiers.get(shadow.id).expect("a copy where the pager says").bytes(),
            });
            let takes_memory = !matches!(block.place(), Place::Nowhere | Place::Away(_));
            assert_eq!(shadow.memory.is_some(), takes_memory, "{block:?}");
            let returning = matches!(block.place(), Place::Returning { .. });
            let current = if returning { copy } else { shadow.memory.as_deref().or(copy) };
            if let Some(written) = shadow.written.as_deref() {
                assert_eq!(current, Some(written), "contents are where the pager says: {block:?}");
                assert!(copy.is_none_or(|copy| copy == written), "a copy is current: {block:?}");
                assert!(below.as_ref().is_none_or(|below| below == written), "so is the disk's: {block:?}");
            }
        }
    }

    pub fn close(&mut self) {
        while !self.device.flights.is_empty() {
            for index in 0..self.device.flights.len() {
                self.device.end(index);
            }
            self.device.operands.clear();
            let operation = || "nothing".to_owned();
            self.paging.make_resident(&mut self.device, &[], &operation).expect("no operand");
            self.make_room(1, 9);
            let mut attempt = Attempt::new(&mut self.paging, &mut self.device, &operation);
            while let Some((token, end)) = attempt.device.poll() {
                assert!(attempt.complete(token, end).is_ok());
            }
            self.check();
        }

        let ids: Vec<_> = self.device.shadows.iter().flatten().map(|shadow| shadow.id).collect();
        for id in ids {
            self.forget(id);
        }

        self.taken.clear();
        let host = self.paging.tiers.pool().usage().in_use;
        let ledger = self.paging.pager.ledger();
        assert_eq!((ledger.resident(), ledger.held(Tier::Host), host), (0, 0, 0));
        assert_eq!((ledger.held(Tier::Disk), self.paging.tiers.held_on_disk()), (0, 0));
    }
}
