//! Kernel launches: makes operands resident, rewrites bindings and records the buffers that the kernel wrote.
//!
//! A launch whose operands are resident takes no lock of this crate and reuses its lists
//! (`a_resident_launch_allocates_hardly_more_than_on_the_plain_runtime`). It reads the clock only in a watched step.

use super::runtime::InnerRuntime;
use super::server::OffloadServer;
use super::table::{Named, Table};
use super::visibility::{RecordingCompiler, RecordingTask, Writes};
use crate::error::OffloadError;
use crate::report::panic_message;
use cubecl_common::stream_id::StreamId;
use cubecl_core::prelude::CubeCount;
use cubecl_core::server::{Binding, ComputeServer, KernelArguments};
use cubecl_core::{CubeTask, ExecutionMode};
use pager::BlockId;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The buffers that a launch names. Reused from launch to launch, so that the lists are not allocated again.
#[derive(Default)]
pub(super) struct Operands {
    buffers: Vec<Named>,
    maps: Vec<Named>,
    count: Option<Named>,
    blocks: Vec<BlockId>,
    /// The small buffers, kept because the runtime takes the arguments with it if it panics.
    small: Vec<(usize, Binding)>,
}

impl Operands {
    fn name(&mut self, table: &mut Table, arguments: &KernelArguments, count: &CubeCount) {
        for (n, binding) in arguments.buffers.iter().enumerate() {
            let named = table.name(binding);
            self.buffers.push(named);
            if named == Named::Small {
                self.small.push((n, binding.clone()));
            }
        }
        self.maps.extend(arguments.tensor_maps.iter().map(|map| table.name(&map.binding)));
        if let CubeCount::Dynamic(binding) = count {
            self.count = Some(table.name(binding));
        }
        let named = self.buffers.iter().chain(&self.maps).chain(&self.count);
        self.blocks.extend(named.filter_map(|named| named.block()));
    }

    fn clear(&mut self) {
        self.buffers.clear();
        self.maps.clear();
        self.count = None;
        self.blocks.clear();
        self.small.clear();
    }

    /// Every buffer with the binding that names it.
    fn with_bindings<'a>(
        &'a self,
        arguments: &'a KernelArguments,
        count: &'a CubeCount,
    ) -> impl Iterator<Item = (Named, &'a Binding)> {
        let dynamic = match count {
            CubeCount::Dynamic(binding) => Some(binding),
            CubeCount::Static(..) => None,
        };
        let buffers = self.buffers.iter().zip(&arguments.buffers);
        let maps = self.maps.iter().zip(arguments.tensor_maps.iter().map(|map| &map.binding));
        buffers.chain(maps).chain(self.count.iter().zip(dynamic)).map(|(named, binding)| (*named, binding))
    }

    /// The buffers that a kernel with these `writes` changes; all of them if `writes` is unknown.
    fn written<'a>(&'a self, writes: Option<&'a Writes>) -> impl Iterator<Item = BlockId> + 'a {
        let buffers = self.buffers.iter().enumerate().filter(move |(n, _)| is_written(writes, *n));
        buffers.map(|(_, named)| named).chain(&self.maps).filter_map(|named| named.block())
    }
}

impl<R: InnerRuntime> OffloadServer<R> {
    /// # Safety
    /// As [`ComputeServer::launch`].
    pub(super) unsafe fn launch_kernel(
        &mut self,
        kernel: Box<dyn CubeTask<RecordingCompiler<R::Compiler>>>,
        count: CubeCount,
        arguments: KernelArguments,
        mode: ExecutionMode,
        stream: StreamId,
    ) {
        self.enter(stream);
        self.counts.launches += 1;
        let mut named = std::mem::take(&mut self.operands);
        named.name(&mut self.table, &arguments, &count);
        let task = RecordingTask::new(kernel);
        let launched =
            self.prepare_operands(&named, &arguments, &count, task.name(), stream).and_then(|()| {
                // SAFETY: the same kernel over the same bytes, wherever they are; the caller's promise holds.
                let launched = unsafe { self.launch_inside(&task, &named, count, arguments, mode, stream) };
                let writes = self.pager.minds_writes().then(|| self.visibility.of(&task)).flatten();
                named.written(writes.as_ref()).for_each(|id| self.wrote(id));
                launched.map_err(|error| self.new_failure(Arc::new(error), stream))
            });
        if let Err(error) = launched {
            let writes = self.visibility.of(&task);
            self.fail_outputs(&named, writes.as_ref(), &error);
        }
        named.clear();
        self.operands = named;
    }

