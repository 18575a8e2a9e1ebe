//! Every operation here against Flex, over every kind of view.

use super::*;
use crate::flex::scratch::Scratch;
use burn_backend::TensorData;
use burn_backend::tensor::IndexingUpdateOp::Add as Adding;
use burn_flex::FlexDevice;
use burn_ir::{
    BinaryOpIr, CreationOpIr, MaskFillOpIr, MatmulOpIr, SelectAssignOpIr, ShapeOpIr, TensorId, TensorIr,
    TensorStatus, UnaryOpIr,
};

const SHAPE: [usize; 3] = [2, 3, 4];

fn numbers(count: usize) -> Vec<f32> {
    (0..count).map(|n| ((n * 7919 + 13) % 2003) as f32 / 500.0 - 2.0).collect()
}

fn rows(shape: &[usize]) -> FlexTensor {
    FlexTensor::from_data(TensorData::new(numbers(shape.iter().product()), Shape::from(shape.to_vec())))
}

/// Tensors of one shape: in rows, permuted, sliced, reversed, repeated.
fn views([a, b, c]: [usize; 3]) -> Vec<FlexTensor> {
    let repeated = |own: &[usize], strides: [isize; 3]| {
        FlexTensor::from_arc(
            rows(own).data_arc(),
            Layout::new(Shape::from([a, b, c]), strides.into(), 0),
            DType::F32,
        )
    };
    let flipped = rows(&[a, b, c]);
    let layout = flipped.layout().flip(&[0, 2]);
    vec![
        rows(&[a, b, c]),
        rows(&[b, a, c]).transpose(0, 1),
        rows(&[a, c, b]).transpose(1, 2),
        rows(&[c, b, a]).transpose(0, 2),
        rows(&[a + 2, b, c]).narrow(0, 1, a),
        rows(&[a, b, c + 3]).narrow(2, 2, c),
        flipped.with_layout(layout),
        repeated(&[b, c], [0, c as isize, 1]),
        repeated(&[a, c], [c as isize, 0, 1]),
        repeated(&[a, b], [b as isize, 1, 0]),
    ]
}

fn ir(id: u64, tensor: &FlexTensor) -> TensorIr {
    let (shape, dtype) = (tensor.layout().shape().clone(), tensor.dtype());
    // Far from the ids that the runner draws.
    TensorIr { id: TensorId::new(id + (1 << 40)), shape, status: TensorStatus::ReadWrite, dtype }
}

fn output(shape: &[usize]) -> TensorIr {
    TensorIr::uninit(TensorId::new(1 << 41), Shape::from(shape.to_vec()), DType::F32)
}

fn unshared(handle: &Handle) -> Handle {
    let again = |tensor: &FlexTensor| {
        let storage = Bytes::from_bytes_vec(tensor.bytes().to_vec());
        FlexTensor::new(storage, tensor.layout().clone(), tensor.dtype())
    };
    match handle {
        HandleKind::Float(tensor) => HandleKind::Float(again(tensor)),
        HandleKind::Int(tensor) => HandleKind::Int(again(tensor)),
        HandleKind::Bool(tensor) => HandleKind::Bool(again(tensor)),
        HandleKind::Quantized(_) => unreachable!("none is made here"),
    }
}

fn shown(handle: Handle) -> (Layout, TensorData) {
    match handle {
        HandleKind::Float(tensor) | HandleKind::Int(tensor) | HandleKind::Bool(tensor) => {
            (tensor.layout().clone(), tensor.into_data())
        }
        HandleKind::Quantized(_) => unreachable!("none is made here"),
    }
}

/// Compares results for shared and unshared operands.
fn check(operation: &OperationIr, operands: &[Handle]) {
    let scratch = Scratch::<Flex>::new(&FlexDevice);
    let inputs: Vec<TensorIr> = operation.inputs().cloned().collect();
    for (input, handle) in inputs.iter().zip(operands) {
        scratch.put(input, handle.clone());
    }
    scratch.run(operation.clone());
    let out = operation.outputs().next().expect("one output").clone();
    let (layout, data) = shown(scratch.take(&out));

    for (shared, handles) in
        [(true, operands.to_vec()), (false, operands.iter().map(unshared).collect::<Vec<_>>())]
    {
        let Ok(found) = run(operation, handles) else { panic!("{operation:?} went to Flex") };
        let (own, found) = shown(found);
        assert_eq!(own, layout, "shared {shared}: {operation:?}");
        assert_eq!(found.bytes, data.bytes, "shared {shared}: {operation:?}");
    }

    for (handle, input) in operands.iter().zip(&inputs) {
        assert_eq!(shown(handle.clone()).1.shape, input.shape);
    }
}

