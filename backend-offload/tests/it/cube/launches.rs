//! A resident launch's cost, and a refused one's effect, in CubeCL.

use super::{Machine, Plain, Spilling, Target, children, install, promises};
use crate::allocations;
use crate::child::Facts;
use backend_offload::{OffloadConfig, OffloadRuntime, stats};
use burn::prelude::*;
use cubecl_common::bytes::Bytes;
use cubecl_common::device::Device;
use cubecl_common::device_handle::DeviceHandle;
use cubecl_common::future::block_on;
use cubecl_common::stream_id::StreamId;
use cubecl_core::client::ComputeClient;
use cubecl_core::ir::{AddressType, StorageType};
use cubecl_core::prelude::{CompiledKernel, CubeCount, CubeDim, KernelId};
use cubecl_core::server::{ComputeServer, CopyDescriptor, Handle, KernelArguments, MemoryLayout};
use cubecl_core::{CompilationError, Compiler, CubeTask, ExecutionMode, Runtime};
use cubecl_runtime::kernel::KernelMetadata;

children! {
    "cube/refused launch" => refused_launch,
    "cube/rewritten" => rewritten,
    "cube/allocations" => counted_allocations,
    "cube/small failures" => small_failures,
}

promises! {
    stand_in {
        a_resident_launch_allocates_hardly_more_than_on_the_plain_runtime: One,
        a_launch_that_the_runtime_refuses_leaves_no_readable_output: Every,
        a_failed_buffer_has_contents_again_once_it_is_written_whole: Every,
        small_buffers_that_failed_are_forgotten_when_they_are_gone: One,
    }
    vulkan {}
    full {
        a_resident_launch_allocates_hardly_more_than_on_the_plain_runtime,
        a_launch_that_the_runtime_refuses_leaves_no_readable_output,
        a_failed_buffer_has_contents_again_once_it_is_written_whole,
        small_buffers_that_failed_are_forgotten_when_they_are_gone,
    }
}

struct Refused {
    /// Above the device's limit, it is refused before it is compiled.
    units: u32,
}

impl KernelMetadata for Refused {
    fn id(&self) -> KernelId {
        KernelId::new::<Self>().cube_dim(CubeDim::new_1d(self.units))
    }
    fn address_type(&self) -> StorageType {
        AddressType::U32.unsigned_type()
    }
}

impl<C: Compiler> CubeTask<C> for Refused {
    fn compile(
        &self,
        _: &mut C,
        _: &C::CompilationOptions,
        _: ExecutionMode,
        _: StorageType,
    ) -> Result<CompiledKernel<C>, CompilationError> {
        let backtrace = cubecl_common::backtrace::BackTrace::default();
        Err(CompilationError::Generic { reason: "refused on purpose".to_owned(), backtrace })
    }
}

fn refuse<R: Runtime>(client: &ComputeClient<R>, handle: &Handle) {
    refuse_units(client, handle, 1);
}

fn refuse_units<R: Runtime>(client: &ComputeClient<R>, handle: &Handle, units: u32) {
    let mut arguments = KernelArguments::new();
    arguments.buffers.push(handle.clone().binding());
    client.launch(Box::new(Refused { units }), CubeCount::new_single(), arguments);
}

fn refused_launch<T: Target>(parameters: &Facts) -> Facts {
    let device = T::device();
    OffloadConfig::new().install::<Plain<T>>(&device).expect("installs");
    let client = OffloadRuntime::<T::Runtime>::client(&device);
    let bytes = vec![7u8; 1 << 20];
    let (touched, spared) = (client.create_from_slice(&bytes), client.create_from_slice(&bytes));
    let small = client.create_from_slice(&bytes[..64]);
    for handle in [&touched, &small] {
        refuse_units(&client, handle, parameters.value("units"));
    }
    let read = |handle: Handle| block_on(client.read_async(vec![handle])).map_err(|error| error.to_string());
    for handle in [touched, small] {
        let error = read(handle).expect_err("the launch did not run");
        assert!(error.contains(parameters.text("reason")), "{error}");
    }
    assert_eq!(read(spared).expect("nothing happened to it")[0][..], bytes[..]);
    assert_eq!(stats::<Plain<T>>(&device).failures, 2);
    assert!(block_on(client.sync()).is_err(), "and the stream reports it");
    assert!(block_on(client.sync()).is_ok(), "once");
    Facts::default()
}

