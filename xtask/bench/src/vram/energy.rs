//! Energy of steps, counted by NVIDIA's optional library NVML, loaded at run time.

use std::{
    ffi::{c_int, c_uint, c_ulonglong, c_void},
    fs::File,
    io::{Read as _, Seek as _, SeekFrom},
    path::Path,
};

use anyhow::{Context, Result, bail, ensure};
use libloading::Library;

pub(super) const NVML: &str = "libnvidia-ml.so.1";

type Device = *mut c_void;

pub(super) struct Gpu {
    device: Device,
    energy: unsafe extern "C" fn(Device, *mut c_ulonglong) -> c_int,
    /// Keeps `energy` loaded.
    _library: Library,
}

impl Gpu {
    pub(super) fn open(library: &str) -> Result<Self> {
        // SAFETY: NVML and its stand-in run no code when loaded.
        let library =
            unsafe { Library::new(library) }.with_context(|| format!("{library} cannot be loaded"))?;

        let missing = || format!("{NVML} lacks a function");
        // SAFETY: these are the functions' types in `nvml.h`.
        let (init, count, by_index, energy) = unsafe {
            (
                *library.get::<unsafe extern "C" fn() -> c_int>(b"nvmlInit_v2\0").with_context(missing)?,
                *library
                    .get::<unsafe extern "C" fn(*mut c_uint) -> c_int>(b"nvmlDeviceGetCount_v2\0")
                    .with_context(missing)?,
                *library
                    .get::<unsafe extern "C" fn(c_uint, *mut Device) -> c_int>(
                        b"nvmlDeviceGetHandleByIndex_v2\0",
                    )
                    .with_context(missing)?,
                *library.get(b"nvmlDeviceGetTotalEnergyConsumption\0").with_context(missing)?,
            )
        };

        let (mut gpus, mut device) = (0, std::ptr::null_mut());
        // SAFETY: the pointers are to values of the types that these functions write.
        unsafe {
            checked(init(), "NVML does not start")?;
            checked(count(&raw mut gpus), "NVML does not count GPUs")?;
            // NVML and CUDA may number GPUs differently.
            ensure!(gpus == 1, "there are {gpus} GPUs, and which of them CUDA uses NVML does not tell");
            checked(by_index(0, &raw mut device), "NVML does not open the GPU")?;
        }

        let gpu = Self { device, energy, _library: library };
        gpu.joules()?;
        Ok(gpu)
    }

    pub(super) fn joules(&self) -> Result<f64> {
        let mut millijoules = 0;
        // SAFETY: the same library opened the device; the pointer is to a value of the written type.
        let status = unsafe { (self.energy)(self.device, &raw mut millijoules) };
        checked(status, "the GPU does not count its energy")?;
        Ok(millijoules as f64 / 1e3)
    }
}

fn checked(status: c_int, failed: &str) -> Result<()> {
    if status != 0 {
        bail!("{failed} (NVML's error {status})");
    }
    Ok(())
}

/// Step and joules after the first and the latest step.
#[derive(Default)]
pub(super) struct Meter {
    seen: u64,
    first: Option<(u64, f64)>,
    latest: Option<(u64, f64)>,
}

impl Meter {
    pub(super) fn look(&mut self, said: &Path, joules: impl FnOnce() -> Option<f64>) {
        let Some(step) =
            self.steps_since(said).filter(|step| self.latest.is_none_or(|(before, _)| *step > before))
        else {
            return;
        };
        let Some(joules) = joules() else { return };
        self.latest = Some((step, joules));
        self.first.get_or_insert((step, joules));
    }

    fn steps_since(&mut self, said: &Path) -> Option<u64> {
        let mut lines = Vec::new();
        let mut file = File::open(said).ok()?;
        file.seek(SeekFrom::Start(self.seen)).ok()?;
        file.read_to_end(&mut lines).ok()?;
        let whole = lines.iter().rposition(|byte| *byte == b'\n')? + 1;
        self.seen += whole as u64;
        let lines = String::from_utf8_lossy(&lines[..whole]);
        lines.lines().rev().find_map(|line| line.strip_prefix("step ")?.split_once('/')?.0.parse().ok())
    }

    /// Joules per thousand tokens; `None` with fewer than two readings.
    pub(super) fn per_kilotoken(&self, tokens_per_step: f64) -> Option<f64> {
        let ((first, before), (last, after)) = (self.first?, self.latest?);
        let tokens = last.checked_sub(first).filter(|steps| *steps > 0)? as f64 * tokens_per_step;
        (tokens > 0.0).then_some((after - before) * 1e3 / tokens)
    }
}

