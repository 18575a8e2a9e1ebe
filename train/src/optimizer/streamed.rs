//! Matrices that cross the link in 8-bit tiles: weights in, gradients out.
//!
//! Each use decodes the tiles (`the_device_decodes_the_tiles_that_the_host_encoded`). The parameter itself is NaN
//! (`the_placeholder_of_a_matrix_is_nan`).

use std::sync::Arc;

use backend_offload::Managed;
use burn::module::ParamId;
use burn::tensor::{
    DType, Shape, Tensor,
    backend::{Backend, DTypeUsage},
};
use host_optim::{Code, HostOptimError, HostState, Incoming, TileTensors, Update, decoded_by_kernel};
use models::tiles::{self, Rounding, Tiles};
use models::{BaseForm, Compute, InputForm, OnDemand, random};
use runs::BadInput;
use runs::config::{Config, CrossingKind, StreamKind};

use super::{HostPart, Stride};

/// How tiles are decoded, and gradients rounded.
#[derive(Debug, Clone, Copy)]
pub(super) struct Crossing {
    /// Type of decoded weights.
    pub(super) kind: DType,
    seed: u64,
}

impl Crossing {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            kind: match config.model.compute {
                Compute::F32 => DType::F32,
                Compute::Bf16 => DType::BF16,
                Compute::F16 => DType::F16,
            },
            seed: config.train.seed,
        }
    }

    pub(super) fn read<I: Backend, const D: usize>(
        self,
        state: &HostState,
        gradient: Tensor<I, D>,
    ) -> Result<Incoming, HostOptimError> {
        // The same random bits on any rank.
        let place = [self.seed, u64::from(state.time()), state.next_share()];
        let key = random::combine(
            &place.into_iter().chain(state.name().bytes().map(u64::from)).collect::<Vec<_>>(),
        );
        let Tiles { codes, scales } = Tiles::encode(gradient, Rounding::Random { key });
        Incoming::begin_tiles(state.name(), (codes, scales), self.kind == DType::BF16)
    }
}

/// Refuses formats that the device cannot store.
pub(crate) fn check_formats<I: Backend>(config: &Config, device: &I::Device) -> Result<(), BadInput> {
    check_bytes(config, I::supports_dtype(device, DType::I8))?;
    check_bf16(config, I::dtype_usage(device, DType::BF16).contains(DTypeUsage::Storage))
}

fn check_bf16(config: &Config, device_has_it: bool) -> Result<(), BadInput> {
    if device_has_it || config.memory.activations != InputForm::Bf16 {
        return Ok(());
    }
    Err(BadInput(
        "`memory.activations` = \"bf16\" needs a device that stores bf16, and this one does not; set it to \"computed\""
            .to_owned(),
    ))
}

fn check_bytes(config: &Config, device_has_them: bool) -> Result<(), BadInput> {
    let memory = &config.memory;
    let used = [
        ("memory.stream", memory.stream != StreamKind::Computed),
        ("memory.gradients", memory.gradients != CrossingKind::Computed),
        ("memory.activations", memory.activations == InputForm::Int8),
        ("memory.base", matches!(memory.base, BaseForm::Int8 | BaseForm::Nf4)),
    ];
    match used.iter().find(|(_, used)| *used) {
        Some((key, _)) if !device_has_them => Err(BadInput(format!(
            "`{key}` in eight bits needs a device that computes with bytes, and this one does not; set it to \"computed\""
        ))),
        _ => Ok(()),
    }
}

/// NaN in the shape of weights that each use decodes or gathers.
pub(super) fn placeholder<I: Backend, const D: usize>(
    kind: DType,
    shape: Shape,
    device: &I::Device,
) -> Tensor<I, D> {
    Tensor::<I, D>::full([1; D], f32::NAN, (device, kind)).expand::<D, _>(shape)
}

/// Tiles, once their update has run.
pub(super) type Waited<I> = Arc<dyn Fn() -> TileTensors<I> + Send + Sync>;

/// Weights that each use decodes, by one kernel or by operations with the same bits.
pub(super) fn on_demand<I: Managed>(
    crossing: Crossing,
    code: Code,
    shape: Shape,
    waited: impl Fn() -> TileTensors<I> + Send + Sync + 'static,
) -> OnDemand {
    let kind = crossing.kind;
    let in_operations = match code {
        Code::Int8 => tiles::Code::Int8,
        Code::Fp8 => tiles::Code::Fp8,
    };
    OnDemand::new(move || {
        let (codes, scales) = waited();
        decoded_by_kernel::<I, 2>((codes.clone(), scales.clone()), code, shape.clone(), kind)
            .unwrap_or_else(|| Tiles { codes, scales }.decode::<2>(in_operations, shape.clone(), kind))
    })
}

