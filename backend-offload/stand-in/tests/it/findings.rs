//! Every finding ends its program with its name.

use crate::{
    child::{Scenario, compiler_found, run},
    cuda::{Argument, Cuda, INVALID_VALUE},
};

pub(crate) const SCENARIOS: &[Scenario] = &[
    ("missing_wait", missing_wait),
    ("missing_wait_before_free", missing_wait_before_free),
    ("missing_wait_between_kernels", missing_wait_between_kernels),
    ("missing_wait_across_a_free", missing_wait_across_a_free),
    ("missing_wait_on_the_host", || through_the_host(false)),
    ("wait_on_the_host", || through_the_host(true)),
    ("use_after_free", use_after_free),
    ("kernel_after_free", kernel_after_free),
    ("double_free", double_free),
    ("copy_past_the_end", copy_past_the_end),
    ("kernel_past_the_end", || kernel_past_the_end(100, 100)),
    ("kernel_before_the_start", || kernel_past_the_end(100, -1)),
    ("kernel_a_page_past_the_end", || kernel_past_the_end(1 << 20, (1 << 20) + 16)),
    ("unwritten_read", unwritten_read),
    ("partly_unwritten_read", partly_unwritten_read),
    ("unwritten_moved", unwritten_moved),
    ("unwritten_spilled", unwritten_spilled),
    ("freed_pinned", freed_pinned),
    ("pinned_double_free", pinned_double_free),
    ("pinned_freed_early", pinned_freed_early),
    ("copy_past_pinned", copy_past_pinned),
    ("program_touches_freed_pinned", program_touches_freed_pinned),
    ("destroyed_stream", destroyed_stream),
    ("no_blocks", no_blocks),
    ("much_shared_memory", much_shared_memory),
];

const RACES: [(&str, &str); 2] = [("RACES", "1"), ("STRICT", "1")];
const STRICT: [(&str, &str); 1] = [("STRICT", "1")];

const ADD: &str = "#include <cuda_runtime.h>
extern \"C\" __global__ void __launch_bounds__(64)add (
    float* x, float by
) { x[threadIdx.x] += by; }
";
const POKE: &str = "#include <cuda_runtime.h>
extern \"C\" __global__ void poke(unsigned char* x, int at) { x[at] = 0; }
";

fn missing_wait() {
    let cuda = Cuda::start();
    let [first, second] = [(); 2].map(|()| cuda.stream());
    let x = cuda.allocate(16, first);
    cuda.order(first, second);
    cuda.upload(x, &[1_u8; 16], first);
    cuda.move_within(x + 8, x, 4, second);
}

#[test]
fn a_missing_wait_is_found_in_every_mode() {
    for mode in ["eager", "lazy", "random"] {
        let ended = run("missing_wait", &[RACES.as_slice(), &[("MODE", mode)]].concat());
        let line = ended.ends_with("missing wait");
        assert!(line.contains("(cuMemcpyHtoDAsync)") && line.contains("(cuMemcpyDtoDAsync)"), "{line}");
    }
}

#[test]
fn a_missing_wait_does_not_end_a_process_that_is_not_strict() {
    let ended = run("missing_wait", &[("RACES", "1")]);
    assert!(ended.status.success() && ended.report.contains("\"missing wait\":2"), "{}", ended.report);
}

fn missing_wait_before_free() {
    let cuda = Cuda::start();
    let [first, second] = [(); 2].map(|()| cuda.stream());
    let x = cuda.allocate(16, first);
    cuda.order(first, second);
    cuda.fill(x, 0, 16, second);
    cuda.free(x, first);
}

#[test]
fn a_free_that_does_not_wait_for_another_streams_work_is_found() {
    run("missing_wait_before_free", &RACES).ends_with("missing wait");
}

fn missing_wait_between_kernels() {
    let cuda = Cuda::start();
    let [first, second] = [(); 2].map(|()| cuda.stream());
    let add = cuda.kernel(ADD, "add");
    let x = cuda.allocate(256, first);
    cuda.upload(x, &[1.0_f32; 64], first);
    cuda.order(first, second);
    cuda.launch(add, (1, 64, 0), first, &[Argument::Device(x), Argument::Float(1.0)]);
    cuda.launch(add, (1, 64, 0), second, &[Argument::Device(x), Argument::Float(1.0)]);
}

