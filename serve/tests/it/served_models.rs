//! Servers of small models with random weights.

use std::sync::{Arc, Once};

use backend_offload::{Offload, OffloadConfig};
use burn::backend::Flex;
use burn::backend::flex::FlexDevice;
use burn::module::Param;
use burn::tensor::{Tensor, TensorData};
use models::Family;
use models::random::Random;
use models::{Gpt, GptConfig, Lookup, Matching, presets};
use serve::answer;
use tokenizer::Tokenizer;
use train::answering::{Batching, KvRoom};
use web::{InferenceWorker, KvMemory, Model, Settings};

use crate::client::TestServer;

pub(crate) type Cpu = Offload<Flex>;

static LITTLE_MEMORY: Once = Once::new();

/// Large weights: every layer affects the output.
pub(crate) fn config() -> GptConfig {
    let small = GptConfig {
        n_layer: 2,
        n_head: 4,
        n_kv_head: Some(2),
        n_embd: 32,
        n_inner: None,
        n_positions: 96,
        vocab_size: tokenizer().vocab_size() as usize,
        longest_match: true,
        init: Family::Gpt2,
        initializer_range: 0.3,
        ..presets::preset("nanochat").unwrap()
    };
    small.validate().unwrap();
    small
}

pub(crate) fn tokenizer() -> Tokenizer {
    Tokenizer::bytes(&[]).with_chat().unwrap()
}

/// Equal weights each time. With the caches, they exceed the device budget.
pub(crate) fn model() -> Gpt<Cpu> {
    LITTLE_MEMORY.call_once(|| {
        let config = OffloadConfig::new().device_budget("512KiB".parse().unwrap()).smallest_block(1024);
        config.install::<Flex>(&FlexDevice).unwrap();
    });
    let mut model: Gpt<Cpu> = Gpt::new(&config(), 3, &FlexDevice).unwrap();
    // As if trained with followers.
    let (mut random, shape) = (Random::new(4), [config().vocab_size + 1, config().n_embd]);
    let values: Vec<f32> = (0..shape[0] * shape[1]).map(|_| random.normal() as f32).collect();
    model.followers =
        Some(Param::from_tensor(Tensor::from_data(TensorData::new(values, shape), &FlexDevice)));
    model
}

/// Nothing follows multiples of three.
#[derive(Debug)]
pub(crate) struct NextId;

impl Lookup for NextId {
    fn begin(&self) -> Box<dyn Matching> {
        Box::new(Self)
    }
}

impl Matching for NextId {
    fn follower_after(&mut self, token: u32) -> Option<u32> {
        (!token.is_multiple_of(3)).then_some(token + 1)
    }
}

pub(crate) fn served(settings: Settings, batching: Batching) -> TestServer {
    served_with(settings, batching, Arc::new(NextId))
}

pub(crate) fn served_with(settings: Settings, batching: Batching, lookup: Arc<dyn Lookup>) -> TestServer {
    TestServer::start(settings, move |worker| work(worker, batching, lookup))
}

fn work(worker: InferenceWorker, batching: Batching, lookup: Arc<dyn Lookup>) {
    let model = model();
    let room = KvRoom::new(&config(), batching.slots, batching.kv_budget, None).unwrap();
    let description = Model {
        id: "random".into(),
        created: 0,
        context: config().n_positions,
        vocabulary: config().vocab_size,
        kv: Some(KvMemory {
            budget: room.bytes,
            bytes_per_token: room.bytes_per_token,
            tokens: room.positions,
        }),
    };
    let mut batch = batching.batch(&model, room, Some(lookup));
    answer(worker, &mut batch, batching.slots, tokenizer(), description, Box::new(Vec::new));
}
