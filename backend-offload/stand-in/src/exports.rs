//! The C functions of `libcuda` and `libnvrtc` that cudarc calls for CubeCL.

mod copies;
mod device;
mod entry;
mod events;
mod memory;
mod modules;
mod nvrtc;
mod pools;
mod status;
mod streams;
mod tensor_maps;
