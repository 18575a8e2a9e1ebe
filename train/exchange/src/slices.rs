//! The slices of a buffer that ranks sum, one for each rank.
//!
//! Ranks of one host have consecutive numbers. Even slices of ranks with the same number on their hosts lie beside each
//! other: a host's ranks divide a buffer among them, then the hosts divide each part.

use std::ops::Range;

use crate::share::range;

#[derive(Debug, Clone)]
pub(crate) struct Slices {
    /// By rank.
    slices: Vec<Range<usize>>,
    on_host: usize,
}

impl Slices {
    /// Even ones, with `on_host` ranks on each host. If these do not divide the world, each rank counts as a host.
    pub(crate) fn even(len: usize, world: usize, on_host: usize) -> Self {
        let is_even = on_host > 0 && world.is_multiple_of(on_host);
        let on_host = if is_even { on_host } else { 1 };
        let slice = |rank: usize| {
            let slice = range(len as u64, world, rank % on_host * (world / on_host) + rank / on_host);
            slice.start as usize..slice.end as usize
        };
        Self { slices: (0..world).map(slice).collect(), on_host }
    }

    /// The ranges that ranks own, or these slices if the detour over them spares the largest owner's link more than it
    /// costs.
    pub(crate) fn for_owners(self, owned: &[Range<usize>]) -> Self {
        let (world, len) = (owned.len(), owned.iter().map(Range::len).sum::<usize>());
        let largest = owned.iter().map(Range::len).max().unwrap_or(0);
        let is_worth_it = world > 2 && 4 * world * largest > 5 * len;
        if is_worth_it || self.has_two_levels() { self } else { Self { slices: owned.to_vec(), on_host: 1 } }
    }

    pub(crate) fn are(&self, owned: &[Range<usize>]) -> bool {
        self.slices == owned
    }

    pub(crate) fn hosts(&self) -> usize {
        self.slices.len() / self.on_host
    }

    pub(crate) fn has_two_levels(&self) -> bool {
        self.on_host > 1 && self.hosts() > 1
    }

    pub(crate) fn of(&self, rank: usize) -> Range<usize> {
        self.slices[rank].clone()
    }

    /// The slices of all ranks with the number of `rank` on their hosts.
    pub(crate) fn part(&self, rank: usize) -> Range<usize> {
        let first = rank % self.on_host;
        self.slices[first].start..self.slices[first + self.slices.len() - self.on_host].end
    }

    pub(crate) fn longest(&self) -> usize {
        self.slices.iter().map(Range::len).max().unwrap_or(0)
    }

    /// Ranks in the order of their slices.
    pub(crate) fn ranks(&self) -> impl Iterator<Item = usize> + use<> {
        let (hosts, on_host) = (self.hosts(), self.on_host);
        (0..self.slices.len()).map(move |index| index % hosts * on_host + index / hosts)
    }

    pub(crate) fn on_host(&self, rank: usize) -> Vec<usize> {
        let first = rank / self.on_host * self.on_host;
        (first..first + self.on_host).collect()
    }

    /// The rank with the number of `rank` on each host.
    pub(crate) fn across(&self, rank: usize) -> Vec<usize> {
        (rank % self.on_host..self.slices.len()).step_by(self.on_host).collect()
    }
}

pub(crate) fn overlap(one: &Range<usize>, other: &Range<usize>) -> Range<usize> {
    let begin = one.start.max(other.start);
    begin..one.end.min(other.end).max(begin)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_even_and_cover_the_buffer_in_the_order_of_their_ranks() {
        for (len, world, on_host) in [(10, 4, 1), (10, 4, 2), (3, 6, 3), (100, 6, 2), (7, 5, 2), (0, 4, 2)] {
            let slices = Slices::even(len, world, on_host);
            let mut end = 0;
            for rank in slices.ranks() {
                let slice = slices.of(rank);
                assert_eq!(slice.start, end, "{len} over {world}");
                assert!(slice.len() + 1 >= slices.longest());
                let part = slices.part(rank);
                assert!(part.start <= slice.start && slice.end <= part.end);
                end = slice.end;
            }
            assert_eq!(end, len);
        }
    }

    #[test]
    fn each_pair_of_ranks_meets_on_one_host_or_over_one_link() {
        let slices = Slices::even(12, 6, 3);
        assert_eq!((slices.on_host(4), slices.across(4)), (vec![3, 4, 5], vec![1, 4]));
        assert_eq!(slices.ranks().collect::<Vec<_>>(), [0, 3, 1, 4, 2, 5]);
        assert!(slices.has_two_levels() && !Slices::even(12, 3, 3).has_two_levels());
        assert!(!Slices::even(12, 5, 2).has_two_levels());
    }
}
