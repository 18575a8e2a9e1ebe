//! Which buffers a kernel writes to.
//!
//! A launch does not say; the kernel's definition does, and compilers are the only ones who get to see it. So
//! our runtime's compiler is a thin layer over the real one that notes what it sees. Where the real compiler
//! was never called (a compiled kernel from a cache on disk), the definition is built once for its own sake.
//!
//! The runtime is given a [`Deputy`] instead of the kernel: it has no size, so boxing it allocates nothing, and
//! the kernel stays with the launch, which can still ask it questions when the runtime has failed.

use cubecl_core::ir::{ElemType, StorageType};
use cubecl_core::prelude::{CompiledKernel, KernelDefinition, KernelId};
use cubecl_core::{CompilationError, Compiler, CubeTask, ExecutionMode};
use cubecl_runtime::kernel::{KernelArg, KernelMetadata, Visibility as Access};
use std::any::TypeId;
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::Arc;

/// Whether each buffer of a kernel, in order, is written to.
pub(super) type Writes = Arc<[bool]>;

/// The written buffers of every kernel seen so far.
#[derive(Debug, Default)]
pub(super) struct Visibility(HashMap<KernelId, Writes>);

impl Visibility {
    /// The buffers `task` writes to, or `None` if even its definition does not tell: a kernel from raw source.
    pub(super) fn of<C: Compiler>(&mut self, task: &NotingTask<C>) -> Option<Writes> {
        if let Some(writes) = self.0.get(task.kernel_id()) {
            return Some(writes.clone());
        }
        let writes = task.noted.take().or_else(|| task.probe())?;
        self.0.insert(task.kernel_id().clone(), writes.clone());
        Some(writes)
    }
}

/// Atomics are declared read-only and changed all the same.
fn is_written(buffer: &KernelArg) -> bool {
    buffer.visibility == Access::ReadWrite || buffer.ty.is_atomic()
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
        self.writes = Some(kernel.buffers.iter().map(is_written).collect());
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

/// The runtime's compiler while it notes: moved there and back, since one for SPIR-V cannot be cloned before it has compiled,
/// although its type says so.
struct Lent<'c, C: Compiler> {
    place: &'c mut C,
    noting: ManuallyDrop<NotingCompiler<C>>,
}

impl<'c, C: Compiler> Lent<'c, C> {
    fn new(place: &'c mut C) -> Self {
        // SAFETY: nobody sees the compiler in its place, which is borrowed, until `drop` has moved it back.
        let inner = unsafe { ptr::read(place) };
        Self { place, noting: ManuallyDrop::new(NotingCompiler { inner: Some(inner), writes: None }) }
    }
}

impl<C: Compiler> Drop for Lent<'_, C> {
    fn drop(&mut self) {
        // SAFETY: it is taken once, here. Nothing outside of this file takes the compiler out of it.
        let noting = unsafe { ManuallyDrop::take(&mut self.noting) };
        let Some(inner) = noting.inner else { std::process::abort() };
        // SAFETY: what lies in its place was moved out and is not to be dropped.
        unsafe { ptr::write(self.place, inner) };
    }
}

/// A kernel for our compiler, and what its launch learns about it.
pub(super) struct NotingTask<C: Compiler> {
    task: Box<dyn CubeTask<NotingCompiler<C>>>,
    /// Building the id of a fused kernel is costly; it is built at most once per launch.
    id: OnceCell<KernelId>,
    noted: RefCell<Option<Writes>>,
    compiled: Cell<bool>,
}

impl<C: Compiler> NotingTask<C> {
    pub(super) fn new(task: Box<dyn CubeTask<NotingCompiler<C>>>) -> Self {
        Self { task, id: OnceCell::new(), noted: RefCell::new(None), compiled: Cell::new(false) }
    }

    /// The last part of the kernel's name, without its parameters: kernels are named by types of many lines.
    pub(super) fn name(&self) -> &'static str {
        let full = self.task.name();
        let plain = full.split('<').next().unwrap_or(full);
        plain.rsplit("::").next().unwrap_or(plain)
    }

    pub(super) fn kernel_id(&self) -> &KernelId {
        self.id.get_or_init(|| self.task.id())
    }

    /// Whether the runtime had the kernel compiled: it was launched for the first time, or failed before.
    pub(super) fn was_compiled(&self) -> bool {
        self.compiled.get()
    }

    /// Builds the definition to look at it. One that cannot be built panics; the launch says so itself.
    fn probe(&self) -> Option<Writes> {
        let mut probe = NotingCompiler::<C> { inner: None, writes: None };
        let _refused = catch_unwind(AssertUnwindSafe(|| {
            let options = C::CompilationOptions::default();
            self.task.compile(&mut probe, &options, ExecutionMode::Checked, self.task.address_type()).is_ok()
        }));
        probe.writes
    }

    /// Runs `launch` with a deputy to hand to the runtime.
    pub(super) fn with_deputy(&self, launch: impl FnOnce(Box<dyn CubeTask<C>>)) {
        let current = (TypeId::of::<C>(), ptr::from_ref(self).cast());
        let _ended = LaunchUnderWay(CURRENT.replace(Some(current)));
        launch(Box::new(Deputy(PhantomData)));
    }
}

thread_local! {
    /// The task whose launch is under way on this thread, and the type of its compiler.
    static CURRENT: Cell<Option<(TypeId, *const ())>> = const { Cell::new(None) };
}

