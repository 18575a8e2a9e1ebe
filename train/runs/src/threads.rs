//! The thread pool for tensors on the CPU, with the calling thread in it.

use std::num::NonZeroUsize;
use std::thread::available_parallelism;

use rayon::ThreadPoolBuilder;

/// The pool's threads: `RAYON_NUM_THREADS`, or the parallelism available.
pub fn count() -> usize {
    let asked = std::env::var("RAYON_NUM_THREADS").ok().and_then(|count| count.parse().ok());
    let count = asked.filter(|count| *count > 0);
    count.unwrap_or_else(|| available_parallelism().map_or(1, NonZeroUsize::get))
}

/// Makes the calling thread part of the pool, unless that is in use. Waking an outside thread for each operation costs
/// as much as adding a hundred thousand numbers.
///
/// A member runs tasks only while it waits for its own. So it must not be the only one, or tasks of others never run.
pub(crate) fn join_pool() {
    let count = count();
    if count > 1 {
        // Fails if the pool is in use, which changes no result.
        _ = ThreadPoolBuilder::new().num_threads(count).use_current_thread().build_global();
    }
}
