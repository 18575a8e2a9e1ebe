//! The wrapper's own time for a launch that fits: pairs with the server inside it, which drops every kernel.

use std::hint::black_box;
use std::time::Instant;

use cubecl::wgpu::{AutoCompiler, WgpuServer};
use cubecl_common::device::{Device as _, DeviceService, ServiceId};
use cubecl_environment::stream::StreamId;
use cubecl_runtime::id::KernelId;
use cubecl_runtime::kernel::{BufferIOAttr, CubeKernel, KernelDefinition, KernelMetadata};
use cubecl_runtime::memory_management::ManagedMemoryHandle;
use cubecl_runtime::server::{CubeCount, Handle, KernelArguments, Server};
use offload_burn_22::{LaunchMode, OffloadServer, WgpuDevice};

use crate::counted::{Counted, END};

type Inner = Counted<WgpuServer<AutoCompiler>, END>;

const ROUNDS: usize = 201;
const LAUNCHES: u32 = 1000;
const OPERANDS: usize = 8;
const BYTES: u64 = 1 << 20;

struct Nothing;

impl KernelMetadata for Nothing {
    fn id(&self) -> KernelId {
        unreachable!("dropped before it is compiled")
    }

    fn address_type(&self) -> cubecl::ir::ElemType {
        unreachable!("dropped before it is compiled")
    }
}

impl CubeKernel for Nothing {
    fn define(&self) -> KernelDefinition {
        unreachable!("dropped before it is compiled")
    }
}

/// Nanoseconds added to a launch of eight managed buffers: median, and 90th percentile of rounds.
pub fn of_a_launch(device: &WgpuDevice) -> [f64; 2] {
    let mut bare = Inner::init(device.to_id());
    let mut wrapped = OffloadServer::<Inner>::init(device.to_id());
    let (stream, service) = (StreamId::current(), ServiceId::of::<OffloadServer<Inner>>(device.to_id()));
    let buffer = |server: &mut dyn Server| {
        let memory = ManagedMemoryHandle::new();
        server.initialize_memory(memory.clone(), BYTES, stream).expect("memory is there");
        Handle::from_memory(memory, service, stream, BYTES)
    };
    let buffers: Vec<Handle> = (0..OPERANDS).map(|_| buffer(&mut wrapped)).collect();

    let mut added: Vec<f64> = (0..ROUNDS)
        .map(|_| round(&mut wrapped, &buffers, stream) - round(&mut bare, &buffers, stream))
        .collect();
    added.sort_by(f64::total_cmp);
    [added[ROUNDS / 2], added[ROUNDS * 9 / 10]]
}

/// Nanoseconds of one launch.
fn round(server: &mut dyn Server, buffers: &[Handle], stream: StreamId) -> f64 {
    let started = Instant::now();
    for _ in 0..LAUNCHES {
        let (output, inputs) = buffers.split_last().expect("eight");
        let arguments = inputs.iter().fold(KernelArguments::new(), |arguments, input| {
            arguments.with_buffer_io(input.clone().binding(), BufferIOAttr::ReadOnly)
        });
        let arguments = arguments.with_buffer_io(output.clone().binding(), BufferIOAttr::WriteOnly);
        // SAFETY: the kernel never runs.
        unsafe {
            server.launch(
                black_box(Box::new(Nothing)),
                CubeCount::Static(1, 1, 1),
                arguments,
                stream,
                LaunchMode::Execute,
            );
        }
    }
    started.elapsed().as_nanos() as f64 / f64::from(LAUNCHES)
}
