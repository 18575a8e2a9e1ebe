//! The disk and its buffers: contents, faults, background transfers.

mod lost;
mod reading;

use super::super::lines::Lines;
use super::super::system;
use super::*;
use std::fs;
use std::sync::Barrier;
use std::sync::atomic::AtomicBool;
use std::thread;
use suite::Need;

#[repr(C, align(4096))]
struct Page([u8; ALIGNMENT as usize]);

fn disk(len: u64) -> (tempfile::TempDir, Arc<Disk>) {
    disk_by(Means::RingIfAny, len)
}

fn disk_by(means: Means, len: u64) -> (tempfile::TempDir, Arc<Disk>) {
    let folder = tempfile::tempdir().expect("a folder");
    let disk = Disk::open_by(folder.path(), len, means).expect("there is room");
    (folder, disk)
}

/// By threads and, if the kernel has one, by a ring.
fn by_each_means(len: u64, test: impl Fn(&Path, &Arc<Disk>)) {
    for means in [Means::Threads, Means::RingIfAny] {
        let (folder, disk) = disk_by(means, len);
        test(folder.path(), &disk);
    }
}

fn contents(len: usize, seed: usize) -> Vec<u8> {
    let mut bytes = vec![seed as u8; len];
    for (number, page) in bytes.chunks_mut(ALIGNMENT as usize).enumerate() {
        let number = (number + seed).to_le_bytes();
        let marked = page.len().min(number.len());
        page[..marked].copy_from_slice(&number[..marked]);
    }
    bytes
}

#[test]
fn blocks_of_any_size_are_read_back_as_they_were_written() {
    by_each_means(128 << 20, spills_and_loads_any_size);
}

fn spills_and_loads_any_size(folder: &Path, disk: &Arc<Disk>) {
    let sizes = [1, 4095, 4096, 4097, PIECE, PIECE + 1, 2 * PIECE + 4096 * 3 + 5, 5 * PIECE, 6 * PIECE + 77];
    let spilled: Vec<_> = sizes.map(|len| disk.write(&contents(len, len)).expect("room")).into();
    for (len, spilled) in sizes.into_iter().zip(&spilled) {
        let mut read = vec![0; len];
        spilled.read(&mut read).expect("as it was written");
        assert_eq!(read, contents(len, len));
    }
    let names = fs::read_dir(folder).expect("a folder").count();
    assert_eq!(names, 0, "the file has no name");
    let used: u64 = sizes.into_iter().map(|len| (len as u64).next_multiple_of(ALIGNMENT)).sum();
    assert_eq!((disk.usage().in_use, disk.usage().peak), (used, used));

    drop(spilled);
    assert_eq!(disk.room(), Limit::bytes(128 << 20));
}

#[test]
fn a_block_in_several_parts_is_read_in_order() {
    let (_folder, disk) = disk(8 * ALIGNMENT);
    let mut pages: Vec<_> = (0..8).map(|n| Some(disk.write(&contents(4096, n)).expect("room"))).collect();
    for n in [6, 1, 4] {
        pages[n] = None;
    }

    let spilled = disk.write(&contents(3 * 4096 - 9, 99)).expect("three pages are free");
    assert_eq!(spilled.parts.len(), 3);
    let mut read = vec![0; 3 * 4096 - 9];
    spilled.read(&mut read).expect("as it was written");
    assert_eq!(read, contents(3 * 4096 - 9, 99));

    let message = disk.write(&[1]).expect_err("no page is free").to_string();
    assert!(message.contains("finding room for block 9 (1 B) on the disk at"), "{message}");
    assert!(message.contains("in use"), "{message}");
}

#[test]
fn a_failed_piece_fails_its_block_and_takes_no_space() {
    by_each_means(64 << 20, |_, disk| check_failed_piece(disk));
}

fn check_failed_piece(disk: &Arc<Disk>) {
    let fails = |times: u8| disk.broken.store(times, Ordering::Relaxed);
    let block = contents(6 * PIECE + 77, 5);
    fails(1);
    let message = disk.write(&block).expect_err("its first piece fails").to_string();
    assert!(message.contains("Input/output error"), "{message}");
    assert_eq!(disk.usage().in_use, 0);

    fails(0);
    let spilled = disk.write(&block).expect("room");
    let mut read = vec![0; block.len()];
    fails(1);
    assert!(spilled.read(&mut read).is_err());
    fails(0);
    spilled.read(&mut read).expect("as it was written");
    assert!(read == block);
}

