//! The transfer of one piece between buffer and file.

use super::system;
use std::fs::File;
use std::io;

/// The most pieces in flight, each with a buffer.
pub(super) const BUFFERS: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    Write,
    Read,
}

pub(super) fn move_all(file: &File, direction: Direction, piece: &mut [u8], place: u64) -> io::Result<()> {
    match direction {
        Direction::Write => system::write(file, piece, place),
        Direction::Read => system::read(file, piece, place),
    }
}

/// Moves the rest after a partial transfer of `moved` bytes.
pub(super) fn finish(
    file: &File,
    direction: Direction,
    piece: &mut [u8],
    place: u64,
    moved: io::Result<usize>,
) -> io::Result<()> {
    let moved = match moved {
        Ok(moved) => moved,
        Err(error) if is_passing(&error) => 0,
        Err(error) => return Err(error),
    };
    if moved < piece.len() {
        move_all(file, direction, &mut piece[moved..], place + moved as u64)?;
    }
    Ok(())
}

/// The kernel cancels ended threads' transfers (`ECANCELED`, 125).
fn is_passing(error: &io::Error) -> bool {
    let cancelled = cfg!(target_os = "linux") && error.raw_os_error() == Some(125);
    cancelled || matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_partly_moved_piece_is_completed() {
        let file = tempfile::tempfile().expect("a file");
        let mut piece: Vec<u8> = (0..100).collect();
        move_all(&file, Direction::Write, &mut piece, 0).expect("room");
        let cancelled = || io::Error::from_raw_os_error(libc::ECANCELED);
        for moved in [Ok(0), Ok(64), Ok(100), Err(io::ErrorKind::Interrupted.into()), Err(cancelled())] {
            let mut read = piece.clone();
            let by_kernel = *moved.as_ref().unwrap_or(&0);
            read[by_kernel..].fill(0);
            finish(&file, Direction::Read, &mut read, 0, moved).expect("it is all there");
            assert_eq!(read, piece);
        }
        let beyond = finish(&file, Direction::Read, &mut piece, 50, Ok(50)).expect_err("the file ends");
        assert_eq!(beyond.kind(), io::ErrorKind::UnexpectedEof);
        let bad = io::Error::from_raw_os_error(libc::EIO);
        let error = finish(&file, Direction::Read, &mut piece, 0, Err(bad)).expect_err("it is final");
        assert_eq!(error.raw_os_error(), Some(libc::EIO));
    }
}
