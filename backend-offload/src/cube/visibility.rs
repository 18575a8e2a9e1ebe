//! Which buffers a kernel only reads.
//!
//! A launch does not say; the kernel's definition does, and compilers are the only ones who get to see it. So
//! our runtime's compiler is a thin layer over the real one that notes what it sees. Where the real compiler
//! was never called (a compiled kernel from a cache on disk), the definition is built once for its own sake.

use cubecl_core::ir::{ElemType, StorageType};
use cubecl_core::prelude::{CompiledKernel, KernelDefinition, KernelId};
use cubecl_core::{CompilationError, Compiler, CubeTask, ExecutionMode};
use cubecl_runtime::kernel::{KernelMetadata, Visibility as Access};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// For each buffer of a kernel, in order: is it written to?
pub(super) type Writes = Arc<[bool]>;

/// What is known of all kernels seen so far. Shared with the tasks on their way through the compiler.
#[derive(Debug, Clone, Default)]
pub(super) struct Visibility(Arc<Mutex<HashMap<KernelId, Writes>>>);

impl Visibility {
    /// What `task` writes to, or `None` if even its definition does not tell: a kernel from raw source.
    pub(super) fn of<C: Compiler>(&self, task: &NotingTask<C>) -> Option<Writes> {
        let id = task.kernel_id();
        if let Some(writes) = self.known(id) {
            return Some(writes);
        }
        let mut probe = NotingCompiler::<C> { inner: None, writes: None };
        // A definition that cannot be built panics; the launch that follows will say so itself.
        let _refused = catch_unwind(AssertUnwindSafe(|| {
            let options = C::CompilationOptions::default();
            task.task.compile(&mut probe, &options, ExecutionMode::Checked, task.task.address_type()).is_ok()
        }));
        let writes = probe.writes?;
        self.note(id.clone(), writes.clone());
        Some(writes)
    }

    pub(super) fn known(&self, id: &KernelId) -> Option<Writes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(id).cloned()
    }

    fn note(&self, id: KernelId, writes: Writes) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(id, writes);
    }
}

/// The compiler `C`, noting the buffers of the definition it is given. Without `C` it notes and refuses.
#[derive(Debug, Clone)]
pub struct NotingCompiler<C> {
    inner: Option<C>,
    writes: Option<Writes>,
}

impl<C: Compiler> Compiler for NotingCompiler<C> {
    type Representation = C::Representation;
    type CompilationOptions = C::CompilationOptions;

    fn compile(
        &mut self,
        kernel: KernelDefinition,
        options: &Self::CompilationOptions,
        mode: ExecutionMode,
        address: StorageType,
    ) -> Result<Self::Representation, CompilationError> {
        self.writes = Some(kernel.buffers.iter().map(|b| b.visibility == Access::ReadWrite).collect());
        match &mut self.inner {
            Some(inner) => inner.compile(kernel, options, mode, address),
            None => Err(CompilationError::Generic {
                reason: "the kernel was only to be looked at".to_owned(),
                backtrace: cubecl_common::backtrace::BackTrace::default(),
            }),
        }
    }

    fn elem_size(&self, elem: ElemType) -> usize {
        self.inner.as_ref().map_or_else(|| elem.size(), |inner| inner.elem_size(elem))
    }

    fn extension(&self) -> &'static str {
        self.inner.as_ref().map_or("", Compiler::extension)
    }
}

/// A task for our compiler, shown to the runtime underneath as one for its own.
pub(super) struct NotingTask<C: Compiler> {
    task: Box<dyn CubeTask<NotingCompiler<C>>>,
    /// Building the id of a fused kernel is costly; it is built at most once per launch.
    id: Arc<OnceLock<KernelId>>,
    visibility: Visibility,
}

impl<C: Compiler> NotingTask<C> {
    pub(super) fn new(task: Box<dyn CubeTask<NotingCompiler<C>>>, visibility: &Visibility) -> Self {
        Self { task, id: Arc::default(), visibility: visibility.clone() }
    }

    /// The id, once somebody has asked for it.
    pub(super) fn id_cell(&self) -> Arc<OnceLock<KernelId>> {
        self.id.clone()
    }

    fn kernel_id(&self) -> &KernelId {
        self.id.get_or_init(|| self.task.id())
    }
}

impl<C: Compiler> KernelMetadata for NotingTask<C> {
    fn name(&self) -> &'static str {
        self.task.name()
    }
    fn id(&self) -> KernelId {
        self.kernel_id().clone()
    }
    fn address_type(&self) -> StorageType {
        self.task.address_type()
    }
}

impl<C: Compiler> CubeTask<C> for NotingTask<C> {
    fn compile(
        &self,
        compiler: &mut C,
        options: &C::CompilationOptions,
        mode: ExecutionMode,
        address: StorageType,
    ) -> Result<CompiledKernel<C>, CompilationError> {
        let mut noting = NotingCompiler { inner: Some(compiler.clone()), writes: None };
        let compiled = self.task.compile(&mut noting, options, mode, address);
        if let Some(inner) = noting.inner {
            *compiler = inner;
        }
        if let Some(writes) = noting.writes {
            self.visibility.note(self.id(), writes);
        }
        let kernel = compiled?;
        Ok(CompiledKernel {
            entrypoint_name: kernel.entrypoint_name,
            debug_name: kernel.debug_name,
            source: kernel.source,
            repr: kernel.repr,
            cube_dim: kernel.cube_dim,
            debug_info: kernel.debug_info,
        })
    }
}
