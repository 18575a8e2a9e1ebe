//! One piece between a buffer and its place in the file.

use super::system;
use std::fs::File;
use std::io;

/// Where bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    Write,
    Read,
}

/// Moves the whole piece, and returns when that is done.
pub(super) fn move_all(file: &File, direction: Direction, piece: &mut [u8], place: u64) -> io::Result<()> {
    match direction {
        Direction::Write => system::write(file, piece, place),
        Direction::Read => system::read(file, piece, place),
    }
}

/// Moves the rest of a piece of which the kernel moved `moved` bytes by itself.
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

/// Whether the same transfer may well succeed when it is tried again. The kernel gives up what a thread began that has ended.
fn is_passing(error: &io::Error) -> bool {
    let cancelled = cfg!(target_os = "linux") && error.raw_os_error() == Some(125);
    cancelled || matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_piece_that_the_kernel_moved_in_part_is_moved_whole() {
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
        let told = finish(&file, Direction::Read, &mut piece, 0, Err(bad)).expect_err("it is final");
        assert_eq!(told.raw_os_error(), Some(libc::EIO));
    }
}
