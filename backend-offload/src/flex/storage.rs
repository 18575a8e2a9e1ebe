//! Storages and views: a handle's memory, and its layout there.

use super::loops;
use burn_backend::{Bytes, DType, TensorData};
use burn_flex::{Flex, FlexTensor, Layout};
use burn_ir::{BackendIr, BaseOperationIr, HandleKind, OperationIr, TensorIr};
use std::sync::Arc;

/// A backend whose handles split into a storage, maybe shared, and a view, and rejoin unchanged.
///
/// Permuting dimensions by the identity returns the same handle. Operations that [make a view](Self::makes_view)
/// neither allocate nor write.
pub trait SharedStorage: BackendIr {
    type Storage: Clone + Send;
    type View: Clone + Send;

    fn split(handle: &Self::Handle) -> (Self::Storage, Self::View);
    fn join(storage: Self::Storage, view: Self::View) -> Self::Handle;
    /// A separate copy of `contents`.
    fn allocate(contents: &[u8]) -> Self::Storage;
    /// Zeros, on pages provided at first access.
    fn untouched(len: usize) -> Self::Storage;
    fn blank(tensor: &TensorIr) -> Self::Handle;
    fn address(storage: &Self::Storage) -> usize;
    /// The whole allocation, beyond any view.
    fn bytes(storage: &Self::Storage) -> &[u8];
    fn bytes_mut(storage: &mut Self::Storage) -> Option<&mut [u8]>;
    /// Whether the output is a view of the first input.
    fn makes_view(operation: &OperationIr, input: &Self::View) -> bool;
    /// Runs operations that have faster loops here, or returns the operands.
    fn run(operation: &OperationIr, operands: Vec<Self::Handle>) -> Result<Self::Handle, Vec<Self::Handle>>;
    fn is_in_rows(view: &Self::View) -> bool;
    /// Copies tensors that are shared or not row-major.
    fn change(tensors: Vec<Self::Handle>, work: &mut dyn FnMut(&mut [&mut [f32]])) -> Vec<Self::Handle>;
    /// A view's part of `contents`, if contiguous.
    fn read(view: &Self::View, contents: &[u8]) -> Option<TensorData>;
}

#[derive(Debug, Clone)]
pub struct FlexView {
    kind: Kind,
    layout: Layout,
    dtype: DType,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Float,
    Int,
    Bool,
}

impl SharedStorage for Flex {
    type Storage = Arc<Bytes>;
    type View = FlexView;

    fn split(handle: &HandleKind<Self>) -> (Arc<Bytes>, FlexView) {
        let (kind, tensor) = match handle {
            HandleKind::Float(tensor) => (Kind::Float, tensor),
            HandleKind::Int(tensor) => (Kind::Int, tensor),
            HandleKind::Bool(tensor) => (Kind::Bool, tensor),
            HandleKind::Quantized(_) => unreachable!("quantized tensors are refused before they are made"),
        };
        let view = FlexView { kind, layout: tensor.layout().clone(), dtype: tensor.dtype() };
        (tensor.data_arc(), view)
    }

    fn join(storage: Arc<Bytes>, view: FlexView) -> HandleKind<Self> {
        let tensor = FlexTensor::from_arc(storage, view.layout, view.dtype);
        match view.kind {
            Kind::Float => HandleKind::Float(tensor),
            Kind::Int => HandleKind::Int(tensor),
            Kind::Bool => HandleKind::Bool(tensor),
        }
    }

    fn allocate(contents: &[u8]) -> Arc<Bytes> {
        Arc::new(Bytes::from_bytes_vec(contents.to_vec()))
    }

    fn untouched(len: usize) -> Arc<Bytes> {
        let aligned = [8, 4, 2].into_iter().find(|size| len.is_multiple_of(*size));
        Arc::new(zeros(len / aligned.unwrap_or(1), aligned.unwrap_or(1)))
    }

    fn blank(tensor: &TensorIr) -> HandleKind<Self> {
        let zeros = zeros(tensor.shape.num_elements(), tensor.dtype.size());
        let zeros = FlexTensor::new(zeros, Layout::contiguous(tensor.shape.clone()), tensor.dtype);
        if tensor.dtype.is_float() {
            HandleKind::Float(zeros)
        } else if tensor.dtype.is_bool() {
            HandleKind::Bool(zeros)
        } else {
            HandleKind::Int(zeros)
        }
    }

    fn address(storage: &Arc<Bytes>) -> usize {
        Arc::as_ptr(storage).addr()
    }

    fn bytes(storage: &Arc<Bytes>) -> &[u8] {
        storage
    }

