//! Kernel launches: operands made resident, bindings rewritten, written buffers recorded.
//!
//! A resident launch takes no lock and reuses its lists
//! (`a_resident_launch_allocates_hardly_more_than_on_the_plain_runtime`).

use super::device::CubeDevice;
use super::inner::InnerRuntime;
use super::operands::Operands;
use super::server::OffloadServer;
use super::visibility::{RecordingCompiler, RecordingTask, Writes};
use crate::error::OffloadError;
use crate::paging::panic_message;
use cubecl_common::stream_id::StreamId;
use cubecl_core::prelude::CubeCount;
use cubecl_core::server::{ComputeServer, KernelArguments};
use cubecl_core::{CubeTask, ExecutionMode};
use pager::BlockId;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

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
        self.paging.counts().launches += 1;
        let mut named = std::mem::take(&mut self.operands);
        named.name(&mut self.device.buffers, &arguments, &count);
        let task = RecordingTask::new(kernel);
        let launched =
            self.prepare_operands(&named, &arguments, &count, task.name(), stream).and_then(|()| {
                // SAFETY: the same kernel over the same bytes, as the caller promised.
                let launched =
                    unsafe { self.device.launch_inside(&task, &named, count, arguments, mode, stream) };
                let writes = self.paging.pager().needs_writes().then(|| self.visibility.of(&task)).flatten();
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

    fn prepare_operands(
        &mut self,
        named: &Operands,
        arguments: &KernelArguments,
        count: &CubeCount,
        operation: &'static str,
        stream: StreamId,
    ) -> Result<(), Arc<OffloadError>> {
        for (named, binding) in named.with_bindings(arguments, count) {
            if let Err(error) = self.device.contents(named, binding, operation) {
                self.device.profile.not_run();
                return Err(error);
            }
        }
        if let Err(error) = self.make_resident(named.blocks(), operation) {
            self.device.profile.not_run();
            return Err(self.new_failure(Arc::new(error), stream));
        }
        self.device.wait_for_small_buffer_users(stream, stream);
        if let Err(error) = self.device.order_operands(named.blocks(), stream) {
            self.device.profile.not_run();
            return Err(self.new_failure(Arc::new(error), stream));
        }
        for (named, binding) in named.with_bindings(arguments, count) {
            self.device.order_small(named, binding, stream);
        }
        Ok(())
    }

    fn fail_outputs(&mut self, named: &Operands, writes: Option<&Writes>, error: &Arc<OffloadError>) {
        for id in named.written(writes) {
            self.device.buffers.get_mut(id).failed = Some(error.clone());
        }
        for binding in named.written_small(writes) {
            self.device.fail_small(binding, error);
        }
    }

    pub(super) fn wrote(&mut self, id: BlockId) {
        if let Err(fault) = self.paging.wrote(id) {
            self.report_fault(id, fault, "writing a buffer");
        }
    }
}

impl<R: InnerRuntime> CubeDevice<R> {
    /// # Safety
    /// As [`ComputeServer::launch`], of operands on the device.
    unsafe fn launch_inside(
        &mut self,
        task: &RecordingTask<R::Compiler>,
        named: &Operands,
        mut count: CubeCount,
        mut arguments: KernelArguments,
        mode: ExecutionMode,
        stream: StreamId,
    ) -> Result<(), OffloadError> {
        named.rewrite(&mut arguments, &mut count, |binding, named| self.make_physical(binding, named));
        let may_be_refused = !arguments.tensor_maps.is_empty() || is_empty(&count);

        let panics = self.injector.panics_in_launch();
        let inner = &mut self.inner;
        let launched = catch_unwind(AssertUnwindSafe(|| {
            assert!(!panics, "injected into {}: the runtime panics", task.kernel_id());
            // SAFETY: the bindings name the same bytes as the caller's.
            task.with_proxy(|proxy| unsafe { inner.launch(proxy, count, arguments, mode, stream) });
        }));
        let operation = || task.name().to_owned();
        if let Err(panic) = launched {
            let message = panic_message(panic.as_ref());
            return Err(OffloadError::RuntimePanic { operation: operation(), message });
        }

        // Only the stream returns a launch's error. It is checked after empty grids, tensor maps, compilations.
        if task.was_compiled() || may_be_refused {
            return R::launch_error(&mut self.inner, stream).map_or(Ok(()), |error| {
                Err(OffloadError::LaunchFailed { operation: operation(), message: error.to_string() })
            });
        }
        Ok(())
    }
}

/// CUDA refuses a grid without blocks.
fn is_empty(count: &CubeCount) -> bool {
    matches!(count, CubeCount::Static(x, y, z) if *x == 0 || *y == 0 || *z == 0)
}