#[test]
fn kernels_of_two_streams_on_one_operand_need_a_wait() {
    if compiler_found() {
        let ended = run("missing_wait_between_kernels", &RACES);
        assert!(ended.ends_with("missing wait").contains("(kernel add)"));
    }
}

/// CUDA's free waits for the first copy, by chance.
fn missing_wait_across_a_free() {
    let cuda = Cuda::start();
    let [first, second] = [(); 2].map(|()| cuda.stream());
    let [source, other] = [(); 2].map(|()| cuda.pinned::<u8>(16));
    let x = cuda.allocate(16, first);
    cuda.order(first, second);
    cuda.upload(x, source, first);
    cuda.free_pinned(other.as_mut_ptr());
    cuda.move_within(x + 8, x, 4, second);
}

#[test]
fn a_free_of_page_locked_memory_hides_no_missing_wait() {
    for mode in ["eager", "lazy", "random"] {
        let options = [RACES.as_slice(), &[("MODE", mode)]].concat();
        run("missing_wait_across_a_free", &options).ends_with("missing wait");
    }
}

fn through_the_host(waits: bool) {
    let cuda = Cuda::start();
    let [first, second] = [(); 2].map(|()| cuda.stream());
    let host = cuda.pinned::<u8>(16);
    let [x, y] = [first, second].map(|stream| cuda.allocate(16, stream));
    cuda.fill(x, 7, 16, first);
    cuda.download(host, x, first);
    if waits {
        let event = cuda.record(first);
        // Another thread hands the memory over.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let cuda = Cuda::start();
                cuda.stream();
                cuda.wait_for_event(event);
            });
        });
    }
    cuda.upload(y, host, second);
}

#[test]
fn copies_through_the_same_page_locked_memory_need_a_wait() {
    for mode in ["eager", "lazy"] {
        let options = [RACES.as_slice(), &[("MODE", mode)]].concat();
        let ended = run("missing_wait_on_the_host", &options);
        let line = ended.ends_with("missing wait");
        assert!(line.contains("(cuMemcpyDtoHAsync)") && line.contains("(cuMemcpyHtoDAsync)"), "{line}");
        run("wait_on_the_host", &options).passes();
    }
}

fn use_after_free() {
    let cuda = Cuda::start();
    let stream = cuda.stream();
    let x = cuda.allocate(16, stream);
    cuda.free(x, stream);
    cuda.upload(x, &[0_u8; 4], stream);
}

#[test]
fn a_copy_into_freed_memory_is_found_whether_the_free_has_happened_or_not() {
    for mode in ["eager", "lazy"] {
        run("use_after_free", &[("MODE", mode)]).ends_with("use after free");
    }
}

fn kernel_after_free() {
    let cuda = Cuda::start();
    let stream = cuda.stream();
    let add = cuda.kernel(ADD, "add");
    let x = cuda.allocate(256, stream);
    cuda.free(x, stream);
    cuda.launch(add, (1, 64, 0), stream, &[Argument::Device(x), Argument::Float(1.0)]);
}

#[test]
fn a_kernel_with_a_freed_operand_is_found() {
    if compiler_found() {
        let ended = run("kernel_after_free", &[]);
        assert!(ended.ends_with("use after free").contains("kernel add"));
    }
}

fn double_free() {
    let cuda = Cuda::start();
    let stream = cuda.stream();
    let x = cuda.allocate(16, stream);
    cuda.free(x, stream);
    cuda.free(x, stream);
}

#[test]
fn a_double_free_is_found_whether_the_first_has_happened_or_not() {
    for mode in ["eager", "lazy"] {
        run("double_free", &[("MODE", mode)]).ends_with("double free");
    }
}

fn copy_past_the_end() {
    let cuda = Cuda::start();
    let stream = cuda.stream();
    let x = cuda.allocate(16, stream);
    cuda.upload(x + 8, &[0_u8; 9], stream);
}

#[test]
fn a_copy_past_the_end_is_found() {
    let ended = run("copy_past_the_end", &[]);
    let line = ended.ends_with("access outside device memory");
    assert!(line.contains("9 bytes at offset 8 of an allocation of 16 bytes"), "{line}");
}

