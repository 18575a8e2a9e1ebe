//! The thread pool for CPU tensors.

use std::num::NonZeroUsize;
use std::thread::available_parallelism;

use rayon::ThreadPoolBuilder;

/// Pool threads: `RAYON_NUM_THREADS`, or the parallelism available.
pub fn count() -> usize {
    let asked = std::env::var("RAYON_NUM_THREADS").ok().and_then(|count| count.parse().ok());
    let count = asked.filter(|count| *count > 0);
    count.unwrap_or_else(|| available_parallelism().map_or(1, NonZeroUsize::get))
}

/// Adds the calling thread to the pool, unless that is in use. Waking an outside thread costs as much as adding a
/// hundred thousand numbers.
///
/// A member runs tasks only while it waits for its own: alone, it would starve others.
pub(crate) fn join_pool() {
    let count = count();
    if count > 1 {
        // Fails if the pool is in use, which changes no result.
        _ = ThreadPoolBuilder::new().num_threads(count).use_current_thread().build_global();
    }
}
