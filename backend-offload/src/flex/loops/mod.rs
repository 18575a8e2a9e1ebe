//! Flex operations on all threads, for any strides.
//!
//! On Flex's one thread they took half of a small model's training step. Results have Flex's bits and layout, in new
//! storage or an unshared operand's: later operations take the same paths, and the ledger counts the same bytes.
//!
//! Other operations, other types than f32, and empty tensors go to Flex.

mod elementwise;
mod product;
#[cfg(test)]
mod tests;
mod walk;

use burn_backend::tensor::IndexingUpdateOp;
use burn_backend::{Bytes, DType, Shape};
use burn_flex::{Flex, FlexTensor, Layout};
use burn_ir::{
    BaseOperationIr, FloatOperationIr, HandleKind, NumericOperationIr, OperationIr, ScalarIr, ScalarOpIr,
};
use elementwise::{Cost, map, map_along, map_in_place, zip_along, zip_in_place};
use walk::{Walk, repeated};

type Handle = HandleKind<Flex>;

/// Returns the operands of operations left to Flex.
pub(super) fn run(operation: &OperationIr, handles: Vec<Handle>) -> Result<Handle, Vec<Handle>> {
    match operation {
        OperationIr::NumericFloat(_, operation) => numeric(operation, handles),
        OperationIr::Float(_, operation) => float(operation, handles),
        OperationIr::BaseFloat(operation) => base(operation, handles),
        OperationIr::BaseBool(BaseOperationIr::Reshape(reshape)) => reshaped(handles, &reshape.out.shape),
        _ => Err(handles),
    }
}

pub(super) fn change(tensors: Vec<Handle>, work: &mut dyn FnMut(&mut [&mut [f32]])) -> Vec<Handle> {
    let in_rows = |handle: Handle| match handle {
        HandleKind::Float(tensor) if !is_in_rows(tensor.layout()) => in_order(&tensor, Cost::Memory, |x| x),
        handle => handle,
    };
    let mut tensors: Vec<Handle> = tensors.into_iter().map(in_rows).collect();
    let mut slices: Vec<&mut [f32]> = Vec::new();
    for handle in &mut tensors {
        let HandleKind::Float(tensor) = handle else { unreachable!("a float tensor has a float's handle") };
        let count = tensor.layout().num_elements();
        slices.push(&mut tensor.storage_mut::<f32>()[..count]);
    }
    work(&mut slices);
    drop(slices);
    tensors
}

/// In shape order, from the storage's start.
pub(super) fn is_in_rows(layout: &Layout) -> bool {
    matches!(layout.contiguous_offsets(), Some((0, _)))
}

fn numeric(operation: &NumericOperationIr, handles: Vec<Handle>) -> Result<Handle, Vec<Handle>> {
    use NumericOperationIr::{Add, AddScalar, Div, DivScalar, Mul, MulScalar, PowiScalar, Sub, SubScalar};
    match operation {
        Add(it) => zipped(handles, &it.out.shape, |l, r| l + r),
        Sub(it) => zipped(handles, &it.out.shape, |l, r| l - r),
        Mul(it) => zipped(handles, &it.out.shape, |l, r| l * r),
        Div(it) => zipped(handles, &it.out.shape, |l, r| l / r),
        AddScalar(it) => with_scalar(handles, it, |x, scalar| x + scalar),
        SubScalar(it) => with_scalar(handles, it, |x, scalar| x - scalar),
        MulScalar(it) => with_scalar(handles, it, |x, scalar| x * scalar),
        DivScalar(it) => with_scalar(handles, it, |x, scalar| x / scalar),
        PowiScalar(it) if as_f64(&it.rhs).to_bits() == 2f64.to_bits() => squared(handles),
        _ => Err(handles),
    }
}

fn float(operation: &FloatOperationIr, handles: Vec<Handle>) -> Result<Handle, Vec<Handle>> {
    match operation {
        FloatOperationIr::Exp(_) => mapped(handles, Cost::Call, f32::exp),
        FloatOperationIr::Log(_) => mapped(handles, Cost::Call, f32::ln),
        FloatOperationIr::Tanh(_) => mapped(handles, Cost::Call, f32::tanh),
        FloatOperationIr::Sqrt(_) => mapped(handles, Cost::Memory, f32::sqrt),
        FloatOperationIr::PowfScalar(it) if as_f64(&it.rhs).to_bits() == 2f64.to_bits() => squared(handles),
        FloatOperationIr::Matmul(it) => {
            let [left, right] = floats(handles)?;
            match product::product(&left, &right, &it.out.shape) {
                Some(product) => Ok(tensor(product, it.out.shape.clone())),
                None => Err(vec![HandleKind::Float(left), HandleKind::Float(right)]),
            }
        }
        _ => Err(handles),
    }
}

