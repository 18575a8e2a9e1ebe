//! Instructions of CubeCL's inline PTX, against plain loops.
#![expect(clippy::float_cmp, reason = "sums of small whole numbers are exact")]

use crate::{
    child::{Scenario, compiler_found, run},
    cuda::{Argument, Cuda},
};

pub(crate) const SCENARIOS: &[Scenario] = &[
    ("matrix_products", matrix_products),
    ("stored_tiles", stored_tiles),
    ("awaited_copies", awaited_copies),
    ("early_read", early_read),
    ("ring", ring),
    ("cooperative_copies", cooperative_copies),
    ("small_instructions", small_instructions),
    ("endless_wait", endless_wait),
    ("eight_bits", eight_bits),
    ("unknown_instruction", unknown_instruction),
];

const STRICT: [(&str, &str); 2] = [("RACES", "1"), ("STRICT", "1")];

const PRELUDE: &str = r"#include <cuda_runtime.h>
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cuda/barrier>
typedef unsigned char uint8;
typedef unsigned short uint16;
typedef unsigned int uint32;
typedef unsigned long long int uint64;
typedef signed int int32;
#define static_shared(x) static_cast<uint32>(__cvta_generic_to_shared(x))
";

pub(crate) fn map(
    source: &str,
    name: &str,
    shape: (u32, u32, u32),
    input: &[u8],
    outputs: usize,
) -> Vec<f32> {
    let cuda = Cuda::start();
    let stream = cuda.stream();
    let kernel = cuda.kernel(source, name);
    let [from, to] = [input.len().max(16), outputs * 4].map(|size| cuda.allocate(size, stream));
    cuda.upload(from, input, stream);
    cuda.fill(to, 0, outputs * 4, stream);
    cuda.launch(kernel, shape, stream, &[Argument::Device(from), Argument::Device(to)]);
    let mut found = vec![0.0; outputs];
    cuda.download(&mut found, to, stream);
    found
}

fn product_source(element: &str, instruction: &str, depth: usize, sum: &str) -> String {
    let constraint = if sum == "float" { "f" } else { "r" };
    let operands = |of: &[&str], mark: &str| -> String {
        of.iter().map(|name| format!("\"{mark}\"({name})")).collect::<Vec<_>>().join(", ")
    };
    let d = operands(&["d[0]", "d[1]", "d[2]", "d[3]"], &format!("={constraint}"));
    let ab = operands(&["a[0]", "a[1]", "a[2]", "a[3]", "b[0]", "b[1]"], "r");
    let c = operands(&["c[0]", "c[1]", "c[2]", "c[3]"], constraint);
    let kernel = r#"
// Matrices with rows of 32 bytes: sixteen of A, then eight of the transposed B.
extern "C" __global__ void product(const uint32* in, float* out) {
extern __shared__ __align__(16) uint8 dynamic_shared_mem[];
uint32* tile = reinterpret_cast<uint32*>(dynamic_shared_mem);
uint32 lane = threadIdx.x;
for (uint32 i = lane; i < 24 * 8; i += 32) tile[i] = in[i];
__syncwarp();
uint32 a[4], b[2];
SUM c[4], d[4];
for (int i = 0; i < 4; i++) c[i] = lane * 4 + i;
uint32 row_a = static_shared(dynamic_shared_mem + (lane & 15) * 32 + (lane >> 4) * 16);
uint32 row_b = static_shared(dynamic_shared_mem + 512 + (lane & 7) * 32 + (lane >> 3 & 1) * 16);
asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared::cta.b16" " {%0, %1, %2, %3}, [%4];"
             : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3]) : "r"(row_a));
asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared::cta.b16" " {%0, %1}, [%2];"
             : "=r"(b[0]), "=r"(b[1]) : "r"(row_b));
