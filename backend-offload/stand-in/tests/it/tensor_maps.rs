//! Tensor maps: boxes and im2col columns against plain loops.
#![expect(clippy::float_cmp, reason = "copies are exact")]

use crate::{
    child::{Scenario, compiler_found, run},
    cuda::{Argument, Cuda, Mapped},
};

pub(crate) const SCENARIOS: &[Scenario] = &[
    ("loaded_boxes", loaded_boxes),
    ("stored_boxes", stored_boxes),
    ("columns_of_pixels", columns_of_pixels),
    ("invalid_maps", invalid_maps),
    ("interleaved_map", interleaved_map),
];

const STRICT: [(&str, &str); 2] = [("RACES", "1"), ("STRICT", "1")];
const FLOAT: i32 = 7;
const TF32: i32 = 11;

const PRELUDE: &str = r"#include <cuda_runtime.h>
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cuda/barrier>
typedef struct CUtensorMap_st {
alignas(64) unsigned long long int opaque[16];
} CUtensorMap;
typedef unsigned char uint8;
typedef unsigned short uint16;
typedef unsigned int uint32;
typedef unsigned long long int uint64;
typedef signed int int32;
";

fn load_source(load: &str, bytes: usize, functions: &str) -> String {
    let kernel = r#"
extern "C" __global__ void load(const __grid_constant__ CUtensorMap tensor_map_0, float* buffer_0, float* out) {
extern __shared__ __align__(128) uint8 dynamic_shared_mem[];
float *shared_memory_1 = reinterpret_cast<float*>(&dynamic_shared_mem[0]);
cuda::barrier<cuda::thread_scope_block> &shared_memory_2 = reinterpret_cast<cuda::barrier<cuda::thread_scope_block>&>(dynamic_shared_mem[BYTES]);
if (threadIdx.x == 0) { init(&shared_memory_2, 32); }
cuda::device::experimental::fence_proxy_async_shared_cta();
__syncthreads();
if (threadIdx.x == 0) { LOAD }
cuda::barrier<cuda::thread_scope_block>::arrival_token token;
token = cuda::device::barrier_arrive_tx(shared_memory_2, 1, threadIdx.x == 0 ? BYTES : 0);
shared_memory_2.wait(std::move(token));
for (uint32 i = threadIdx.x; i < BYTES / 4; i += 32) out[i] = shared_memory_1[i];
}
"#;
    let kernel = kernel.replace("LOAD", load).replace("BYTES", &bytes.to_string());
    PRELUDE.to_owned() + functions + &kernel
}

fn numbers(count: u64) -> Vec<f32> {
    (0..count).map(|n| n as f32).collect()
}

/// Sizes, box, steps, corner.
type Case<'a> = (&'a [u64], &'a [u32], &'a [u32], &'a [i32]);

