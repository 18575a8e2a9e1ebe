//! The buffers that a kernel writes.
//!
//! Only compilers receive a kernel's definition, which states them. So this compiler wraps the real one and records; a
//! cached kernel's definition is built once more. Buffers not known as read-only count as written; atomics always do
//! (`an_atomic_buffer_counts_as_written_although_it_is_declared_read_only`).
//!
//! The runtime gets a [`KernelProxy`], boxed without allocating; the kernel stays here for queries after failures.

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

/// For each buffer and tensor map, whether the kernel writes it.
#[derive(Debug, Clone)]
pub(super) struct Writes {
    buffers: Arc<[bool]>,
    maps: Arc<[bool]>,
}

impl Writes {
    fn new(kernel: &KernelDefinition) -> Self {
        Self {
            buffers: kernel.buffers.iter().map(is_written).collect(),
            maps: kernel.tensor_maps.iter().map(is_written_through).collect(),
        }
    }

    pub(super) fn to_buffer(&self, buffer: usize) -> bool {
        self.buffers.get(buffer).copied().unwrap_or(true)
    }

    pub(super) fn through_map(&self, map: usize) -> bool {
        self.maps.get(map).copied().unwrap_or(true)
    }
}

#[derive(Debug, Default)]
pub(super) struct Visibility(HashMap<KernelId, Writes>);

impl Visibility {
    /// `None` for raw source, which states none.
    pub(super) fn of<C: Compiler>(&mut self, task: &RecordingTask<C>) -> Option<Writes> {
        if let Some(writes) = self.0.get(task.kernel_id()) {
            return Some(writes.clone());
        }
        let writes = task.recorded.take().or_else(|| task.probe())?;
        self.0.insert(task.kernel_id().clone(), writes.clone());
        Some(writes)
    }
}

/// Atomics are declared read-only, but change.
fn is_written(buffer: &KernelArg) -> bool {
    buffer.visibility == Access::ReadWrite || buffer.ty.is_atomic()
}

/// CubeCL 0.10 swaps tensor maps: inputs count as written, outputs as read
/// (`cubecl_marks_tensor_maps_the_wrong_way_round`).
fn is_written_through(map: &KernelArg) -> bool {
    map.visibility == Access::Read
}

/// Without `C`, records but refuses to compile.
#[derive(Debug, Clone)]
pub struct RecordingCompiler<C> {
    inner: Option<C>,
    writes: Option<Writes>,
}

impl<C: Compiler> Compiler for RecordingCompiler<C> {
    type Representation = C::Representation;
    type CompilationOptions = C::CompilationOptions;

    fn compile(
        &mut self,
        kernel: KernelDefinition,
        options: &Self::CompilationOptions,
        mode: ExecutionMode,
        address: StorageType,
    ) -> Result<Self::Representation, CompilationError> {
        self.writes = Some(Writes::new(&kernel));
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

/// Moved, not cloned: cloning an unused SPIR-V compiler panics.
struct Lent<'c, C: Compiler> {
    place: &'c mut C,
    recording: ManuallyDrop<RecordingCompiler<C>>,
}

impl<'c, C: Compiler> Lent<'c, C> {
    fn new(place: &'c mut C) -> Self {
        // SAFETY: `place` stays borrowed until `drop` moves the compiler back.
        let inner = unsafe { ptr::read(place) };
        Self { place, recording: ManuallyDrop::new(RecordingCompiler { inner: Some(inner), writes: None }) }
    }
}

impl<C: Compiler> Drop for Lent<'_, C> {
    fn drop(&mut self) {
        // SAFETY: taken only here, once.
        let recording = unsafe { ManuallyDrop::take(&mut self.recording) };
        let Some(inner) = recording.inner else { std::process::abort() };
        // SAFETY: the value in `place` was moved out and must not be dropped.
        unsafe { ptr::write(self.place, inner) };
    }
}

pub(super) struct RecordingTask<C: Compiler> {
    task: Box<dyn CubeTask<RecordingCompiler<C>>>,
    /// Built once per launch: a fused kernel's id is costly.
    id: OnceCell<KernelId>,
    recorded: RefCell<Option<Writes>>,
    compiled: Cell<bool>,
}

impl<C: Compiler> RecordingTask<C> {
    pub(super) fn new(task: Box<dyn CubeTask<RecordingCompiler<C>>>) -> Self {
        Self { task, id: OnceCell::new(), recorded: RefCell::new(None), compiled: Cell::new(false) }
    }