for (int again = 0; again < 2; again++) {
asm volatile("mma.sync.aligned.m16n8kDEPTH.row.col.INSTRUCTION"
             " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
             : OUT : IN, SUMS);
for (int i = 0; i < 4; i++) out[again * 128 + (lane / 4 + 8 * (i >> 1)) * 8 + lane % 4 * 2 + (i & 1)] = d[i];
const ELEMENT* of_a = reinterpret_cast<const ELEMENT*>(in);
const ELEMENT* of_b = reinterpret_cast<const ELEMENT*>(in + 128);
const int per = 4 / sizeof(ELEMENT);
for (int i = 0; i < 4 * per; i++)
    reinterpret_cast<ELEMENT*>(a)[i] = of_a[(lane / 4 + i / per % 2 * 8) * DEPTH + lane % 4 * per + i % per + i / per / 2 * 4 * per];
for (int i = 0; i < 2 * per; i++)
    reinterpret_cast<ELEMENT*>(b)[i] = of_b[lane / 4 * DEPTH + lane % 4 * per + i % per + i / per * 4 * per];
}
}
"#;
    let replaced = kernel.replace("OUT", &d).replace("IN,", &format!("{ab},")).replace("SUMS", &c);
    let replaced = replaced.replace("INSTRUCTION", instruction).replace("SUM", sum);
    PRELUDE.to_owned() + &replaced.replace("ELEMENT", element).replace("DEPTH", &depth.to_string())
}

fn numbers(depth: usize) -> Vec<f32> {
    (0..24 * depth).map(|at| ((at * 7 + at / 5) % 11) as f32 - 4.0).collect()
}

type Encode<'a> = &'a dyn Fn(f32) -> Vec<u8>;

fn matrix_products() {
    let half = |x: f32| {
        let bits = x.to_bits();
        let exponent = ((bits >> 23 & 0xff) as u16).saturating_sub(112);
        let all = ((bits >> 31) as u16) << 15 | exponent << 10 | (bits >> 13 & 0x3ff) as u16;
        (if x == 0.0 { 0 } else { all }).to_le_bytes().to_vec()
    };
    let brain = |x: f32| ((x.to_bits() >> 16) as u16).to_le_bytes().to_vec();
    let eight =
        move |x: f32, keep: usize| vec![(u16::from_le_bytes(half(x).try_into().unwrap()) >> keep) as u8];
    let e4m3 = move |x: f32| {
        let bits = u16::from_le_bytes(half(x).try_into().unwrap());
        let magnitude = if x == 0.0 { 0 } else { (bits & 0x7fff) - (8 << 10) };
        vec![((bits >> 8 & 0x80) | magnitude >> 7) as u8]
    };
    // The low bits of a tf32 do not count.
    let tf32 = |x: f32| (x.to_bits() | 0x1fff).to_le_bytes().to_vec();
    let signed = |x: f32| vec![x as i8 as u8];
    let unsigned = |x: f32| vec![(x + 4.0) as u8];
    let e5m2 = move |x: f32| eight(x, 8);
    let all: [(&str, &str, usize, &str, Encode); 7] = [
        ("uint16", "f32.f16.f16.f32", 16, "float", &half),
        ("uint16", "f32.bf16.bf16.f32", 16, "float", &brain),
        ("uint32", "f32.tf32.tf32.f32", 8, "float", &tf32),
        ("uint8", "s32.s8.s8.s32", 32, "uint32", &signed),
        ("uint8", "s32.u8.u8.s32", 32, "uint32", &unsigned),
        ("uint8", "f32.e5m2.e5m2.f32", 32, "float", &e5m2),
        ("uint8", "f32.e4m3.e4m3.f32", 32, "float", &e4m3),
    ];
    for (element, instruction, depth, sum, encode) in all {
        let values = numbers(depth);
        let bytes: Vec<u8> = values.iter().flat_map(|x| encode(*x)).collect();
        let source = product_source(element, instruction, depth, sum);
        let source = if sum == "uint32" { source.replace("= d[i];", "= int32(d[i]);") } else { source };
        let found = map(&source, "product", (1, 32, 24 * 32), &bytes, 256);
        let shift = if instruction.contains("u8") { 4.0 } else { 0.0 };
        for (at, found) in found.into_iter().enumerate() {
            let (row, column) = (at % 128 / 8, at % 8);
            let value = |row: usize, k: usize| values[row * depth + k] + shift;
            let terms = (0..depth).map(|k| value(row, k) * value(16 + column, k));
            let lane = row % 8 * 4 + column / 2;
            let start = lane * 4 + row / 8 * 2 + column % 2;
            assert_eq!(found, terms.sum::<f32>() + start as f32, "{instruction}, row {row}, column {column}");
        }
    }
}