impl HostPart {
    /// Like [`prepare`](Self::prepare), for weights in tiles.
    pub(super) fn prepare_tiles<I: Managed>(
        &mut self,
        id: ParamId,
        stride: Stride,
        device: &I::Device,
    ) -> Result<(Update, Code, Waited<I>), HostOptimError> {
        let state = self.states.remove(&id).expect("it is due");
        let (rule, stride) = self.rule_and_stride((state.name(), 2), stride);
        let code = self.settings.parameters.form(state.name()).code.expect("its weights come in tiles");
        let (update, updated) = state.begin_tiles::<I>(rule, stride, code, device)?;
        let times = self.times.clone();
        Ok((update, code, Arc::new(move || times.add_wait(updated.wait_timed()))))
    }

    pub(super) fn comes_in_tiles(&self, id: ParamId) -> bool {
        self.states.get(&id).is_some_and(|state| self.settings.parameters.form(state.name()).code.is_some())
    }
}

#[cfg(test)]
mod tests {
    use backend_offload::{Offload, host_memory};
    use burn::backend::{Flex, flex::FlexDevice};
    use burn::tensor::TensorData;
    use host_optim::{Format, HostState, TILE};

    use super::*;

    type B = Offload<Flex>;

    fn crossing(stream: &str) -> Crossing {
        let text = r#"{"model": {"n_layer": 1, "n_head": 1, "n_embd": 8, "n_positions": 4, "vocab_size": 264},
            "tokenizer": {"kind": "bytes"}, "memory": {"optimizer": "host", "gradients": "int8"}}"#;
        let set = [format!("memory.stream={stream}")];
        Crossing::new(&Config::from_text(text, "a tiny run", &set).expect("valid"))
    }

    fn numbers(count: usize) -> Vec<f32> {
        (0..count).map(|n| ((n as f32 + 0.5) * 0.754_877_7).fract() * 2.0 - 1.0).collect()
    }

    #[test]
    fn the_device_decodes_the_tiles_that_the_host_encoded() {
        for (stream, code) in [("int8", Code::Int8), ("fp8", Code::Fp8)] {
            // The last tile is not full.
            let masters = numbers(7 * 23);
            let weights = Tensor::<B, 2>::from_data(TensorData::new(masters.clone(), [7, 23]), &FlexDevice);
            let memory = host_memory::<Flex>(&FlexDevice);
            let state = HostState::from_tensor(&memory, "matrix", Format::F32, &weights).expect("memory");
            let (codes, scales) = state.tiles::<B>(code, &FlexDevice).expect("memory");
            let bytes: Vec<i64> = codes.clone().into_data().iter().collect();
            let each: Vec<f32> = scales.clone().into_data().iter().collect();
            let decoded = on_demand::<B>(crossing(stream), code, weights.shape(), move || {
                (codes.clone(), scales.clone())
            });
            let decoded: Vec<f32> = decoded.weights::<B>().into_data().iter().collect();
            assert_eq!(decoded.len(), masters.len());
            for (n, decoded) in decoded.iter().enumerate() {
                let expected = code.values()[usize::from(bytes[n] as u8)] * each[n / TILE];
                assert_eq!(decoded.to_bits(), expected.to_bits(), "{stream}: element {n}");
                assert!((decoded - masters[n]).abs() < 0.04, "{stream}: {decoded} for {}", masters[n]);
            }
        }
    }

    #[test]
    fn formats_are_refused_on_a_device_that_cannot_store_them() {
        let text = r#"{"model": {"n_layer": 1, "n_head": 1, "n_embd": 8, "n_positions": 4, "vocab_size": 264},
            "tokenizer": {"kind": "bytes"}, "memory": {"optimizer": "host"}, "train": {"recompute": 1}}"#;
        let config = |set: &[String]| Config::from_text(text, "a tiny run", set).expect("valid");
        for key in ["memory.stream", "memory.gradients", "memory.activations"] {
            let eight = config(&[format!("{key}=int8")]);
            let refused = check_bytes(&eight, false).expect_err("it has none").to_string();
            assert!(refused.contains(&format!("`{key}` in eight bits")), "{refused}");
            assert!(check_bytes(&eight, true).is_ok());
            assert!(check_formats::<B>(&eight, &FlexDevice).is_ok(), "the CPU has bytes");
            assert!(check_bf16(&eight, false).is_ok());
        }
        let bf16 = config(&["memory.activations=bf16".to_owned()]);
        let refused = check_bf16(&bf16, false).expect_err("it has none").to_string();
        assert!(refused.contains("a device that stores bf16"), "{refused}");
        assert!(check_formats::<B>(&bf16, &FlexDevice).is_ok(), "the CPU has bf16");
        assert!(check_bytes(&bf16, false).is_ok());
        let none = config(&[]);
        for checked in [check_bytes(&none, false), check_bf16(&none, false)] {
            assert!(checked.is_ok(), "no setting asks for them");
        }
    }

    #[test]
    fn the_placeholder_of_a_matrix_is_nan() {
        let matrix: Tensor<B, 2> = placeholder(crossing("int8").kind, Shape::new([3, 5]), &FlexDevice);
        assert_eq!(matrix.dims(), [3, 5]);
        let read: Vec<f32> = matrix.into_data().iter().collect();
        assert!(read.iter().all(|x| x.is_nan()));
    }
}
