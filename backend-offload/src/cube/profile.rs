//! Timings must be of kernels, not of our copies.
//!
//! Autotune profiles each candidate a few times to warm up and ten times for the record, keeps the samples
//! that succeed, and caches its choice on disk for good. Under a budget a sample can contain copies, and a
//! candidate can be refused for lack of room. So: before a sample, room is made for what the last one brought
//! onto the device, outside the timed part. A sample during which blocks moved all the same is discarded, as
//! long as there is hope for a better one; after that it counts less the time the copies took. A refused
//! candidate succeeds with a time no real one has, because autotune panics when every candidate fails.

use super::runtime::InnerRuntime;
use super::server::OffloadServer;
use crate::journal::Event;
use cubecl_common::backtrace::BackTrace;
use cubecl_common::profile::{ProfileDuration, ProfileTicks};
use cubecl_common::stream_id::StreamId;
use cubecl_core::server::{ComputeServer, ProfileError, ProfilingToken, ServerError};
use std::time::{Duration, Instant};

/// Samples discarded in a row before moving blocks are taken as a fact of life: the three warm-up samples
/// and half of the recorded ones.
const PATIENCE: u32 = 8;

/// What a candidate that could not run is said to take.
const REFUSED: Duration = Duration::from_hours(1);

#[derive(Debug, Default)]
pub(super) struct ProfileWatch {
    samples: Vec<Sample>,
    discarded_in_a_row: u32,
    /// Bytes the last sample brought onto the device, scratch included.
    last_demand: u64,
    pub(super) discards: u64,
    /// Samples that counted less the time blocks took to move.
    pub(super) corrected: u64,
}

#[derive(Debug, Default)]
struct Sample {
    moved: Duration,
    refused: bool,
    demand: u64,
}

impl ProfileWatch {
    /// Blocks moved, for this long.
    pub(super) fn moved(&mut self, time: Duration) {
        if let Some(sample) = self.samples.last_mut() {
            sample.moved += time.max(Duration::from_nanos(1));
        }
    }

    pub(super) fn refused(&mut self) {
        if let Some(sample) = self.samples.last_mut() {
            sample.refused = true;
        }
    }

    pub(super) fn allocated(&mut self, bytes: u64) {
        if let Some(sample) = self.samples.last_mut() {
            sample.demand += bytes;
        }
    }
}

impl<R: InnerRuntime> OffloadServer<R> {
    pub(super) fn begin_sample(&mut self, stream: StreamId) -> Result<ProfilingToken, ServerError> {
        self.make_spare_room(self.profile.last_demand, stream);
        let token = self.inner.start_profile(stream)?;
        self.profile.samples.push(Sample::default());
        Ok(token)
    }

    pub(super) fn end_sample(
        &mut self,
        stream: StreamId,
        token: ProfilingToken,
    ) -> Result<ProfileDuration, ProfileError> {
        let timed = self.inner.end_profile(stream, token);
        let sample = self.profile.samples.pop().unwrap_or_default();
        self.profile.last_demand = sample.demand;
        if sample.refused {
            // The refusal is in the outputs; the candidate's own error would only be reported again.
            let _reported = self.errors_at_sync(stream, Ok(()));
            let start = Instant::now();
            return Ok(ProfileDuration::new(
                Box::pin(async move { ProfileTicks::from_start_end(start, start + REFUSED) }),
                self.utilities.properties.timing_method,
            ));
        }
        if let Err(error) = self.errors_at_sync(stream, Ok(())) {
            return Err(ProfileError::Server(Box::new(error)));
        }
        if sample.moved.is_zero() {
            self.profile.discarded_in_a_row = 0;
            return timed;
        }
        if self.profile.discarded_in_a_row < PATIENCE {
            self.profile.discarded_in_a_row += 1;
            self.profile.discards += 1;
            self.journal.record(Event::SampleDiscarded);
            drop(timed);
            return Err(ProfileError::Unknown {
                reason: "blocks moved while the sample was timed".to_owned(),
                backtrace: BackTrace::default(),
            });
        }
        self.profile.corrected += 1;
        timed.map(|timed| without(timed, sample.moved))
    }
}

/// The duration less the time spent moving blocks.
fn without(timed: ProfileDuration, moved: Duration) -> ProfileDuration {
    let method = timed.timing_method();
    let ticks = async move {
        let duration = timed.resolve().await.duration();
        let start = Instant::now();
        let left = duration.saturating_sub(moved).max(Duration::from_nanos(1));
        ProfileTicks::from_start_end(start, start + left)
    };
    ProfileDuration::new(Box::pin(ticks), method)
}