#[test]
fn products_of_all_types_agree_with_plain_loops_in_the_isas_layouts() {
    if compiler_found() {
        let ended = run("matrix_products", &STRICT);
        ended.passes();
        assert_eq!((ended.executed("mma"), ended.executed("ldmatrix")), (14, 14));
    }
}

fn stored_tiles() {
    let source = PRELUDE.to_owned()
        + r#"
extern "C" __global__ void store(const float* in, float* out) {
extern __shared__ __align__(16) uint8 dynamic_shared_mem[];
uint16* tile = reinterpret_cast<uint16*>(dynamic_shared_mem);
uint32 lane = threadIdx.x, r[4], back[4];
for (uint32 i = 0; i < 4; i++) r[i] = (lane * 8 + i * 2) | (lane * 8 + i * 2 + 1) << 16;
uint32 row = static_shared(tile + lane * 8), rows = static_shared(tile + 256 + lane % 16 * 8);
asm volatile("stmatrix.sync.aligned.m8n8.x4.shared::cta.b16" " [%0], {%1, %2, %3, %4};"
             :: "r"(row), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]));
asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared::cta.b16" " [%0], {%1, %2};"
             :: "r"(rows), "r"(r[0]), "r"(r[1]));
__syncwarp();
for (uint32 i = lane; i < 384; i += 32) out[i] = tile[i];
asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared::cta.b16" " {%0, %1, %2, %3}, [%4];"
             : "=r"(back[0]), "=r"(back[1]), "=r"(back[2]), "=r"(back[3]) : "r"(row));
for (uint32 i = 0; i < 4; i++) out[384 + lane * 8 + i * 2] = back[i] & 0xffff, out[385 + lane * 8 + i * 2] = back[i] >> 16;
}
"#;
    let found = map(&source, "store", (1, 32, 1024), &[], 640);
    let number =
        |tile: usize, row: usize, column: usize| ((row * 4 + column / 2) * 8 + tile * 2 + column % 2) as f32;
    for (at, found) in found.iter().enumerate() {
        let (tile, row, column) = (at / 64, at / 8 % 8, at % 8);
        let expected = match at {
            0..256 => number(tile, row, column),
            256..384 => number(tile - 4, column, row),
            _ => {
                let (lane, i, half) = ((at - 384) / 8, at / 2 % 4, at % 2);
                number(i, 2 * (lane % 4) + half, lane / 4)
            }
        };
        assert_eq!(*found, expected, "at {at}");
    }
}

#[test]
fn tiles_are_stored_and_transposed_as_plain_loops_do() {
    if compiler_found() {
        let ended = run("stored_tiles", &STRICT);
        ended.passes();
        assert_eq!((ended.executed("stmatrix"), ended.executed("ldmatrix")), (2, 1));
    }
}