/// The kernel may refuse entries while it moves pieces.
#[test]
fn threads_take_over_from_a_ring_that_refuses_entries() {
    let (_folder, disk) = disk(64 << 20);
    let missing = disk.bounce().ring().is_none().then_some("this kernel gives out no io_uring");
    if !Need::Ring.is_met(missing) {
        return;
    }
    let block = contents(6 * PIECE + 77, 5);

    let spilled = disk.write(&block).expect("room");
    let refuse = |after| {
        let mut bounce = disk.bounce.lock().expect("no panic");
        bounce.ring().is_some_and(|ring| {
            ring.takes = after;
            ring.is_usable()
        })
    };
    assert!(refuse(Some(2)), "it is usable until then");
    let mut read = vec![0; block.len()];
    spilled.read(&mut read).expect("as it was written");
    assert!(read == block);
    assert!(!refuse(None), "it was refused once");

    let again = disk.write(&block).expect("room");
    again.read(&mut read).expect("as it was written");
    assert!(read == block);
}

fn damage(file: &File, place: u64) {
    let mut page = Page([0; ALIGNMENT as usize]);
    system::read(file, &mut page.0, place).expect("a page");
    page.0[7] ^= 1;
    system::write(file, &page.0, place).expect("a page");
}

fn with_file<T>(disk: &Disk, file: File, work: impl FnOnce() -> T) -> T {
    let before = disk.bounce().exchange_file(Arc::new(file));
    let done = work();
    disk.bounce().exchange_file(before);
    done
}

#[test]
fn a_changed_byte_on_the_disk_fails_the_read() {
    by_each_means(1 << 20, |_, disk| {
        let _before = disk.write(&contents(4096, 2)).expect("room");
        let spilled = disk.write(&contents(10_000, 3)).expect("room");
        disk.wait_for_writes().expect("written");

        let file = disk.bounce().exchange_file(Arc::new(tempfile::tempfile().expect("a file")));
        damage(&file, spilled.parts[0].start + 4096);
        disk.bounce().exchange_file(file);
        let message = spilled.read(&mut vec![0; 10_000]).expect_err("changed").to_string();
        let place = spilled.parts[0].start;
        let named = format!("reading block 1 (9.77 KiB) at byte {place} of the file on the disk at");
        assert!(place > 0 && message.contains(&named), "{message}");
        assert!(message.contains("not those that were written"), "{message}");
    });
}

/// Unmapped memory is unreadable, and an empty file has no bytes.
#[test]
fn ring_and_threads_report_a_failed_read_in_the_same_words() {
    let all = std::cell::RefCell::new(Vec::new());
    by_each_means(64 << 20, |folder, disk| {
        for len in [10_000, 9 * PIECE + 5] {
            let block = contents(len, 1);
            let spilled = disk.write(&block).expect("room");
            disk.wait_for_writes().expect("written");
            let mut read = vec![0; len];
            for (file, reason) in
                [("/proc/self/mem", "Input/output error"), ("/dev/null", "failed to fill whole buffer")]
            {
                let file = File::open(file).expect("Linux has it");
                let message = with_file(disk, file, || spilled.read(&mut read))
                    .expect_err("nothing to read")
                    .to_string();
                assert!(message.contains("reading block ") && message.contains(reason), "{message}");
                all.borrow_mut().push(message.replace(&folder.display().to_string(), "FOLDER"));
            }
            spilled.read(&mut read).expect("as it was written");
            assert!(read == block);
        }
    });

    let all = all.into_inner();
    let (by_threads, by_ring) = all.split_at(all.len() / 2);
    assert_eq!(by_threads, by_ring);
}

