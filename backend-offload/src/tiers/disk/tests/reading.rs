//! Blocks that are read beside the program.

use super::*;

/// Goes on reading until all of it has come or it fails.
fn read_beside(sunk: &Sunk, into: &mut [u8]) -> Result<(), OffloadError> {
    let mut landing = Landing::default();
    for _ in 0..60_000 {
        match sunk.read_beside(into, landing)? {
            Some(under_way) => landing = under_way,
            None => return Ok(()),
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    panic!("it never ends");
}

#[test]
fn a_block_is_read_beside_the_program_whatever_its_size() {
    by_each_means(128 << 20, |_, disk| {
        for len in [1, 4097, PIECE, 2 * PIECE + 9, 9 * PIECE + 5] {
            // Its last pieces are still being written.
            let sunk = disk.write(&contents(len, len)).expect("room");
            let mut read = vec![0; len];
            read_beside(&sunk, &mut read).expect("as it was written");
            assert!(read == contents(len, len));
            // Others that are wanted soon take none of what is under way.
            let begun = sunk.read_beside(&mut read, Landing::default()).expect("as it was written");
            let taken = disk.bounce().reads();
            disk.read_ahead(&[], Some(&sunk));
            assert_eq!((disk.bounce().reads(), begun.is_some()), (taken, taken > 0));
            // Where it was left off the caller goes on.
            let mut read = vec![0; len];
            let mut landing = Some(Landing::default());
            while let Some(begun) = landing.take_if(|landing| landing.pieces < 1) {
                landing = sunk.read_beside(&mut read, begun).expect("as it was written");
            }
            if let Some(landing) = landing {
                read[..PIECE].iter_mut().for_each(|byte| *byte ^= 1);
                assert!(sunk.read_rest(&mut read, landing).is_ok(), "what has come is in the checksum");
                assert!(read[PIECE..] == contents(len, len)[PIECE..]);
                assert!(read[..PIECE] != contents(len, len)[..PIECE], "and is not read again");
            }
            assert_eq!(disk.bounce().taken(), 0);
        }
    });
}

#[test]
fn a_read_that_fails_beside_the_program_fails_nobody_else() {
    by_each_means(128 << 20, |_, disk| {
        let len = 3 * PIECE + 5;
        let sunk = disk.write(&contents(len, 1)).expect("room");
        disk.wait_for_writes().expect("written");
        let mut read = vec![0; len];
        disk.broken.store(1, Ordering::Relaxed);
        let told = read_beside(&sunk, &mut read).expect_err("its first piece fails").to_string();
        assert!(told.contains("reading block 0") && told.contains("Input/output error"), "{told}");
        assert_eq!(disk.bounce().taken(), 0, "nor does it keep buffers");
        // A piece that failed when nobody wanted it is read again by who does.
        disk.broken.store(1, Ordering::Relaxed);
        let begun = sunk.read_beside(&mut read, Landing::default()).expect("nothing has come");
        sunk.read_rest(&mut read, begun.expect("it is under way")).expect("as it was written");
        assert!(read == contents(len, 1));
        let file = disk.bounce().exchange_file(Arc::new(tempfile::tempfile().expect("a file")));
        damage(&file, sunk.parts[0].start);
        disk.bounce().exchange_file(file);
        let told = read_beside(&sunk, &mut read).expect_err("changed").to_string();
        assert!(told.contains("not those that were written"), "{told}");
        assert_eq!(disk.bounce().taken(), 0);
    });
}