const COPIES: &str = r#"
inline __device__ void arrive(::cuda::barrier<::cuda::thread_scope_block> &bar) {
  uint64 *ptr = ::cuda::device::barrier_native_handle(bar);
  uint32 number = static_cast<uint32>(__cvta_generic_to_shared(ptr));
  asm volatile("cp.async.mbarrier.arrive.shared::cta.b64 [%0];\n" :: "r"(number));
}
template <size_t N> inline __device__ void copy(void const *from, void *to, int32 const &valid) {
  uint64 global = reinterpret_cast<uint64>(from);
  uint32 shared = static_cast<uint32>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared::cta.global [%0], [%1], %2, %3;\n"
               :: "r"(shared), "l"(global), "n"(N), "r"(valid) : "memory");
}
extern "C" __global__ void copies(const uint8* in, float* out) {
extern __shared__ __align__(16) uint8 dynamic_shared_mem[];
uint8 *shared_memory_1 = reinterpret_cast<uint8*>(&dynamic_shared_mem[0]);
cuda::barrier<cuda::thread_scope_block> &shared_memory_2 = reinterpret_cast<cuda::barrier<cuda::thread_scope_block>&>(dynamic_shared_mem[1024]);
uint32 me = threadIdx.x;
if (me == 0) { init(&shared_memory_2, 64); }
__syncthreads();
copy<16>(in + 16 * me, shared_memory_1 + 16 * me, me < 8 ? 6 : 16);
WAIT
for (uint32 i = me; i < 1024; i += 64) out[i] = shared_memory_1[i];
}
"#;

fn check_copies(wait: &str) -> Vec<f32> {
    let input: Vec<u8> = (0..1024_u32).map(|at| (at * 7 % 251) as u8).collect();
    let source = PRELUDE.to_owned() + &COPIES.replace("WAIT", wait);
    map(&source, "copies", (1, 64, 1032), &input, 1024)
}

fn awaited_copies() {
    let found = check_copies("arrive(shared_memory_2);\nshared_memory_2.arrive_and_wait();");
    for (at, found) in found.into_iter().enumerate() {
        let expected = if at < 128 && at % 16 >= 6 { 0 } else { at * 7 % 251 };
        assert_eq!(found, expected as f32, "byte {at}");
    }
}

fn early_read() {
    for wait in ["__syncthreads();", "arrive(shared_memory_2);", "shared_memory_2.arrive_and_wait();"] {
        assert_eq!(check_copies(wait), vec![255.0; 1024], "{wait}");
    }
}

#[test]
fn a_copy_ends_at_the_wait_for_it_and_zeros_follow_its_valid_bytes() {
    if compiler_found() {
        let ended = run("awaited_copies", &STRICT);
        ended.passes();
        assert_eq!(ended.executed("cp.async"), 64);
    }
}

#[test]
fn shared_memory_read_without_the_copys_barrier_holds_no_copied_byte() {
    if compiler_found() {
        run("early_read", &STRICT).passes();
    }
}

fn ring() {
    let source = PRELUDE.to_owned()
        + r#"
extern "C" __global__ void ring(const float* in, float* out) {
extern __shared__ __align__(16) uint8 dynamic_shared_mem[];
typedef cuda::barrier<cuda::thread_scope_block> bar;
float* place = reinterpret_cast<float*>(dynamic_shared_mem);
bar* full = reinterpret_cast<bar*>(dynamic_shared_mem + 512);
bar* empty = reinterpret_cast<bar*>(dynamic_shared_mem + 528);
if (threadIdx.x == 0)
    for (int i = 0; i < 2; i++) { init(&full[i], 1); init(&empty[i], 32); }
cuda::device::experimental::fence_proxy_async_shared_cta();
__syncthreads();
if (threadIdx.x == 32) {
    for (uint32 n = 0; n < 10; n++) {
        uint32 at = n % 2, phase = n / 2 % 2;
        empty[at].wait_parity(phase ^ 1);
        cuda::device::barrier_expect_tx(full[at], 96);
        cuda::device::memcpy_async_tx(place + 32 * at, in + 32 * n, 128, full[at]);
        cuda::barrier<cuda::thread_scope_block>::arrival_token token = cuda::device::barrier_arrive_tx(full[at], 1, 32);
    }
} else if (threadIdx.x < 32) {
    for (uint32 n = 0; n < 10; n++) {
        uint32 at = n % 2, phase = n / 2 % 2;
        full[at].wait_parity(phase);
        out[32 * n + threadIdx.x] = place[32 * at + threadIdx.x];
        empty[at].arrive();
    }
}
}
"#;
    let numbers: Vec<f32> = (0..320_u16).map(f32::from).collect();
    let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
    assert_eq!(map(&source, "ring", (1, 64, 544), &bytes, 320), numbers);
}