fn loaded_boxes() {
    let cuda = Cuda::start();
    let stream = cuda.stream();
    let cases: [Case; 6] = [
        (&[64, 32], &[8, 16], &[1, 1], &[4, 3]),
        (&[64, 32], &[32, 4], &[1, 1], &[40, 30]),
        (&[64, 32], &[16, 4], &[1, 1], &[-5, -2]),
        (&[32], &[16], &[1], &[20]),
        (&[12, 10, 6], &[8, 4, 2], &[2, 3, 1], &[3, 1, 5]),
        (&[8, 4, 3, 2, 5], &[8, 2, 2, 2, 3], &[1, 1, 1, 1, 2], &[0, 3, 2, 1, 3]),
    ];
    for (sizes, boxes, steps, corner) in cases {
        let values = numbers(sizes.iter().product());
        let from = cuda.allocate(values.len() * 4, stream);
        cuda.upload(from, &values, stream);
        for (swizzle, nan) in [(0, false), (1, true), (2, false), (3, false)] {
            let row = boxes[0] * 4;
            if swizzle > 0 && row > 16 << swizzle {
                continue;
            }
            let of = Mapped { element: FLOAT, bytes: 4, sizes, steps, swizzle, nan };
            let map = cuda.tiles(&of, from, boxes).unwrap();
            let count: Vec<usize> =
                boxes.iter().zip(steps).map(|(size, step)| size.div_ceil(*step) as usize).collect();
            let all: usize = count.iter().product();
            let at: Vec<String> = corner.iter().map(i32::to_string).collect();
            let (rank, at) = (sizes.len(), at.join(", "));
            let load = format!(
                "cuda::device::experimental::cp_async_bulk_tensor_{rank}d_global_to_shared(shared_memory_1, &tensor_map_0, {at}, shared_memory_2);"
            );
            let kernel = cuda.kernel(&load_source(&load, all * 4, ""), "load");
            let to = cuda.allocate(all * 4, stream);
            let arguments = [Argument::Words(&map.0), Argument::Device(from), Argument::Device(to)];
            cuda.launch(kernel, (1, 32, all as u32 * 4 + 8), stream, &arguments);
            let mut found = vec![0.0_f32; all];
            cuda.download(&mut found, to, stream);

            for n in 0..all {
                let (mut rest, mut index, mut stride) = (n, Some(0), 1);
                for i in 0..rank {
                    let x = i64::from(corner[i]) + (rest % count[i]) as i64 * i64::from(steps[i]);
                    let inside = (0..sizes[i] as i64).contains(&x);
                    index = index.filter(|_| inside).map(|index: usize| index + x.max(0) as usize * stride);
                    (rest, stride) = (rest / count[i], stride * sizes[i] as usize);
                }
                let place = (4 * n) ^ (((4 * n / 128) % (1 << swizzle)) * 16);
                let found = found[place / 4];
                match index {
                    Some(index) => assert_eq!(found, values[index], "{sizes:?} {boxes:?} {swizzle}, {n}"),
                    None => {
                        assert!(if nan { found.is_nan() } else { found == 0.0 }, "{sizes:?}, {n}: {found}");
                    }
                }
            }
        }
    }

    let [from, to] = [32, 32].map(|size| cuda.allocate(size, stream));
    let numbers = [0x3f80_1000_u32, 0x3f80_3000, 0x3f80_0000, 0x4000_0000, 0xff80_0000];
    let others = [u32::MAX, 0x7fff_ffff, 0x7f80_0001];
    cuda.upload(from, &[numbers.as_slice(), &others].concat(), stream);
    let of = Mapped { element: TF32, bytes: 4, sizes: &[8], steps: &[1], swizzle: 0, nan: false };
    let map = cuda.tiles(&of, from, &[8]).unwrap();
    let load = "cuda::device::experimental::cp_async_bulk_tensor_1d_global_to_shared(shared_memory_1, &tensor_map_0, 0, shared_memory_2);";
    let kernel = cuda.kernel(&load_source(load, 32, ""), "load");
    let arguments = [Argument::Words(&map.0), Argument::Device(from), Argument::Device(to)];
    cuda.launch(kernel, (1, 32, 40), stream, &arguments);
    let mut found = [0_u32; 8];
    cuda.download(&mut found, to, stream);
    let even = [0x3f80_0000, 0x3f80_4000, 0x3f80_0000, 0x4000_0000, 0xff80_0000];
    assert_eq!(found[..5], even, "ten bits, ties to even");
    assert!(found[5..].iter().all(|bits| f32::from_bits(*bits).is_nan()), "{found:x?}");
}

#[test]
fn boxes_of_any_rank_are_loaded_with_steps_swizzles_and_filled_edges() {
    if compiler_found() {
        let ended = run("loaded_boxes", &STRICT);
        ended.passes();
        assert_eq!(ended.executed("tensor load"), ended.counter("kernels"));
    }
}

