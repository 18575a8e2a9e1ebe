//! Speed of plain page-locked copies between host and GPU 0. CUDA's driver alone makes them, loaded at run time: no part of
//! the library under test takes part.

use std::{
    ffi::{c_int, c_uint, c_void},
    mem::ManuallyDrop,
    ptr,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use libloading::Library;
use serde_json::{Value, json};

const DRIVER: &str = "libcuda.so.1";

/// Of one copy.
const BYTES: usize = 256 << 20;

/// Timed ones in each direction, after one that warms up.
const COPIES: usize = 5;

type Handle = *mut c_void;
/// `CUdeviceptr`.
type Address = u64;
type OnHost = *mut c_void;

/// In bytes per second, of the fastest copy.
#[derive(Debug)]
struct Speeds {
    to_device: f64,
    to_host: f64,
    /// Both directions at the same time, together.
    both: f64,
}

/// Prints a line for a run's file, also if there is no speed.
pub(super) fn print() -> Result<()> {
    let measured = Driver::open(DRIVER).and_then(|driver| driver.measure(BYTES));
    println!("{}", line(measured.as_ref()));
    measured.map(|_| ())
}

fn line(measured: Result<&Speeds, &anyhow::Error>) -> Value {
    let link = match measured {
        Ok(Speeds { to_device, to_host, both }) => {
            json!({ "bytes": BYTES, "to_device": to_device, "to_host": to_host, "both": both })
        }
        Err(error) => json!({ "error": format!("{error:#}") }),
    };
    json!({ "link": link })
}

struct Driver {
    device: c_int,
    allocate: unsafe extern "C" fn(*mut Address, usize) -> c_int,
    page_lock: unsafe extern "C" fn(*mut OnHost, usize, c_uint) -> c_int,
    create_stream: unsafe extern "C" fn(*mut Handle, c_uint) -> c_int,
    to_device: unsafe extern "C" fn(Address, OnHost, usize, Handle) -> c_int,
    to_host: unsafe extern "C" fn(OnHost, Address, usize, Handle) -> c_int,
    synchronize: unsafe extern "C" fn(Handle) -> c_int,
    release: unsafe extern "C" fn(c_int) -> c_int,
}

/// Memory at both ends and a queue, for copies in one direction.
struct Lane {
    is_to_device: bool,
    host: OnHost,
    device: Address,
    stream: Handle,
    bytes: usize,
}

impl Driver {
    /// With the device's context, which is this thread's from then on.
    fn open(library: &str) -> Result<Self> {
        // SAFETY: the driver and its stand-in run no code of ours when loaded.
        let library =
            unsafe { Library::new(library) }.with_context(|| format!("{library} cannot be loaded"))?;
        // Never unloaded: the driver has threads of its own, and its functions are kept.
        let library = ManuallyDrop::new(library);
        // SAFETY: these are the functions' types in `cuda.h`.
        let (init, get, retain, set) = unsafe {
            (
                function::<unsafe extern "C" fn(c_uint) -> c_int>(&library, "cuInit")?,
                function::<unsafe extern "C" fn(*mut c_int, c_int) -> c_int>(&library, "cuDeviceGet")?,
                function::<unsafe extern "C" fn(*mut Handle, c_int) -> c_int>(
                    &library,
                    "cuDevicePrimaryCtxRetain",
                )?,
                function::<unsafe extern "C" fn(Handle) -> c_int>(&library, "cuCtxSetCurrent")?,
            )
        };
        let (mut device, mut context) = (0, ptr::null_mut());
        // SAFETY: the pointers are to values of the types that these functions write.
        unsafe {
            checked(init(0), "CUDA does not start")?;
            checked(get(&raw mut device, 0), "there is no GPU 0")?;
            checked(retain(&raw mut context, device), "the GPU gives no context")?;
            checked(set(context), "the GPU's context cannot be used")?;
        }

        // SAFETY: these are the functions' types in `cuda.h`.
        unsafe {
            Ok(Self {
                device,
                allocate: function(&library, "cuMemAlloc_v2")?,
                page_lock: function(&library, "cuMemHostAlloc")?,
                create_stream: function(&library, "cuStreamCreate")?,
                to_device: function(&library, "cuMemcpyHtoDAsync_v2")?,
                to_host: function(&library, "cuMemcpyDtoHAsync_v2")?,
                synchronize: function(&library, "cuStreamSynchronize")?,
                release: function(&library, "cuDevicePrimaryCtxRelease_v2")?,
            })
        }
    }

    fn measure(&self, bytes: usize) -> Result<Speeds> {
        let (down, up) = (self.lane(true, bytes)?, self.lane(false, bytes)?);
        let speed = |lanes: &[&Lane]| {
            let fastest = self.fastest(lanes)?;
            Ok::<_, anyhow::Error>((bytes * lanes.len()) as f64 / fastest.as_secs_f64())
        };
        Ok(Speeds { to_device: speed(&[&down])?, to_host: speed(&[&up])?, both: speed(&[&down, &up])? })
    }

    fn lane(&self, is_to_device: bool, bytes: usize) -> Result<Lane> {
        let mut lane =
            Lane { is_to_device, host: ptr::null_mut(), device: 0, stream: ptr::null_mut(), bytes };
        let wanted = format!("{} MiB", bytes >> 20);
        // SAFETY: the pointers are to values of the types that these functions write.
        unsafe {
            checked(
                (self.page_lock)(&raw mut lane.host, bytes, 0),
                &format!("{wanted} cannot be page-locked"),
            )?;
            checked(
                (self.allocate)(&raw mut lane.device, bytes),
                &format!("{wanted} of device memory were refused"),
            )?;
            // 1: it does not wait for the default stream.
            checked((self.create_stream)(&raw mut lane.stream, 1), "the GPU gives no queue")?;
        }
        Ok(lane)
    }

    /// One copy in each lane, all at the same time.
    fn fastest(&self, lanes: &[&Lane]) -> Result<Duration> {
        let mut fastest = Duration::MAX;
        for turn in 0..=COPIES {
            let begun = Instant::now();
            for lane in lanes {
                self.copy(lane)?;
            }
            for lane in lanes {
                // SAFETY: the same library created the stream.
                checked(unsafe { (self.synchronize)(lane.stream) }, "a copy failed")?;
            }
            if turn > 0 {
                fastest = fastest.min(begun.elapsed());
            }
        }
        Ok(fastest)
    }

    fn copy(&self, lane: &Lane) -> Result<()> {
        // SAFETY: both ends have `bytes` bytes until the context is released.
        let status = unsafe {
            if lane.is_to_device {
                (self.to_device)(lane.device, lane.host, lane.bytes, lane.stream)
            } else {
                (self.to_host)(lane.host, lane.device, lane.bytes, lane.stream)
            }
        };
        checked(status, "a copy was refused")
    }
}

/// Frees memory and streams, too: no other part of this process has the context.
impl Drop for Driver {
    fn drop(&mut self) {
        // SAFETY: the context was retained once.
        let _released = unsafe { (self.release)(self.device) };
    }
}

/// # Safety
///
/// `T` must be the type of the function `name`, and `library` is never unloaded.
unsafe fn function<T: Copy>(library: &Library, name: &str) -> Result<T> {
    // SAFETY: promised by the caller.
    let symbol = unsafe { library.get::<T>(name.as_bytes()) };
    symbol.map(|function| *function).with_context(|| format!("{DRIVER} lacks {name}"))
}

fn checked(status: c_int, failed: &str) -> Result<()> {
    if status != 0 {
        bail!("{failed} (CUDA's error {status})");
    }
    Ok(())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::{fs, path::PathBuf};

    use super::*;
    use xtask::invocation::Invocation;

    /// Stands in for the driver. It copies at once; `STATUS` is what each copy to the host returns, and `LEFT` gets what the
    /// context still holds when it is released.
    const LIBRARY: &str = r#"
        #include <stdio.h>
        #include <stdlib.h>
        #include <string.h>
        static int context, retained, copies;
        int cuInit(unsigned flags) { return flags; }
        int cuDeviceGet(int *device, int number) { *device = number + 7; return 0; }
        int cuDevicePrimaryCtxRetain(void **out, int device) { *out = &context; retained++; return device != 7; }
        int cuCtxSetCurrent(void *set) { return set != &context; }
        int cuMemAlloc_v2(unsigned long long *out, size_t size) { *out = (unsigned long long)malloc(size); return 0; }
        int cuMemHostAlloc(void **out, size_t size, unsigned flags) { *out = malloc(size); memset(*out, 3, size); return 0; }
        int cuStreamCreate(void **out, unsigned flags) { *out = &copies; return flags != 1; }
        int cuStreamSynchronize(void *stream) { return stream != &copies; }
        int cuMemcpyHtoDAsync_v2(unsigned long long to, void *from, size_t size, void *stream) {
            memcpy((void *)to, from, size); copies++; return stream != &copies;
        }
        int cuMemcpyDtoHAsync_v2(void *to, unsigned long long from, size_t size, void *stream) {
            memcpy(to, (void *)from, size); copies++; return STATUS;
        }
        int cuDevicePrimaryCtxRelease_v2(int device) {
            FILE *left = fopen(LEFT, "w"); fprintf(left, "%d %d", copies, retained - 1); fclose(left); return 0;
        }"#;

    struct Folder(PathBuf);

    impl Folder {
        fn new(test: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("link-{test}-{}", std::process::id()));
            fs::create_dir_all(&folder).unwrap();
            Self(folder)
        }

        /// `None` without a compiler, which is then reported as a missing need.
        fn library(&self, status: u32) -> Option<String> {
            let compiler = Invocation::new("g++").arguments(["--version"]).output(&self.0);
            suite::Need::StandIn.found(compiler)?;
            let (source, library) = (self.0.join("cuda.c"), self.0.join(format!("cuda-{status}.so")));
            fs::write(&source, LIBRARY).unwrap();
            let built = Invocation::new("g++").arguments(["-x", "c", "-shared", "-fPIC"]).arguments([
                format!("-DSTATUS={status}"),
                format!("-DLEFT=\"{}\"", self.0.join("left").display()),
                "-o".to_owned(),
                library.to_string_lossy().into_owned(),
                source.to_string_lossy().into_owned(),
            ]);
            built.output(&self.0).unwrap();
            Some(library.to_string_lossy().into_owned())
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    #[test]
    fn plain_copies_are_timed_each_way_and_both_ways_and_the_context_is_released() {
        let folder = Folder::new("speeds");
        let Some(library) = folder.library(0) else { return };
        let measured = Driver::open(&library).unwrap().measure(1 << 20);
        let left = fs::read_to_string(folder.0.join("left")).unwrap();
        let speeds = measured.unwrap();
        assert_eq!(left, format!("{} 0", 4 * (1 + COPIES)));
        let line = line(Ok(&speeds));
        for way in ["to_device", "to_host", "both"] {
            let speed = line["link"][way].as_f64();
            assert!(speed.is_some_and(|speed| speed > 1e6 && speed.is_finite()), "{way}: {line}");
        }
    }

    #[test]
    fn a_missing_driver_and_a_failed_copy_leave_a_line_with_the_reason() {
        let said = |library: &str| {
            let error = Driver::open(library).and_then(|driver| driver.measure(1 << 20)).unwrap_err();
            line(Err(&error))["link"]["error"].as_str().unwrap().to_owned()
        };
        assert!(said("libno-such-driver.so.1").starts_with("libno-such-driver.so.1 cannot be loaded"));
        let folder = Folder::new("refused");
        let Some(library) = folder.library(2) else { return };
        assert_eq!(said(&library), "a copy was refused (CUDA's error 2)");
    }
}
