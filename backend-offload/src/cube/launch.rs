//! Kernel launches.

use super::runtime::InnerRuntime;
use super::server::OffloadServer;
use super::table::Named;
use super::visibility::{NotingCompiler, NotingTask, Writes};
use crate::error::OffloadError;
use crate::journal::Event;
use crate::pager::BlockId;
use crate::report::panic_message;
use cubecl_common::stream_id::StreamId;
use cubecl_core::prelude::CubeCount;
use cubecl_core::server::{Binding, ComputeServer, KernelArguments, TensorMapBinding};
use cubecl_core::{CubeTask, ExecutionMode};
use cubecl_runtime::kernel::KernelMetadata;
use cubecl_runtime::memory_management::ManagedMemoryBinding;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// What a launch names.
struct Operands {
    buffers: Vec<Named>,
    maps: Vec<Named>,
    count: Named,
    /// The small ones among `buffers`, kept for the case that the runtime panics with the arguments in hand.
    small: Vec<(usize, ManagedMemoryBinding)>,
}

impl<R: InnerRuntime> OffloadServer<R> {
    /// # Safety
    /// As [`ComputeServer::launch`].
    pub(super) unsafe fn launch_kernel(
        &mut self,
        kernel: Box<dyn CubeTask<NotingCompiler<R::Compiler>>>,
        count: CubeCount,
        arguments: KernelArguments,
        mode: ExecutionMode,
        stream: StreamId,
    ) {
        self.arenas.enter(stream, &mut self.inner);
        self.launches += 1;
        let name = short(kernel.name());
        let task = Box::new(NotingTask::new(kernel, &self.visibility));
        let named = self.name_all(&arguments, &count);
        let ready = self.inherited_failure(&named, &arguments, &count, name).and_then(|()| {
            let operands = std::mem::take(&mut self.operands);
            let resident = self.make_resident(&operands, stream, name).map_err(Arc::new);
            self.operands = operands;
            resident.map_err(|error| self.new_failure(error, stream))
        });
        if let Err(error) = ready {
            let writes = self.visibility.of(&task);
            self.fail_outputs(&named, writes.as_ref(), &error);
            return;
        }
        // Without a clean operand nothing depends on which ones are written.
        let writes =
            self.operands.iter().any(|id| self.pager.is_clean(*id)).then(|| self.visibility.of(&task));

        let arguments = self.rewrite(arguments, &named);
        let count = match count {
            CubeCount::Dynamic(binding) => CubeCount::Dynamic(self.physical(binding, named.count.block())),
            CubeCount::Static(x, y, z) => CubeCount::Static(x, y, z),
        };
        // The task is gone should the runtime panic; its id still tells what the outputs were.
        let kernel_id = task.id_cell();
        #[cfg(feature = "test-util")]
        let panics = self.fault_launches.strikes(self.settings.faults.panic_in_launch_every);
        let inner = &mut self.inner;
        let launched = catch_unwind(AssertUnwindSafe(|| {
            #[cfg(feature = "test-util")]
            assert!(!panics, "injected into {}: the runtime panics", task.id());
            // SAFETY: the bindings name the same bytes as the caller's; its promise about the kernel holds.
            unsafe { inner.launch(task, count, arguments, mode, stream) };
        }));
        self.mark_written(&named, writes.flatten().as_ref());
        if let Err(panic) = launched {
            let message = panic_message(panic.as_ref());
            let error = OffloadError::RuntimePanic { operation: name.to_owned(), message };
            let error = self.new_failure(Arc::new(error), stream);
            let writes = kernel_id.get().and_then(|id| self.visibility.known(id));
            self.fail_outputs(&named, writes.as_ref(), &error);
        }
    }

    fn name_all(&mut self, arguments: &KernelArguments, count: &CubeCount) -> Operands {
        let buffers: Vec<_> = arguments.buffers.iter().map(|b| self.table.name(b)).collect();
        let maps: Vec<_> = arguments.tensor_maps.iter().map(|m| self.table.name(&m.binding)).collect();
        let count = match count {
            CubeCount::Dynamic(binding) => self.table.name(binding),
            CubeCount::Static(..) => Named::Small,
        };
        self.operands.clear();
        self.operands.extend(buffers.iter().chain(&maps).chain([&count]).filter_map(|named| named.block()));
        let small = buffers.iter().zip(&arguments.buffers).enumerate();
        let small = small
            .filter(|(_, (named, _))| **named == Named::Small)
            .map(|(n, (_, binding))| (n, binding.memory.clone()))
            .collect();
        Operands { buffers, maps, count, small }
    }

