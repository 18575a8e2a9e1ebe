//! Memory pages of the CPU's tensors: kept from one tensor to the next.
//!
//! A training step takes and frees the same sizes over and over. The C library gets large ones from the system and gives them back
//! at once, and the system fills every page with zeros when it is next touched: a fifth of a step on the CPU. Told to take all
//! memory from its heap, the library finds what was just freed. Nothing that is counted changes, budgets are what they were; the
//! process keeps what its tensors have held, up to the most they ever did and a few percent; a fifth where threads have memory of their
//! own. What only the making of a model held is given back once.
//!
//! In a dry run nobody touches a tensor. Memory fresh from the system then costs nothing, and memory of the heap would be cleared.

#[cfg(all(target_os = "linux", target_env = "gnu"))]
static KEPT: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

/// Keeps freed pages from here on, where the C library is glibc; elsewhere it does nothing.
pub(crate) fn keep() {
    if std::env::var_os("OFFLOAD_DRY_RUN").is_some_and(|value| value == "1") {
        return;
    }
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // SAFETY: each sets a number in the allocator, under its lock. Both have been there as long as the library.
        unsafe {
            libc::mallopt(libc::M_MMAP_MAX, 0);
            libc::mallopt(libc::M_TRIM_THRESHOLD, i32::MAX);
        }
        KEPT.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}

/// Gives pages back to the system that were kept so far and lie idle, those between others too. Each thread takes memory from a place of
/// its own in the library, so that what one has freed serves no other.
pub fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    if KEPT.load(std::sync::atomic::Ordering::Relaxed) {
        // SAFETY: it may be called at any time and touches nothing that is in use.
        unsafe { libc::malloc_trim(0) };
    }
}