fn base(operation: &BaseOperationIr, handles: Vec<Handle>) -> Result<Handle, Vec<Handle>> {
    match operation {
        BaseOperationIr::Reshape(reshape) => reshaped(handles, &reshape.out.shape),
        BaseOperationIr::MaskFill(it) => mask_filled(handles, &it.out.shape, as_f64(&it.value) as f32),
        BaseOperationIr::SelectAssign(it) if it.dim == 0 && it.update == IndexingUpdateOp::Add => {
            select_added(handles)
        }
        // Flex aligns zeros by a copy; these take no pages until written.
        BaseOperationIr::Zeros(it) if it.out.dtype == DType::F32 => {
            Ok(tensor(vec![0f32; it.out.shape.num_elements()], it.out.shape.clone()))
        }
        _ => Err(handles),
    }
}

fn zipped(
    handles: Vec<Handle>,
    shape: &Shape,
    f: impl Fn(f32, f32) -> f32 + Copy + Sync + Send,
) -> Result<Handle, Vec<Handle>> {
    let [mut left, mut right] = floats(handles)?;
    let along = |tensor: &FlexTensor| {
        let layout = tensor.layout();
        repeated(layout.shape(), layout.strides(), shape)
    };
    let right_strides = along(&right);
    let right_start = right.layout().start_offset();
    let from = right.storage::<f32>();

    if left.layout().shape() == shape
        && let Some(elements) = overwritable(&mut left)
    {
        let walk = Walk::new(shape, [&right_strides], [right_start]);
        zip_in_place(elements, &walk, from, f);
        return Ok(HandleKind::Float(left));
    }

    let (left_strides, left_start) = (along(&left), left.layout().start_offset());
    let from = left.storage::<f32>();
    if right.layout().shape() == shape
        && let Some(elements) = overwritable(&mut right)
    {
        zip_in_place(elements, &Walk::new(shape, [&left_strides], [left_start]), from, |r, l| f(l, r));
        return Ok(HandleKind::Float(right));
    }

    let walk = Walk::new(shape, [&left_strides, &right_strides], [left_start, right_start]);
    let both = (from, right.storage::<f32>());
    Ok(tensor(zip_along(shape.num_elements(), &walk, both, f), shape.clone()))
}

fn with_scalar(
    handles: Vec<Handle>,
    operation: &ScalarOpIr,
    f: impl Fn(f32, f32) -> f32 + Copy + Sync + Send,
) -> Result<Handle, Vec<Handle>> {
    let scalar = as_f64(&operation.rhs) as f32;
    let f = move |x| f(x, scalar);
    let [mut operand] = floats(handles)?;
    if let Some(elements) = overwritable(&mut operand) {
        map_in_place(elements, Cost::Memory, f);
        return Ok(HandleKind::Float(operand));
    }
    Ok(in_order(&operand, Cost::Memory, f))
}

fn squared(handles: Vec<Handle>) -> Result<Handle, Vec<Handle>> {
    let [operand] = floats(handles)?;
    Ok(in_order(&operand, Cost::Memory, |x| x * x))
}

/// A tensor that shows its whole storage keeps its strides, as in Flex.
fn mapped(
    handles: Vec<Handle>,
    cost: Cost,
    f: impl Fn(f32) -> f32 + Copy + Sync + Send,
) -> Result<Handle, Vec<Handle>> {
    let [mut operand] = floats(handles)?;
    if let Some(elements) = overwritable(&mut operand) {
        map_in_place(elements, cost, f);
        return Ok(HandleKind::Float(operand));
    }

    let layout = operand.layout();
    let storage = operand.storage::<f32>();
    let whole = layout.start_offset() == 0 && storage.len() == layout.num_elements();
    if whole && layout.strides().iter().all(|stride| *stride >= 0) {
        let elements = Bytes::from_elems(map(storage, cost, f));
        return Ok(HandleKind::Float(FlexTensor::new(elements, layout.clone(), DType::F32)));
    }
    Ok(in_order(&operand, cost, f))
}

fn in_order(operand: &FlexTensor, cost: Cost, f: impl Fn(f32) -> f32 + Copy + Sync + Send) -> Handle {
    let layout = operand.layout();
    let walk = Walk::new(layout.shape(), [layout.strides()], [layout.start_offset()]);
    let elements = map_along(layout.num_elements(), &walk, operand.storage::<f32>(), cost, f);
    tensor(elements, layout.shape().clone())
}

fn reshaped(mut handles: Vec<Handle>, shape: &Shape) -> Result<Handle, Vec<Handle>> {
    let (HandleKind::Float(operand) | HandleKind::Bool(operand)) = &handles[0] else { return Err(handles) };
    let layout = operand.layout();
    let count = layout.num_elements();
    if layout.reshape(shape.clone()).is_some() || count == 0 {
        return Err(handles);
    }

    let walk = Walk::new(layout.shape(), [layout.strides()], [layout.start_offset()]);
    match operand.dtype() {
        DType::F32 => {
            let elements = map_along(count, &walk, operand.storage::<f32>(), Cost::Memory, |x| x);
            Ok(tensor(elements, shape.clone()))
        }
        dtype @ DType::Bool(_) if dtype.size() == 1 => {
            let elements = map_along(count, &walk, operand.bytes(), Cost::Memory, |x| x);
            handles.clear();
            let layout = Layout::contiguous(shape.clone());
            Ok(HandleKind::Bool(FlexTensor::new(Bytes::from_elems(elements), layout, dtype)))
        }
        _ => Err(handles),
    }
}