    pub(super) fn name(&self) -> &'static str {
        let full = self.task.name();
        let plain = full.split('<').next().unwrap_or(full);
        plain.rsplit("::").next().unwrap_or(plain)
    }

    pub(super) fn kernel_id(&self) -> &KernelId {
        self.id.get_or_init(|| self.task.id())
    }

    pub(super) fn was_compiled(&self) -> bool {
        self.compiled.get()
    }

    fn probe(&self) -> Option<Writes> {
        let mut probe = RecordingCompiler::<C> { inner: None, writes: None };
        let _refused = catch_unwind(AssertUnwindSafe(|| {
            let options = C::CompilationOptions::default();
            self.task.compile(&mut probe, &options, ExecutionMode::Checked, self.task.address_type()).is_ok()
        }));
        probe.writes
    }

    pub(super) fn with_proxy(&self, launch: impl FnOnce(Box<dyn CubeTask<C>>)) {
        let current = (TypeId::of::<C>(), ptr::from_ref(self).cast());
        let _ended = LaunchUnderWay(CURRENT.replace(Some(current)));
        launch(Box::new(KernelProxy(PhantomData)));
    }
}

thread_local! {
    static CURRENT: Cell<Option<(TypeId, *const ())>> = const { Cell::new(None) };
}

/// Restores the outer launch, even after a panic.
struct LaunchUnderWay(Option<(TypeId, *const ())>);

impl Drop for LaunchUnderWay {
    fn drop(&mut self) {
        CURRENT.set(self.0);
    }
}

struct KernelProxy<C>(PhantomData<fn() -> C>);

impl<C: Compiler> KernelProxy<C> {
    fn on_task<T>(question: impl FnOnce(&RecordingTask<C>) -> T) -> T {
        let current = CURRENT.get().filter(|(compiler, _)| *compiler == TypeId::of::<C>());
        let (_, task) = current.expect("a runtime uses a kernel during its launch only");
        // SAFETY: `with_proxy` borrows the task meanwhile, with its compiler's type.
        question(unsafe { &*task.cast::<RecordingTask<C>>() })
    }
}

impl<C: Compiler> KernelMetadata for KernelProxy<C> {
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

impl<C: Compiler> CubeTask<C> for KernelProxy<C> {
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
            let compiled = task.task.compile(&mut lent.recording, options, mode, address);

            task.recorded.replace(lent.recording.writes.take());
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
    use cubecl_core::KernelSettings;
    use cubecl_core::ir::{FloatKind, Type};
    use cubecl_core::prelude::KernelBuilder;

    /// Panics when cloned, as an unused SPIR-V compiler does.
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

    impl CubeTask<RecordingCompiler<Unclonable>> for Task {
        fn compile(
            &self,
            compiler: &mut RecordingCompiler<Unclonable>,
            (): &(),
            _: ExecutionMode,
            _: StorageType,
        ) -> Result<CompiledKernel<RecordingCompiler<Unclonable>>, CompilationError> {
            let inner = compiler.inner.as_mut().expect("it is lent");
            inner.0.push_str(" used");
            assert!(inner.0.len() < 20, "the compiler panics");
            Err(CompilationError::Generic { reason: inner.0.clone(), backtrace: BackTrace::default() })
        }
    }

    #[test]
    fn the_runtimes_own_compiler_is_used_and_returned_even_after_a_panic() {
        let task = RecordingTask::new(Box::new(Task));
        let mut compiler = Unclonable("a compiler".to_owned());
        let compile = |compiler: &mut Unclonable| {
            let mut outcome = None;
            task.with_proxy(|proxy| {
                let address = proxy.address_type();
                let attempt = || proxy.compile(compiler, &(), ExecutionMode::Checked, address).map(|_| ());
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
    fn cubecl_marks_tensor_maps_the_wrong_way_round() {
        let item = Type::Scalar(StorageType::Scalar(ElemType::Float(FloatKind::F32)));
        let mut builder = KernelBuilder::new();
        builder.input_tensor_map(item);
        builder.output_tensor(item);
        builder.output_tensor_map(item);
        let writes = Writes::new(&builder.build(KernelSettings::default()));
        assert_eq!([0, 1].map(|map| writes.through_map(map)), [false, true]);
        assert!(writes.to_buffer(0));
    }

    #[test]
    fn an_atomic_buffer_counts_as_written_although_it_is_declared_read_only() {
        assert!(is_written(&buffer(Access::Read, StorageType::Atomic)));
        assert!(is_written(&buffer(Access::ReadWrite, StorageType::Scalar)));
        assert!(!is_written(&buffer(Access::Read, StorageType::Scalar)));
    }
}
