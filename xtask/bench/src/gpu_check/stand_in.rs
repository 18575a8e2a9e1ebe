//! Runs on the CUDA stand-in (`cargo xtask stand-in cargo xtask gpu-check --here`) must not pass for a GPU's.

use std::ffi::OsString;

use anyhow::{Result, ensure};

use super::run::Run;

/// The stand-in's `cuDeviceGetName`, as in `run.sh`.
const NAME: &str = "CUDA stand-in";

pub(super) const NOTE: &str = "**No GPU took part.** The device was the stand-in for the CUDA driver: the kernels ran on \
                               the CPU. Losses, weights and budgets are compared as on a GPU; times and bandwidth \
                               say nothing about one.";

pub(super) fn ran_on_the_stand_in(run: &Run) -> bool {
    run.gpu() == Some(NAME)
}

pub(super) fn check_name(run: &Run, device: &str) -> Result<()> {
    ensure!(
        !ran_on_the_stand_in(run) || device == NAME,
        "the device of this run was the stand-in for the CUDA driver: it cannot be recorded as `{device}`; leave out \
         --device"
    );
    Ok(())
}

/// The stand-in's `CUDA_PATH`, which would make the build compile `cudarc` again.
pub(super) fn withheld_from_the_build(ours: impl Fn(&str) -> Option<OsString>) -> &'static [&'static str] {
    if ours("STAND_IN_CACHE").is_some() { &["CUDA_PATH"] } else { &[] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use xtask::workspace;

    fn run_on(gpu: &str) -> Run {
        let header = format!(
            r#"{{"date": "d", "commit": "c", "command": "gpu_check", "machine": {{"gpu": "{gpu}"}}}}"#
        );
        Run::parse(&format!("{header}\n{}", r#"{"program": "mlp", "verdict": "pass"}"#)).unwrap()
    }

    #[test]
    fn a_run_on_the_stand_in_cannot_be_recorded_as_a_gpu() {
        assert!(check_name(&run_on(NAME), NAME).is_ok());
        let error = check_name(&run_on(NAME), "RTX 4090").unwrap_err().to_string();
        assert!(error.contains("stand-in") && error.contains("`RTX 4090`"), "{error}");
        assert!(check_name(&run_on("NVIDIA H200"), "RTX 4090").is_ok());
    }

    #[test]
    fn the_stand_in_goes_by_the_same_name_in_driver_script_and_record() {
        let driver = workspace::root().join("backend-offload/stand-in/src/exports/device.rs");
        assert!(std::fs::read_to_string(driver).unwrap().contains(&format!("b\"{NAME}\\0\"")));
        assert!(include_str!("run.sh").contains(&format!("stand_in='{NAME}'")));
    }

    #[test]
    fn the_folder_of_the_stand_in_does_not_reach_a_build() {
        let with = |known: &'static str| move |name: &str| (name == known).then(OsString::new);
        assert_eq!(withheld_from_the_build(with("STAND_IN_CACHE")), ["CUDA_PATH"]);
        assert_eq!(withheld_from_the_build(with("CUDA_PATH")), [""; 0]);
    }
}
