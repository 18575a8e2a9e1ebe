//! From a kernel's canonical text to C++ for the device headers.

use super::{
    SHARED_BYTES,
    canonical::{Canonical, canonical},
};

#[derive(Debug)]
pub(super) struct Translation {
    pub(super) text: String,
    pub(super) places: Vec<u32>,
}

const WAITS: [&str; 6] =
    ["__syncthreads", "__syncwarp", "_sync(", "__activemask", "wmma::", "cooperative_groups"];
const ATTRIBUTES: [&str; 2] = ["__launch_bounds__", "__cluster_dims__"];

pub(super) fn translate(source: &str) -> Result<Translation, String> {
    let name = kernel_name(source).ok_or("error: the source has no `__global__` function")?;
    let Canonical { text, places } = canonical(source);
    let waits = WAITS.iter().any(|word| text.contains(word));
    let (shared, definition) = if text.contains("dynamic_shared_mem") {
        ("dynamic_shared_mem", format!("__align__(1024) unsigned char dynamic_shared_mem[{SHARED_BYTES}];\n"))
    } else {
        ("nullptr", String::new())
    };
    let count = places.len().max(1);
    // The headers' `static` suits static shared memory only.
    let text = text.replace("extern __shared__", "extern");
    let text = format!(
        "static unsigned stand_in_places[{count}];\n{text}\n{definition}STAND_IN_KERNEL({name}, {waits}, {shared})\n"
    );
    Ok(Translation { text, places })
}

fn kernel_name(source: &str) -> Option<&str> {
    let (_, mut rest) = source.split_once("__global__")?;
    loop {
        let (before, after) = rest.split_once('(')?;
        let name = before.trim_end().rsplit(|c: char| !c.is_alphanumeric() && c != '_').next()?;
        if !ATTRIBUTES.contains(&name) {
            return (!name.is_empty()).then_some(name);
        }
        rest = after.split_once(')')?.1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_name_is_the_identifier_before_the_parameters() {
        for source in [
            "extern \"C\" __global__ void reduce(float* x) {}",
            "extern \"C\" __global__ void __launch_bounds__(96)reduce (\n    float* x) {}",
            "__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(64) reduce(float* x) { f(); }",
        ] {
            assert_eq!(kernel_name(source), Some("reduce"), "{source}");
        }
        assert_eq!(kernel_name("void reduce(float* x) {}"), None);
    }

    #[test]
    fn only_kernels_whose_threads_wait_run_as_fibers() {
        let with = |body: &str| translate(&format!("__global__ void k(int* x) {{ {body} }}")).unwrap().text;
        assert!(with("x[0] = 1;").ends_with("STAND_IN_KERNEL(k, false, nullptr)\n"));
        for body in ["__syncthreads();", "x[0] = __shfl_xor_sync(-1, x[0], 1);", "__syncwarp();"] {
            assert!(with(body).ends_with("STAND_IN_KERNEL(k, true, nullptr)\n"), "{body}");
        }
    }

    #[test]
    fn shared_memory_is_defined_where_the_kernel_declares_it() {
        let text =
            translate("__global__ void k() { extern __shared__ uint8 dynamic_shared_mem[]; }").unwrap().text;
        assert!(text.contains("{ extern uint8 dynamic_shared_mem[]; }"), "{text}");
        assert!(text.contains("unsigned char dynamic_shared_mem[262144];"), "{text}");
        assert!(text.ends_with("STAND_IN_KERNEL(k, false, dynamic_shared_mem)\n"), "{text}");
    }
}