    /// An operation over a failed buffer fails with the same error.
    fn inherited_failure(
        &self,
        named: &Operands,
        arguments: &KernelArguments,
        count: &CubeCount,
        operation: &str,
    ) -> Result<(), Arc<OffloadError>> {
        let buffers = named.buffers.iter().zip(&arguments.buffers);
        let maps = named.maps.iter().zip(arguments.tensor_maps.iter().map(|map| &map.binding));
        for (named, binding) in buffers.chain(maps) {
            self.contents(*named, binding, operation)?;
        }
        match count {
            CubeCount::Dynamic(binding) => self.contents(named.count, binding, operation),
            CubeCount::Static(..) => Ok(()),
        }
    }

    /// Whether a buffer has contents that can be trusted.
    pub(super) fn contents(
        &self,
        named: Named,
        binding: &Binding,
        operation: &str,
    ) -> Result<(), Arc<OffloadError>> {
        let failed = match named {
            Named::Block(id) => self.table.get(id).failed.clone(),
            Named::Small => self.failures.small(binding),
            Named::Nobody => Some(Arc::new(OffloadError::UnknownBuffer { operation: operation.to_owned() })),
        };
        failed.map_or(Ok(()), Err)
    }

    /// Counts and reports an error that starts here, as opposed to one passed on from operand to output.
    pub(super) fn new_failure(&mut self, error: Arc<OffloadError>, stream: StreamId) -> Arc<OffloadError> {
        self.failures.count += 1;
        self.failures.report(self.arenas.of(stream), &error);
        self.journal.record(Event::Failed { error: error.to_string() });
        error
    }

    /// Marks what a launch that did not run would have written; everything, if that is unknown.
    fn fail_outputs(&mut self, named: &Operands, writes: Option<&Writes>, error: &Arc<OffloadError>) {
        self.profile.refused();
        let buffers = named.buffers.iter().enumerate().filter(|(n, _)| is_written(writes, *n));
        for id in buffers.map(|(_, named)| named).chain(&named.maps).filter_map(|named| named.block()) {
            self.table.get_mut(id).failed = Some(error.clone());
        }
        for (_, binding) in named.small.iter().filter(|(n, _)| is_written(writes, *n)) {
            self.failures.mark_small(binding, error);
        }
    }

    fn mark_written(&mut self, named: &Operands, writes: Option<&Writes>) {
        let buffers = named.buffers.iter().enumerate().filter(|(n, _)| is_written(writes, *n));
        for named in buffers.map(|(_, named)| named).chain(&named.maps) {
            if let Some(id) = named.block() {
                self.wrote(id);
            }
        }
    }

    pub(super) fn wrote(&mut self, id: BlockId) {
        if self.pager.wrote(id) {
            let buffer = self.table.get_mut(id);
            buffer.host = None;
            buffer.checksum = None;
        }
    }

    fn rewrite(&self, arguments: KernelArguments, named: &Operands) -> KernelArguments {
        let KernelArguments { buffers, info, tensor_maps } = arguments;
        let buffers = buffers.into_iter().zip(&named.buffers);
        let maps = tensor_maps.into_iter().zip(&named.maps);
        KernelArguments {
            buffers: buffers.map(|(binding, named)| self.physical(binding, named.block())).collect(),
            info,
            tensor_maps: maps
                .map(|(map, named)| TensorMapBinding {
                    binding: self.physical(map.binding, named.block()),
                    map: map.map,
                })
                .collect(),
        }
    }
}

fn is_written(writes: Option<&Writes>, buffer: usize) -> bool {
    writes.and_then(|writes| writes.get(buffer).copied()).unwrap_or(true)
}

/// The last part of a type's name, without its parameters: kernels are named by types of many lines.
fn short(type_name: &'static str) -> &'static str {
    let plain = type_name.split('<').next().unwrap_or(type_name);
    plain.rsplit("::").next().unwrap_or(plain)
}