fn kernel_past_the_end(size: usize, at: i32) {
    let cuda = Cuda::start();
    let stream = cuda.stream();
    let poke = cuda.kernel(POKE, "poke");
    let x = cuda.allocate(size, stream);
    cuda.launch(poke, (1, 1, 0), stream, &[Argument::Device(x), Argument::Int(at)]);
}

#[test]
fn a_kernel_that_writes_past_an_allocation_is_found() {
    if !compiler_found() {
        return;
    }
    let ended = run("kernel_past_the_end", &[]);
    let line = ended.ends_with("write past an allocation");
    assert!(
        line.contains("kernel poke") && line.contains("offset 100 of an allocation of 100 bytes"),
        "{line}"
    );
    let ended = run("kernel_before_the_start", &[]);
    assert!(ended.ends_with("write past an allocation").contains("offset -1 "));
    let ended = run("kernel_a_page_past_the_end", &[]);
    let line = ended.ends_with("access outside device memory");
    assert!(
        line.contains("kernel poke") && line.contains("offset 1048592 of an allocation of 1048576"),
        "{line}"
    );
}

fn unwritten_read() {
    let cuda = Cuda::start();
    let stream = cuda.stream();
    let x = cuda.allocate(16, stream);
    cuda.download(&mut [0_u8; 16], x, stream);
}

fn partly_unwritten_read() {
    let cuda = Cuda::start();
    let stream = cuda.stream();
    let x = cuda.allocate(16, stream);
    cuda.upload(x, &[0_u8; 8], stream);
    cuda.fill(x + 12, 0, 4, stream);
    cuda.download(&mut [0_u8; 16], x, stream);
}

fn unwritten_moved() {
    let cuda = Cuda::start();
    let stream = cuda.stream();
    let [x, y] = [(); 2].map(|()| cuda.allocate(16, stream));
    cuda.upload(x, &[0_u8; 8], stream);
    cuda.move_within(y, x, 16, stream);
    cuda.download(&mut [0_u8; 8], y, stream);
    eprintln!("so far, so good");
    cuda.download(&mut [0_u8; 8], y + 8, stream);
}

#[test]
fn a_read_of_unwritten_memory_is_found() {
    run("unwritten_read", &STRICT).ends_with("read of unwritten memory");
    let ended = run("partly_unwritten_read", &STRICT);
    assert!(ended.ends_with("read of unwritten memory").contains("of which 12 were ever written"));
    let ended = run("unwritten_moved", &STRICT);
    ended.ends_with("read of unwritten memory");
    assert!(ended.stderr.contains("so far, so good"), "{}", ended.stderr);
}

fn unwritten_spilled() {
    let cuda = Cuda::start();
    let stream = cuda.stream();
    let x = cuda.allocate(16, stream);
    cuda.download(cuda.pinned::<u8>(16), x, stream);
}

#[test]
fn unwritten_memory_may_move_into_pinned_memory_and_is_counted() {
    let ended = run("unwritten_spilled", &STRICT);
    ended.passes();
    assert_eq!(ended.counter("copies_unwritten_to_pinned"), 1);
}

fn freed_pinned() {
    let cuda = Cuda::start();
    let stream = cuda.stream();
    let x = cuda.allocate(16, stream);
    let host: &mut [u8] = cuda.pinned(16);
    cuda.free_pinned(host.as_mut_ptr());
    cuda.upload(x, host, stream);
}

#[test]
fn a_copy_through_freed_pinned_memory_is_found() {
    let ended = run("freed_pinned", &[]);
    assert!(ended.ends_with("use of freed pinned memory").contains("cuMemcpyHtoDAsync touches 16 bytes"));
}

fn pinned_double_free() {
    let cuda = Cuda::start();
    let host: &mut [u8] = cuda.pinned(16);
    cuda.free_pinned(host.as_mut_ptr());
    cuda.free_pinned(host.as_mut_ptr());
}

#[test]
fn a_double_free_of_pinned_memory_is_found() {
    run("pinned_double_free", &[]).ends_with("double free");
}

fn pinned_freed_early() {
    let cuda = Cuda::start();
    let stream = cuda.stream();
    let x = cuda.allocate(16, stream);
    let host: &mut [u8] = cuda.pinned(16);
    cuda.upload(x, host, stream);
    cuda.free_pinned(host.as_mut_ptr());
}