#[test]
fn a_failed_background_write_keeps_its_contents_and_fails_the_next_block() {
    by_each_means(64 << 20, |folder, disk| {
        let full = File::options().read(true).write(true).open("/dev/full").expect("Linux has it");
        let block = contents(10_000, 1);
        let large = contents(9 * PIECE + 5, 2);
        let mut read = vec![0; block.len()];

        let spilled = with_file(disk, full, || {
            let message = disk.write(&large).expect_err("more than can wait").to_string();
            let whole = message.contains("writing block 0 (36.00 MiB) at byte 0 of the file on the disk at ");
            assert!(whole && message.contains(&folder.display().to_string()), "{message}");
            assert!(message.contains("No space left on device"), "{message}");
            assert_eq!((disk.usage().in_use, disk.bounce().taken()), (0, 0));
            let spilled = disk.write(&block).expect("buffers are there");
            disk.bounce().wait_for_writes(spilled.number);
            assert!(disk.wait_for_writes().is_err(), "a wait for all writes fails as well");
            let message = disk.write(&large).expect_err("the device is full").to_string();
            let before =
                format!("writing block 1 (9.77 KiB) at byte {} of the file on", spilled.parts[0].start);
            assert!(message.contains(&before), "it names the block before: {message}");
            assert!(message.contains("No space left on device"), "{message}");
            spilled.read(&mut read).expect("it is in its buffer");
            assert_eq!(read, block);
            spilled
        });

        let later = disk.write(&large).expect("there is space again");
        disk.wait_for_writes().expect("written");
        assert_eq!(disk.bounce().taken(), 0);
        read.fill(0);
        spilled.read(&mut read).expect("as it was written");
        assert_eq!(read, block);
        let mut read = vec![0; large.len()];
        later.read(&mut read).expect("as it was written");
        assert!(read == large);
    });
}

#[test]
fn blocks_are_written_in_the_background_in_a_bounded_number_of_buffers() {
    by_each_means(128 << 20, |_, disk| {
        let one = disk.write(&contents(2 * PIECE, 1)).expect("room");
        let other = disk.write(&contents(4096, 2)).expect("room");
        assert_eq!(disk.bounce().taken(), 3, "pieces of two blocks are on their way");

        let large = disk.write(&contents(11 * PIECE, 3)).expect("room");
        assert!(disk.bounce().taken() <= BACKGROUND_BUFFERS);
        for (spilled, len, seed) in [(&large, 11 * PIECE, 3), (&other, 4096, 2), (&one, 2 * PIECE, 1)] {
            let mut read = vec![0; len];
            spilled.read(&mut read).expect("as it was written");
            assert!(read == contents(len, seed));
        }
    });
}

fn write_in_background(disk: &Arc<Disk>, bytes: &[u8]) -> Result<(Spilled, usize), OffloadError> {
    let mut writing = disk.begin_in_background(bytes.len()).expect("room");
    for turn in 1..100 {
        match writing.continue_in_background(bytes)? {
            BackgroundWrite::Done(spilled) => return Ok((spilled, turn)),
            BackgroundWrite::UnderWay(rest) => writing = rest,
        }
        assert!(disk.bounce().taken() <= BACKGROUND_BUFFERS, "some buffers are left to others");
        disk.bounce().wait_for_writes(writing.spilled.number);
    }
    panic!("the disk never has all of it");
}

#[test]
fn a_background_block_is_written_as_buffers_become_free() {
    by_each_means(128 << 20, |_, disk| {
        for (len, expected) in [(5, 1), (4096, 1), (6 * PIECE, 1), (9 * PIECE + 77, 2), (14 * PIECE, 3)] {
            let block = contents(len, len);
            let (spilled, turns) = write_in_background(disk, &block).expect("room");
            assert_eq!(turns, expected, "{len} bytes");
            let mut read = vec![0; len];
            spilled.read(&mut read).expect("as it was written");
            assert!(read == block);
        }

        disk.wait_for_writes().expect("written");
        assert_eq!((disk.usage().in_use, disk.bounce().taken()), (0, 0));
    });
}