    /// Makes the operands resident and orders the launch after all other work on them.
    fn prepare_operands(
        &mut self,
        named: &Operands,
        arguments: &KernelArguments,
        count: &CubeCount,
        operation: &'static str,
        stream: StreamId,
    ) -> Result<(), Arc<OffloadError>> {
        for (named, binding) in named.with_bindings(arguments, count) {
            if let Err(error) = self.contents(named, binding, operation) {
                self.profile.not_run();
                return Err(error);
            }
        }
        if let Err(error) = self.make_resident(&named.blocks, operation) {
            self.profile.not_run();
            return Err(self.new_failure(Arc::new(error), stream));
        }
        self.wait_for_small_buffer_users(stream, stream);
        self.order_operands(&named.blocks, stream);
        for (named, binding) in named.with_bindings(arguments, count) {
            self.order_small(named, binding, stream);
        }
        Ok(())
    }

    /// # Safety
    /// As [`ComputeServer::launch`], of operands that are on the device.
    unsafe fn launch_inside(
        &mut self,
        task: &RecordingTask<R::Compiler>,
        named: &Operands,
        mut count: CubeCount,
        mut arguments: KernelArguments,
        mode: ExecutionMode,
        stream: StreamId,
    ) -> Result<(), OffloadError> {
        for (binding, named) in arguments.buffers.iter_mut().zip(&named.buffers) {
            self.make_physical(binding, *named);
        }
        for (map, named) in arguments.tensor_maps.iter_mut().zip(&named.maps) {
            self.make_physical(&mut map.binding, *named);
        }
        let may_be_refused = !arguments.tensor_maps.is_empty() || is_empty(&count);
        if let (CubeCount::Dynamic(binding), Some(named)) = (&mut count, named.count) {
            self.make_physical(binding, named);
        }

        let panics = self.injector.panics_in_launch();
        let inner = &mut self.inner;
        let launched = catch_unwind(AssertUnwindSafe(|| {
            assert!(!panics, "injected into {}: the runtime panics", task.kernel_id());
            // SAFETY: the bindings name the same bytes as the caller's; its promise about the kernel holds.
            task.with_proxy(|proxy| unsafe { inner.launch(proxy, count, arguments, mode, stream) });
        }));
        let operation = || task.name().to_owned();
        if let Err(panic) = launched {
            let message = panic_message(panic.as_ref());
            return Err(OffloadError::RuntimePanic { operation: operation(), message });
        }

        // A launch returns no error; its stream does. The stream is checked only where a launch can fail: after a
        // compilation (a kernel that failed to compile is compiled again each time), or with an empty grid or tensor
        // maps.
        if task.was_compiled() || may_be_refused {
            return self.inner.flush(stream).map_err(|error| OffloadError::LaunchFailed {
                operation: operation(),
                message: error.to_string(),
            });
        }
        Ok(())
    }

    /// An error if the buffer's contents are missing or failed.
    pub(super) fn contents(
        &self,
        named: Named,
        binding: &Binding,
        operation: &str,
    ) -> Result<(), Arc<OffloadError>> {
        let failed = match named {
            Named::Block(id) => self.table.get(id).failed.clone(),
            Named::Small => self.failures.small.of(binding),
            Named::Unknown => Some(Arc::new(OffloadError::UnknownBuffer { operation: operation.to_owned() })),
        };
        failed.map_or(Ok(()), Err)
    }

    /// Marks the outputs of a launch that did not run as failed; all buffers if `writes` is unknown.
    fn fail_outputs(&mut self, named: &Operands, writes: Option<&Writes>, error: &Arc<OffloadError>) {
        for id in named.written(writes) {
            self.table.get_mut(id).failed = Some(error.clone());
        }
        for (_, binding) in named.small.iter().filter(|(n, _)| is_written(writes, *n)) {
            self.fail_small(binding, error);
        }
    }

    pub(super) fn wrote(&mut self, id: BlockId) {
        match self.pager.wrote(id) {
            Ok(stale) if stale.is_empty() => {}
            Ok(_) => self.tiers.remove(id),
            Err(fault) => self.report_fault(id, fault, "writing a buffer"),
        }
    }

    /// Rewrites the binding to the runtime's own. Its buffer is on the device.
    pub(super) fn make_physical(&self, binding: &mut Binding, named: Named) {
        if let Named::Block(id) = named {
            let buffer = self.table.get(id);
            binding.memory = buffer.device.clone().expect("made resident before").binding();
            binding.stream = buffer.stream;
        }
    }
}

fn is_written(writes: Option<&Writes>, buffer: usize) -> bool {
    writes.and_then(|writes| writes.get(buffer).copied()).unwrap_or(true)
}

/// CUDA refuses a grid without blocks.
fn is_empty(count: &CubeCount) -> bool {
    matches!(count, CubeCount::Static(x, y, z) if *x == 0 || *y == 0 || *z == 0)
}
