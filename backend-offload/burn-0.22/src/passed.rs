//! Calls to the runtime's own server, counted where they are made.

use cubecl_common::bytes::Bytes;
use cubecl_environment::future::DynFut;
use cubecl_environment::stream::StreamId;
use cubecl_runtime::kernel::CubeKernel;
use cubecl_runtime::memory_management::ManagedMemoryHandle;
use cubecl_runtime::server::{CopyDescriptor, CubeCount, KernelArguments, ServerError, ServerStorage};

use crate::device::Wrapped;
use crate::release::LaunchMode;

/// Calls that the runtime's own server received, evictions and returns included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// Launched kernels, dry runs included.
    pub launches: u64,
    /// Allocations of buffers too small to be managed.
    pub small: u64,
    /// Allocations at a managed buffer's first use.
    pub first: u64,
    /// Allocations for managed buffers that returned.
    pub again: u64,
    /// Allocations without success.
    pub refused: u64,
    /// Bytes requested by reads.
    pub bytes_read: u64,
    /// Bytes given to writes.
    pub bytes_written: u64,
    /// Managed buffers dropped before their first use: nothing was allocated for them.
    pub unused: u64,
}

impl Passed {
    /// All allocations.
    pub fn allocations(&self) -> u64 {
        self.small + self.first + self.again + self.refused
    }
}

pub(crate) fn requested(read: &CopyDescriptor) -> u64 {
    (read.shape.iter().product::<usize>() * read.elem_size) as u64
}

impl<S: ServerStorage> Wrapped<S> {
    /// Counts a success with `counter`.
    pub fn allocate_inner(
        &mut self,
        memory: ManagedMemoryHandle,
        size: u64,
        stream: StreamId,
        counter: impl FnOnce(&mut Passed) -> &mut u64,
    ) -> Result<(), ServerError> {
        let allocated = self.inner.initialize_memory(memory, size, stream);
        *(if allocated.is_ok() { counter(&mut self.passed) } else { &mut self.passed.refused }) += 1;
        allocated
    }

    pub fn read_inner(
        &mut self,
        descriptor: CopyDescriptor,
        stream: StreamId,
    ) -> DynFut<Result<Vec<Bytes>, ServerError>> {
        self.passed.bytes_read += requested(&descriptor);
        self.inner.read(vec![descriptor], stream)
    }

    pub fn write_inner(&mut self, descriptor: CopyDescriptor, bytes: Bytes, stream: StreamId) {
        self.passed.bytes_written += bytes.len() as u64;
        self.inner.write(vec![(descriptor, bytes)], stream);
    }

    /// # Safety
    /// As [`Server::launch`](cubecl_runtime::server::Server::launch).
    pub unsafe fn launch_inner(
        &mut self,
        kernel: Box<dyn CubeKernel>,
        count: CubeCount,
        arguments: KernelArguments,
        stream: StreamId,
        mode: LaunchMode,
    ) {
        self.passed.launches += 1;
        // SAFETY: the caller's own arguments.
        unsafe { self.inner.launch(kernel, count, arguments, stream, mode) };
    }
}
