//! Autotune's samples: room before, a verdict after.

use super::{Before, MAX_CHECKS, Sample, Verdict};
use crate::cubecl::device::CubeDevice;
use crate::cubecl::inner::InnerRuntime;
use crate::cubecl::server::OffloadServer;
use crate::cubecl::unmeasured::{self, UNMEASURED};
use crate::error::OffloadError;
use crate::journal::{Event, TARGET};
use cubecl_common::backtrace::BackTrace;
use cubecl_common::profile::{ProfileDuration, ProfileTicks};
use cubecl_common::stream_id::StreamId;
use cubecl_core::server::{ComputeServer, ProfileError, ProfilingToken, ServerError};
use cubecl_runtime::config::{CubeClRuntimeConfig, RuntimeConfig};
use std::panic::catch_unwind;
use std::time::Instant;

impl<R: InnerRuntime> OffloadServer<R> {
    pub(in crate::cubecl) fn begin_sample(
        &mut self,
        stream: StreamId,
    ) -> Result<ProfilingToken, ServerError> {
        if self.device.profile.needs_no_sample() {
            let reason = "the candidate cannot be timed within the device budget".to_owned();
            return Err(ServerError::Generic { reason, backtrace: BackTrace::default() });
        }
        self.prepare_sample(stream);
        self.device.copies.wait_for_all();
        let token = self.device.inner.start_profile(stream)?;
        let failed =
            self.device.buffers.rows_mut().filter(|row| row.failed.is_some()).map(|row| row.block).collect();
        let before = Before {
            failed,
            small: self.device.failures.small.clone(),
            failures: self.paging.counts().failures,
        };
        self.device.profile.samples.push(Sample { before, ..Sample::default() });
        Ok(token)
    }

    /// Loads the last sample's surviving operands, with room for its other memory.
    fn prepare_sample(&mut self, stream: StreamId) {
        let candidate = self.device.profile.candidate();
        let named = std::mem::take(&mut candidate.operands);
        let took = std::mem::take(&mut candidate.took);
        if named.is_empty() {
            return;
        }

        self.sweep();
        let mut operands: Vec<_> = named.into_iter().filter(|id| self.device.buffers.holds(*id)).collect();
        operands.sort_unstable();
        let bytes: u64 =
            took.iter().filter(|(id, _)| !self.device.buffers.holds(*id)).map(|(_, bytes)| bytes).sum();

        let arrived = self.paging.pager().counters().link.bytes_in;
        let ledger = self.paging.pager().ledger();
        let short = bytes > ledger.spare() && ledger.budget().allows(bytes);
        self.paging.bring_ahead(&mut self.device, &operands);
        if short {
            let arena = self.device.streams.arena(stream);
            self.paging.make_room(&mut self.device, bytes, arena);
        }

        if self.paging.pager().counters().link.bytes_in != arrived {
            let mut streams: Vec<_> = operands.iter().map(|id| self.device.buffers.get(*id).stream).collect();
            streams.sort_unstable();
            streams.dedup();
            for stream in streams {
                self.device.wait_for_stream(stream);
            }
        }
    }

    pub(in crate::cubecl) fn end_sample(
        &mut self,
        stream: StreamId,
        token: ProfilingToken,
    ) -> Result<ProfileDuration, ProfileError> {
        let timed = self.device.inner.end_profile(stream, token);
        let mut sample = self.device.profile.samples.pop().unwrap_or_default();
        self.undo_failures(std::mem::take(&mut sample.before));

        let reported = self.device.errors_at_sync(stream, Ok(()));
        let not_run = sample.not_run;
        let verdict = self.device.profile.judge(sample);
        if let (Err(error), false) = (reported, not_run) {
            return Err(ProfileError::Server(Box::new(error)));
        }

        match verdict {
            Verdict::Counts => timed,
            Verdict::Lost => {
                self.device.profile.discards += 1;
                self.paging.record(Event::SampleDiscarded);
                Err(ProfileError::Unknown {
                    reason: "blocks moved while the sample was timed".to_owned(),
                    backtrace: BackTrace::default(),
                })
            }
            Verdict::Unmeasured => {
                if self.device.profile.unmeasured == 0 {
                    tracing::warn!(
                        target: TARGET,
                        "a candidate of autotune does not fit in the device budget and was not timed: without a limit \
                         another kernel may be chosen, which rounds differently; tune once without a limit to keep \
                         its choice"
                    );
                }
                self.device.profile.unmeasured += 1;
                self.device.profile.owed = Some((stream, MAX_CHECKS));
                let start = Instant::now();
                Ok(ProfileDuration::new(
                    Box::pin(async move { ProfileTicks::from_start_end(start, start + UNMEASURED) }),
                    self.utilities.properties.timing_method,
                ))
            }
        }
    }

    fn undo_failures(&mut self, before: Before) {
        for row in self.device.buffers.rows_mut() {
            let too_large = matches!(row.failed.as_deref(), Some(OffloadError::BufferTooLarge { .. }));
            if !too_large && !before.failed.contains(&row.block) {
                row.failed = None;
            }
        }
        self.device.failures.small = before.small;
        self.paging.counts().failures = before.failures;
    }

    /// Keeps [`UNMEASURED`] times off the disk, for one comparison per launch.
    pub(in crate::cubecl) fn remove_unmeasured_times(&mut self, stream: StreamId) {
        let Some((owing, looks)) = self.device.profile.owed else { return };
        if owing == stream && self.device.profile.samples.is_empty() {
            self.device.profile.owed = (looks > 1).then_some((owing, looks - 1));
            self.device.remove_unmeasured();
        }
    }
}

impl<R: InnerRuntime> CubeDevice<R> {
    pub(in crate::cubecl) fn remove_unmeasured(&self) {
        // CubeCL panics if the user has no folder for its files.
        let root = catch_unwind(|| CubeClRuntimeConfig::get().autotune.cache.root());
        if let Ok(root) = root {
            unmeasured::remove_lines(&root, self.id);
        }
    }
}