fn stored_boxes() {
    let cuda = Cuda::start();
    let stream = cuda.stream();
    let source = PRELUDE.to_owned()
        + r#"
extern "C" __global__ void store(const __grid_constant__ CUtensorMap tensor_map_0, const float* __restrict__ buffer_0, int waits) {
extern __shared__ __align__(128) uint8 dynamic_shared_mem[];
float *shared_memory_1 = reinterpret_cast<float*>(&dynamic_shared_mem[0]);
for (uint32 i = threadIdx.x; i < 64; i += 32) shared_memory_1[i] = i + 1;
cuda::device::experimental::fence_proxy_async_shared_cta();
__syncthreads();
if (threadIdx.x == 0) {
    cuda::device::experimental::cp_async_bulk_tensor_2d_shared_to_global(&tensor_map_0, 12, 2, shared_memory_1);
    cuda::device::experimental::cp_async_bulk_commit_group();
    if (waits) { cuda::device::experimental::cp_async_bulk_wait_group_read<0>(); }
    else { cuda::device::experimental::cp_async_bulk_wait_group_read<1>(); }
}
}
"#;
    let kernel = cuda.kernel(&source, "store");
    let to = cuda.allocate(16 * 8 * 4, stream);
    let of = Mapped { element: FLOAT, bytes: 4, sizes: &[16, 8], steps: &[1, 1], swizzle: 0, nan: false };
    let map = cuda.tiles(&of, to, &[8, 8]).unwrap();
    for waits in [0, 1] {
        cuda.fill(to, 0, 16 * 8 * 4, stream);
        let arguments = [Argument::Words(&map.0), Argument::Device(to), Argument::Int(waits)];
        cuda.launch(kernel, (1, 32, 256), stream, &arguments);
        let mut found = vec![0.0_f32; 128];
        cuda.download(&mut found, to, stream);
        for (n, found) in found.into_iter().enumerate() {
            let (row, column) = (n / 16, n % 16);
            let inside = waits == 1 && row >= 2 && column >= 12;
            let expected = if inside { ((row - 2) * 8 + column - 12 + 1) as f32 } else { 0.0 };
            assert_eq!(found, expected, "row {row}, column {column}, waits {waits}");
        }
    }
}

#[test]
fn a_box_is_stored_at_the_wait_and_only_inside_the_tensor() {
    if compiler_found() {
        let ended = run("stored_boxes", &STRICT);
        ended.passes();
        assert_eq!(ended.executed("tensor store"), 2);
    }
}

fn columns_of_pixels() {
    let functions = r#"
inline __device__ void
tma_load_im2col_4d(void const *desc_ptr,
                   ::cuda::barrier<::cuda::thread_scope_block> &__bar,
                   void *smem_ptr, int32 const &coord_c, int32 const &coord_w,
                   int32 const &coord_h, int32 const &coord_n,
                   uint16 const &offset_w, uint16 const &offset_h) {
  uint64 *mbar_ptr = ::cuda::device::barrier_native_handle(__bar);
  uint64 gmem_int_desc = reinterpret_cast<uint64>(desc_ptr);
  uint32 smem_int_mbar =
      static_cast<uint32>(__cvta_generic_to_shared(mbar_ptr));
  uint32 smem_int_ptr = static_cast<uint32>(__cvta_generic_to_shared(smem_ptr));
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier:"
               ":complete_tx::bytes"
               " [%0], [%1, {%3, %4, %5, %6}], [%2], {%7, %8};"
               :
               : "r"(smem_int_ptr), "l"(gmem_int_desc), "r"(smem_int_mbar),
                 "r"(coord_c), "r"(coord_w), "r"(coord_h), "r"(coord_n),
                 "h"(offset_w), "h"(offset_h)
               : "memory");
}
"#;
    let cuda = Cuda::start();
    let stream = cuda.stream();
    // A filter of 3 by 3, padding of 1, strides of 2 and 1.
    let (channels, width, height, images) = (8_i64, 7_i64, 5_i64, 3_i64);
    let sizes = [channels, width, height, images].map(i64::cast_unsigned);
    let values = numbers(sizes.iter().product());
    let from = cuda.allocate(values.len() * 4, stream);
    cuda.upload(from, &values, stream);
    let of = Mapped { element: FLOAT, bytes: 4, sizes: &sizes, steps: &[1, 2, 1, 1], swizzle: 1, nan: false };
    let map = cuda.columns(&of, from, [&[-1, -1], &[-1, -1]], (8, 70));
    for (offset_w, offset_h) in [(0_i64, 0_i64), (2, 1), (1, 2)] {
        let load = format!(
            "tma_load_im2col_4d(&tensor_map_0, shared_memory_2, shared_memory_1, 0, 1, -1, 0, {offset_w}, {offset_h});"
        );
        let kernel = cuda.kernel(&load_source(&load, 70 * 32, functions), "load");
        let to = cuda.allocate(70 * 32, stream);
        let arguments = [Argument::Words(&map.0), Argument::Device(from), Argument::Device(to)];
        cuda.launch(kernel, (1, 32, 70 * 32 + 8), stream, &arguments);
        let mut found = vec![0.0_f32; 560];
        cuda.download(&mut found, to, stream);

        let corners = (0..images)
            .flat_map(|n| (-1..=height - 2).flat_map(move |h| (0..4).map(move |step| (n, h, 2 * step - 1))));
        let columns: Vec<_> = corners.skip(1).map(Some).chain(std::iter::repeat(None)).take(70).collect();
        for (pixel, corner) in columns.into_iter().enumerate() {
            for channel in 0..channels {
                let place = (pixel * 32 + channel as usize * 4) ^ ((pixel * 32 / 128 % 2) * 16);
                let value = corner.and_then(|(n, h, w)| {
                    let (h, w) = (h + offset_h, w + offset_w);
                    let inside = (0..height).contains(&h) && (0..width).contains(&w);
                    inside.then(|| values[(((n * height + h) * width + w) * channels + channel) as usize])
                });
                assert_eq!(found[place / 4], value.unwrap_or(0.0), "pixel {pixel}, channel {channel}");
            }
        }
    }
}

