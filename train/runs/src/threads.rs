//! The thread pool for tensors on the CPU, which includes the calling thread.

use std::num::NonZeroUsize;
use std::thread::available_parallelism;

use rayon::ThreadPoolBuilder;

/// Number of the pool's threads: `RAYON_NUM_THREADS`, or the parallelism available to this process.
pub fn count() -> usize {
    let asked = std::env::var("RAYON_NUM_THREADS").ok().and_then(|count| count.parse().ok());
    let count = asked.filter(|count| *count > 0);
    count.unwrap_or_else(|| available_parallelism().map_or(1, NonZeroUsize::get))
}

/// Makes the calling thread part of the pool, unless that is in use already. A thread outside sleeps during each
/// operation, and waking it takes as long as adding a hundred thousand numbers.
///
/// The thread runs tasks only while it waits for its own. So it must not be the only one of the pool, or no thread
/// would run the tasks of others.
pub(crate) fn join_pool() {
    let count = count();
    if count > 1 {
        // Fails if the pool is in use; it computes the same results.
        _ = ThreadPoolBuilder::new().num_threads(count).use_current_thread().build_global();
    }
}