fn float(tensor: &FlexTensor) -> Handle {
    HandleKind::Float(tensor.clone())
}

fn pairs(left: &FlexTensor, right: &FlexTensor, shape: &[usize]) {
    use NumericOperationIr::{Add, Div, Mul, Sub};
    for operation in [Add, Sub, Mul, Div] {
        let binary = BinaryOpIr { lhs: ir(1, left), rhs: ir(2, right), out: output(shape) };
        check(&OperationIr::NumericFloat(DType::F32, operation(binary)), &[float(left), float(right)]);
    }
}

#[test]
fn pairs_have_flexs_bits_and_layout_however_they_lie() {
    for left in views(SHAPE) {
        for right in views(SHAPE) {
            pairs(&left, &right, &SHAPE);
        }
    }
}

#[test]
fn a_smaller_operand_is_repeated_on_either_side() {
    for own in [[1, 3, 4], [2, 1, 4], [2, 3, 1], [1, 1, 4], [1, 3, 1], [1, 1, 1]] {
        for large in views(SHAPE) {
            pairs(&large, &rows(&own), &SHAPE);
            pairs(&rows(&own), &large, &SHAPE);
        }
    }
    pairs(&rows(&[2, 1, 4]), &rows(&[1, 3, 1]), &SHAPE);
}

#[test]
fn many_elements_have_the_same_bits_on_all_threads() {
    let (rows_and_more, turned) = (rows(&[3, 1000, 101]), rows(&[1000, 3, 101]).transpose(0, 1));
    pairs(&rows_and_more, &turned, &[3, 1000, 101]);
    pairs(&turned, &rows(&[1, 1000, 1]), &[3, 1000, 101]);
    for tensor in [rows_and_more, turned] {
        single(&tensor);
    }
}

fn single(tensor: &FlexTensor) {
    use FloatOperationIr::{Exp, Log, PowfScalar, Sqrt, Tanh};
    use NumericOperationIr::{AddScalar, DivScalar, MulScalar, PowiScalar, SubScalar};
    let shape = tensor.layout().shape().to_vec();
    let scalar = |rhs| ScalarOpIr { lhs: ir(1, tensor), rhs, out: output(&shape) };
    for operation in [AddScalar, SubScalar, MulScalar, DivScalar] {
        let operation = operation(scalar(ScalarIr::Float(0.3)));
        check(&OperationIr::NumericFloat(DType::F32, operation), &[float(tensor)]);
    }
    let operation = PowiScalar(scalar(ScalarIr::Int(2)));
    check(&OperationIr::NumericFloat(DType::F32, operation), &[float(tensor)]);
    check(&OperationIr::Float(DType::F32, PowfScalar(scalar(ScalarIr::Float(2.0)))), &[float(tensor)]);
    for operation in [Exp, Log, Sqrt, Tanh] {
        let unary = UnaryOpIr { input: ir(1, tensor), out: output(&shape) };
        check(&OperationIr::Float(DType::F32, operation(unary)), &[float(tensor)]);
    }
}

#[test]
fn single_operands_have_flexs_bits_and_layout_however_they_lie() {
    views(SHAPE).iter().for_each(single);
}

#[test]
fn a_mask_is_repeated_and_read_however_it_lies() {
    let mask = |tensor: FlexTensor| {
        let set = tensor.bytes().chunks(4).map(|x| u8::from(x[0] & 8 == 0)).collect::<Vec<_>>();
        let dtype = DType::Bool(burn_std::BoolStore::Native);
        FlexTensor::new(Bytes::from_elems(set), tensor.layout().clone(), dtype)
    };
    for tensor in views(SHAPE) {
        for mask in views(SHAPE).into_iter().chain([rows(&[1, 3, 1]), rows(&[2, 1, 4])]).map(mask) {
            let value = ScalarIr::Float(-1e30);
            let fill =
                MaskFillOpIr { tensor: ir(1, &tensor), mask: ir(2, &mask), value, out: output(&SHAPE) };
            let operation = OperationIr::BaseFloat(BaseOperationIr::MaskFill(fill));
            check(&operation, &[float(&tensor), HandleKind::Bool(mask.clone())]);
            if mask.layout().num_elements() == 24 && mask.layout().reshape(Shape::from([24])).is_none() {
                let out = TensorIr { dtype: mask.dtype(), ..output(&[4, 6]) };
                let reshape = BaseOperationIr::Reshape(ShapeOpIr { input: ir(1, &mask), out });
                check(&OperationIr::BaseBool(reshape), &[HandleKind::Bool(mask)]);
            }
        }
    }
}

