//! Memory of the host tier as data of a new tensor.
//!
//! The data ends as the tensor's host copy, without being copied (`lent_memory_comes_back_whole`), or once the device
//! has it.

use crate::tiers::{Draft, HostPool};
use cubecl_common::bytes::{AllocationController, AllocationProperty, Bytes, SplitError};
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Arc;

/// The memory counts until the bytes drop.
pub(crate) fn lent(mut draft: Draft) -> Bytes {
    let (start, len, is_pinned) = (NonNull::from(&mut *draft).cast(), draft.len(), draft.is_pinned());
    let pool = draft.pool().clone();
    let of = pool.lend(draft);
    // SAFETY: all `len` bytes of a slab are initialised.
    unsafe { Bytes::from_controller(Box::new(Lent { of, start, len, is_pinned, pool }), len) }
}

/// The memory of `bytes`, if `pool` has lent all of it.
pub(super) fn taken_back(pool: &HostPool, bytes: Bytes) -> Result<Draft, Bytes> {
    if !pool.has_lent(&bytes) {
        return Err(bytes);
    }
    let draft = pool.take_back(bytes.as_ptr().addr()).expect("its bytes are here");
    drop(bytes);
    Ok(draft)
}

/// Lent memory, or a part of it.
struct Lent {
    /// The lending's address.
    of: usize,
    start: NonNull<MaybeUninit<u8>>,
    len: usize,
    is_pinned: bool,
    pool: Arc<HostPool>,
}

impl AllocationController for Lent {
    fn alloc_align(&self) -> usize {
        1
    }

    fn property(&self) -> AllocationProperty {
        if self.is_pinned { AllocationProperty::Pinned } else { AllocationProperty::Native }
    }

    unsafe fn memory_mut(&mut self) -> &mut [MaybeUninit<u8>] {
        // SAFETY: the pool keeps these bytes and does not use them; `taken_back` drops this first.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    fn memory(&self) -> &[MaybeUninit<u8>] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    fn split(
        &mut self,
        offset: usize,
    ) -> Result<(Box<dyn AllocationController>, Box<dyn AllocationController>), SplitError> {
        if offset > self.len {
            return Err(SplitError::InvalidOffset);
        }
        self.pool.divide_loan(self.of);
        let part = |from: usize, len: usize| {
            // SAFETY: within this part's memory.
            let start = unsafe { self.start.add(from) };
            Box::new(Self { of: self.of, start, len, is_pinned: self.is_pinned, pool: self.pool.clone() })
        };
        Ok((part(0, offset), part(offset, self.len - offset)))
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.pool.return_part(self.of);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiers::SlabSource;
    use pager::Limit;

    fn sevens(pool: &Arc<HostPool>) -> Bytes {
        let mut draft = pool.draft(40, SlabSource::Heap).expect("it has 100 bytes");
        draft.fill(7);
        lent(draft)
    }

    #[test]
    fn lent_memory_comes_back_whole() {
        let pool = HostPool::new(Limit::bytes(100), Limit::NONE);
        let bytes = sevens(&pool);
        let at = bytes.as_ptr();
        assert_eq!((&bytes[..], pool.room()), (&[7; 40][..], Limit::bytes(60)));
        let draft = taken_back(&pool, bytes).expect("it was lent");
        assert_eq!((&draft[..], draft.as_ptr()), (&[7; 40][..], at));
        drop(draft);
        assert_eq!(pool.room(), Limit::bytes(100));
    }

    #[test]
    fn lent_memory_counts_until_its_bytes_drop() {
        let pool = HostPool::new(Limit::bytes(100), Limit::NONE);
        let mut bytes = sevens(&pool);
        bytes[3] = 8;
        let copy = bytes.clone();
        drop(bytes);
        assert_eq!((copy[3], pool.room()), (8, Limit::bytes(100)));
        assert!(taken_back(&pool, copy).is_err(), "a copy is memory of its own");
    }

    #[test]
    fn parts_of_lent_memory_do_not_come_back() {
        let pool = HostPool::new(Limit::bytes(100), Limit::NONE);
        let Ok((left, mut right)) = sevens(&pool).split(24) else { panic!("it is within the memory") };
        right.fill(9);
        assert_eq!((&left[..], &right[..]), (&[7; 24][..], &[9; 16][..]));
        let left = taken_back(&pool, left).expect_err("it is not whole");
        drop(right);
        let left = taken_back(&pool, left).expect_err("it is not whole");
        assert_eq!((&left[..], pool.room()), (&[7; 24][..], Limit::bytes(60)));
        drop(left);
        assert_eq!(pool.room(), Limit::bytes(100));
    }

    #[test]
    fn one_pool_does_not_take_what_another_has_lent() {
        let [pool, other] = [(); 2].map(|()| HostPool::new(Limit::bytes(100), Limit::NONE));
        let bytes = sevens(&pool);
        assert!(pool.has_lent(&bytes) && !other.has_lent(&bytes));
        let bytes = taken_back(&other, bytes).expect_err("it is not its own");
        assert_eq!(&bytes[..], [7; 40]);
    }
}
