//! Operations as this door sees them: by name, and whether it can run them.

use crate::error::OffloadError;
use burn_backend::DType;
use burn_backend::tensor::IndexingUpdateOp;
use burn_ir::{BaseOperationIr, FloatOperationIr, OperationIr};

/// Family and name as Burn's intermediate representation has them: `Float::Matmul`, `BaseInt::Reshape`.
pub fn name(operation: &OperationIr) -> String {
    let shown = format!("{operation:?}");
    let head = shown.split(" {").next().unwrap_or_default();
    let mut words = head.split(['(', ',', ' ']).filter(|word| !word.is_empty());
    let family = words.next().unwrap_or_default();
    // The last word is the type of the operation's arguments, the one before it the operation.
    match words.collect::<Vec<_>>().as_slice() {
        [.., name, _arguments] => format!("{family}::{name}"),
        _ => family.to_owned(),
    }
}

/// Why the operation cannot run, if it cannot.
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

const QUANTIZED: &str =
    "the router does not forward quantized tensors; dequantize before, or use a device of the cube door";
const ONLY_ADD: &str = "the router scatters by addition only";

fn quantized(operation: &OperationIr) -> Option<OffloadError> {
    let mut tensors = operation.inputs().chain(operation.outputs());
    tensors.any(|tensor| is_quantized(tensor.dtype)).then(|| unsupported(name(operation), QUANTIZED))
}

/// The refusal of data of this type, if it is refused.
pub fn data_refusal(dtype: DType) -> Option<OffloadError> {
    is_quantized(dtype).then(|| unsupported("a tensor from quantized data".to_owned(), QUANTIZED))
}

fn is_quantized(dtype: DType) -> bool {
    matches!(dtype, DType::QFloat(_))
}

fn unsupported(operation: String, reason: &'static str) -> OffloadError {
    OffloadError::Unsupported { operation, backend: "the router door", reason }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn_backend::Shape;
    use burn_ir::{BinaryOpIr, CustomOpIr, NumericOperationIr, ShapeOpIr, TensorId, TensorIr};

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
    }

    #[test]
    fn custom_operations_are_refused_by_name() {
        let custom = OperationIr::Custom(CustomOpIr::new("fused_thing", &[tensor(0)], &[tensor(1)]));
        let error = refusal(&custom).expect("nobody can run it").to_string();
        assert!(error.contains("custom operations"), "{error}");
        assert!(error.starts_with("Custom"), "{error}");
    }
}
