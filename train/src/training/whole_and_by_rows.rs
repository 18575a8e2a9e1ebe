//! An embedding by rows has the bits of a whole embedding.

use std::fs;

use backend_offload::Offload;
use burn::backend::{Autodiff, Flex, flex::FlexDevice};
use burn::module::AutodiffModule;
use burn_train::InferenceStep;
use models::{Gpt, weights};
use runs::checkpoint::{MOMENTS, STATE, WEIGHTS};
use runs::config::{Config, RanksSection};
use tempfile::TempDir;
use tokenizer::Tokenizer;

use super::exchange::Pass;
use super::{Exchange, Learner, Progress, restore, snapshot::Contents};
use crate::data::{MicroBatch, StepData};
use crate::optimizer::{Optimizer, Owners, Stride, rate_share};
use crate::plan::StatesOnDisk;
use crate::ranks::Ranks;

type Device = Offload<Flex>;
type Tape = Autodiff<Device>;

const STEPS: u64 = 24;

pub(super) fn config(settings: &[&str]) -> Config {
    let text = r#"{
        "model": {"preset": "llama-160m", "n_layer": 2, "n_head": 2, "n_embd": 24, "n_inner": 40, "n_positions": 16,
                  "vocab_size": 264},
        "tokenizer": {"kind": "bytes"}, "memory": {"optimizer": "host"},
        "train": {"lr": 0.01, "grad_clip": 0.5, "schedule": {"warmup": 5}}
    }"#;
    let settings: Vec<String> = settings.iter().map(|setting| (*setting).to_owned()).collect();
    Config::from_text(text, "a tiny run", &settings).expect("valid")
}

/// Other rows in every step, few of them in many. Every other micro-batch has a mask.
pub(super) fn micro_batch(step: u64, n: u64) -> MicroBatch {
    let token = |at: u64| {
        let drawn = (step * 31 + n * 17 + at).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        (drawn % if at.is_multiple_of(3) { 264 } else { 11 }) as i32
    };
    let inputs: Vec<i32> = (0..24).map(token).collect();
    let targets = (1..25).map(token).collect();
    let weight = |at: u64| if (at + step).is_multiple_of(3) { 0.0 } else { 1.0 };
    let mask = (!n.is_multiple_of(2)).then(|| (0..24).map(weight).collect());
    MicroBatch { rows: 2, inputs, targets, followers: None, mask }
}

struct Training {
    config: Config,
    learner: Learner<Tape>,
    optimizer: Optimizer<Device>,
}

impl Training {
    fn begin(config: &Config, by_rows: bool, mut optimizer: Optimizer<Device>, gpt: Gpt<Tape>) -> Self {
        if !by_rows {
            let host = optimizer.host.as_mut().expect("it is on the host");
            host.settings.parameters.bring_embedding_as_a_whole();
        }
        let gpt = optimizer.adopt(gpt, StatesOnDisk::none()).expect("there is room");
        assert_eq!(gpt.rows_on_demand().is_some(), by_rows);
        Self { config: config.clone(), learner: Learner::new(gpt, config), optimizer }
    }

    fn new(config: &Config, by_rows: bool) -> Self {
        let gpt = Gpt::new(&config.model, 3, &FlexDevice).expect("valid");
        Self::begin(config, by_rows, Optimizer::placed(config, &FlexDevice), gpt)
    }

    fn step(mut self, step: u64, is_withheld: bool) -> (Self, [u32; 2]) {
        let count = self.config.train.accumulate as u64;
        let data = StepData { step, micro_batches: (0..count).map(|n| micro_batch(step, n)).collect() };
        let passes = self.optimizer.passes.clone();
        let host = self.optimizer.host.as_mut();
        let owners = Owners::default();
        let mut ranks = Ranks::alone();
        let mut exchange = Exchange::choose(&RanksSection::default(), false, &ranks);
        let pass = Pass { learner: &self.learner, data: &data, host, owners: &owners, passes, window: None };
        let (grads, report) = exchange.sum(pass, &mut ranks).expect("no failure");

        if is_withheld {
            self.optimizer.withhold();
        } else {
            let settings = &self.config.train;
            let share = rate_share(&settings.schedule, step, STEPS);
            let stride = Stride::clipped(share, f64::from(report.gnorm), settings.grad_clip);
            let optimizer = &mut self.optimizer;
            let (learner, stepped) = self.learner.map_gpt(|gpt| optimizer.step(gpt, grads, stride));
            stepped.expect("there is room");
            self.learner = learner;
        }
        (self, [report.loss.to_bits(), report.gnorm.to_bits()])
    }

