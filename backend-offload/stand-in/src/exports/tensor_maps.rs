//! Tensor maps for kernels: `stand_in_map` of the device headers within 128 opaque bytes.

use std::{
    ffi::{c_int, c_uint, c_void},
    slice,
};

use super::status::{Out, Status, status};
use crate::{
    findings::{Fault, Finding},
    report,
};

const MAGIC: u64 = 0x7061_6d5f_726f_736e;
const ELEMENT_BYTES: [u8; 13] = [1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4];
const TF32: c_int = 11;
const DIMENSIONS: usize = 5;

#[repr(C, align(64))]
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TensorMap {
    magic: u64,
    address: u64,
    im2col: bool,
    element: u8,
    rank: u8,
    swizzle: u8,
    nan: bool,
    tf32: bool,
    unused: [u8; 2],
    size: [u32; DIMENSIONS],
    unused_too: u32,
    stride: [u64; DIMENSIONS - 1],
    box_size: [u16; DIMENSIONS],
    step: [u8; DIMENSIONS],
    also_unused: u8,
    channels: u16,
    pixels: u16,
    lower: [i16; 3],
    upper: [i16; 3],
}

const _: () = assert!(size_of::<TensorMap>() == 128);

struct Layout<'a> {
    element: c_int,
    address: u64,
    size: &'a [u64],
    stride: &'a [u64],
    step: &'a [c_uint],
    interleave: c_int,
    swizzle: c_int,
    fill: c_int,
}

impl Layout<'_> {
    fn map(&self) -> Result<TensorMap, Status> {
        let is_offered = self.interleave == 0 && (0..=3).contains(&self.swizzle);
        if !is_offered {
            let (interleave, swizzle) = (self.interleave, self.swizzle);
            return Err(refused(&format!("tensor maps of interleave {interleave} and swizzle {swizzle}")));
        }
        let element =
            usize::try_from(self.element).ok().and_then(|element| ELEMENT_BYTES.get(element)).copied();
        let Some(element) = element else {
            return Err(refused(&format!("tensor maps of data type {}", self.element)));
        };
        let rank = self.size.len();
        let valid = self.address.is_multiple_of(16)
            && self.stride.iter().all(|stride| stride.is_multiple_of(16) && *stride < 1 << 40)
            && self.size.iter().all(|size| (1..=u64::from(u32::MAX)).contains(size))
            && self.step.iter().all(|step| (1..=8).contains(step));
        if !valid {
            return Err(Status::InvalidValue);
        }

        let mut map = TensorMap {
            magic: MAGIC,
            address: self.address,
            element,
            rank: rank as u8,
            swizzle: self.swizzle as u8,
            nan: self.fill == 1,
            tf32: self.element == TF32,
            ..TensorMap::default()
        };
        put(&mut map.size, self.size.iter().map(|size| *size as u32));
        put(&mut map.stride, self.stride.iter().copied());
        put(&mut map.step, self.step.iter().map(|step| *step as u8));
        Ok(map)
    }

    fn takes_rows_of(&self, bytes: u64) -> bool {
        let longest = if self.swizzle == 0 { u64::MAX } else { 16 << self.swizzle };
        bytes.is_multiple_of(16) && bytes <= longest
    }
}

fn put<T>(to: &mut [T], from: impl Iterator<Item = T>) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = from;
    }
}

fn refused(what: &str) -> Status {
    Fault::new(Finding::LaunchRefused, format!("{what} are not emulated")).report();
    Status::NotSupported
}

/// # Safety
/// `rank` numbers must lie at each pointer, one fewer at `strides`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuTensorMapEncodeTiled(
    map: Out<TensorMap>,
    element: c_int,
    rank: c_uint,
    address: *const c_void,
    sizes: *const u64,
    strides: *const u64,
    boxes: *const c_uint,
    steps: *const c_uint,
    interleave: c_int,
    swizzle: c_int,
    _promotion: c_int,
    fill: c_int,
) -> Status {
    report::count(|counters| counters.host.called("cuTensorMapEncodeTiled"));
    status(|| {
        let rank = rank as usize;
        if !(1..=DIMENSIONS).contains(&rank) {
            return Err(Status::InvalidValue);
        }
        // SAFETY: promised by the caller.
        let (size, stride, step, boxes) = unsafe {
            (
                slice::from_raw_parts(sizes, rank),
                if rank > 1 { slice::from_raw_parts(strides, rank - 1) } else { &[] },
                slice::from_raw_parts(steps, rank),
                slice::from_raw_parts(boxes, rank),
            )
        };
        let layout =
            Layout { element, address: address as u64, size, stride, step, interleave, swizzle, fill };
        let mut tiled = layout.map()?;
        let row = u64::from(boxes[0]) * u64::from(tiled.element);
        if !boxes.iter().all(|size| (1..=256).contains(size)) || !layout.takes_rows_of(row) {
            return Err(Status::InvalidValue);
        }
        put(&mut tiled.box_size, boxes.iter().map(|size| *size as u16));
        map.put(tiled).result()
    })
}

/// # Safety
/// `rank` numbers must lie at `sizes` and `steps`, one fewer at `strides`, two fewer at the corners.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuTensorMapEncodeIm2col(
    map: Out<TensorMap>,
    element: c_int,
    rank: c_uint,
    address: *const c_void,
    sizes: *const u64,
    strides: *const u64,
    lower: *const c_int,
    upper: *const c_int,
    channels: c_uint,
    pixels: c_uint,
    steps: *const c_uint,
    interleave: c_int,
    swizzle: c_int,
    _promotion: c_int,
    fill: c_int,
) -> Status {
    report::count(|counters| counters.host.called("cuTensorMapEncodeIm2col"));
    status(|| {
        let rank = rank as usize;
        if !(3..=DIMENSIONS).contains(&rank) {
            return Err(Status::InvalidValue);
        }
        // SAFETY: promised by the caller.
        let (size, stride, step, lower, upper) = unsafe {
            (
                slice::from_raw_parts(sizes, rank),
                slice::from_raw_parts(strides, rank - 1),
                slice::from_raw_parts(steps, rank),
                slice::from_raw_parts(lower, rank - 2),
                slice::from_raw_parts(upper, rank - 2),
            )
        };
        let layout =
            Layout { element, address: address as u64, size, stride, step, interleave, swizzle, fill };
        let mut column = layout.map()?;
        let corners = 1_i32 << (16 / (rank - 2) - 1);
        let valid = (1..=256).contains(&channels)
            && (1..=1024).contains(&pixels)
            && lower.iter().chain(upper).all(|corner| (-corners..corners).contains(corner))
            && layout.takes_rows_of(u64::from(channels) * u64::from(column.element));
        if !valid {
            return Err(Status::InvalidValue);
        }
        (column.im2col, column.channels, column.pixels) = (true, channels as u16, pixels as u16);
        put(&mut column.lower, lower.iter().map(|corner| *corner as i16));
        put(&mut column.upper, upper.iter().map(|corner| *corner as i16));
        map.put(column).result()
    })
}

/// For compute capability 10.
#[unsafe(no_mangle)]
pub extern "C" fn cuTensorMapEncodeIm2colWide() -> Status {
    refused("wide im2col maps")
}
