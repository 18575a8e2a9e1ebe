//! Devices and contexts are kept apart as far as CUDA keeps them apart.

use crate::{
    child::{Scenario, compiler_found, run},
    cuda::{Argument, Cuda, INVALID_CONTEXT, INVALID_HANDLE, OUT_OF_MEMORY},
};

pub(crate) const SCENARIOS: &[Scenario] = &[
    ("operand_of_another_device", operand_of_another_device),
    ("handles_of_another_device", handles_of_another_device),
    ("legal_across_devices", legal_across_devices),
    ("no_context", no_context),
    ("waits_without_context", waits_without_context),
];

const STRICT: [(&str, &str); 3] = [("DEVICES", "2"), ("RACES", "1"), ("STRICT", "1")];

const ADD: &str = "#include <cuda_runtime.h>
extern \"C\" __global__ void add(float* x, float by) { x[threadIdx.x] += by; }
";

fn operand_of_another_device() {
    let cuda = Cuda::start();
    let x = cuda.allocate(256, cuda.stream());
    cuda.use_device(1);
    let second = cuda.stream();
    let add = cuda.kernel(ADD, "add");
    cuda.launch(add, (1, 64, 0), second, &[Argument::Device(x), Argument::Float(1.0)]);
}

#[test]
fn a_kernel_that_reaches_into_another_device_is_found() {
    if compiler_found() {
        let ended = run("operand_of_another_device", &[("DEVICES", "2")]);
        let line = ended.ends_with("memory of another device");
        assert!(line.contains("kernel add runs on device 1 and touches memory of device 0"), "{line}");
    }
}

fn handles_of_another_device() {
    let cuda = Cuda::start();
    let first = cuda.stream();
    let event = cuda.try_event().unwrap();
    let add = cuda.kernel(ADD, "add");
    cuda.use_device(1);
    let second = cuda.stream();
    let x = cuda.allocate(256, second);
    assert_eq!(cuda.try_record(event, second), INVALID_HANDLE);
    assert_eq!(cuda.try_record(event, first), 0);
    let arguments = [Argument::Device(x), Argument::Float(1.0)];
    assert_eq!(cuda.try_launch(add, (1, 64, 0), second, &arguments), INVALID_HANDLE);
}

#[test]
fn events_and_functions_on_another_devices_stream_are_refused() {
    if compiler_found() {
        let ended = run("handles_of_another_device", &[("DEVICES", "2")]);
        assert!(ended.status.success(), "{}", ended.stderr);
        assert!(ended.report.contains(r#""findings":{"invalid handle":2}"#), "{}", ended.report);
    }
}

/// A stream's memory is its device's, whatever device is current.
fn legal_across_devices() {
    let cuda = Cuda::start();
    let first = cuda.stream();
    cuda.use_device(1);
    let second = cuda.stream();
    let x = cuda.allocate(700 << 10, first);
    assert_eq!(cuda.try_allocate(700 << 10, first), Err(OUT_OF_MEMORY));
    let y = cuda.allocate(700 << 10, second);
    cuda.fill(x, 7, 16, first);
    cuda.fill(y, 8, 16, second);
    cuda.use_device(0);
    cuda.order_after_event(cuda.record(first), second);
    cuda.move_within(y, x, 8, second);
    let mut bytes = [0_u8; 16];
    cuda.download(&mut bytes, y, second);
    assert_eq!(bytes, [7, 7, 7, 7, 7, 7, 7, 7, 8, 8, 8, 8, 8, 8, 8, 8]);
}

#[test]
fn streams_of_two_devices_wait_for_each_other_and_allocate_on_their_own() {
    for mode in ["eager", "lazy"] {
        let options = [STRICT.as_slice(), &[("MODE", mode), ("VRAM", "1M")]].concat();
        run("legal_across_devices", &options).passes();
    }
}

fn no_context() {
    let cuda = Cuda::start_without_context();
    assert_eq!(cuda.try_stream(), Err(INVALID_CONTEXT));
    assert_eq!(cuda.try_event(), Err(INVALID_CONTEXT));
    assert_eq!(cuda.try_pinned::<u8>(16).unwrap_err(), INVALID_CONTEXT);
    assert_eq!(cuda.try_allocate(16, 0), Err(INVALID_CONTEXT));
    assert_eq!(cuda.try_synchronize(0), INVALID_CONTEXT);
}

#[test]
fn calls_that_need_a_context_are_refused_without_one() {
    let ended = run("no_context", &[]);
    assert!(ended.status.success(), "{}", ended.stderr);
    assert!(ended.report.contains(r#""findings":{"no current context":5}"#), "{}", ended.report);
}

/// As CubeCL's futures do.
fn waits_without_context() {
    let cuda = Cuda::start();
    let stream = cuda.stream();
    let x = cuda.allocate(16, stream);
    cuda.fill(x, 7, 16, stream);
    let event = cuda.record(stream);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let cuda = Cuda::start_without_context();
            cuda.wait_for_event(event);
            cuda.destroy_event(event);
        });
    });
}

#[test]
fn a_thread_without_a_context_waits_for_events() {
    for mode in ["eager", "lazy"] {
        run("waits_without_context", &[STRICT.as_slice(), &[("MODE", mode)]].concat()).passes();
    }
}