#[test]
fn columns_of_pixels_are_loaded_as_a_plain_convolution_reads_them() {
    if compiler_found() {
        let ended = run("columns_of_pixels", &STRICT);
        ended.passes();
        assert_eq!(ended.executed("tensor load im2col"), 3);
    }
}

fn invalid_maps() {
    let cuda = Cuda::start();
    let at = cuda.allocate(1 << 16, cuda.stream());
    let of = |sizes: &[u64], boxes: &[u32], steps: &[u32], swizzle, at| {
        cuda.tiles(&Mapped { element: FLOAT, bytes: 4, sizes, steps, swizzle, nan: false }, at, boxes).err()
    };
    assert_eq!(of(&[64, 4], &[8, 4], &[1, 1], 1, at), None);
    for refused in [
        of(&[64, 4], &[8, 4], &[1, 1], 1, at + 4),
        of(&[63, 4], &[8, 4], &[1, 1], 0, at),
        of(&[64, 4], &[7, 4], &[1, 1], 0, at),
        of(&[64, 4], &[16, 4], &[1, 1], 1, at),
        of(&[64, 4], &[8, 257], &[1, 1], 0, at),
        of(&[64, 4], &[8, 4], &[1, 9], 0, at),
        of(&[64, 0], &[8, 4], &[1, 1], 0, at),
    ] {
        assert_eq!(refused, Some(1));
    }
}

#[test]
fn a_map_that_cuda_refuses_is_refused() {
    run("invalid_maps", &STRICT).passes();
}

fn interleaved_map() {
    let cuda = Cuda::start();
    let at = cuda.allocate(1 << 16, cuda.stream());
    let of = Mapped { element: FLOAT, bytes: 4, sizes: &[64, 4], steps: &[1, 1], swizzle: 4, nan: false };
    assert_eq!(cuda.tiles(&of, at, &[8, 4]).err(), Some(801));
}

#[test]
fn a_map_that_is_not_emulated_is_refused_by_name() {
    let ended = run("interleaved_map", &[]);
    assert!(ended.status.success(), "{}", ended.stderr);
    let refusal = "stand-in: launch refused: tensor maps of interleave 0 and swizzle 4 are not emulated";
    assert_eq!(ended.messages(), [refusal]);
}