#[test]
fn a_caller_that_waits_finishes_a_background_block() {
    by_each_means(128 << 20, |_, disk| {
        let block = contents(11 * PIECE + 5, 3);
        let writing = disk.begin_in_background(block.len()).expect("room");
        let Ok(BackgroundWrite::UnderWay(writing)) = writing.continue_in_background(&block) else {
            panic!("it is larger than the buffers")
        };

        let spilled = writing.finish(&block).expect("room");
        let mut read = vec![0; block.len()];
        spilled.read(&mut read).expect("as it was written");
        assert!(read == block);

        let room = disk.room();
        drop(disk.begin_in_background(block.len()).expect("room").continue_in_background(&block));
        assert_eq!((disk.room(), disk.bounce().taken()), (room, 0), "one that is given up frees its place");
    });
}

#[test]
fn a_failed_background_piece_gives_up_only_its_own_block() {
    by_each_means(64 << 20, |_, disk| {
        let (block, large) = (contents(3 * PIECE, 1), contents(9 * PIECE, 2));
        disk.broken.store(1, Ordering::Relaxed);
        let message = write_in_background(disk, &large).expect_err("its first piece fails").to_string();
        assert!(
            message.contains("writing block 0 (36.00 MiB)") && message.contains("Input/output error"),
            "{message}"
        );
        assert_eq!((disk.usage().in_use, disk.bounce().taken()), (0, 0));

        disk.broken.store(1, Ordering::Relaxed);
        let spilled = disk.write(&block).expect("buffers are there");
        disk.bounce().wait_for_writes(spilled.number);
        let waiting = disk.begin_in_background(large.len()).expect("room");
        let Ok(BackgroundWrite::UnderWay(waiting)) = waiting.continue_in_background(&large) else {
            panic!("a piece has failed")
        };
        assert_eq!(waiting.begun, 0);
        disk.wait_for_writes().expect("it is repeated");
        let Ok(BackgroundWrite::UnderWay(waiting)) = waiting.continue_in_background(&large) else {
            panic!("more than buffers")
        };
        assert_eq!(waiting.begun, BACKGROUND_BUFFERS);

        for (spilled, block) in [(spilled, block), (waiting.finish(&large).expect("room"), large)] {
            let mut read = vec![0; block.len()];
            spilled.read(&mut read).expect("as it was written");
            assert!(read == block);
        }
    });
}

#[test]
fn a_block_dropped_while_it_is_written_overwrites_no_other_block() {
    by_each_means(PIECE as u64, |_, disk| {
        for seed in 0..10 {
            drop(disk.write(&contents(PIECE, seed)).expect("room"));
            assert_eq!(disk.bounce().taken(), 0);
            let next = disk.write(&contents(PIECE, seed + 100)).expect("its place is free");
            let mut read = vec![0; PIECE];
            next.read(&mut read).expect("as it was written");
            assert!(read == contents(PIECE, seed + 100));
        }
    });
}

#[test]
fn blocks_needed_soon_are_read_in_the_background() {
    by_each_means(128 << 20, |_, disk| {
        let sizes = [2 * PIECE + 9, 5000, 6 * PIECE];
        let spilled = sizes.map(|len| disk.write(&contents(len, len)).expect("room"));
        disk.wait_for_writes().expect("written");
        for _ in 0..2 {
            disk.read_ahead(&[&spilled[1]], None);
            assert_eq!(disk.bounce().taken(), 1, "it is read once");
        }
        disk.read_ahead(&[&spilled[0], &spilled[1], &spilled[2]], None);
        assert_eq!(disk.bounce().taken(), BACKGROUND_BUFFERS);
        for (spilled, len) in spilled.iter().zip(sizes) {
            let mut read = vec![0; len];
            spilled.read(&mut read).expect("as it was written");
            assert!(read == contents(len, len));
        }

        assert_eq!(disk.bounce().taken(), 0);

        disk.broken.store(1, Ordering::Relaxed);
        disk.read_ahead(&[&spilled[0]], None);
        let mut read = vec![0; sizes[0]];
        spilled[0].read(&mut read).expect("as it was written");
        assert!(read == contents(sizes[0], sizes[0]));

        disk.read_ahead(&[&spilled[2]], None);
        let large = disk.write(&contents(9 * PIECE, 4)).expect("room");
        spilled[2].read(&mut vec![0; sizes[2]]).expect("as it was written");
        let mut read = vec![0; 9 * PIECE];
        large.read(&mut read).expect("as it was written");
        assert!(read == contents(9 * PIECE, 4));
    });
}

