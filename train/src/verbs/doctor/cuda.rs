//! Findings about CUDA: driver, run-time compiler, headers, and each card.

use super::Finding;

#[cfg(not(feature = "cuda"))]
pub(super) fn findings() -> Vec<Finding> {
    let remedy = "build it with `cargo build -p train --release --features cuda`";
    vec![Finding::missing("CUDA", "this program was built without it", remedy)]
}

#[cfg(feature = "cuda")]
pub(super) fn findings() -> Vec<Finding> {
    let installation = backend_offload::CudaInstallation::find();
    let mut findings = parts(&installation);
    if installation.missing().is_none() {
        findings.extend(cards(backend_offload::cuda_capabilities()));
    }
    findings
}

#[cfg(feature = "cuda")]
fn parts(installation: &backend_offload::CudaInstallation) -> Vec<Finding> {
    use backend_offload::CudaPart;

    let (driver, compiler) = (installation.driver(), installation.compiler());
    let releases = [&driver, &compiler].map(|library| library.as_ref().and_then(|library| library.release));
    let missing = |subject, part: CudaPart| Finding::missing(subject, part.missing(), part.remedy());

    let driver = driver.map_or_else(
        || missing("NVIDIA driver", CudaPart::Driver),
        |library| match library.release {
            Some((major, minor)) => {
                Finding::fine("NVIDIA driver", format!("{}for CUDA up to {major}.{minor}", kernel_module()))
            }
            None => Finding::missing(
                "NVIDIA driver",
                "a library named libcuda is found, but it is not NVIDIA's driver",
                CudaPart::Driver.remedy(),
            ),
        },
    );
    let compiler = compiler.map_or_else(
        || missing("NVRTC", CudaPart::Compiler),
        |library| {
            let file = library.file.map(|file| format!(" in {}", file.display())).unwrap_or_default();
            match library.release {
                Some((major, minor)) => {
                    let found = format!("CUDA {major}.{minor}{file}");
                    match releases {
                        [Some(driver), Some(compiler)] if driver < compiler => Finding::note(
                            "NVRTC",
                            found + ", newer than the driver, which may refuse its kernels",
                            "install a newer driver (570 or later for CUDA 12.8), or an older NVRTC",
                        ),
                        _ => Finding::fine("NVRTC", found),
                    }
                }
                None => Finding::missing(
                    "NVRTC",
                    "a library named libnvrtc is found, but it is not NVIDIA's",
                    CudaPart::Compiler.remedy(),
                ),
            }
        },
    );
    let headers = match installation.root() {
        Some(root) if installation.has(CudaPart::Headers) => {
            Finding::fine("CUDA headers", root.join("include").display().to_string())
        }
        _ => missing("CUDA headers", CudaPart::Headers),
    };
    vec![driver, compiler, headers]
}

/// Version of the driver's kernel module, and a comma. Empty under WSL2, which has none.
#[cfg(feature = "cuda")]
fn kernel_module() -> String {
    let text = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    let is_version =
        |word: &&str| word.contains('.') && word.starts_with(|first: char| first.is_ascii_digit());
    let version = text.split_whitespace().find(is_version);
    version.map(|version| format!("{version}, ")).unwrap_or_default()
}

#[cfg(feature = "cuda")]
fn cards(capabilities: Vec<(u32, u32)>) -> Vec<Finding> {
    if capabilities.is_empty() {
        let remedy = "check that `nvidia-smi` lists a card";
        return vec![Finding::missing("card", "the driver reports no card", remedy)];
    }
    let card = |(index, (major, minor)): (usize, (u32, u32))| match runs::device::cuda_facts(index) {
        Ok(facts) => {
            let memory = facts.memory.map(|memory| {
                let [free, total] = [memory.free, memory.total].map(backend_offload::Bytes);
                format!(", {free} of {total} free")
            });
            let model = facts.model.unwrap_or_else(|| "unknown model".to_owned());
            let memory = memory.unwrap_or_default();
            let found = format!("{}: {model}, compute capability {major}.{minor}{memory}", facts.name);
            match facts.lacking {
                Some(lacking) => Finding::note("card", found, lacking),
                None => Finding::fine("card", found),
            }
        }
        Err(error) => Finding::missing("card", error.to_string(), "see the lines above"),
    };
    capabilities.into_iter().enumerate().map(card).collect()
}

#[cfg(all(test, feature = "cuda"))]
mod tests {
    use super::*;

    #[test]
    fn a_driver_that_lists_no_card_is_reported_with_a_remedy() {
        let findings = cards(Vec::new());
        assert_eq!(findings.len(), 1);
        insta::assert_snapshot!(&findings[0], @"missing  card               the driver reports no card; check that `nvidia-smi` lists a card");
    }
}
