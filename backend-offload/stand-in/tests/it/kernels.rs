//! Kernels: the meaning of CUDA C++, compiled by the system's compiler.

use std::{fs, process::id};

use crate::{
    child::{Scenario, compiler_found, folder, run},
    cuda::{Argument, Cuda},
};

pub(crate) const SCENARIOS: &[Scenario] = &[
    ("reduction", reduction),
    ("votes", votes),
    ("structure_argument", structure_argument),
    ("half_precision", half_precision),
    ("conversions", conversions),
    ("ten_bits", ten_bits),
    ("tensor_cores", tensor_cores),
    ("atomics", atomics),
    ("another_order", another_order),
    ("refused_kernel", refused_kernel),
    ("uncached", uncached),
];

const STRICT: [(&str, &str); 2] = [("RACES", "1"), ("STRICT", "1")];

fn map(source: &str, name: &str, shape: (u32, u32, u32), input: &[f32], outputs: usize) -> Vec<f32> {
    let cuda = Cuda::start();
    let stream = cuda.stream();
    let kernel = cuda.kernel(source, name);
    let from = cuda.allocate(size_of_val(input), stream);
    let to = cuda.allocate(outputs * 4, stream);
    cuda.upload(from, input, stream);
    cuda.fill(to, 0, outputs * 4, stream);
    cuda.launch(kernel, shape, stream, &[Argument::Device(from), Argument::Device(to)]);
    let mut found = vec![0.0; outputs];
    cuda.download(&mut found, to, stream);
    found
}

fn numbers(count: u16) -> Vec<f32> {
    (0..count).map(f32::from).collect()
}

/// By shuffles within a warp, by shared memory between warps.
const REDUCTION: &str = "#include <cuda_runtime.h>
typedef unsigned char uint8;
extern \"C\" __global__ void __launch_bounds__(96)reduction (
    const float* __restrict__ in, float* out
) {
extern __shared__ __align__(16) uint8 dynamic_shared_mem[];
// Shared array size: 3, 12 bytes
float *shared_memory_1 = reinterpret_cast<float*>(&dynamic_shared_mem[0]);
// Shared array size: 1, 4 bytes
float *shared_memory_2 = reinterpret_cast<float*>(&dynamic_shared_mem[16]);
float l_mut_1;
float l_mut_2;
l_mut_1 = in[blockIdx.x * blockDim.x + threadIdx.x];
for (unsigned offset = 1; offset < 32; offset *= 2) l_mut_1 += __shfl_xor_sync(-1, l_mut_1, offset);
if (threadIdx.x % 32 == 0) shared_memory_1[threadIdx.x / 32] = l_mut_1;
if (threadIdx.x == 95) shared_memory_2[0] = 1000.0f;
__syncthreads();
if (threadIdx.x >= 32) return;
l_mut_2 = threadIdx.x < 3 ? shared_memory_1[threadIdx.x] : 0.0f;
for (unsigned offset = 16; offset > 0; offset /= 2) l_mut_2 += __shfl_down_sync(-1, l_mut_2, offset);
if (threadIdx.x == 0) out[blockIdx.x] = l_mut_2 + shared_memory_2[0];
}
";

fn check_reduction(source: &str) {
    let sum = |numbers: std::ops::Range<u16>| numbers.map(f32::from).sum::<f32>() + 1000.0;
    assert_eq!(map(source, "reduction", (2, 96, 20), &numbers(192), 2), [sum(0..96), sum(96..192)]);
}

fn reduction() {
    check_reduction(REDUCTION);
}

#[test]
fn shuffles_barriers_and_shared_memory_reduce_a_block() {
    if compiler_found() {
        run("reduction", &STRICT).passes();
    }
}

fn another_order() {
    let shuffled = REDUCTION
        .replace("float l_mut_1;\nfloat l_mut_2;", "float l_mut_2;\nfloat l_mut_1;")
        .replace("&dynamic_shared_mem[16]", "&dynamic_shared_mem[4]")
        .replace("&dynamic_shared_mem[0]", "&dynamic_shared_mem[8]");
    assert_ne!(shuffled, REDUCTION);
    check_reduction(REDUCTION);
    check_reduction(&shuffled);
}

