//! Operations: names, arithmetic, and support by the router.

use crate::error::OffloadError;
use burn_backend::DType;
use burn_backend::tensor::IndexingUpdateOp;
use burn_ir::{BaseOperationIr, FloatOperationIr, IntOperationIr, ModuleOperationIr, OperationIr, TensorIr};

/// Burn's family and name: `Float::Matmul`, `BaseInt::Reshape`.
pub fn name(operation: &OperationIr) -> String {
    let shown = format!("{operation:?}");
    let head = shown.split(" {").next().unwrap_or_default();
    let mut words = head.split(['(', ',', ' ']).filter(|word| !word.is_empty());
    let family = words.next().unwrap_or_default();
    // The last word is the arguments' type.
    match words.collect::<Vec<_>>().as_slice() {
        [.., name, _arguments] => format!("{family}::{name}"),
        _ => family.to_owned(),
    }
}

/// FLOPs of a product or convolution; 0 for others, which take time by their bytes.
pub fn flops(operation: &OperationIr) -> u64 {
    use ModuleOperationIr as Module;
    let product = |lhs: &TensorIr, out: &TensorIr| {
        2 * out.shape.num_elements() * lhs.shape.last().copied().unwrap_or(0)
    };
    let convolution = |weight: &TensorIr, out: &TensorIr| {
        2 * out.shape.num_elements() * weight.shape.num_elements()
            / weight.shape.first().map_or(1, |n| (*n).max(1))
    };

    let flops = match operation {
        OperationIr::Float(_, FloatOperationIr::Matmul(op))
        | OperationIr::Int(IntOperationIr::Matmul(op)) => product(&op.lhs, &op.out),
        OperationIr::Module(Module::Conv1d(op)) => convolution(&op.weight, &op.out),
        OperationIr::Module(Module::Conv2d(op)) => convolution(&op.weight, &op.out),
        OperationIr::Module(Module::Conv3d(op)) => convolution(&op.weight, &op.out),
        OperationIr::Module(Module::Conv1dXBackward(op)) => convolution(&op.weight, &op.output_grad),
        OperationIr::Module(Module::Conv2dXBackward(op)) => convolution(&op.weight, &op.output_grad),
        OperationIr::Module(Module::Conv3dXBackward(op)) => convolution(&op.weight, &op.output_grad),
        OperationIr::Module(Module::Conv1dWeightBackward(op)) => convolution(&op.weight, &op.output_grad),
        OperationIr::Module(Module::Conv2dWeightBackward(op)) => convolution(&op.weight, &op.output_grad),
        OperationIr::Module(Module::Conv3dWeightBackward(op)) => convolution(&op.weight, &op.output_grad),
        _ => 0,
    };
    flops as u64
}

pub fn refusal(operation: &OperationIr) -> Option<OffloadError> {
    use BaseOperationIr::{Scatter, SelectAssign};
    let reason = match operation {
        OperationIr::Custom(_) => "the router has no way to run custom operations",
        OperationIr::Float(_, FloatOperationIr::Quantize(_) | FloatOperationIr::Dequantize(_)) => QUANTIZED,
        OperationIr::BaseFloat(base) | OperationIr::BaseInt(base) | OperationIr::BaseBool(base) => match base
        {
            Scatter(scatter) if scatter.update != IndexingUpdateOp::Add => ONLY_ADD,
            SelectAssign(select) if select.update != IndexingUpdateOp::Add => ONLY_ADD,
            _ => return quantized(operation),
        },
        _ => return quantized(operation),
    };
    Some(unsupported(name(operation), reason))
}

const QUANTIZED: &str = "the router does not forward quantized tensors; dequantize before, or use a GPU";
const ONLY_ADD: &str = "the router scatters by addition only";

fn quantized(operation: &OperationIr) -> Option<OffloadError> {
    let mut tensors = operation.inputs().chain(operation.outputs());
    tensors.any(|tensor| is_quantized(tensor.dtype)).then(|| unsupported(name(operation), QUANTIZED))
}

pub fn data_refusal(dtype: DType) -> Option<OffloadError> {
    is_quantized(dtype).then(|| unsupported("a tensor from quantized data".to_owned(), QUANTIZED))
}

fn is_quantized(dtype: DType) -> bool {
    matches!(dtype, DType::QFloat(_))
}

fn unsupported(operation: String, reason: &'static str) -> OffloadError {
    OffloadError::Unsupported { operation, backend: "the CPU adapter", reason }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn_backend::Shape;
    use burn_ir::{BinaryOpIr, CustomOpIr, MatmulOpIr, NumericOperationIr, ShapeOpIr, TensorId, TensorIr};

    fn tensor(n: u64) -> TensorIr {
        TensorIr::uninit(TensorId::new(n), Shape::from([2, 3]), DType::F32)
    }

    #[test]
    fn operations_are_named_by_family_and_kind() {
        let reshape =
            OperationIr::BaseInt(BaseOperationIr::Reshape(ShapeOpIr { input: tensor(0), out: tensor(1) }));
        assert_eq!(name(&reshape), "BaseInt::Reshape");
        let add = BinaryOpIr { lhs: tensor(0), rhs: tensor(1), out: tensor(2) };
        let add = OperationIr::NumericFloat(DType::F32, NumericOperationIr::Add(add));
        assert_eq!(name(&add), "NumericFloat::Add");
        assert!(refusal(&add).is_none());
        assert_eq!(flops(&add), 0);
    }

    #[test]
    fn a_matrix_product_has_two_operations_for_each_pair_of_numbers() {
        let sized = |n, shape: &[usize]| TensorIr::uninit(TensorId::new(n), Shape::from(shape), DType::F32);
        let (lhs, rhs, out) = (sized(0, &[4, 5, 7]), sized(1, &[1, 7, 3]), sized(2, &[4, 5, 3]));
        let product = OperationIr::Float(DType::F32, FloatOperationIr::Matmul(MatmulOpIr { lhs, rhs, out }));
        assert_eq!(flops(&product), 2 * 4 * 5 * 7 * 3);
    }

    #[test]
    fn custom_operations_are_refused_by_name() {
        let custom = OperationIr::Custom(CustomOpIr::new("fused_thing", &[tensor(0)], &[tensor(1)]));
        let error = refusal(&custom).expect("it cannot run").to_string();
        assert!(error.contains("custom operations"), "{error}");
        assert!(error.starts_with("Custom"), "{error}");
    }
}
