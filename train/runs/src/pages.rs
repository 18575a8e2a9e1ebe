//! Reuse of memory pages by CPU tensors.
//!
//! By default glibc unmaps large freed allocations, and the system zeroes pages at the next use: a fifth of a training
//! step. Freed pages of the heap are reused. The process holds its tensors' peak memory and a few percent more.
//!
//! Dry runs touch no tensor memory: fresh pages cost nothing, heap memory would be cleared.

#[cfg(all(target_os = "linux", target_env = "gnu"))]
static KEPT: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

/// Keeps freed pages from this call on. Does nothing in a dry run or without glibc.
pub(crate) fn keep_freed_pages() {
    if backend_offload::dry_run_requested() {
        return;
    }
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // SAFETY: each call sets a number in the allocator, under its lock. Every glibc has both parameters.
        unsafe {
            libc::mallopt(libc::M_MMAP_MAX, 0);
            libc::mallopt(libc::M_TRIM_THRESHOLD, i32::MAX);
        }
        KEPT.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}

/// Returns idle pages to the system, as after building a model.
pub fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    if KEPT.load(std::sync::atomic::Ordering::Relaxed) {
        // SAFETY: may be called at any time; touches no memory in use.
        unsafe { libc::malloc_trim(0) };
    }
}
