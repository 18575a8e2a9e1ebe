//! Divides a build's memory, as a pure function.

use super::{self_matches, sort};
use crate::error::Error;

/// A merge holds all open.
const MOST_RUNS: u64 = 512;
/// Fewer are not worth a read.
const LEAST_BUFFERED: u64 = 64;
const MOST_BUFFERED: u64 = 1 << 16;
/// Bytes of a run's current context and position, generously.
const CURSOR_BYTES: u64 = 256;
/// Bytes of a stretch's entry, the widest read in pieces.
const WIDEST: u64 = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Budget {
    pub(super) chunk_tokens: u64,
    pub(super) runs: u64,
    /// Entries per thread and read, of each run or stretch.
    pub(super) buffered: usize,
    pub(super) range: u64,
}

impl Budget {
    pub(super) fn new(
        memory: u64,
        threads: usize,
        chunk_tokens: Option<u64>,
        entries: u64,
    ) -> Result<Self, Error> {
        let most = memory / sort::BYTES_PER_TOKEN;
        let chunk_tokens = chunk_tokens.unwrap_or(most).min(entries.max(1));
        if chunk_tokens == 0 || chunk_tokens > most {
            return refuse("tokens of a chunk", chunk_tokens, "from 1 to a twentieth of the memory's bytes");
        }
        let runs = entries.div_ceil(chunk_tokens);
        if runs > MOST_RUNS {
            return refuse("chunks", runs, "at most 512; give more memory, or more tokens to a chunk");
        }
        let share = memory / threads as u64;
        let per_cursor = (share / (runs + 1)).saturating_sub(CURSOR_BYTES);
        let buffered = (per_cursor / WIDEST).min(MOST_BUFFERED);
        if buffered < LEAST_BUFFERED {
            return refuse("memory", memory, "more bytes, fewer threads, or more tokens to a chunk");
        }
        let range = (share - buffered * WIDEST) / self_matches::BYTES_PER_POSITION;
        Ok(Self { chunk_tokens, runs, buffered: buffered as usize, range })
    }
}

fn refuse(option: &'static str, value: u64, expected: &'static str) -> Result<Budget, Error> {
    Err(Error::Option { option, value: value.to_string(), expected })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(suite::cases(256)))]

        #[test]
        fn every_step_fits_the_memory_or_is_refused(
            memory in 0u64..1 << 40, threads in 1usize..128, chunk in prop::option::of(0u64..1 << 32),
            entries in 0u64..1 << 32
        ) {
            if let Ok(budget) = Budget::new(memory, threads, chunk, entries) {
                let Budget { chunk_tokens, runs, buffered, range } = budget;
                let (threads, buffered) = (threads as u64, buffered as u64);
                prop_assert!(chunk_tokens * sort::BYTES_PER_TOKEN <= memory);
                prop_assert!(runs * chunk_tokens >= entries);
                prop_assert!(threads * runs * (buffered * 4 + CURSOR_BYTES) <= memory);
                prop_assert!(threads * (range * 8 + buffered * WIDEST) <= memory);
                prop_assert!(range > 0 && buffered > 0 && chunk_tokens > 0);
            }
        }
    }
}