#[test]
fn threads_that_fill_and_read_in_turn_are_kept_apart_by_phases() {
    if compiler_found() {
        let ended = run("ring", &STRICT);
        ended.passes();
        assert_eq!(ended.executed("cp.async.bulk"), 10);
    }
}

fn cooperative_copies() {
    let source = PRELUDE.to_owned()
        + r#"
extern "C" __global__ void groups(const float* in, float* out) {
extern __shared__ __align__(16) uint8 dynamic_shared_mem[];
float *shared_memory_1 = reinterpret_cast<float*>(&dynamic_shared_mem[0]);
cuda::barrier<cuda::thread_scope_block> &shared_memory_2 = reinterpret_cast<cuda::barrier<cuda::thread_scope_block>&>(dynamic_shared_mem[512]);
cooperative_groups::thread_block block = cooperative_groups::this_thread_block();
cooperative_groups::cluster_group cluster = cooperative_groups::this_cluster();
cuda::barrier<cuda::thread_scope_block>::arrival_token token;
if (threadIdx.x == 0) { init(&shared_memory_2, 32); }
__syncthreads();
cuda::memcpy_async(block, shared_memory_1, in, 32 * sizeof(float), shared_memory_2);
cuda::memcpy_async(shared_memory_1 + 32 + threadIdx.x, in + 32 + threadIdx.x, sizeof(float), shared_memory_2);
token = shared_memory_2.arrive();
shared_memory_2.wait(std::move(token));
auto alone = cooperative_groups::this_thread();
cooperative_groups::memcpy_async(alone, shared_memory_1 + 64 + threadIdx.x, in + 64 + threadIdx.x, sizeof(float));
cooperative_groups::wait(alone);
__syncthreads();
for (int i = 0; i < 3; i++) out[32 * i + threadIdx.x] = shared_memory_1[32 * i + 31 - threadIdx.x] + cluster.block_rank();
}
"#;
    let bytes: Vec<u8> = (0..96_u16).flat_map(|x| f32::from(x).to_le_bytes()).collect();
    let expected: Vec<f32> = (0..96_u16).map(|x| f32::from(x / 32 * 32 + 31 - x % 32)).collect();
    assert_eq!(map(&source, "groups", (1, 32, 520), &bytes, 96), expected);
}

#[test]
fn groups_and_single_threads_copy_and_wait() {
    if compiler_found() {
        run("cooperative_copies", &STRICT).passes();
    }
}

fn small_instructions() {
    let source = PRELUDE.to_owned()
        + r#"
extern "C" __global__ void small(const int32* in, float* out) {
bool elected = bool([&]() -> uint32 {
    uint32 pred = 0;
    asm volatile(
        "{\n"
        "     .reg .pred %%px;\n"
        "     elect.sync _|%%px, 0xffffffff;\n"
        "     selp.b32 %0, 1, 0, %%px;\n"
        "}\n"
        : "+r"(pred));
    return pred;
        }());
if (elected) out[0] += 1;
int32 sum = [&]() -> int32 {
    int32 result;
    asm("add.sat.s32 %0, %1, %2;"
        : "=r"(result)
        : "r"(in[0]), "r"(in[1]));
    return result;
        }();
int32 difference;
asm("sub.sat.s32 %0, %1, %2;" : "=r"(difference) : "r"(in[2]), "r"(in[0]));
out[1] = sum;
out[2] = difference;
}
"#;
    let bytes: Vec<u8> = [i32::MAX, 5, -7].iter().flat_map(|x| x.to_le_bytes()).collect();
    assert_eq!(map(&source, "small", (1, 64, 0), &bytes, 3), [2.0, i32::MAX as f32, i32::MIN as f32]);
}

