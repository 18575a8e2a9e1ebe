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

/// Moves pieces of one file in one direction.
#[derive(Debug)]
pub(super) struct Transfer<'a> {
    pub file: &'a File,
    pub direction: Direction,
    /// Number of transfers that fail from now on.
    #[cfg(test)]
    pub broken: &'a std::sync::atomic::AtomicU8,
}

impl Transfer<'_> {
    /// Moves the whole piece, and returns when that is done.
    pub(super) fn run(&self, piece: &mut [u8], place: u64) -> io::Result<()> {
        self.fail_on_purpose()?;
        self.move_all(piece, place)
    }

    /// Moves the rest of a piece of which the kernel moved `moved` bytes by itself.
    pub(super) fn finish(&self, piece: &mut [u8], place: u64, moved: io::Result<usize>) -> io::Result<()> {
        self.fail_on_purpose()?;
        let moved = match moved {
            Ok(moved) => moved,
            Err(error) if is_passing(&error) => 0,
            Err(error) => return Err(error),
        };
        if moved < piece.len() {
            self.move_all(&mut piece[moved..], place + moved as u64)?;
        }
        Ok(())
    }

    fn move_all(&self, piece: &mut [u8], place: u64) -> io::Result<()> {
        match self.direction {
            Direction::Write => system::write(self.file, piece, place),
            Direction::Read => system::read(self.file, piece, place),
        }
    }

    #[cfg(not(test))]
    #[expect(clippy::unused_self, clippy::unnecessary_wraps, reason = "a test breaks the disk it is about")]
    fn fail_on_purpose(&self) -> io::Result<()> {
        Ok(())
    }

    #[cfg(test)]
    fn fail_on_purpose(&self) -> io::Result<()> {
        use std::sync::atomic::Ordering::Relaxed;
        let broken = self.broken.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok();
        if broken { Err(io::Error::other("broken on purpose")) } else { Ok(()) }
    }
}

/// Whether the same transfer may well succeed when it is tried again.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_piece_that_the_kernel_moved_in_part_is_moved_whole() {
        let file = tempfile::tempfile().expect("a file");
        let broken = 0.into();
        let transfer = |direction| Transfer { file: &file, direction, broken: &broken };
        let mut piece: Vec<u8> = (0..100).collect();
        transfer(Direction::Write).run(&mut piece, 0).expect("room");
        for moved in [Ok(0), Ok(64), Ok(100), Err(io::ErrorKind::Interrupted.into())] {
            let mut read = piece.clone();
            let by_kernel = *moved.as_ref().unwrap_or(&0);
            read[by_kernel..].fill(0);
            transfer(Direction::Read).finish(&mut read, 0, moved).expect("it is all there");
            assert_eq!(read, piece);
        }
        let beyond = transfer(Direction::Read).finish(&mut piece, 50, Ok(50)).expect_err("the file ends");
        assert_eq!(beyond.kind(), io::ErrorKind::UnexpectedEof);
        let bad = io::Error::from_raw_os_error(5);
        let told = transfer(Direction::Read).finish(&mut piece, 0, Err(bad)).expect_err("it is final");
        assert_eq!(told.raw_os_error(), Some(5));
    }
}
