//! Background reads of blocks.

use super::*;

fn read_in_background(spilled: &Spilled, into: &mut [u8]) -> Result<(), OffloadError> {
    let mut landing = Landing::default();
    for _ in 0..60_000 {
        match spilled.read_in_background(into, landing)? {
            Some(under_way) => landing = under_way,
            None => return Ok(()),
        }
        thread::sleep(std::time::Duration::from_millis(1));
    }
    panic!("it never ends");
}

#[test]
fn a_block_of_any_size_is_read_in_the_background() {
    by_each_means(128 << 20, |_, disk| {
        for len in [1, 4097, PIECE, 2 * PIECE + 9, 9 * PIECE + 5] {
            let spilled = disk.write(&contents(len, len)).expect("room");
            let mut read = vec![0; len];
            read_in_background(&spilled, &mut read).expect("as it was written");
            assert!(read == contents(len, len));

            let begun = spilled.read_in_background(&mut read, Landing::default()).expect("as it was written");
            let taken = disk.bounce().reads();
            disk.read_ahead(&[], Some(&spilled));
            assert_eq!((disk.bounce().reads(), begun.is_some()), (taken, taken > 0));

            let mut read = vec![0; len];
            let mut landing = Some(Landing::default());
            while let Some(begun) = landing.take_if(|landing| landing.pieces < 1) {
                landing = spilled.read_in_background(&mut read, begun).expect("as it was written");
            }
            if let Some(landing) = landing {
                read[..PIECE].iter_mut().for_each(|byte| *byte ^= 1);
                assert!(spilled.read_rest(&mut read, landing).is_ok(), "what has come is in the checksum");
                assert!(read[PIECE..] == contents(len, len)[PIECE..]);
                assert!(read[..PIECE] != contents(len, len)[..PIECE], "and is not read again");
            }
            assert_eq!(disk.bounce().taken(), 0);
        }
    });
}

#[test]
fn a_failed_background_read_fails_no_other_block() {
    by_each_means(128 << 20, |_, disk| {
        let len = 3 * PIECE + 5;
        let spilled = disk.write(&contents(len, 1)).expect("room");
        disk.wait_for_writes().expect("written");
        let mut read = vec![0; len];
        disk.broken.store(1, Ordering::Relaxed);
        let message = read_in_background(&spilled, &mut read).expect_err("its first piece fails").to_string();
        assert!(message.contains("reading block 0") && message.contains("Input/output error"), "{message}");
        assert_eq!(disk.bounce().taken(), 0, "nor does it keep buffers");

        // A waiting caller repeats a failed background read.
        disk.broken.store(1, Ordering::Relaxed);
        let begun = spilled.read_in_background(&mut read, Landing::default()).expect("nothing has come");
        spilled.read_rest(&mut read, begun.expect("it is under way")).expect("as it was written");
        assert!(read == contents(len, 1));

        let file = disk.bounce().exchange_file(Arc::new(tempfile::tempfile().expect("a file")));
        damage(&file, spilled.parts[0].start);
        disk.bounce().exchange_file(file);
        let message = read_in_background(&spilled, &mut read).expect_err("changed").to_string();
        assert!(message.contains("not those that were written"), "{message}");
        assert_eq!(disk.bounce().taken(), 0);
    });
}
