//! From a kernel's canonical text to C++ for the device headers.

use super::{
    SHARED_BYTES,
    canonical::{Canonical, canonical},
    lockstep::in_lockstep,
    object::{Parameter, Signature},
    ptx::replace_assembly,
};

#[derive(Debug)]
pub(super) struct Translation {
    pub(super) text: String,
    pub(super) places: Vec<u32>,
    pub(super) signature: Signature,
}

const WAITS: [&str; 8] = [
    "__syncthreads",
    "__syncwarp",
    "_sync(",
    "__activemask",
    "wmma::",
    "cooperative_groups",
    "cuda::",
    "stand_in_ptx::",
];
const ATTRIBUTES: [&str; 2] = ["__launch_bounds__", "__cluster_dims__"];
/// As CubeCL names them.
const INTEGERS: [&str; 8] = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"];

pub(super) fn translate(source: &str) -> Result<Translation, String> {
    let name = kernel_name(source).ok_or("error: the source has no `__global__` function")?;
    check_cluster(source)?;
    let Canonical { text, places } = canonical(source);
    let text = clamp_conversions(&in_lockstep(&mark_maps(&replace_assembly(&text)?)));
    let signature = Signature { name: name.to_owned(), parameters: parameters(&text, name) };
    let ptx = if text.contains("stand_in_ptx::") { "#include <stand_in/ptx.h>\n" } else { "" };
    let waits = WAITS.iter().any(|word| text.contains(word));
    let (shared, definition) = if text.contains("dynamic_shared_mem") {
        ("dynamic_shared_mem", format!("__align__(1024) unsigned char dynamic_shared_mem[{SHARED_BYTES}];\n"))
    } else {
        ("nullptr", String::new())
    };
    let count = places.len().max(1);
    // The headers' `static` suits static shared memory only.
    let text = text.replace("extern __shared__", "extern");
    let text = text.replace("extern \"C\" __global__", "static __global__");
    let text = format!(
        "static unsigned stand_in_places[{count}];\n{ptx}{text}\n{definition}STAND_IN_KERNEL({name}, {waits}, {shared})\n"
    );
    Ok(Translation { text, places, signature })
}

/// CubeCL 0.10 swaps `const` of buffers below tensor maps.
fn mark_maps(text: &str) -> String {
    let mut marked = text.to_owned();
    for id in
        text.split("CUtensorMap tensor_map_").skip(1).filter_map(|rest| rest.split([',', ')', '\n']).next())
    {
        let Some(end) = [",", "\n", ")"].iter().find_map(|end| marked.find(&format!(" buffer_{id}{end}")))
        else {
            continue;
        };
        let start = marked[..end].rfind([',', '(']).map_or(0, |at| at + 1);
        let element = marked[start..end].trim().trim_start_matches("const ").split('*').next();
        let element = element.unwrap_or_default().to_owned();
        let stores = text.contains(&format!("d_shared_to_global(&tensor_map_{id},"));
        let access = if stores { "" } else { "const " };
        marked.replace_range(start..end, &format!(" {access}{element}*"));
    }
    marked
}

/// Conversions such as `int32(x)`, which C++ leaves undefined beyond the integer's range. Literals stay.
fn clamp_conversions(text: &str) -> String {
    let mut clamped = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('(') {
        let name = before.rsplit(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
        let is_literal = after.trim_start_matches('-').starts_with(|c: char| c.is_ascii_digit());
        if INTEGERS.contains(&name) && !is_literal {
            let start = before.len() - name.len();
            clamped.extend([&before[..start], "stand_in_integer<", name, ">("]);
        } else {
            clamped.extend([before, "("]);
        }
        rest = after;
    }
    clamped.push_str(rest);
    clamped
}

fn check_cluster(source: &str) -> Result<(), String> {
    let Some((_, after)) = source.split_once("__cluster_dims__(") else { return Ok(()) };
    let size = after.split_once(')').map_or(after, |(size, _)| size);
    if size.split(',').all(|blocks| blocks.trim() == "1") {
        return Ok(());
    }
    Err(format!("error: clusters of ({size}) blocks are not emulated"))
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

fn parameters(text: &str, name: &str) -> Vec<Parameter> {
    let after = text.split_once("__global__").map_or(text, |(_, after)| after);
    let after = after.split_once(name).map_or(after, |(_, after)| after);
    let list = after.split_once('(').and_then(|(_, rest)| rest.split_once(')'));
    let list = list.map_or("", |(list, _)| list).split(',').map(str::trim);
    list.filter(|parameter| !parameter.is_empty())
        .map(|parameter| match (parameter.contains('*'), parameter.starts_with("const ")) {
            (true, true) => Parameter::PointerToConst,
            (true, false) => Parameter::Pointer,
            (false, _) => Parameter::Value,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_pointers_pointers_to_const_and_values() {
        use Parameter::{Pointer, PointerToConst, Value};
        let of = |text: &str| translate(text).unwrap().signature.parameters;
        let all = "extern \"C\" __global__ void __launch_bounds__(64)k (\n    float_4* buffer_0, \
                   const int32* __restrict__ buffer_1, const __grid_constant__ info_st info\n) { f(1, 2); }";
        assert_eq!(of(all), [Pointer, PointerToConst, Value]);
        assert_eq!(of("__global__ void k() {}"), []);
    }

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
    fn buffers_below_tensor_maps_are_const_unless_the_kernel_stores_there() {
        let text = "__global__ void k(\n    const __grid_constant__ CUtensorMap tensor_map_0, \
                    const __grid_constant__ CUtensorMap tensor_map_1, float_4* buffer_0, \
                    const float* __restrict__ buffer_1, float* buffer_2, const __grid_constant__ info_st info\n) {\n\
                    cp_async_bulk_tensor_2d_shared_to_global(&tensor_map_1, 0, 0, x);\n}";
        let marked = mark_maps(text);
        assert!(
            marked.contains("tensor_map_1, const float_4* buffer_0, float* buffer_1, float* buffer_2, const"),
            "{marked}"
        );
    }

    #[test]
    fn conversions_to_integers_are_clamped_unless_they_are_of_literals() {
        for (text, clamped) in [
            ("x[0] = int32(l_1);", "x[0] = stand_in_integer<int32>(l_1);"),
            ("{uint8(l_1.x), int8(f(2))}", "{stand_in_integer<uint8>(l_1.x), stand_in_integer<int8>(f(2))}"),
            ("int32(-1) + my_int32(x) + float(x)", "int32(-1) + my_int32(x) + float(x)"),
        ] {
            assert_eq!(clamp_conversions(text), clamped);
        }
    }

    #[test]
    fn clusters_of_several_blocks_are_refused_by_size() {
        let of = |size: &str| translate(&format!("__global__ void __cluster_dims__({size}) k() {{}}"));
        assert!(of("1, 1, 1").is_ok());
        assert_eq!(of("2, 1, 1").unwrap_err(), "error: clusters of (2, 1, 1) blocks are not emulated");
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