fn a_launch_that_the_runtime_refuses_leaves_no_readable_output(machine: &Machine) {
    for (units, reason) in [(1, "refused on purpose"), (1 << 20, "exceeds maximum")] {
        machine.run(machine.child("cube/refused launch").with("units", units).with("reason", reason));
    }
}

fn rows(layout: &MemoryLayout, shape: &[usize]) -> CopyDescriptor {
    CopyDescriptor::new(layout.memory.clone().binding(), shape.into(), layout.strides.clone(), ELEMENT)
}

const ELEMENT: usize = 4;

/// Clients write only fresh allocations; the server can write any buffer.
fn rewritten<T: Target>(parameters: &Facts) -> Facts {
    let device = T::device();
    install::<T>(parameters, &device);
    let client = OffloadRuntime::<T::Runtime>::client(&device);
    let server = DeviceHandle::<<OffloadRuntime<T::Runtime> as Runtime>::Server>::new(device.to_id());
    let stream = StreamId::current();
    let write = |descriptor, byte, len: usize| {
        let contents = vec![(descriptor, Bytes::from_bytes_vec(vec![byte; len]))];
        server.submit_blocking(|server| server.write(contents, stream)).expect("a server that runs");
    };
    let read = |descriptor| block_on(client.read_tensor_async(vec![descriptor]));

    // On CUDA, the last shape's rows have gaps.
    for shape in [vec![5], vec![(1 << 18) + 1], vec![300, 901]] {
        let len = ELEMENT * shape.iter().product::<usize>();
        let layout = client.create_tensor_from_slice(&vec![1; len], shape.as_slice().into(), ELEMENT);
        refuse(&client, &layout.memory);
        assert!(
            read(rows(&layout, &shape)).is_err(),
            "{shape:?}: what a refused launch writes has no contents"
        );
        if parameters.find("budget").is_some() {
            let others: Vec<_> = (0..4).map(|_| client.create_from_slice(&vec![0; 1 << 20])).collect();
            for other in &others {
                refuse(&client, other);
            }
        }

        let restores = || stats::<Plain<T>>(&device).restores;
        let before = restores();
        let mut half = shape.clone();
        half[0] /= 2;
        write(rows(&layout, &half), 2, ELEMENT * half.iter().product::<usize>());
        assert!(read(rows(&layout, &shape)).is_err(), "{shape:?}: the other half has none");
        write(rows(&layout, &shape), 3, len);
        let found = read(rows(&layout, &shape)).unwrap_or_else(|error| panic!("{shape:?}: {error}"));
        assert!(found[0].len() == len && found[0].iter().all(|byte| *byte == 3), "{shape:?}");
        assert_eq!(restores(), before, "{shape:?}: what is on the host is written there");
    }
    Facts::default()
}

fn a_failed_buffer_has_contents_again_once_it_is_written_whole(machine: &Machine) {
    machine.run(machine.child("cube/rewritten"));
    machine.run(machine.child("cube/rewritten").with("budget", "4MiB"));
}

const LAUNCHES: u64 = 200;

fn counted_allocations<T: Target>(parameters: &Facts) -> Facts {
    let device = T::device();
    let [small, all] = if parameters.text("backend") == "plain" {
        launch_allocations::<Plain<T>>(&device)
    } else {
        install::<T>(parameters, &device);
        let counts = launch_allocations::<Spilling<T>>(&device);
        let stats = stats::<Plain<T>>(&device);
        assert_eq!(
            stats.restores > 0,
            parameters.find("budget").is_some(),
            "operands are clean under a budget"
        );
        counts
    };
    Facts::default().with("small allocations", small).with("allocations", all)
}