    fn evaluate(&mut self) -> u64 {
        self.optimizer.settle().expect("it was stepped");
        self.learner.valid().step(micro_batch(1000, 0)).sum.to_bits()
    }

    fn save(&mut self) -> TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        self.optimizer.settle().expect("it was stepped");
        let words = Tokenizer::bytes(&tokenizer::CHAT_SPECIALS);
        let Self { config, learner, optimizer } = self;
        let (gpt, progress, tokenizer) = (&learner.gpt, &Progress::start(1), &words);
        Contents { gpt, optimizer, config, progress, tokenizer }.save(folder.path()).expect("saved");
        folder
    }

    fn resume(folder: &TempDir, config: &Config, by_rows: bool) -> Self {
        let (_, optimizer) =
            restore::<Device>(folder.path(), config, &FlexDevice, Owners::default()).expect("restored");
        let gpt = weights::load_native(&folder.path().join(WEIGHTS), &FlexDevice).expect("it was saved");
        Self::begin(config, by_rows, optimizer, gpt)
    }
}

fn files(folder: &TempDir) -> Vec<Vec<u8>> {
    [WEIGHTS, MOMENTS, STATE].map(|file| fs::read(folder.path().join(file)).expect("it was saved")).into()
}

pub(super) struct Trained {
    pub(super) steps: Vec<[u32; 2]>,
    pub(super) evaluation: u64,
    pub(super) saved: [Vec<Vec<u8>>; 2],
}

pub(super) fn trained(settings: &[&str], by_rows: bool) -> Trained {
    let config = config(settings);
    let mut training = Training::new(&config, by_rows);
    let (mut steps, mut evaluation, mut middle) = (Vec::new(), 0, Vec::new());
    for step in 1..=STEPS {
        let numbers;
        (training, numbers) = training.step(step, step == 6);
        steps.push(numbers);
        if step == 9 {
            evaluation = training.evaluate();
        }
        if step == 13 {
            let folder = training.save();
            middle = files(&folder);
            training = Training::resume(&folder, &config, by_rows);
        }
    }
    Trained { steps, evaluation, saved: [middle, files(&training.save())] }
}

#[test]
fn an_embedding_that_comes_by_rows_ends_with_the_bits_of_one_that_comes_as_a_whole() {
    let bf16 = "memory.optimizer_state=bf16";
    let groups = r#"train.groups=[{"match":"embedding","lr_scale":0.1,"weight_decay":0}]"#;
    let cases: [&[&str]; 8] = [
        &["train.accumulate=1", groups],
        &["train.accumulate=1"],
        &["train.accumulate=3", "train.recompute=1"],
        &["train.accumulate=2", "train.recompute=1", "memory.stream=int8", "memory.gradients=int8"],
        &["train.accumulate=2", "model.compute=bf16", bf16],
        &["train.accumulate=5", "model.compute=bf16", "memory.optimizer_state=compact", "train.recompute=1"],
        &["train.optimizer=sgd", "train.accumulate=2", bf16],
        &["train.optimizer=muon", "train.accumulate=2", "model.embd_pdrop=0.2"],
    ];

    for &settings in suite::first(2, &cases) {
        let [whole, by_rows] = [false, true].map(|by_rows| trained(settings, by_rows));
        assert_eq!(by_rows.steps, whole.steps, "{settings:?}");
        assert_eq!(by_rows.evaluation, whole.evaluation, "{settings:?}");
        assert!(by_rows.saved == whole.saved, "{settings:?}: other weights or moments");
        let [first, .., last] = whole.steps[..] else { panic!("there are 24") };
        assert!(first != last && f32::from_bits(last[0]).is_finite(), "{settings:?}");
    }
}
