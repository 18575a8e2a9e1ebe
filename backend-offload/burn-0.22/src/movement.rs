//! Moves buffers: the [`Device`] that paging drives. Only this file gives and takes device memory.

use backend_offload::adapter::pager::{BlockId, Outcome, Token};
use backend_offload::adapter::{Device, MoveFailure, Paging, Progress, Transfer};
use cubecl_common::bytes::Bytes;
use cubecl_environment::future::block_on;
use cubecl_environment::stream::StreamId;
use cubecl_runtime::memory_management::ManagedMemoryHandle;
use cubecl_runtime::server::{BufferBinding, CopyDescriptor, ServerError, ServerStorage};

use crate::device::{Buffer, Wrapped};

/// The runtime's pool for reads grows by the largest request.
const PIECE: u64 = 64 << 20;

/// Uploads between two flushes: the runtime holds their host memory until then.
const GATHERED: u64 = 64 << 20;

pub(crate) fn flat(binding: BufferBinding) -> CopyDescriptor {
    let len = binding.size_in_used() as usize;
    CopyDescriptor::new(binding, [len].into(), [1].into(), 1)
}

impl<S: ServerStorage> Wrapped<S> {
    fn forget(&mut self, paging: &mut Paging, block: BlockId) {
        let Some(buffer) = self.remove(block) else { return };
        self.passed.unused += u64::from(!buffer.used);
        if buffer.memory.is_some() && buffer.last != buffer.owner {
            _ = self.inner.flush(buffer.last);
        }
        if let Err(fault) = paging.remove(block) {
            tracing::error!(target: "backend_offload", "releasing a buffer: {fault}");
        }
    }

    fn copy_out(&mut self, block: BlockId, target: &mut [u8]) -> Result<(), ServerError> {
        let (whole, size, owner) = (self.whole(block), target.len() as u64, self.get(block).owner);
        for (n, piece) in target.chunks_mut(PIECE as usize).enumerate() {
            let (start, len) = (n as u64 * PIECE, piece.len() as u64);
            let handle = whole.clone().offset_start(start).offset_end(size - start - len);
            let bytes = block_on(self.read_inner(flat(handle.binding()), owner))?;
            piece.copy_from_slice(&bytes[0][..piece.len()]);
        }
        Ok(())
    }

    fn evict(&mut self, paging: &mut Paging, block: BlockId, copies: bool) -> Result<Progress, MoveFailure> {
        let owner = self.get(block).owner;
        self.order(block, owner);
        if !copies {
            return Ok(Progress::Landed);
        }

        let mut draft = paging.tiers().draft(self.get(block).size as usize)?;
        match self.inner.check(vec![self.whole(block).binding()], owner) {
            Ok(()) => self.copy_out(block, &mut draft).map_err(|error| error.to_string())?,
            // A failed kernel's contents are not copied: keep their mark.
            Err(error) => self.mark_failed(block, &error),
        }
        paging.keep(block, draft);
        Ok(Progress::Landed)
    }

    fn mark_failed(&mut self, block: BlockId, error: &ServerError) {
        let (user, owner, size) = (self.get(block).user.clone(), self.get(block).owner, self.get(block).size);
        let handle = cubecl_runtime::server::Handle::from_memory(user, self.service, owner, size);
        self.failures.mark(&handle.binding(), error);
    }

    fn bring(&mut self, paging: &Paging, block: BlockId) -> Result<Progress, MoveFailure> {
        let copy = paging.tiers().verified(block)?;
        let (owner, binding) = (self.get(block).owner, self.whole(block).binding());
        self.upload(binding, Bytes::from_bytes_vec(copy.bytes().to_vec()), owner);
        self.get_mut(block).last = owner;
        Ok(Progress::Landed)
    }

    pub fn upload(&mut self, binding: BufferBinding, bytes: Bytes, stream: StreamId) {
        self.uploading += bytes.len() as u64;
        self.write_inner(flat(binding), bytes, stream);
        if self.uploading > GATHERED {
            self.flush_uploads();
        }
    }

    fn flush_uploads(&mut self) {
        for stream in self.streams() {
            if let Err(error) = self.inner.flush(stream) {
                tracing::warn!(target: "backend_offload", "flushing a stream: {error}");
            }
        }
        self.uploading = 0;
    }
}

impl<S: ServerStorage> Device for Wrapped<S> {
    fn allocate(&mut self, block: BlockId) -> bool {
        let &Buffer { owner, size, used, .. } = self.get(block);
        let memory = ManagedMemoryHandle::new();
        let allocated = self.allocate_inner(memory.clone(), size, owner, |passed| {
            if used { &mut passed.again } else { &mut passed.first }
        });
        let allocated = allocated.is_ok();
        if allocated {
            let buffer = self.get_mut(block);
            (buffer.memory, buffer.used) = (Some(memory), true);
        }
        allocated
    }

    fn start(
        &mut self,
        paging: &mut Paging,
        _token: Token,
        transfer: Transfer,
    ) -> Result<Progress, MoveFailure> {
        match transfer {
            Transfer::Evict { block, copies } => self.evict(paging, block, copies),
            Transfer::Bring { block } => self.bring(paging, block),
        }
    }

    fn finish(&mut self, _paging: &mut Paging, _token: Token, outcome: Outcome) {
        if let Outcome::Left { block, .. } | Outcome::NotReturned { block } = outcome {
            self.get_mut(block).memory = None;
        }
    }

    fn forget_if_dead(&mut self, paging: &mut Paging, block: BlockId) -> bool {
        let dead = self.get(block).user.is_free();
        if dead {
            self.forget(paging, block);
        }
        dead
    }

    fn sweep(&mut self, paging: &mut Paging) {
        for block in self.dead() {
            self.forget(paging, block);
        }
    }

    fn trim(&mut self) {
        for stream in self.streams() {
            if let Err(error) = self.inner.memory_cleanup(stream) {
                tracing::warn!(target: "backend_offload", "trimming device memory: {error}");
            }
        }
    }

    fn release_ended(&mut self) {
        self.flush_uploads();
    }

    fn reclaim_host(&mut self) {
        self.flush_uploads();
    }
}