    fn bytes_mut(storage: &mut Arc<Bytes>) -> Option<&mut [u8]> {
        Arc::get_mut(storage).map(|bytes| &mut **bytes)
    }

    fn makes_view(operation: &OperationIr, input: &FlexView) -> bool {
        let (OperationIr::BaseFloat(base) | OperationIr::BaseInt(base) | OperationIr::BaseBool(base)) =
            operation
        else {
            return false;
        };
        match base {
            BaseOperationIr::Permute(_)
            | BaseOperationIr::SwapDims(_)
            | BaseOperationIr::Flip(_)
            | BaseOperationIr::Expand(_) => true,
            BaseOperationIr::Reshape(reshape) => {
                input.layout.num_elements() == reshape.out.shape.num_elements()
                    && input.layout.reshape(reshape.out.shape.clone()).is_some()
            }
            BaseOperationIr::Slice(slice) => slice.ranges.iter().all(|range| range.step > 0),
            _ => false,
        }
    }

    fn run(
        operation: &OperationIr,
        operands: Vec<HandleKind<Self>>,
    ) -> Result<HandleKind<Self>, Vec<HandleKind<Self>>> {
        loops::run(operation, operands)
    }

    fn is_in_rows(view: &FlexView) -> bool {
        loops::is_in_rows(&view.layout)
    }

    fn change(
        tensors: Vec<HandleKind<Self>>,
        work: &mut dyn FnMut(&mut [&mut [f32]]),
    ) -> Vec<HandleKind<Self>> {
        loops::change(tensors, work)
    }

    fn read(view: &FlexView, contents: &[u8]) -> Option<TensorData> {
        let (start, end) = view.layout.contiguous_offsets()?;
        let size = view.dtype.size();
        let bytes = contents[start * size..end * size].to_vec();
        Some(TensorData::from_bytes_vec(bytes, view.layout.shape().clone(), view.dtype))
    }
}

fn zeros(count: usize, size: usize) -> Bytes {
    match size {
        1 => Bytes::from_elems(vec![0u8; count]),
        2 => Bytes::from_elems(vec![0u16; count]),
        4 => Bytes::from_elems(vec![0u32; count]),
        _ => Bytes::from_elems(vec![0u64; count]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn_backend::Shape;

    fn tensor() -> FlexTensor {
        FlexTensor::from_data(TensorData::new((0..24).map(|n| n as f32).collect::<Vec<_>>(), [4, 6]))
    }

    #[test]
    fn a_rejoined_handle_has_the_same_layout_and_numbers() {
        let turned = tensor().transpose(0, 1).narrow(0, 1, 3);
        let (storage, view) = Flex::split(&HandleKind::Float(turned.clone()));
        let again = Flex::allocate(Flex::bytes(&storage));
        let HandleKind::Float(back) = Flex::join(again, view) else { panic!("a float stays one") };
        assert_eq!(back.layout(), turned.layout());
        assert_eq!(back.into_data(), turned.into_data());
    }

    #[test]
    fn only_an_unshared_storage_can_be_overwritten() {
        let handle = HandleKind::Float(tensor());
        let (mut storage, _) = Flex::split(&handle);
        assert!(Flex::bytes_mut(&mut storage).is_none());
        drop(handle);
        assert!(Flex::bytes_mut(&mut storage).is_some());
    }

    #[test]
    fn contiguous_contents_are_read_without_a_tensor() {
        let rows = tensor().narrow(0, 1, 2);
        let (storage, view) = Flex::split(&HandleKind::Float(rows.clone()));
        assert_eq!(Flex::read(&view, Flex::bytes(&storage)), Some(rows.into_data()));
        let (storage, view) = Flex::split(&HandleKind::Float(tensor().transpose(0, 1)));
        assert_eq!(Flex::read(&view, Flex::bytes(&storage)), None);
    }

    #[test]
    fn reshaping_is_a_view_only_of_contiguous_storages() {
        let id = burn_ir::TensorId::new;
        let ir = |n, shape: [usize; 2]| TensorIr::uninit(id(n), Shape::from(shape), DType::F32);
        let reshape = |from| {
            OperationIr::BaseFloat(BaseOperationIr::Reshape(burn_ir::ShapeOpIr {
                input: ir(0, from),
                out: ir(1, [8, 3]),
            }))
        };
        let (_, straight) = Flex::split(&HandleKind::Float(tensor()));
        let (_, turned) = Flex::split(&HandleKind::Float(tensor().transpose(0, 1)));
        assert!(Flex::makes_view(&reshape([4, 6]), &straight));
        assert!(!Flex::makes_view(&reshape([6, 4]), &turned));
    }
}
