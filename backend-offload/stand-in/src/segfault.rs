//! Segmentation faults: a kernel that leaves its memory, or a program that touches device memory or freed pinned
//! memory, is named before it ends. All other faults go to whoever handled them before.

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

/// The kernel that runs, for the handler.
#[derive(Debug)]
pub(crate) struct Suspect {
    pub(crate) kernel: String,
    /// The allocations that hold its operands.
    pub(crate) allocations: Vec<Range<u64>>,
}

static SUSPECT: AtomicPtr<Suspect> = AtomicPtr::new(ptr::null_mut());
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// Runs `work` with `suspect` as the one to name.
pub(crate) fn with_suspect(suspect: &Suspect, work: impl FnOnce()) {
    SUSPECT.store(ptr::from_ref(suspect).cast_mut(), Ordering::Relaxed);
    work();
    SUSPECT.store(ptr::null_mut(), Ordering::Relaxed);
}

pub(crate) fn install_handler() {
    let mut before = MaybeUninit::zeroed();
    // SAFETY: all-zero is a valid `sigaction`, of which handler and flags are then set.
    unsafe {
        let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
        action.sa_sigaction = handle as *const () as usize;
        // On the thread's own stack: the one that Rust sets aside for signals is too small for a report on processors that
        // save much state. A stack that has overflowed therefore ends the process without a word.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
        libc::sigaction(libc::SIGSEGV, &raw const action, before.as_mut_ptr());
        _ = BEFORE.set(before.assume_init());
    }
}

extern "C" fn handle(_signal: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: the system passes what it knows of the fault.
    let address = unsafe { (*info).si_addr() } as u64;
    // SAFETY: set while the suspect's kernel runs, which is here.
    if let Some(suspect) = unsafe { SUSPECT.load(Ordering::Relaxed).as_ref() } {
        // The interrupted code is a kernel, which holds none of the locks that a report takes.
        blame(suspect, address).report();
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
    if let Some(before) = BEFORE.get() {
        // SAFETY: puts back what was there; the faulting access is then repeated.
        unsafe { libc::sigaction(libc::SIGSEGV, ptr::from_ref(before), ptr::null_mut()) };
    }
}

fn blame(suspect: &Suspect, address: u64) -> Fault {
    let kernel = &suspect.kernel;
    let behind = suspect.allocations.iter().filter(|range| range.end <= address);
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