#[cfg(all(test, target_os = "linux"))]
pub(super) mod tests {
    use std::{fs, path::PathBuf};

    use super::*;
    use xtask::invocation::Invocation;

    /// Stands in for NVML with `GPUS` GPUs. Each reading adds a joule and creates the file `READ`.
    const LIBRARY: &str = r#"
        #include <stdio.h>
        static unsigned long long counted = 5000;
        int nvmlInit_v2(void) { return 0; }
        int nvmlDeviceGetCount_v2(unsigned *count) { *count = GPUS; return 0; }
        int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = &counted; return index; }
        int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *millijoules) {
            fclose(fopen(READ, "w"));
            *millijoules = *(unsigned long long *)device; *(unsigned long long *)device += 1000; return STATUS;
        }"#;

    pub(in super::super) struct Folder(pub(in super::super) PathBuf);

    impl Folder {
        pub(in super::super) fn new(test: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("energy-{test}-{}", std::process::id()));
            fs::create_dir_all(&folder).unwrap();
            Self(folder)
        }

        /// `None` without a compiler, which is then reported as a missing need.
        pub(in super::super) fn library(&self, gpus: u32, status: u32) -> Option<String> {
            let compiler = Invocation::new("g++").arguments(["--version"]).output(&self.0);
            suite::Need::StandIn.found(compiler)?;
            let (source, library) = (self.0.join("nvml.c"), self.0.join(format!("nvml-{gpus}-{status}.so")));
            fs::write(&source, LIBRARY).unwrap();
            let library = library.to_string_lossy().into_owned();
            let built = Invocation::new("g++").arguments(["-x", "c", "-shared", "-fPIC"]).arguments([
                format!("-DGPUS={gpus}"),
                format!("-DSTATUS={status}"),
                format!("-DREAD=\"{}\"", self.0.join("read").display()),
                "-o".to_owned(),
                library.clone(),
                source.to_string_lossy().into_owned(),
            ]);
            built.output(&self.0).unwrap();
            Some(library)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    #[test]
    fn a_gpus_energy_is_read_from_a_library_that_is_loaded_at_run_time() {
        let folder = Folder::new("read");
        let Some(library) = folder.library(1, 0) else { return };
        let gpu = Gpu::open(&library).unwrap();
        let readings = [gpu.joules().unwrap(), gpu.joules().unwrap()];
        assert!((readings[0] - 6.0).abs() < 1e-9 && (readings[1] - 7.0).abs() < 1e-9, "{readings:?}");
    }

    #[test]
    fn a_missing_library_or_counter_or_a_second_gpu_is_reported() {
        let error = |library: &str| format!("{:#}", Gpu::open(library).err().expect("no energy"));
        assert!(error("libno-such-library.so.1").starts_with("libno-such-library.so.1 cannot be loaded"));
        let folder = Folder::new("refused");
        let (Some(two), Some(old)) = (folder.library(2, 0), folder.library(1, 3)) else { return };
        assert_eq!(error(&two), "there are 2 GPUs, and which of them CUDA uses NVML does not tell");
        assert_eq!(error(&old), "the GPU does not count its energy (NVML's error 3)");
    }

    #[test]
    fn energy_is_counted_between_the_first_and_the_last_step() {
        let folder = Folder::new("meter");
        let said = folder.0.join("stderr");
        let mut meter = Meter::default();
        let mut text = String::new();
        let mut hear = |meter: &mut Meter, more: &str, joules: f64| {
            text += more;
            fs::write(&said, &text).unwrap();
            meter.look(&said, || Some(joules));
        };
        hear(&mut meter, "the plan\nstep 1 will take", 1.0);
        assert_eq!(meter.per_kilotoken(64.0), None);
        hear(&mut meter, "\nstep 00001/00009 (11%) | loss 2\n", 10.0);
        hear(&mut meter, "something else\n", 15.0);
        hear(&mut meter, "step 00002/00009\nstep 00003/00009\nstep 000", 20.0);
        hear(&mut meter, "05/00009\n", 26.0);
        let joules = meter.per_kilotoken(64.0).expect("two readings");
        assert!((joules - 16.0 * 1e3 / (4.0 * 64.0)).abs() < 1e-9, "{joules}");
    }
}
