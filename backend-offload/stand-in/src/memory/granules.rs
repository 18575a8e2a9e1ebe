//! Device memory in granules, as a driver maps it. An allocation takes whole ones, or shares one with others of its
//! size.

use std::collections::BTreeMap;

#[derive(Debug, Clone)]
pub(super) struct Granules {
    /// Bytes.
    size: u64,
    /// Live allocations in each shared granule, by slot size in bytes. An empty one is not mapped.
    shared: BTreeMap<u64, Vec<u64>>,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Place {
    Whole { bytes: u64 },
    Slot { bytes: u64, granule: usize },
}

const LEAST_SLOT: u64 = 512;

impl Granules {
    pub(super) fn new(size: u64) -> Self {
        Self { size, shared: BTreeMap::new() }
    }

    pub(super) fn needed(&self, size: u64) -> u64 {
        match self.slot(size) {
            Some(slot) if self.granule_with_room(slot).is_some() => 0,
            Some(_) => self.size,
            None => size.checked_next_multiple_of(self.size).unwrap_or(u64::MAX),
        }
    }

    pub(super) fn take(&mut self, size: u64) -> Place {
        let Some(bytes) = self.slot(size) else { return Place::Whole { bytes: self.needed(size) } };
        let room = self.granule_with_room(bytes);
        let granules = self.shared.entry(bytes).or_default();
        let granule = room.or_else(|| granules.iter().position(|live| *live == 0)).unwrap_or_else(|| {
            granules.push(0);
            granules.len() - 1
        });
        granules[granule] += 1;
        Place::Slot { bytes, granule }
    }

    /// Returns the bytes no longer in use.
    pub(super) fn give_back(&mut self, place: Place) -> u64 {
        match place {
            Place::Whole { bytes } => bytes,
            Place::Slot { bytes, granule } => {
                let live = &mut self.shared.get_mut(&bytes).expect("it was taken")[granule];
                *live -= 1;
                if *live == 0 { self.size } else { 0 }
            }
        }
    }

    fn slot(&self, size: u64) -> Option<u64> {
        let slot = size.checked_next_power_of_two()?.max(LEAST_SLOT);
        (slot <= self.size / 2).then_some(slot)
    }

    fn granule_with_room(&self, slot: u64) -> Option<usize> {
        let slots = self.size / slot;
        self.shared.get(&slot)?.iter().position(|live| (1..slots).contains(live))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(granules: &mut Granules, size: u64) -> (u64, Place) {
        (granules.needed(size), granules.take(size))
    }

    #[test]
    fn an_allocation_takes_whole_granules_or_shares_one_with_others_of_its_size() {
        let mut granules = Granules::new(4096);
        let (bytes, large) = take(&mut granules, 4097);
        assert_eq!((bytes, granules.give_back(large)), (8192, 8192));
        let slots = [(); 5].map(|()| take(&mut granules, 1000));
        assert_eq!(slots.map(|(bytes, _)| bytes), [4096, 0, 0, 0, 4096]);
        assert_eq!(granules.needed(500), 4096, "another size has another granule");

        let [(_, a), (_, b), (_, c), (_, d), _] = slots;
        assert_eq!([a, b, c].map(|slot| granules.give_back(slot)), [0; 3]);
        assert_eq!(granules.needed(1000), 0, "a granule stays for its last allocation");
        assert_eq!(granules.give_back(d), 4096);
        let more = [(); 4].map(|()| take(&mut granules, 1000).0);
        assert_eq!(more, [0, 0, 0, 4096], "granules in use are filled first");
    }

    #[test]
    fn a_granule_of_one_byte_counts_each_byte() {
        let mut granules = Granules::new(1);
        for size in [1, 511, 512, 5000, 1 << 50] {
            let (bytes, place) = take(&mut granules, size);
            assert_eq!((bytes, granules.give_back(place)), (size, size));
        }
    }
}
