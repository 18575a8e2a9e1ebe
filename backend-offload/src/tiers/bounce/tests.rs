//! Disks on a kernel without `io_uring`.

use super::super::lines::Lines;
use super::carriers::ring_or_warning;
use super::*;
use std::sync::Once;

/// Makes the kernel refuse rings to this thread, as in containers.
fn refuse_rings() {
    let filter = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut program = [
        filter(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        filter(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_io_uring_setup as u32),
        filter(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        filter(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the program outlives the call, which changes no memory.
    let refused = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    };
    assert!(refused, "{}", io::Error::last_os_error());
}

#[test]
fn a_kernel_without_rings_is_reported_once() {
    let lines = Lines::default();
    let subscriber = lines.clone();
    let refused = std::thread::spawn(move || {
        refuse_rings();
        let warned = Once::new();
        let memory = Memory::zeroed(BUFFERS, ALIGNMENT as usize);
        let open = || ring_or_warning(Ring::open(memory.whole()), &warned).is_none();
        tracing::subscriber::with_default(subscriber, || open() && open())
    });
    assert!(refused.join().expect("no panic"), "the kernel gave a ring");
    let lines = lines.recorded();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].starts_with("WARN: no io_uring (Operation not permitted"), "{lines:?}");
}