#[test]
fn one_kernel_in_two_orders_is_compiled_once_and_right_in_both() {
    if compiler_found() {
        let cache = folder().join(format!("another-order-{}", id()));
        let ended = run("another_order", &[("CACHE", cache.to_str().unwrap())]);
        ended.passes();
        assert_eq!((ended.counter("compiled"), ended.counter("kernels")), (1, 2));
        fs::remove_dir_all(cache).unwrap();
    }
}

fn votes() {
    let source = "#include <cuda_runtime.h>
extern \"C\" __global__ void votes(const float* in, float* out) {
    float x = in[threadIdx.x];
    unsigned ballot = __ballot_sync(-1, x > 3.0f);
    bool any = __any_sync(-1, x == 9.0f), all = __all_sync(-1, x < 40.0f);
    float from_seven = __shfl_sync(-1, x, 7), up = __shfl_up_sync(-1, x, 2);
    float narrow = __shfl_xor_sync(-1, x, 1, 8);
    __syncwarp();
    out[threadIdx.x] = __popc(ballot) + 100 * any + 1000 * all;
    out[32 + threadIdx.x] = from_seven;
    out[64 + threadIdx.x] = up;
    out[96 + threadIdx.x] = narrow;
}";
    let found = map(source, "votes", (1, 32, 0), &numbers(32), 128);
    assert_eq!(found[..32], [1128.0; 32]);
    assert_eq!(found[32..64], [7.0; 32]);
    assert_eq!(found[64..68], [0.0, 1.0, 0.0, 1.0]);
    assert_eq!(found[96..100], [1.0, 0.0, 3.0, 2.0]);
}

#[test]
fn lanes_vote_and_exchange() {
    if compiler_found() {
        run("votes", &STRICT).passes();
    }
}

fn structure_argument() {
    let source = "#include <cuda_runtime.h>
struct info_st { unsigned n[3]; };
extern \"C\" __global__ void place(const float* in, float* out, const __grid_constant__ info_st info, int by) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = in[i] * info.n[2] + by;
}";
    let cuda = Cuda::start();
    let stream = cuda.stream();
    let kernel = cuda.kernel(source, "place");
    let [from, to] = [(); 2].map(|()| cuda.allocate(256, stream));
    cuda.upload(from, &numbers(64), stream);
    let info = [7_u32, 8, 3];
    let pointers = [Argument::Device(from), Argument::Device(to), Argument::Words(&info), Argument::Int(5)];
    cuda.launch(kernel, (8, 8, 0), stream, &pointers);
    let mut found = [0.0_f32; 64];
    cuda.download(&mut found, to, stream);
    let expected: Vec<f32> = numbers(64).iter().map(|x| x * 3.0 + 5.0).collect();
    assert_eq!(found[..], expected);
}

#[test]
fn arguments_of_any_size_reach_the_kernel_as_they_were_at_the_call() {
    if compiler_found() {
        for mode in ["eager", "lazy"] {
            run("structure_argument", &[("MODE", mode), ("STRICT", "1")]).passes();
        }
    }
}

fn half_precision() {
    let source = "#include <cuda_fp16.h>
#include <cuda_bf16.h>
extern \"C\" __global__ void round_trip(const float* in, float* out) {
    float x = in[threadIdx.x];
    __half half = x;
    __nv_bfloat16 brain = x;
    __half2 both = {half, half};
    out[threadIdx.x] = float(half + __half(1.0f));
    out[4 + threadIdx.x] = float(brain * brain);
    out[8 + threadIdx.x] = float(__hmax2(both, h2sqrt(both)).y);
}";
    let found = map(source, "round_trip", (1, 4, 0), &[0.25, 2049.0, 65504.0, 1.0], 12);
    // 2049 needs twelve bits; a half has eleven, a bfloat16 eight. 65505 rounds to 65504.
    assert_eq!(found[..4], [1.25, 2048.0, 65504.0, 2.0]);
    assert_eq!(found[4..8], [0.0625, 4_194_304.0, 4_294_967_296.0, 1.0]);
    assert_eq!(found[8..], [0.5, 2048.0, 65504.0, 1.0]);
}