#[test]
fn blocks_needed_soon_displace_read_ahead_blocks_that_are_not() {
    by_each_means(64 << 20, |_, disk| {
        let [before, after] = [1, 2].map(|seed| disk.write(&contents(6 * PIECE, seed)).expect("room"));
        disk.wait_for_writes().expect("written");

        disk.read_ahead(&[&before], None);
        assert!(disk.bounce().has_read(before.number));

        for _ in 0..6000 {
            disk.read_ahead(&[&after], None);
            if disk.bounce().has_read(after.number) {
                break;
            }
            thread::sleep(std::time::Duration::from_millis(10));
        }
        assert!(disk.bounce().has_read(after.number), "the other one has all buffers");

        for (spilled, seed) in [(before, 1), (after, 2)] {
            let mut read = vec![0; 6 * PIECE];
            spilled.read(&mut read).expect("as it was written");
            assert!(read == contents(6 * PIECE, seed));
        }
    });
}

#[test]
fn blocks_spilled_by_a_thread_that_ended_are_whole() {
    by_each_means(64 << 20, |_, disk| {
        let begun = Barrier::new(2);
        let spilled = thread::scope(|scope| {
            let work = || {
                let spilled = disk.write(&contents(6 * PIECE, 1)).expect("room");
                begun.wait();
                spilled
            };
            let worker = scope.spawn(work);
            begun.wait();
            worker.join().expect("no panic")
        });

        let mut read = vec![0; 6 * PIECE];
        spilled.read(&mut read).expect("as it was written");
        assert!(read == contents(6 * PIECE, 1));
    });
}

#[test]
fn a_folder_in_memory_is_accepted_with_a_warning() {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    let folder = if mounts.contains(" /dev/shm tmpfs ") {
        tempfile::tempdir_in("/dev/shm").map_err(|error| format!("/dev/shm: {error}"))
    } else {
        Err("/dev/shm is not in memory".to_owned())
    };
    let Some(folder) = Need::MemoryFolder.found(folder) else { return };
    let lines = Lines::default();
    let opened = || Disk::open(folder.path(), 1 << 20);
    let disk = tracing::subscriber::with_default(lines.clone(), opened).expect("there is room");
    let spilled = disk.write(&contents(10_000, 1)).expect("room");
    let mut read = vec![0; 10_000];
    spilled.read(&mut read).expect("as it was written");
    assert_eq!(read, contents(10_000, 1));

    let warning = format!(
        "WARN: {} is on a file system in memory: it is no disk below host memory",
        folder.path().display()
    );
    assert_eq!(
        lines.recorded().into_iter().filter(|line| !line.contains("io_uring")).collect::<Vec<_>>(),
        [warning]
    );
}

#[test]
fn an_unusable_disk_is_refused_when_it_is_opened() {
    let folder = tempfile::tempdir().expect("a folder");
    let absent = Disk::open(&folder.path().join("nowhere"), 1 << 20).expect_err("no such folder");
    assert!(absent.to_string().contains("nowhere"), "{absent}");
    let endless = Disk::open(folder.path(), 8 << 40).expect_err("no disk here is so large");
    assert!(endless.to_string().contains("taking 8.00 TiB"), "{endless}");
    assert!(Disk::open(folder.path(), 4095).is_err());
}

#[test]
fn a_disk_that_is_refused_takes_no_space_meanwhile() {
    let folder = tempfile::tempdir().expect("a folder");
    let free = || free_on(folder.path()).expect("known");
    let (before, is_refused) = (free(), AtomicBool::new(false));
    let least = thread::scope(|scope| {
        let lowest = scope.spawn(|| {
            let mut least = u64::MAX;
            while !is_refused.load(Ordering::Relaxed) {
                least = least.min(free());
            }
            least
        });
        let refused = Disk::open(folder.path(), before + (1 << 30)).is_err();
        is_refused.store(true, Ordering::Relaxed);
        assert!(refused);
        lowest.join().expect("it looked")
    });
    assert!(least > before / 2, "{least} of {before} bytes were free");
}
