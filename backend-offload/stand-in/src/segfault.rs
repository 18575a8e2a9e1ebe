//! Segmentation faults of kernels, and of programs that touch device or freed pinned memory. Others go to the previous
//! handler.

use std::{
    ffi::{c_int, c_void},
    mem::MaybeUninit,
    ops::Range,
    ptr,
    sync::{
        OnceLock,
        atomic::{AtomicPtr, Ordering},
    },
};

use crate::{
    findings::{Fault, Finding},
    memory::{Owner, owner_of},
};

#[derive(Debug)]
pub(crate) struct RunningKernel {
    pub(crate) kernel: String,
    pub(crate) allocations: Vec<Range<u64>>,
}

static RUNNING: AtomicPtr<RunningKernel> = AtomicPtr::new(ptr::null_mut());
static PREVIOUS_HANDLER: OnceLock<libc::sigaction> = OnceLock::new();

pub(crate) fn with_running_kernel(running: &RunningKernel, work: impl FnOnce()) {
    RUNNING.store(ptr::from_ref(running).cast_mut(), Ordering::Relaxed);
    work();
    RUNNING.store(ptr::null_mut(), Ordering::Relaxed);
}

pub(crate) fn install_handler() {
    let mut previous = MaybeUninit::zeroed();
    // SAFETY: all-zero is a valid `sigaction`.
    unsafe {
        let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
        action.sa_sigaction = handle as *const () as usize;
        // Rust's signal stack may be too small for a report. So a stack overflow ends the process without a message.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
        libc::sigaction(libc::SIGSEGV, &raw const action, previous.as_mut_ptr());
        _ = PREVIOUS_HANDLER.set(previous.assume_init());
    }
}

extern "C" fn handle(_signal: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: the system passes a valid description of the fault.
    let address = unsafe { (*info).si_addr() } as u64;
    // SAFETY: set while the kernel runs, and this is within it.
    if let Some(running) = unsafe { RUNNING.load(Ordering::Relaxed).as_ref() } {
        // A kernel holds none of a report's locks.
        describe_fault(running, address).report();
        std::process::abort();
    }
    match owner_of(address) {
        Some(Owner::Device) => {
            let circumstances = format!("the program itself touches device memory at {address:#x}");
            Fault::new(Finding::OutsideMemory, circumstances).report();
        }
        Some(Owner::Pinned) => {
            let circumstances = format!("the program itself touches freed pinned memory at {address:#x}");
            Fault::new(Finding::FreedPinned, circumstances).report();
        }
        None => {}
    }
    if let Some(previous) = PREVIOUS_HANDLER.get() {
        // SAFETY: restores the previous handler; the access then faults again.
        unsafe { libc::sigaction(libc::SIGSEGV, ptr::from_ref(previous), ptr::null_mut()) };
    }
}

fn describe_fault(running: &RunningKernel, address: u64) -> Fault {
    let kernel = &running.kernel;
    let behind = running.allocations.iter().filter(|range| range.end <= address);
    let nearest =
        behind.min_by_key(|range| address - range.end).filter(|range| address - range.end < 1 << 20);
    let circumstances = match nearest {
        Some(range) => format!(
            "kernel {kernel} touches the byte at offset {} of an allocation of {} bytes",
            address - range.start,
            range.end - range.start
        ),
        None => format!("kernel {kernel} touches {address:#x}, where no memory of its operands is"),
    };
    Fault::new(Finding::OutsideMemory, circumstances)
}
