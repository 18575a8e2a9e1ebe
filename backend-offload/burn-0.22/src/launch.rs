//! Kernel launches: operands made resident, bindings rewritten, written buffers recorded.

use backend_offload::adapter::pager::BlockId;
use cubecl_environment::stream::StreamId;
use cubecl_runtime::kernel::{BufferIOAttr, CubeKernel};
use cubecl_runtime::server::{
    BufferBinding, CubeCount, KernelArguments, KernelResource, ServerError, ServerStorage,
};

use crate::failures::server_error;
use crate::release::LaunchMode;
use crate::server::OffloadServer;

/// Reused by every launch, to allocate its lists once.
#[derive(Default)]
pub(crate) struct Operands {
    named: Vec<Option<BlockId>>,
    blocks: Vec<BlockId>,
    written: Vec<BlockId>,
}

impl Operands {
    fn clear(&mut self) {
        self.named.clear();
        self.blocks.clear();
        self.written.clear();
    }
}

fn binding(resource: &mut KernelResource) -> &mut BufferBinding {
    match resource {
        KernelResource::Buffer(binding) => binding,
        KernelResource::TensorMap(map) => &mut map.binding,
    }
}

fn of_count(count: &CubeCount) -> Option<&BufferBinding> {
    match count {
        CubeCount::Dynamic(binding) => Some(binding),
        CubeCount::Static(..) => None,
    }
}

impl<S: ServerStorage> OffloadServer<S> {
    /// # Safety
    /// As [`Server::launch`](cubecl_runtime::server::Server::launch).
    pub(crate) unsafe fn launch_kernel(
        &mut self,
        kernel: Box<dyn CubeKernel>,
        mut count: CubeCount,
        mut arguments: KernelArguments,
        stream: StreamId,
        mode: LaunchMode,
    ) {
        self.device.enter(stream);
        self.paging.counts().launches += 1;
        let mut operands = std::mem::take(&mut self.operands);
        let runs = mode == LaunchMode::Execute;
        self.name_operands(&mut operands, &arguments, &count);

        // A dry run touches no memory: nothing moves for it.
        if runs && let Err(error) = self.prepare(&operands, &arguments, &count, kernel.name(), stream) {
            for output in arguments.buffers_written(None) {
                self.device.failures.mark(output, &error);
            }
            operands.clear();
            self.operands = operands;
            return;
        }
        if runs && !self.device.failures.is_empty() {
            arguments.buffers_written(None).for_each(|output| self.device.failures.heal(output));
        }

        let resident = |block: Option<BlockId>| block.filter(|_| runs);
        for (resource, block) in arguments.resources.iter_mut().zip(&operands.named) {
            self.device.make_physical(binding(resource), resident(*block));
        }
        if let CubeCount::Dynamic(binding) = &mut count {
            let block = operands.named.last().copied().flatten();
            self.device.make_physical(binding, resident(block));
        }
        // SAFETY: the bindings name the same bytes as the caller's.
        unsafe { self.device.launch_inner(kernel, count, arguments, stream, mode) };
        if runs {
            for block in &operands.written {
                self.wrote(*block);
            }
        }
        operands.clear();
        self.operands = operands;
    }

    fn name_operands(&self, operands: &mut Operands, arguments: &KernelArguments, count: &CubeCount) {
        for (n, binding) in arguments.buffers().enumerate() {
            let block = self.device.name(binding);
            operands.named.push(block);
            if arguments.declared_io.get(n).is_none_or(BufferIOAttr::is_writable) {
                operands.written.extend(block);
            }
        }
        if let Some(binding) = of_count(count) {
            operands.named.push(self.device.name(binding));
        }
        operands.blocks.extend(operands.named.iter().flatten());
    }

    fn prepare(
        &mut self,
        operands: &Operands,
        arguments: &KernelArguments,
        count: &CubeCount,
        operation: &'static str,
        stream: StreamId,
    ) -> Result<(), ServerError> {
        self.device.failures.check(arguments.buffers_read(None).chain(of_count(count)))?;
        self.make_resident(&operands.blocks, operation).map_err(|error| server_error(&error))?;
        for block in &operands.blocks {
            self.device.order(*block, stream);
        }
        Ok(())
    }
}
