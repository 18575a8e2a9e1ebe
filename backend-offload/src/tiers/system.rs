//! The calls of the operating system behind the disk tier.

#[cfg(target_os = "linux")]
pub(super) use linux::{free_on, no_disk, open, read, reserve, write};
#[cfg(not(target_os = "linux"))]
pub(super) use unknown::{free_on, no_disk, open, read, reserve, write};

#[cfg(target_os = "linux")]
mod linux {
    use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate, fstatfs, open as open_file, statvfs};
    use std::fs::File;
    use std::io;
    use std::os::unix::fs::FileExt;
    use std::path::Path;

    /// A file that has no name, read and written around the cache where that is possible.
    pub(in super::super) fn open(folder: &Path) -> io::Result<File> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let file =
            open_file(folder, flags | OFlags::DIRECT, mode).or_else(|_| open_file(folder, flags, mode));
        Ok(File::from(file?))
    }

    pub(in super::super) fn free_on(folder: &Path) -> Option<u64> {
        let facts = statvfs(folder).ok()?;
        Some(facts.f_bavail * facts.f_frsize)
    }

    pub(in super::super) fn reserve(file: &File, len: u64) -> io::Result<()> {
        Ok(fallocate(file, FallocateFlags::empty(), 0, len)?)
    }

    /// The kind of file system the file lies on, if that is memory or another machine.
    pub(in super::super) fn no_disk(file: &File) -> Option<&'static str> {
        match fstatfs(file).ok()?.f_type as u64 & 0xffff_ffff {
            0x0102_1994 | 0x8584_58f6 => Some("a file system in memory"),
            0x6969 | 0xff53_4d42 | 0xfe53_4d42 => Some("a network mount"),
            _ => None,
        }
    }

    pub(in super::super) fn write(file: &File, bytes: &[u8], place: u64) -> io::Result<()> {
        file.write_all_at(bytes, place)
    }

    pub(in super::super) fn read(file: &File, bytes: &mut [u8], place: u64) -> io::Result<()> {
        file.read_exact_at(bytes, place)
    }
}

#[cfg(not(target_os = "linux"))]
mod unknown {
    use std::fs::File;
    use std::io;
    use std::path::Path;

    fn unsupported() -> io::Error {
        io::Error::other("files without a name are known on Linux only")
    }

    pub(in super::super) fn open(_: &Path) -> io::Result<File> {
        Err(unsupported())
    }

    pub(in super::super) fn free_on(_: &Path) -> Option<u64> {
        None
    }

    pub(in super::super) fn reserve(_: &File, _: u64) -> io::Result<()> {
        Err(unsupported())
    }

    pub(in super::super) fn no_disk(_: &File) -> Option<&'static str> {
        None
    }

    pub(in super::super) fn write(_: &File, _: &[u8], _: u64) -> io::Result<()> {
        Err(unsupported())
    }

    pub(in super::super) fn read(_: &File, _: &mut [u8], _: u64) -> io::Result<()> {
        Err(unsupported())
    }
}