#[test]
fn pinned_memory_that_is_freed_under_a_pending_copy_is_found_where_work_is_late() {
    run("pinned_freed_early", &[("MODE", "lazy"), ("STRICT", "1")])
        .ends_with("pinned memory freed under a pending copy");
    run("pinned_freed_early", &STRICT).passes();
}

fn copy_past_pinned() {
    let cuda = Cuda::start();
    let stream = cuda.stream();
    let x = cuda.allocate(32, stream);
    let host: &mut [u8] = cuda.pinned(16);
    cuda.fill(x, 0, 32, stream);
    // SAFETY: the length is wrong on purpose; only the stand-in uses the slice.
    let longer = unsafe { std::slice::from_raw_parts_mut(host.as_mut_ptr(), 17) };
    cuda.download(longer, x, stream);
}

#[test]
fn a_copy_past_the_end_of_pinned_memory_is_found() {
    let ended = run("copy_past_pinned", &[]);
    assert!(
        ended
            .ends_with("access outside device memory")
            .contains("17 bytes at offset 0 of 16 bytes of pinned")
    );
}

fn program_touches_freed_pinned() {
    let cuda = Cuda::start();
    let host: *mut u8 = cuda.pinned(16).as_mut_ptr();
    cuda.free_pinned(host);
    // SAFETY: none; the process ends here.
    unsafe { host.write_volatile(1) }
}

#[test]
fn a_program_that_touches_freed_pinned_memory_itself_is_found() {
    run("program_touches_freed_pinned", &[]).ends_with("use of freed pinned memory");
}

fn destroyed_stream() {
    let cuda = Cuda::start();
    let stream = cuda.stream();
    cuda.destroy_stream(stream);
    assert_eq!(cuda.try_allocate(16, stream), Err(400));
}

#[test]
fn a_call_that_names_a_destroyed_stream_is_found_and_refused() {
    let ended = run("destroyed_stream", &[]);
    assert!(ended.status.success(), "{}", ended.stderr);
    assert!(ended.report.contains("\"invalid handle\":1"), "{}", ended.report);
}

fn no_blocks() {
    let cuda = Cuda::start();
    let stream = cuda.stream();
    let add = cuda.kernel(ADD, "add");
    let x = cuda.allocate(256, stream);
    let arguments = [Argument::Device(x), Argument::Float(1.0)];
    assert_eq!(cuda.try_launch(add, (0, 64, 0), stream, &arguments), INVALID_VALUE);
    assert_eq!(cuda.try_launch(add, (1, 1025, 0), stream, &arguments), INVALID_VALUE);
    assert_eq!(cuda.try_launch(add, (1, 64, (48 << 10) + 1), stream, &arguments), INVALID_VALUE);
    assert_eq!(cuda.permit_shared(add, (48 << 10) + 1), INVALID_VALUE, "of compute capability 7.0");
}

#[test]
fn a_launch_over_no_blocks_too_many_threads_or_with_much_shared_memory_is_refused() {
    if compiler_found() {
        let ended = run("no_blocks", &[]);
        assert!(ended.status.success(), "{}", ended.stderr);
        assert!(ended.report.contains("\"launch refused\":3"), "{}", ended.report);
    }
}

fn much_shared_memory() {
    let cuda = Cuda::start();
    let stream = cuda.stream();
    let add = cuda.kernel(ADD, "add");
    let x = cuda.allocate(256, stream);
    let launch = |shared: u32| {
        cuda.try_launch(add, (1, 64, shared), stream, &[Argument::Device(x), Argument::Float(1.0)])
    };
    assert_eq!(cuda.permit_shared(add, (163 << 10) + 1), INVALID_VALUE);
    assert_eq!(launch(163 << 10), INVALID_VALUE);
    assert_eq!(cuda.permit_shared(add, 163 << 10), 0);
    assert_eq!(launch(163 << 10), 0);
    assert_eq!(launch((163 << 10) + 1), INVALID_VALUE);
}

#[test]
fn a_function_may_take_as_much_shared_memory_as_the_card_has_once_it_is_permitted() {
    if compiler_found() {
        let ended = run("much_shared_memory", &[("CC", "80")]);
        assert!(ended.status.success(), "{}", ended.stderr);
        assert!(ended.report.contains("\"launch refused\":2"), "{}", ended.report);
    }
}
