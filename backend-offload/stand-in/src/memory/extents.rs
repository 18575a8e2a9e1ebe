//! Estimated extents of kernels' operands: a launch names only their starts.

use std::{collections::BTreeSet, ops::Range};

/// Starts of operands within an allocation, from all launches so far.
#[derive(Debug, Default)]
pub(super) struct Extents(BTreeSet<u64>);

impl Extents {
    /// Bytes from `operand` to the next start, or the allocation's end.
    ///
    /// Exact if each tensor has an allocation of its own. Too large for the last tensor of a shared one; too small
    /// where others started within the operand.
    pub(super) fn extent_of(&mut self, operand: u64, allocation: &Range<u64>) -> u64 {
        self.0.insert(operand);
        let next = self.0.range(operand + 1..).next().copied();
        next.unwrap_or(allocation.end) - operand
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operand_extends_to_the_next_known_one_or_to_the_end_of_its_allocation() {
        let (mut extents, allocation) = (Extents::default(), 100..200);
        assert_eq!(extents.extent_of(100, &allocation), 100);
        assert_eq!(extents.extent_of(160, &allocation), 40);
        assert_eq!(extents.extent_of(100, &allocation), 60);
        assert_eq!(extents.extent_of(160, &allocation), 40);
    }
}
