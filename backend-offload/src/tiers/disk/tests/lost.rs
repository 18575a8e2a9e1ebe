//! Pieces lost in a ring that the kernel no longer serves; pipes keep them in flight.

use super::*;
use std::io::{Read, Write, pipe};

fn has_ring(disk: &Disk) -> bool {
    let missing = disk.bounce().ring().is_none().then_some("this kernel gives out no io_uring");
    Need::Ring.is_met(missing)
}

fn die(disk: &Disk) {
    disk.bounce().ring().expect("a ring").die();
}

#[test]
fn a_read_lost_in_a_dead_ring_fails_and_its_late_bytes_reach_no_other_block() {
    let (_folder, disk) = disk(64 << 20);
    if !has_ring(&disk) {
        return;
    }
    let [one, two] = [1, 2].map(|seed| disk.write(&contents(4096, seed)).expect("room"));
    disk.wait_for_writes().expect("written");
    let (source, mut late) = pipe().expect("a pipe");
    with_file(&disk, File::from(std::os::fd::OwnedFd::from(source)), || disk.read_ahead(&[&one], None));
    die(&disk);

    let mut read = vec![0; 4096];
    let mut bounce = disk.bounce();
    let slot = bounce.find(one.number, one.parts[0].start).expect("it is under way");
    let error = bounce.take(slot, |_| {}).expect_err("the kernel does not end it").to_string();
    drop(bounce);
    assert!(error.contains("does not end"), "{error}");
    disk.read_ahead(&[&one, &two], None);
    assert_eq!(disk.bounce().reads(), 2, "threads read");
    disk.bounce().land_all();
    late.write_all(&[0xee; 4096]).expect("the kernel still reads");
    drop(late);
    for (spilled, seed) in [(&one, 1), (&two, 2)] {
        spilled.read(&mut read).expect("as it was written");
        assert!(read == contents(4096, seed), "the late bytes came into another buffer");
    }
    drop((one, two));
    assert_eq!(disk.usage().in_use, 0, "a lost read writes nothing");
}

#[test]
fn a_write_lost_in_a_dead_ring_keeps_its_contents_and_its_place() {
    const PIPE: usize = 1 << 16;
    let (_folder, disk) = disk(64 << 20);
    if !has_ring(&disk) {
        return;
    }
    let (mut late, mut sink) = pipe().expect("a pipe");
    sink.write_all(&vec![0; PIPE]).expect("a pipe has so many bytes");
    let sink = File::from(std::os::fd::OwnedFd::from(sink));
    let block = contents(4096, 1);
    let lost = with_file(&disk, sink, || disk.write(&block).expect("room"));
    die(&disk);

    let mut read = vec![0; 4096];
    lost.read(&mut read).expect("its contents are in a buffer");
    assert!(read == block);
    disk.wait_for_writes().expect("written by the program itself");
    assert_eq!(disk.bounce().taken(), 0);
    let place = lost.parts[0].clone();
    drop(lost);
    assert_eq!(disk.usage().in_use, 4096, "the kernel may still write there");
    let others: Vec<_> = (0..16).map(|seed| disk.write(&contents(4096, seed)).expect("room")).collect();
    assert!(others.iter().all(|other| other.parts[0] != place));

    let mut all = vec![0; PIPE + 4096];
    late.read_exact(&mut all).expect("the kernel writes late");
    assert!(all[PIPE..] == block, "its buffer serves no other block");
}