#[test]
fn a_reshape_that_is_no_view_puts_elements_in_rows() {
    for tensor in views(SHAPE) {
        let reshape = BaseOperationIr::Reshape(ShapeOpIr { input: ir(1, &tensor), out: output(&[4, 6]) });
        let operation = OperationIr::BaseFloat(reshape);
        if tensor.layout().reshape(Shape::from([4, 6])).is_some() {
            assert!(run(&operation, vec![float(&tensor)]).is_err(), "a view was copied");
        } else {
            check(&operation, &[float(&tensor)]);
        }
    }
}

#[test]
fn rows_are_added_one_after_another_also_to_the_same() {
    let (to, added) = (rows(&[5, 3]), rows(&[4, 3]));
    let zeros = CreationOpIr { out: output(&[5, 3]) };
    check(&OperationIr::BaseFloat(BaseOperationIr::Zeros(zeros)), &[]);
    let longs = FlexTensor::from_data(TensorData::new(vec![4i64, 0, 4, 4], Shape::from([4])));
    let ints = FlexTensor::from_data(TensorData::new(vec![4i32, 0, 4, 4], Shape::from([4])));
    for indices in [longs, ints] {
        let (tensor, value) = (ir(1, &to), ir(3, &added));
        let (indices_ir, out) = (ir(2, &indices), output(&[5, 3]));
        let select = SelectAssignOpIr { tensor, dim: 0, indices: indices_ir, value, update: Adding, out };
        let operation = OperationIr::BaseFloat(BaseOperationIr::SelectAssign(select));
        check(&operation, &[float(&to), HandleKind::Int(indices.clone()), float(&added)]);
    }
}

fn product(left: &FlexTensor, right: &FlexTensor, shape: &[usize]) {
    let matmul = MatmulOpIr { lhs: ir(1, left), rhs: ir(2, right), out: output(shape) };
    check(&OperationIr::Float(DType::F32, FloatOperationIr::Matmul(matmul)), &[float(left), float(right)]);
}

#[test]
fn products_have_flexs_bits_whatever_their_strides_and_threads() {
    for left in views([2, 5, 4]) {
        for right in views([2, 4, 3]) {
            product(&left, &right, &[2, 5, 3]);
        }
        product(&left, &rows(&[1, 4, 3]), &[2, 5, 3]);
    }
    for size in [65, 130, 200] {
        product(&rows(&[size, 300]), &rows(&[size + 1, 300]).transpose(0, 1), &[size, size + 1]);
    }
    product(&rows(&[6, 64, 90]), &rows(&[6, 70, 90]).transpose(1, 2), &[6, 64, 70]);
    product(&rows(&[2, 190, 201]), &rows(&[2, 201, 210]), &[2, 190, 210]);
}

#[test]
fn a_change_keeps_a_storage_of_its_own_and_leaves_others_alone() {
    let (whole, turned) = (rows(&[2, 3]), rows(&[3, 2]).transpose(0, 1));
    let expected: Vec<f32> = turned.clone().into_data().into_vec::<f32>().expect("floats");
    let shared = rows(&[2, 3]);
    let address = whole.bytes().as_ptr();
    let handles = vec![HandleKind::Float(whole), HandleKind::Float(turned), float(&shared)];
    let changed = change(handles, &mut |slices| {
        let [whole, turned, shared] = slices else { panic!("three tensors") };
        assert_eq!(**turned, *expected);
        whole.fill(1.0);
        shared.fill(2.0);
    });
    let [HandleKind::Float(whole), _, HandleKind::Float(copy)] = changed.as_slice() else { panic!("floats") };
    assert_eq!(whole.bytes().as_ptr(), address, "the tensor was not changed where it lies");
    assert_eq!(whole.storage::<f32>(), [1.0; 6]);
    assert_eq!((copy.storage::<f32>(), shared.storage::<f32>()), (&[2.0; 6][..], &numbers(6)[..]));
}
