//! The device of an offloading server: the runtime's server, its buffers, and the order of work.
//!
//! [`Paging`](crate::paging::Paging) drives it through [`Device`](crate::paging::Device); see
//! [`movement`](super::movement).

use super::copies::Copies;
use super::failures::Failures;
use super::inner::InnerRuntime;
use super::profile::ProfileWatch;
use super::streams::Streams;
use super::table::{Named, Table};
use crate::error::OffloadError;
use crate::faults::Injector;
use crate::registry::Settings;
use crate::tiers::StagingSource;
use cubecl_common::device::DeviceId;
use cubecl_core::server::{Binding, ComputeServer};
use cubecl_runtime::config::{CubeClRuntimeConfig, RuntimeConfig};
use std::sync::Arc;

pub(super) struct CubeDevice<R: InnerRuntime> {
    pub(super) inner: R::Server,
    pub(super) id: DeviceId,
    pub(super) settings: Settings,
    pub(super) buffers: Table,
    pub(super) streams: Streams,
    pub(super) copies: Copies<R>,
    pub(super) failures: Failures,
    pub(super) profile: ProfileWatch,
    pub(super) injector: Injector,
    /// Kernels may come from CubeCL's cache on a disk, and fail to load without being compiled.
    pub(super) caches_kernels: bool,
}

impl<R: InnerRuntime> CubeDevice<R> {
    pub(super) fn new(inner: R::Server, id: DeviceId, settings: Settings) -> Self {
        let logger = ComputeServer::utilities(&inner).logger.clone();
        Self {
            inner,
            id,
            buffers: Table::new(logger, settings.smallest_block),
            streams: Streams::new(),
            copies: Copies::new(StagingSource::new(settings.paging.host.clone(), R::slabs())),
            failures: Failures::default(),
            profile: ProfileWatch::default(),
            injector: settings.injector,
            caches_kernels: CubeClRuntimeConfig::get().compilation.cache.is_some(),
            settings,
        }
    }

    pub(super) fn contents(
        &self,
        named: Named,
        binding: &Binding,
        operation: &str,
    ) -> Result<(), Arc<OffloadError>> {
        let failed = match named {
            Named::Block(id) => self.buffers.get(id).failed.clone(),
            Named::Small => self.failures.small.of(binding),
            Named::Unknown => Some(Arc::new(OffloadError::UnknownBuffer { operation: operation.to_owned() })),
        };
        failed.map_or(Ok(()), Err)
    }

    pub(super) fn make_physical(&self, binding: &mut Binding, named: Named) {
        if let Named::Block(id) = named {
            let buffer = self.buffers.get(id);
            binding.memory = buffer.device.clone().expect("made resident before").binding();
            binding.stream = buffer.stream;
        }
    }
}
