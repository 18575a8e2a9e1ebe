//! Full f32 in matrix products on devices that round factors to TF32.
//!
//! Without TF32 among a device's features, CubeCL picks f32.

use cubecl_core::ir::{ElemType, FloatKind, StorageType, features::Features};

const TF32: StorageType = StorageType::Scalar(ElemType::Float(FloatKind::TF32));

pub(super) fn has_tf32(features: &Features) -> bool {
    features.types.storage.contains_key(&TF32)
}

pub(super) fn forget_tf32(features: &mut Features) {
    features.types.storage.remove(&TF32);
    for configs in [&mut features.matmul.cmma, &mut features.matmul.mma] {
        configs.retain(|config| config.a_type != TF32 && config.b_type != TF32);
    }
}

#[cfg(test)]
mod tests {
    use cubecl_core::ir::features::{MmaConfig, TypeUsage};

    use super::*;

    #[test]
    fn a_device_without_tf32_keeps_everything_else() {
        let float = |kind| StorageType::Scalar(ElemType::Float(kind));
        let config = |kind| MmaConfig {
            a_type: float(kind),
            b_type: float(kind),
            cd_type: float(FloatKind::F32),
            m: 16,
            n: 16,
            k: 8,
        };

        let mut features = Features::default();
        for kind in [FloatKind::TF32, FloatKind::BF16] {
            features.types.storage.insert(float(kind), TypeUsage::all());
            features.matmul.cmma.insert(config(kind));
            features.matmul.mma.insert(config(kind));
        }

        assert!(has_tf32(&features));
        forget_tf32(&mut features);
        assert!(!has_tf32(&features));
        assert!(features.types.storage.contains_key(&float(FloatKind::BF16)));
        let kept: Vec<_> = features.matmul.cmma.iter().chain(&features.matmul.mma).copied().collect();
        assert_eq!(kept, [config(FloatKind::BF16), config(FloatKind::BF16)]);
    }
}
