//! Stack switching on x86-64: callee-saved registers are on the suspended stack.

use std::{arch::naked_asm, ffi::c_void, ptr};

/// Stores the caller's stack pointer in `from`, and continues at `to`.
///
/// # Safety
/// `to` must come from [`prepare`] or from an earlier switch, and that stack must not be in use.
#[unsafe(naked)]
pub(super) unsafe extern "sysv64" fn switch(from: *mut *mut c_void, to: *mut c_void) {
    naked_asm!(
        "push rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "mov [rdi], rsp",
        "mov rsp, rsi",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret",
    )
}

/// A stack whose first switch calls `main`. `top` must be the aligned end of a writable stack.
pub(super) fn prepare(top: *mut c_void, main: extern "C" fn() -> !) -> *mut c_void {
    // Six registers, the return address, and padding that aligns `main`'s frame.
    let frame: [*const c_void; 8] = {
        let mut frame = [ptr::null(); 8];
        frame[6] = main as *const c_void;
        frame
    };
    let start = top.cast::<[*const c_void; 8]>().wrapping_sub(1);
    // SAFETY: within the stack, as the caller promises.
    unsafe { start.write(frame) };
    start.cast()
}
