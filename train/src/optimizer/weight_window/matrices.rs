//! The matrices that ranks gather: their segments, forms and owners.

use std::ops::Range;
use std::sync::Arc;

use anyhow::anyhow;
use backend_offload::{HostMemory, Managed};
use burn::module::{ModuleMapper, Param, ParamId};
use burn::tensor::{
    DType, Shape, Tensor, TensorData, TensorPrimitive,
    backend::{AutodiffBackend, Backend},
};
use exchange::neighbours;
use host_optim::{Code, tile_bytes, tile_tensors};
use models::{Gpt, OnDemand};

use super::super::gather::by_owner;
use super::super::streamed::{Crossing, Waited, on_demand, placeholder};
use super::super::{HostPart, Owners};
use crate::parameters::Home;
use crate::ranks::BUCKET_BYTES;

pub(super) struct Matrices<I: Backend> {
    pub(super) segments: Vec<Vec<Matrix>>,
    pub(super) rank: usize,
    pub(super) world: usize,
    pub(super) memory: HostMemory,
    pub(super) device: I::Device,
}

#[derive(Clone)]
pub(super) struct Matrix {
    pub(super) id: ParamId,
    pub(super) owner: usize,
    pub(super) shape: Shape,
    pub(super) form: Form,
}

/// As in the owner's memory.
#[derive(Clone, Copy)]
pub(super) enum Form {
    Numbers(DType),
    Tiles(Code, Crossing),
}

pub(super) enum Own<I: Backend> {
    /// The parameter, once its update has run.
    Parameter(Box<dyn Fn() -> Tensor<I, 2> + Send>),
    Tiles(Waited<I>),
}

impl Matrix {
    /// Those that ranks gather, by segments of `every` blocks.
    pub(super) fn segments<B: Backend>(
        owners: &Owners,
        host: Option<&HostPart>,
        gpt: &Gpt<B>,
        every: usize,
    ) -> Vec<Vec<Self>> {
        let mut segments = Vec::<Vec<Self>>::new();
        for (id, parameter) in gpt.learning() {
            let (block, name) = (parameter.block(), parameter.name);
            let Some(owned) = owners.get(&name).filter(|owned| owned.is_alone) else { continue };
            let Some(block) = block else { continue };
            let segment = block / every;
            segments.resize(segments.len().max(segment + 1), Vec::new());
            let (owner, shape, form) = (owned.rank, owned.shape.clone(), Form::new(host, &name));
            segments[segment].push(Self { id, owner, shape, form });
        }
        segments
    }

    pub(super) fn bytes(&self) -> usize {
        let elements = self.shape.num_elements();
        match self.form {
            Form::Numbers(kind) => kind.size() * elements,
            Form::Tiles(..) => tile_bytes(elements),
        }
    }
}

impl Form {
    fn new(host: Option<&HostPart>, name: &str) -> Self {
        let wide = Self::Numbers(DType::F32);
        let Some(settings) = host.map(|host| &host.settings) else { return wide };
        match settings.parameters.home(name) {
            Some(Home::Host(form)) => match form.code {
                Some(code) => Self::Tiles(code, settings.crossing),
                None => Self::Numbers(if form.narrow { DType::BF16 } else { DType::F32 }),
            },
            _ => wide,
        }
    }

    fn kind(self) -> DType {
        match self {
            Self::Numbers(kind) => kind,
            Self::Tiles(_, crossing) => crossing.kind,
        }
    }
}

impl<I: Managed> Own<I> {
    pub(super) fn weights(&self, matrix: &Matrix) -> OnDemand {
        match (self, matrix.form) {
            (Self::Tiles(tiles), Form::Tiles(code, crossing)) => {
                let tiles = Arc::clone(tiles);
                on_demand::<I>(crossing, code, matrix.shape.clone(), move || tiles())
            }
            (Self::Parameter(value), _) => constant(value()),
            (Self::Tiles(_), Form::Numbers(_)) => unreachable!("only tiles are replaced by tiles"),
        }
    }

    pub(super) fn read(&self, name: &str, bytes: &mut [u8]) -> anyhow::Result<()> {
        match self {
            Self::Parameter(value) => bytes.copy_from_slice(&host_optim::read(name, value())?.bytes),
            Self::Tiles(tiles) => {
                let (codes, scales) = tiles();
                let codes = codes.try_into_data().map_err(|error| anyhow!("{name}: {error}"))?;
                let codes = codes.convert_dtype(DType::I8);
                let (front, back) = bytes.split_at_mut(codes.bytes.len());
                front.copy_from_slice(&codes.bytes);
                back.copy_from_slice(&host_optim::read(name, scales)?.bytes);
            }
        }
        Ok(())
    }
}

fn constant<I: Backend>(weights: Tensor<I, 2>) -> OnDemand {
    OnDemand::new(move || weights.clone())
}

impl<I: Managed> Matrices<I> {
    pub(super) fn rounds(&self, segment: usize) -> Vec<Range<usize>> {
        let lens: Vec<usize> = self.segments[segment].iter().map(Matrix::bytes).collect();
        neighbours(&lens, BUCKET_BYTES * self.world)
    }

    pub(super) fn bytes(&self, segment: usize) -> u64 {
        self.segments[segment].iter().map(|matrix| matrix.bytes() as u64).sum()
    }

    pub(super) fn places(&self, round: &[Matrix]) -> (Vec<usize>, Vec<Range<usize>>) {
        let parts: Vec<_> = round.iter().map(|matrix| (matrix.owner, matrix.bytes())).collect();
        by_owner(&parts, self.world)
    }

    pub(super) fn received(&self, matrix: &Matrix, bytes: &[u8]) -> OnDemand {
        match matrix.form {
            Form::Numbers(kind) => {
                let data = TensorData::from_bytes_vec(bytes.to_vec(), matrix.shape.clone(), kind);
                let made = self.memory.first(|| I::float_without_copy(data, &self.device));
                constant::<I>(Tensor::from_primitive(TensorPrimitive::Float(made)))
            }
            Form::Tiles(code, crossing) => {
                let len = matrix.shape.num_elements();
                let tiles = self.memory.first(|| tile_tensors::<I>(bytes, len, &self.device));
                on_demand::<I>(crossing, code, matrix.shape.clone(), move || tiles.clone())
            }
        }
    }

    /// After a failure, which ends the session.
    pub(super) fn missing(&self, matrix: &Matrix) -> OnDemand {
        constant::<I>(placeholder(matrix.form.kind(), matrix.shape.clone(), &self.device))
    }
}

pub(super) struct WithoutOthers<'a> {
    pub(super) owners: &'a Owners,
    pub(super) host: Option<&'a HostPart>,
    pub(super) path: Vec<String>,
}

impl<B: AutodiffBackend<InnerBackend: Managed>> ModuleMapper<B> for WithoutOthers<'_> {
    models::keeps_path!();

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let name = self.path.join(".");
        if self.owners.has(&name) || !self.owners.gather(&name) {
            return param;
        }
        let nothing =
            placeholder(Form::new(self.host, &name).kind(), param.lazy_shape(), &param.lazy_device());
        Param::initialized(param.id, Tensor::from_inner(nothing).require_grad())
    }
}