/// Puts the launch before this one back, also when the runtime panics.
struct LaunchUnderWay(Option<(TypeId, *const ())>);

impl Drop for LaunchUnderWay {
    fn drop(&mut self) {
        CURRENT.set(self.0);
    }
}

/// Stands for the task whose launch is under way.
struct Deputy<C>(PhantomData<fn() -> C>);

impl<C: Compiler> Deputy<C> {
    fn on_task<T>(question: impl FnOnce(&NotingTask<C>) -> T) -> T {
        let current = CURRENT.get().filter(|(compiler, _)| *compiler == TypeId::of::<C>());
        let (_, task) = current.expect("a runtime uses a kernel during its launch only");
        // SAFETY: `with_deputy` borrows the task for as long as it is current, on this very thread, and noted
        // the type of its compiler.
        question(unsafe { &*task.cast::<NotingTask<C>>() })
    }
}

impl<C: Compiler> KernelMetadata for Deputy<C> {
    fn name(&self) -> &'static str {
        Self::on_task(|task| task.task.name())
    }
    fn id(&self) -> KernelId {
        Self::on_task(|task| task.kernel_id().clone())
    }
    fn address_type(&self) -> StorageType {
        Self::on_task(|task| task.task.address_type())
    }
}

impl<C: Compiler> CubeTask<C> for Deputy<C> {
    fn compile(
        &self,
        compiler: &mut C,
        options: &C::CompilationOptions,
        mode: ExecutionMode,
        address: StorageType,
    ) -> Result<CompiledKernel<C>, CompilationError> {
        Self::on_task(|task| {
            task.compiled.set(true);
            let mut lent = Lent::new(compiler);
            let compiled = task.task.compile(&mut lent.noting, options, mode, address);
            task.noted.replace(lent.noting.writes.take());
            drop(lent);
            let kernel = compiled?;
            Ok(CompiledKernel {
                entrypoint_name: kernel.entrypoint_name,
                debug_name: kernel.debug_name,
                source: kernel.source,
                repr: kernel.repr,
                cube_dim: kernel.cube_dim,
                debug_info: kernel.debug_info,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cubecl_common::backtrace::BackTrace;
    use cubecl_core::ir::{FloatKind, Type};

    /// As the one for SPIR-V: a clone of it panics. So does its work where it is told to.
    #[derive(Debug)]
    struct Unclonable(String);

    impl Clone for Unclonable {
        fn clone(&self) -> Self {
            panic!("cloned")
        }
    }

    impl Compiler for Unclonable {
        type Representation = String;
        type CompilationOptions = ();

        fn compile(
            &mut self,
            _: KernelDefinition,
            (): &(),
            _: ExecutionMode,
            _: StorageType,
        ) -> Result<String, CompilationError> {
            unreachable!("no kernel is compiled here")
        }

        fn elem_size(&self, elem: ElemType) -> usize {
            elem.size()
        }

        fn extension(&self) -> &'static str {
            "none"
        }
    }

    struct Task;

    impl KernelMetadata for Task {
        fn name(&self) -> &'static str {
            "a task"
        }
        fn id(&self) -> KernelId {
            KernelId::new::<Self>()
        }
        fn address_type(&self) -> StorageType {
            StorageType::Scalar(ElemType::Float(FloatKind::F32))
        }
    }

    impl CubeTask<NotingCompiler<Unclonable>> for Task {
        fn compile(
            &self,
            compiler: &mut NotingCompiler<Unclonable>,
            (): &(),
            _: ExecutionMode,
            _: StorageType,
        ) -> Result<CompiledKernel<NotingCompiler<Unclonable>>, CompilationError> {
            let inner = compiler.inner.as_mut().expect("it is lent");
            inner.0.push_str(" used");
            assert!(inner.0.len() < 20, "the compiler panics");
            Err(CompilationError::Generic { reason: inner.0.clone(), backtrace: BackTrace::default() })
        }
    }

    #[test]
    fn the_runtimes_compiler_itself_is_used_and_given_back_also_by_a_panic() {
        let task = NotingTask::new(Box::new(Task));
        let mut compiler = Unclonable("a compiler".to_owned());
        let compile = |compiler: &mut Unclonable| {
            let mut outcome = None;
            task.with_deputy(|deputy| {
                let address = deputy.address_type();
                let attempt = || deputy.compile(compiler, &(), ExecutionMode::Checked, address).map(|_| ());
                outcome = Some(catch_unwind(AssertUnwindSafe(attempt)));
            });
            outcome.expect("it was called")
        };
        let refused = compile(&mut compiler).expect("no panic").expect_err("it refuses");
        assert!(refused.to_string().contains("a compiler used"), "{refused}");
        assert!(compile(&mut compiler).is_err(), "it panics");
        assert_eq!(compiler.0, "a compiler used used");
    }

    fn buffer(visibility: Access, ty: fn(ElemType) -> StorageType) -> KernelArg {
        let ty = Type::Scalar(ty(ElemType::Float(FloatKind::F32)));
        KernelArg { id: 0, visibility, ty, size: None, has_extended_meta: false }
    }

    #[test]
    fn an_atomic_buffer_counts_as_written_although_it_is_declared_read_only() {
        assert!(is_written(&buffer(Access::Read, StorageType::Atomic)));
        assert!(is_written(&buffer(Access::ReadWrite, StorageType::Scalar)));
        assert!(!is_written(&buffer(Access::Read, StorageType::Scalar)));
    }
}