fn mask_filled(handles: Vec<Handle>, shape: &Shape, value: f32) -> Result<Handle, Vec<Handle>> {
    let [HandleKind::Float(operand), HandleKind::Bool(mask)] = handles.as_slice() else {
        return Err(handles);
    };
    let usable = mask.dtype().size() == 1 && shape.num_elements() > 0;
    if !usable || operand.dtype() != DType::F32 || operand.layout().shape() != shape {
        return Err(handles);
    }
    let mask = mask.clone();
    let Some(HandleKind::Float(mut operand)) = handles.into_iter().next() else { unreachable!("looked at") };
    let chosen = move |x, masked: u8| if masked == 0 { x } else { value };
    let (strides, begin) =
        (repeated(mask.layout().shape(), mask.layout().strides(), shape), mask.layout().start_offset());

    if let Some(elements) = overwritable(&mut operand) {
        zip_in_place(elements, &Walk::new(shape, [&strides], [begin]), mask.bytes(), chosen);
        return Ok(HandleKind::Float(operand));
    }

    let start = [operand.layout().start_offset(), begin];
    let walk = Walk::new(shape, [operand.layout().strides(), &strides], start);
    let both = (operand.storage::<f32>(), mask.bytes());
    Ok(tensor(zip_along(shape.num_elements(), &walk, both, chosen), shape.clone()))
}

/// Adds the third operand's rows, in turn, to the first's rows named by the second.
fn select_added(handles: Vec<Handle>) -> Result<Handle, Vec<Handle>> {
    let [HandleKind::Float(to), HandleKind::Int(rows), HandleKind::Float(added)] = handles.as_slice() else {
        return Err(handles);
    };
    let (Some(rows), Some((first, end))) = (indices(rows), added.layout().contiguous_offsets()) else {
        return Err(handles);
    };

    let [count, width] = to.layout().shape().as_slice() else { return Err(handles) };
    let (count, width) = (*count, *width);
    let fits =
        added.layout().shape().as_slice() == [rows.len(), width] && rows.iter().all(|row| *row < count);
    if !fits || width == 0 || count == 0 || [to, added].iter().any(|tensor| tensor.dtype() != DType::F32) {
        return Err(handles);
    }

    let added = added.clone();
    let mut handles = handles;
    handles.truncate(1);
    let Some(HandleKind::Float(mut to)) = handles.pop() else { unreachable!("it was just looked at") };
    if overwritable(&mut to).is_none() {
        let HandleKind::Float(copy) = in_order(&to, Cost::Memory, |x| x) else { unreachable!("of a float") };
        to = copy;
    }

    let elements = to.storage_mut::<f32>();
    for (row, added) in rows.into_iter().zip(added.storage::<f32>()[first..end].chunks(width)) {
        let sums = &mut elements[row * width..(row + 1) * width];
        sums.iter_mut().zip(added).for_each(|(sum, added)| *sum += *added);
    }
    Ok(HandleKind::Float(to))
}

fn indices(tensor: &FlexTensor) -> Option<Vec<usize>> {
    let (first, end) = tensor.layout().contiguous_offsets()?;
    match tensor.dtype() {
        DType::I64 => tensor.storage::<i64>()[first..end].iter().map(|n| usize::try_from(*n).ok()).collect(),
        DType::I32 => tensor.storage::<i32>()[first..end].iter().map(|n| usize::try_from(*n).ok()).collect(),
        _ => None,
    }
}

fn floats<const N: usize>(handles: Vec<Handle>) -> Result<[FlexTensor; N], Vec<Handle>> {
    let usable = |handle: &Handle| match handle {
        HandleKind::Float(tensor) => tensor.dtype() == DType::F32 && tensor.layout().num_elements() > 0,
        _ => false,
    };
    if handles.len() != N || !handles.iter().all(usable) {
        return Err(handles);
    }
    let tensors: Vec<FlexTensor> = handles
        .into_iter()
        .filter_map(|handle| match handle {
            HandleKind::Float(tensor) => Some(tensor),
            _ => None,
        })
        .collect();
    Ok(tensors.try_into().expect("counted above"))
}

/// Where Flex works in place: row-major, from the start of an unshared storage.
fn overwritable(tensor: &mut FlexTensor) -> Option<&mut [f32]> {
    match tensor.layout().contiguous_offsets() {
        Some((0, end)) if tensor.is_unique() => Some(&mut tensor.storage_mut::<f32>()[..end]),
        _ => None,
    }
}

fn tensor(elements: Vec<f32>, shape: Shape) -> Handle {
    let elements = Bytes::from_elems(elements);
    HandleKind::Float(FlexTensor::new(elements, Layout::contiguous(shape), DType::F32))
}

/// As Burn reads scalars, before rounding to the tensor's type.
fn as_f64(scalar: &ScalarIr) -> f64 {
    match *scalar {
        ScalarIr::Float(x) => x,
        ScalarIr::Int(x) => x as f64,
        ScalarIr::UInt(x) => x as f64,
        ScalarIr::Bool(x) => f64::from(u8::from(x)),
    }
}
