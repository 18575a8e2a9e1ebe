//! The C functions of `libcuda` and `libnvrtc` that cudarc calls for CubeCL, grouped by subject. They translate
//! between C and the driver; what a call means is decided there.

mod copies;
mod device;
mod events;
mod memory;
mod modules;
mod nvrtc;
mod pools;
mod status;
mod streams;