#[test]
fn narrow_numbers_are_rounded_after_each_operation() {
    if compiler_found() {
        run("half_precision", &STRICT).passes();
    }
}

fn conversions() {
    let source = "#include <cuda_fp16.h>
typedef signed int int32;
typedef unsigned int uint32;
typedef signed long long int int64;
extern \"C\" __global__ void convert(const float* in, float* out) {
    unsigned i = threadIdx.x;
    float x = in[i];
    reinterpret_cast<int32*>(out)[i] = int32(x);
    reinterpret_cast<uint32*>(out)[8 + i] = uint32(x);
    reinterpret_cast<int32*>(out)[16 + i] = int32(__half(x));
    out[24 + i] = float(int64(x));
}";
    let given = [3e9, -3e9, 1e20, f32::NAN, -1.5, 2.75, f32::NEG_INFINITY, 7.0];
    let found = map(source, "convert", (1, 8, 0), &given, 32);
    let bits: Vec<u32> = found.iter().map(|x| x.to_bits()).collect();
    let signed = [i32::MAX, i32::MIN, i32::MAX, 0, -1, 2, i32::MIN, 7].map(i32::cast_unsigned);
    assert_eq!(bits[..8], signed);
    assert_eq!(bits[8..16], [3_000_000_000, 0, u32::MAX, 0, 0, 2, 0, 7]);
    assert_eq!(bits[16..24], signed);
    let (most, least) = (i64::MAX as f32, i64::MIN as f32);
    assert_eq!(found[24..], [3e9, -3e9, most, least, -1.0, 2.0, least, 7.0]);
}

#[test]
fn floats_beyond_an_integers_range_are_clamped_and_nan_is_zero_in_32_bits() {
    if compiler_found() {
        run("conversions", &STRICT).passes();
    }
}

fn ten_bits() {
    let source = "#include <mma.h>
extern \"C\" __global__ void narrow(const float* in, float* out) {
    if (threadIdx.x < 7) out[threadIdx.x] = nvcuda::wmma::__float_to_tf32(in[threadIdx.x]);
}";
    let given = [0x3f80_1000, 0xbf80_1000, 0x3f80_0fff, 0xff80_0000, u32::MAX, 0x7fff_ffff, 0x7f80_0001];
    let found = map(source, "narrow", (1, 32, 0), &given.map(f32::from_bits), 7);
    let numbers: Vec<u32> = found[..4].iter().map(|x| x.to_bits()).collect();
    assert_eq!(numbers, [0x3f80_2000, 0xbf80_2000, 0x3f80_0000, 0xff80_0000]);
    assert!(found[4..].iter().all(|x| x.is_nan()), "{found:?}");
}

#[test]
fn a_tf32_has_ten_bits_and_ties_round_away_from_zero() {
    if compiler_found() {
        run("ten_bits", &STRICT).passes();
    }
}

fn tensor_cores() {
    let source = "#include <cuda_fp16.h>
#include <mma.h>
using namespace nvcuda;
extern \"C\" __global__ void product(const float* in, float* out) {
    __shared__ __half a[256];
    __shared__ __half b[256];
    for (int i = threadIdx.x; i < 256; i += 32) a[i] = __half(in[i]), b[i] = __half(in[256 + i]);
    __syncwarp();
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::col_major> fb;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
    wmma::fill_fragment(sum, 1.0f);
    wmma::load_matrix_sync(fa, a, 16);
    wmma::load_matrix_sync(fb, b, 16);
    wmma::mma_sync(sum, fa, fb, sum);
    wmma::store_matrix_sync(out, sum, 16, wmma::mem_row_major);
}";
    let input: Vec<f32> = (0..512_u16).map(|at| f32::from(at * 7 % 13) - 6.0).collect();
    let found = map(source, "product", (1, 32, 0), &input, 256);
    for (at, found) in found.into_iter().enumerate() {
        let (row, column) = (at / 16, at % 16);
        let terms = (0..16).map(|k| input[row * 16 + k] * input[256 + column * 16 + k]);
        assert_eq!(found.to_bits(), (terms.sum::<f32>() + 1.0).to_bits(), "row {row}, column {column}");
    }
}

