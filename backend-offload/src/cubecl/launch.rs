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
use cubecl_runtime::validation::{validate_cube_dim, validate_units};
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
        let utilities = ComputeServer::utilities(&self.inner);
        let properties = &utilities.properties;
        let may_be_refused = self.caches_kernels
            || !arguments.tensor_maps.is_empty()
            || may_refuse_count(&count, properties.hardware.max_cube_count)
            || validate_cube_dim(properties, task.kernel_id()).is_err()
            || validate_units(properties, task.kernel_id()).is_err();

        let panics = self.injector.panics_in_launch();
        let inner = &mut self.inner;
        let launched = catch_unwind(AssertUnwindSafe(|| {
            assert!(!panics, "injected into {}: the runtime panics", task.kernel_id());
            // SAFETY: the bindings name the same bytes as the caller's.
            task.with_proxy(|proxy| unsafe { inner.launch(proxy, count, arguments, mode, stream) });
            // Only the stream returns a launch's error, and a query takes time.
            if may_be_refused || task.was_compiled() { R::launch_error(inner, stream) } else { None }
        }));
        let operation = || task.name().to_owned();
        match launched {
            Err(panic) => {
                let message = panic_message(panic.as_ref());
                Err(OffloadError::RuntimePanic { operation: operation(), message })
            }
            Ok(Some(error)) => {
                Err(OffloadError::LaunchFailed { operation: operation(), message: error.to_string() })
            }
            Ok(None) => Ok(()),
        }
    }
}

/// Whether the launch of a compiled kernel may fail: CUDA refuses a grid without blocks or beyond `most`. It reads a dynamic
/// count at the launch.
fn may_refuse_count(count: &CubeCount, most: (u32, u32, u32)) -> bool {
    let CubeCount::Static(x, y, z) = *count else { return true };
    let fits = (1..=most.0).contains(&x) && (1..=most.1).contains(&y) && (1..=most.2).contains(&z);
    !fits
}
