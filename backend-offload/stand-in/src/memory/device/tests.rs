//! Device memory alone: refusals, and knowledge of written bytes.

use super::*;

fn memory() -> DeviceMemory {
    DeviceMemory::new(&Memory { device: 1 << 20, pinned: 0, granule: 1, reuse: false })
}

fn free(memory: &mut DeviceMemory, start: u64) {
    memory.mark_freed(start).unwrap();
    memory.release(start).unwrap();
}

fn finding<T: std::fmt::Debug>(checked: Result<T, Fault>) -> Finding {
    checked.unwrap_err().finding
}

#[test]
fn each_device_has_its_own_capacity() {
    let mut memory = memory();
    let all = memory.allocate(1 << 20, 0).unwrap();
    assert_eq!((memory.allocate(1, 0), memory.used(0)), (None, 1 << 20));
    assert!(memory.allocate(1, 1).is_some());
    free(&mut memory, all);
    assert!(memory.allocate(1, 0).is_some());
}

#[test]
fn allocations_are_aligned_and_no_address_is_used_twice() {
    let mut memory = memory();
    let mut seen = BTreeSet::new();
    for size in [1, 511, 512, 513, 4096, 5000] {
        let start = memory.allocate(size, 0).unwrap();
        assert_eq!(start % ALIGNMENT, 0);
        assert!(seen.insert(start));
        free(&mut memory, start);
    }
}

#[test]
fn a_freed_address_serves_again_where_reuse_is_on_and_counts_as_live() {
    let mut memory = DeviceMemory::new(&Memory { device: 1 << 20, pinned: 0, granule: 1, reuse: true });
    let first = memory.allocate(5000, 0).unwrap();
    memory.note_written(Rows::plain(first, 5000));
    free(&mut memory, first);
    assert_ne!(memory.allocate(50_000, 0).unwrap(), first);
    assert_eq!(memory.allocate(5000, 0).unwrap(), first);
    assert!(memory.check(&(first..first + 5000), "t").is_ok());
    assert_eq!(finding(memory.check_written(Rows::plain(first, 1), "t")), Finding::UnwrittenRead);
    free(&mut memory, first);
    assert_eq!(finding(memory.mark_freed(first)), Finding::DoubleFree);
}

#[test]
fn an_access_must_lie_within_one_live_allocation() {
    let mut memory = memory();
    let start = memory.allocate(100, 0).unwrap();
    assert_eq!(memory.check(&(start + 10..start + 100), "t").unwrap(), start..start + 100);
    assert_eq!(finding(memory.check(&(start + 10..start + 101), "t")), Finding::OutsideMemory);
    assert_eq!(finding(memory.check(&(start - 1..start), "t")), Finding::OutsideMemory);
    memory.mark_freed(start).unwrap();
    assert_eq!(finding(memory.check(&(start..start + 1), "t")), Finding::UseAfterFree);
    assert!(memory.check_pending(&(start..start + 1), "t").is_ok());
    memory.release(start).unwrap();
    assert_eq!(finding(memory.check_pending(&(start..start + 1), "t")), Finding::UseAfterFree);
}

#[test]
fn a_double_free_differs_from_a_free_of_no_allocation() {
    let mut memory = memory();
    let start = memory.allocate(100, 0).unwrap();
    assert_eq!(finding(memory.mark_freed(start + 1)), Finding::OutsideMemory);
    memory.mark_freed(start).unwrap();
    assert_eq!(finding(memory.mark_freed(start)), Finding::DoubleFree);
    memory.release(start).unwrap();
    assert_eq!(finding(memory.mark_freed(start)), Finding::DoubleFree);
}

#[test]
fn a_byte_written_on_either_side_of_an_allocation_is_found() {
    let mut memory = memory();
    for offset in [-1, 100] {
        let start = memory.allocate(100, 0).unwrap();
        assert!(memory.check_guards(Some(&[start]), "t").is_ok());
        // SAFETY: guards are writable.
        unsafe { fill(Rows::plain(start.wrapping_add_signed(offset), 1), 0) };
        assert_eq!(finding(memory.check_guards(Some(&[start]), "t")), Finding::WrittenOutside);
        memory.mark_freed(start).unwrap();
        assert_eq!(finding(memory.release(start)), Finding::WrittenOutside);
    }
}

#[test]
fn bytes_count_as_written_by_copies_by_kernels_and_by_copies_of_written_bytes() {
    let mut memory = memory();
    let [a, b] = [(); 2].map(|()| memory.allocate(100, 0).unwrap());
    let rows = Rows { start: a, pitch: 20, width: 10, height: 2 };
    memory.note_written(rows);
    assert!(memory.check_written(rows, "t").is_ok());
    assert_eq!(finding(memory.check_written(Rows::plain(a, 30), "t")), Finding::UnwrittenRead);
    memory.note_copied(Rows::plain(b + 50, 30), Rows::plain(a, 30));
    assert!(memory.check_written(Rows::plain(b + 70, 10), "t").is_ok());
    assert_eq!(finding(memory.check_written(Rows::plain(b + 50, 30), "t")), Finding::UnwrittenRead);
    memory.note_kernel(b + 40);
    assert!(memory.check_written(Rows::plain(b + 40, 60), "t").is_ok());
    assert_eq!(finding(memory.check_written(Rows::plain(b + 39, 2), "t")), Finding::UnwrittenRead);
}