/// Small ones, and all.
fn launch_allocations<B: Backend>(device: &B::Device) -> [u64; 2] {
    let step = Tensor::<B, 2>::ones([512, 512], device);
    let others: Vec<_> = (0..4).map(|n| Tensor::<B, 2>::full([512, 512], n, device) * 2.0).collect();
    B::sync(device).expect("the kernels run");
    drop(others);
    let sum = Tensor::<B, 2>::zeros([512, 512], device);

    // Both pools use one mode: the search for a slice allocates too.
    B::memory_persistent_allocations(device, (sum, step), |(mut sum, step)| {
        // Lists with an entry per buffer are then not small.
        let bystander = |n| Tensor::<B, 1>::from_data([n as f32], device);
        let bystanders: Vec<_> = (0..2 * allocations::SMALL).map(bystander).collect();
        let mut launches = |count: u64| {
            for _ in 0..count {
                sum = sum.clone() + step.clone();
                B::sync(&step.device()).expect("the kernels run");
            }
        };

        launches(50);
        let so_far = || [allocations::small_so_far(), allocations::so_far()];
        let before = so_far();
        launches(LAUNCHES);
        let [small, all] = so_far();
        drop(bystanders);
        [small - before[0], all - before[1]]
    })
}

fn a_resident_launch_allocates_hardly_more_than_on_the_plain_runtime(machine: &Machine) {
    let child = |backend: &str| machine.child("cube/allocations").with("backend", backend);
    let plain = machine.run(child("plain"));
    // Half an allocation per launch above what was measured; rewriting operands would add six. wgpu's larger lists
    // depend on unrelated buffers.
    let (sizes, tenths) = if machine.is_vulkan() {
        (&["small allocations"][..], 38)
    } else {
        (&["small allocations", "allocations"][..], 35)
    };
    for spilling in [child("spilling"), child("spilling").with("budget", "4MiB").with("bindings", 3)] {
        let ours = machine.run(spilling);
        for name in sizes {
            let (plain, ours) = (plain.number(name), ours.number(name));
            println!("{LAUNCHES} launches: {plain} {name} on the plain runtime, {ours} here");
            assert!(ours <= plain + LAUNCHES * tenths / 10, "{name}: plain {plain}, ours {ours}");
        }
    }
}

fn small_failures<T: Target>(_: &Facts) -> Facts {
    let device = T::device();
    OffloadConfig::new().install::<Plain<T>>(&device).expect("installs");
    let client = OffloadRuntime::<T::Runtime>::client(&device);
    let fail = || {
        let buffer = client.empty(4096);
        refuse(&client, &buffer);
        buffer
    };
    let held = || {
        assert!(block_on(client.sync()).is_err());
        backend_offload::events::<Plain<T>>(&device);
        allocations::live_bytes()
    };
    let tensor = Tensor::<Spilling<T>, 1>::ones([1024], &device);
    let mut sum = tensor.clone();
    let mut launches = || {
        let before = allocations::small_so_far();
        for _ in 0..LAUNCHES {
            sum = sum.clone() + tensor.clone();
            Spilling::<T>::sync(&device).expect("the kernels run");
        }
        allocations::small_so_far() - before
    };
    launches();
    let allocations = launches();

    let fail_often = || {
        for _ in 0..LAUNCHES {
            drop(fail());
            drop(client.empty(4096));
        }
        held()
    };
    fail_often();
    let before = fail_often();
    let grown = (fail_often() - before).max(0).cast_unsigned();

    let kept = fail();
    held();
    let after = launches();
    assert!(
        block_on(client.read_async(vec![kept])).is_err(),
        "a failed buffer that is still held has no contents"
    );
    Facts::default().with("grown", grown).with("before", allocations).with("after", after)
}

fn small_buffers_that_failed_are_forgotten_when_they_are_gone(machine: &Machine) {
    let report = machine.run(machine.child("cube/small failures"));
    println!("{report:?}");
    let number = |name| report.number(name);
    assert!(number("grown") < 100 * LAUNCHES, "{} bytes by {LAUNCHES} failures", number("grown"));
    // Each launch asks whether its output takes a failed buffer's memory.
    assert!(number("after") <= number("before") + 4 * LAUNCHES, "launches while a failure is remembered");
}