#[test]
fn fragments_multiply_matrices_in_both_layouts() {
    if compiler_found() {
        run("tensor_cores", &STRICT).passes();
    }
}

fn atomics() {
    let source = "#include <cuda_runtime.h>
extern \"C\" __global__ void count(const float* in, float* out) {
    atomicAdd(&out[0], in[blockIdx.x * blockDim.x + threadIdx.x]);
    atomicMax(&out[1], in[threadIdx.x]);
    float seen = atomicCAS((unsigned*)&out[2], 0u, 1u);
    if (seen == 0.0f) out[3] += 1.0f;
}";
    let found = map(source, "count", (2, 32, 0), &numbers(64), 4);
    assert_eq!((found[0], found[1], found[3]), (2016.0, 31.0, 1.0));
}

#[test]
fn atomic_operations_lose_nothing() {
    if compiler_found() {
        run("atomics", &STRICT).passes();
    }
}

fn refused_kernel() {
    let cuda = Cuda::start();
    let include = concat!(env!("CARGO_MANIFEST_DIR"), "/include");
    let log = cuda.compile("__global__ void k(float* x) { x[0] = undeclared; }", include).unwrap_err();
    assert!(log.contains("undeclared"), "{log}");
    let log = cuda.compile("int nothing;", include).unwrap_err();
    assert!(log.contains("no `__global__` function"), "{log}");
    let log = cuda.compile("__global__ void k() {}", "/nowhere").unwrap_err();
    assert!(log.contains("set CUDA_PATH"), "{log}");
}

#[test]
fn a_kernel_that_does_not_compile_is_refused_with_the_compilers_log() {
    if compiler_found() {
        let ended = run("refused_kernel", &[]);
        assert!(ended.status.success(), "{}", ended.stderr);
        assert!(ended.report.contains(r#""kernel refused":3"#), "{}", ended.report);
    }
}

#[test]
fn without_a_compiler_a_kernel_is_refused_and_the_remedy_named() {
    let ended = run("reduction", &[("CXX", "no-such-compiler")]);
    assert!(!ended.status.success());
    assert!(ended.messages()[0].contains("`no-such-compiler` could not be started"), "{}", ended.stderr);
    assert!(ended.messages()[0].contains("install g++"), "{}", ended.stderr);
}

const TWICE: &str = "#include <cuda_runtime.h>
extern \"C\" __global__ void twice(const float* in, float* out) { out[threadIdx.x] = 2.0f * in[threadIdx.x]; }
";

fn uncached() {
    assert_eq!(map(TWICE, "twice", (1, 4, 0), &[1.0, 2.0, 3.0, 4.0], 4), [2.0, 4.0, 6.0, 8.0]);
}

#[test]
fn processes_that_compile_one_kernel_at_once_share_a_cache_without_harm() {
    if !compiler_found() {
        return;
    }
    let cache = folder().join(format!("shared-{}", id()));
    let options = [("CACHE", cache.to_str().unwrap())];
    std::thread::scope(|scope| {
        for child in [(); 4].map(|()| scope.spawn(|| run("uncached", &options))) {
            child.join().unwrap().passes();
        }
    });
    let again = run("uncached", &options);
    again.passes();
    assert_eq!(again.counter("compiled"), 0);
    let other_flags = run("uncached", &[options[0], ("CXXFLAGS", "-O1")]);
    other_flags.passes();
    assert_eq!(other_flags.counter("compiled"), 1);

    let mut files: Vec<String> = fs::read_dir(&cache)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .inspect(|path| {
            if path.extension().unwrap() == "cu" {
                assert_eq!(fs::read_to_string(path).unwrap(), TWICE);
            }
        })
        .map(|path| path.extension().unwrap().to_string_lossy().into_owned())
        .collect();
    files.sort();
    fs::remove_dir_all(cache).unwrap();
    assert_eq!(files, ["cpp", "cpp", "cu", "cu", "so", "so"]);
}