#[test]
fn each_warp_elects_one_lane_and_sums_saturate() {
    if compiler_found() {
        let ended = run("small_instructions", &STRICT);
        ended.passes();
        assert_eq!(ended.executed("elect"), 2);
    }
}

fn eight_bits() {
    let source = "#include <cuda_fp8.h>
extern \"C\" __global__ void eighths(const float* in, float* out) {
int i = threadIdx.x;
__nv_fp8_storage_t a = __nv_cvt_float_to_fp8(in[i], __NV_NOSAT, __NV_E4M3);
__nv_fp8x2_storage_t b = __nv_cvt_float2_to_fp8x2(float2 { in[i], -in[i] }, __NV_SATFINITE, __NV_E5M2);
__half2 both = __half2(__nv_cvt_fp8x2_to_halfraw2(b, __NV_E5M2));
out[i] = float(__half(__nv_cvt_fp8_to_halfraw(a, __NV_E4M3)));
out[8 + i] = float(both.x);
out[16 + i] = float(both.y);
}";
    // Ties, a carry, the smallest number, half of it, the largest, and one beyond.
    let given = [1.0625, 1.1875, 1.96875, 0.001_953_125, 0.000_976_562_5, 448.0, 480.0, 1e30];
    let bytes: Vec<u8> = given.iter().flat_map(|x: &f32| x.to_le_bytes()).collect();
    let found = map(source, "eighths", (1, 8, 0), &bytes, 24);
    assert_eq!(found[..6], [1.0, 1.25, 2.0, 0.001_953_125, 0.0, 448.0]);
    assert!(found[6].is_nan() && found[7].is_nan());
    assert_eq!(found[8..16], [1.0, 1.25, 2.0, 0.001_953_125, 0.000_976_562_5, 448.0, 512.0, 57344.0]);
    assert!((0..8).all(|i| found[16 + i] == -found[8 + i]));
}

#[test]
fn eight_bit_floats_round_to_even_and_saturate_only_on_request() {
    if compiler_found() {
        run("eight_bits", &STRICT).passes();
    }
}

fn endless_wait() {
    let source = PRELUDE.to_owned()
        + r#"
extern "C" __global__ void stuck(const float* in, float* out) {
extern __shared__ __align__(16) uint8 dynamic_shared_mem[];
cuda::barrier<cuda::thread_scope_block> &shared_memory_1 = reinterpret_cast<cuda::barrier<cuda::thread_scope_block>&>(dynamic_shared_mem[0]);
if (threadIdx.x == 0) { init(&shared_memory_1, 33); }
__syncthreads();
shared_memory_1.arrive_and_wait();
}
"#;
    map(&source, "stuck", (1, 32, 8), &[], 1);
}

#[test]
fn a_barrier_that_waits_for_one_thread_too_many_is_found() {
    if compiler_found() {
        let line = run("endless_wait", &[]);
        let line = line.ends_with("endless wait in a kernel");
        assert!(line.contains("32 of 32 threads wait"), "{line}");
    }
}

fn unknown_instruction() {
    let cuda = Cuda::start();
    let include = concat!(env!("CARGO_MANIFEST_DIR"), "/include");
    let of = |text: &str| format!("#include <cuda_runtime.h>\n__global__ void k(int x) {{ {text} }}");
    let wait = of(r#"asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(0));"#);
    let log = cuda.compile(&wait, include).unwrap_err();
    assert!(log.contains("PTX instruction wgmma.wait_group.sync.aligned is not emulated"), "{log}");
}

#[test]
fn an_instruction_that_is_not_emulated_is_refused_by_name() {
    if compiler_found() {
        let ended = run("unknown_instruction", &[]);
        assert!(ended.status.success(), "{}", ended.stderr);
        let refusal =
            "stand-in: kernel refused: PTX instruction wgmma.wait_group.sync.aligned is not emulated";
        assert_eq!(ended.messages(), [refusal]);
    }
}
