//! System calls of the disk tier.

#[cfg(target_os = "linux")]
pub(super) use linux::{free_on, no_disk, open, read, reserve, write};
#[cfg(not(target_os = "linux"))]
pub(super) use unknown::{free_on, no_disk, open, read, reserve, write};

#[cfg(target_os = "linux")]
mod linux {
    use rustix::fs::{
        FallocateFlags, Mode, OFlags, StatVfs, fallocate, fcntl_getfl, fcntl_setfl, fstatfs, fstatvfs,
        open as open_file, statvfs, unlink,
    };
    use rustix::io::Errno;
    use std::fs::File;
    use std::io;
    use std::os::fd::OwnedFd;
    use std::os::unix::fs::FileExt;
    use std::path::Path;

    const FLAGS: OFlags = OFlags::RDWR.union(OFlags::CLOEXEC);
    const MODE: Mode = Mode::RUSR.union(Mode::WUSR);

    pub(in super::super) fn open(folder: &Path) -> io::Result<File> {
        let flags = FLAGS | OFlags::TMPFILE;
        let file =
            open_file(folder, flags | OFlags::DIRECT, MODE).or_else(|_| open_file(folder, flags, MODE));
        or_with_a_name(file, folder)
    }

    /// Where nameless files are unsupported, as on network mounts, a name exists briefly.
    fn or_with_a_name(opened: Result<OwnedFd, Errno>, folder: &Path) -> io::Result<File> {
        match opened {
            Err(Errno::OPNOTSUPP | Errno::ISDIR) => Ok(open_and_unlink(folder)?.into()),
            opened => Ok(opened?.into()),
        }
    }

    fn open_and_unlink(folder: &Path) -> Result<OwnedFd, Errno> {
        let process = std::process::id();
        let mut number = 0_u64;
        let (path, file) = loop {
            let path = folder.join(format!(".offload-{process}-{number}"));
            // Without `O_DIRECT`, whose refusal would leave the file behind.
            match open_file(&path, FLAGS | OFlags::CREATE | OFlags::EXCL, MODE) {
                // Another process uses the file, or was killed here.
                Err(Errno::EXIST) => number += 1,
                file => break (path, file?),
            }
        };
        unlink(&path)?;
        _ = fcntl_getfl(&file).and_then(|flags| fcntl_setfl(&file, flags | OFlags::DIRECT));
        Ok(file)
    }

    pub(in super::super) fn free_on(folder: &Path) -> Option<u64> {
        Some(free(&statvfs(folder).ok()?))
    }

    fn free(facts: &StatVfs) -> u64 {
        facts.f_bavail * facts.f_frsize
    }

    /// Asking for more than there is would fill the disk for a moment.
    pub(in super::super) fn reserve(file: &File, len: u64) -> io::Result<()> {
        if fstatvfs(file).is_ok_and(|facts| free(&facts) < len) {
            return Err(Errno::NOSPC.into());
        }
        Ok(fallocate(file, FallocateFlags::empty(), 0, len)?)
    }

    pub(in super::super) fn no_disk(file: &File) -> Option<&'static str> {
        kind(fstatfs(file).ok()?.f_type as u64)
    }

    fn kind(number: u64) -> Option<&'static str> {
        match number & 0xffff_ffff {
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

    #[cfg(test)]
    mod tests {
        use super::*;
        use std::fs;

        #[repr(C, align(4096))]
        struct Page([u8; 4096]);

        #[test]
        fn a_file_system_without_nameless_files_gets_files_whose_names_vanish_at_once() {
            let folder = tempfile::tempdir().expect("a folder");
            let others = folder.path().join(format!(".offload-{}-0", std::process::id()));
            fs::write(&others, "another's").expect("a file");
            let open = |errno| or_with_a_name(Err(errno), folder.path());
            let files = [Errno::OPNOTSUPP, Errno::ISDIR].map(|errno| open(errno).expect("a file"));
            let names: Vec<_> = fs::read_dir(folder.path()).expect("a folder").flatten().collect();
            assert_eq!(
                names.iter().map(fs::DirEntry::path).collect::<Vec<_>>(),
                std::slice::from_ref(&others)
            );
            for (file, byte) in files.iter().zip(1..) {
                reserve(file, 8192).expect("there is room");
                write(file, &Page([byte; 4096]).0, 4096).expect("it is there to be written");
            }
            for (file, byte) in files.iter().zip(1..) {
                let mut page = Page([0; 4096]);
                read(file, &mut page.0, 4096).expect("it was written");
                assert_eq!(page.0, [byte; 4096], "two files are two");
            }
            assert_eq!(fs::read_to_string(&others).expect("it is not ours"), "another's");
            let refused = open(Errno::ACCESS).expect_err("another reason is no reason for a name");
            assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        }

        #[test]
        fn memory_and_network_mounts_are_no_disks() {
            assert_eq!(kind(rustix::fs::NFS_SUPER_MAGIC as u64), Some("a network mount"));
            let in_memory = rustix::fs::memfd_create("memory", rustix::fs::MemfdFlags::empty());
            let in_memory = File::from(in_memory.expect("a file in memory"));
            assert_eq!(no_disk(&in_memory), Some("a file system in memory"));
            let processes = File::open("/proc/self/stat").expect("Linux has it");
            assert_eq!(no_disk(&processes), None);
        }
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
