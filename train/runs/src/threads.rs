//! The thread pool that tensors on the CPU are computed on, with the thread that asks for them as one of its threads.

use std::num::NonZeroUsize;
use std::thread::available_parallelism;

use rayon::ThreadPoolBuilder;

/// Number of the pool's threads: as many as `RAYON_NUM_THREADS` says, or as the system lets this process have.
pub fn count() -> usize {
    let asked = std::env::var("RAYON_NUM_THREADS").ok().and_then(|count| count.parse().ok());
    let count = asked.filter(|count| *count > 0);
    count.unwrap_or_else(|| available_parallelism().map_or(1, NonZeroUsize::get))
}

/// Makes the calling thread one of the pool's, if nobody has used the pool yet. A thread outside sleeps while the pool works for
/// it and has to be woken, which takes as long as adding up a hundred thousand numbers.
///
/// The thread takes tasks only while it waits for tasks of its own. So a pool of one thread is left as it is: nobody would do the
/// work of others.
pub(crate) fn join_pool() {
    let count = count();
    if count > 1 {
        // Refused where the pool is in use: it computes the same then.
        _ = ThreadPoolBuilder::new().num_threads(count).use_current_thread().build_global();
    }
}
