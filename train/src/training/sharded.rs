//! Ranks that divide a host optimizer have the bits of one process, with a share of the memory.

use std::fs;
use std::path::Path;

use backend_offload::{HostMemory, Offload};
use burn::backend::{Autodiff, Flex, flex::FlexDevice};
use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Tensor};
use models::Gpt;
use models::init::Holds;
use models::weights::Factors;
use runs::checkpoint::{MOMENTS, STATE, WEIGHTS};
use runs::config::Config;
use tokenizer::Tokenizer;

use super::exchange::Pass;
use super::parts::{self, Parts};
use super::whole_and_by_rows::{config, micro_batch};
use super::{Exchange, Learner, Progress, restore, snapshot::Contents};
use crate::data::StepData;
use crate::optimizer::{Optimizer, Owners, Stride, held, rate_share};
use crate::plan::StatesOnDisk;
use crate::progress::Report;
use crate::ranks::Ranks;
use crate::ranks::tests::on_each;

type Device = Offload<Flex>;
type Tape = Autodiff<Device>;

const STEPS: u64 = 4;

pub(super) struct Training<'r> {
    config: Config,
    pub(super) learner: Learner<Tape>,
    pub(super) optimizer: Optimizer<Device>,
    pub(super) ranks: &'r mut Ranks,
    exchange: Exchange,
    memory: HostMemory,
}

impl<'r> Training<'r> {
    fn begin(
        config: &Config,
        gpt: Gpt<Tape>,
        ranks: &'r mut Ranks,
        optimizer: impl FnOnce(Owners) -> Optimizer<Device>,
    ) -> Self {
        let owners = Owners::new(config, &gpt, ranks);
        let mut optimizer = optimizer(owners);
        let (memory, on_disk) = match &config.memory.disk {
            Some(folder) => {
                (HostMemory::above_disk(folder, 16 << 20).expect("there is room"), StatesOnDisk::all())
            }
            None => (HostMemory::unlimited(), StatesOnDisk::none()),
        };

        if let Some(host) = &mut optimizer.host {
            host.take_memory_from(memory.clone());
        }

        let gpt = optimizer.adopt(gpt, on_disk).expect("there is room");
        if let Some(host) = &mut optimizer.host {
            host.number_shares_from(ranks.share(config.train.accumulate).range().start);
        }

        let exchange = Exchange::choose(&config.ranks, config.memory.shard.has_owners(), ranks);
        Self {
            config: config.clone(),
            learner: Learner::new(gpt, config),
            optimizer,
            ranks,
            exchange,
            memory,
        }
    }

    pub(super) fn new(config: &Config, ranks: &'r mut Ranks) -> Self {
        ranks.divide(config.ranks.pipeline).expect("a multiple");
        let gpt = Gpt::new_part(&config.model, 3, &FlexDevice, &held(config, ranks)).expect("valid");
        let gpt = gpt.with_frozen(&config.train.freeze);
        Self::begin(config, gpt, ranks, |owners| {
            let mut optimizer = Optimizer::placed(config, &FlexDevice);
            optimizer.owners = owners;
            optimizer
        })
    }

    fn resume(folder: &Path, config: &Config, ranks: &'r mut Ranks) -> Self {
        ranks.divide(config.ranks.pipeline).expect("a multiple");
        let holds = (Factors::Wide, &held(config, ranks) as Holds<'_>);
        let gpt = runs::weights::load_part(folder, config, holds, &FlexDevice).expect("it was saved");
        let gpt = gpt.with_frozen(&config.train.freeze);
        Self::begin(config, gpt, ranks, |owners| {
            restore::<Device>(folder, config, &FlexDevice, owners).expect("restored").1
        })
    }

    pub(super) fn spoil_head(&mut self) {
        let host = self.optimizer.host.as_mut().expect("it is on the host");
        let norm = self.learner.gpt.final_norm.weight.as_ref().expect("a scale").id;
        let short = Tensor::<Device, 1>::ones([3], &FlexDevice);
        host.arrive(norm, short, DType::F32, false).expect("it can be read");
    }

    pub(super) fn data(&self, step: u64) -> StepData {
        let count = self.config.train.accumulate as u64;
        StepData { step, micro_batches: (0..count).map(|n| micro_batch(step, n)).collect() }
    }

    pub(super) fn gradients(&mut self, data: &StepData) -> anyhow::Result<(GradientsParams, Report)> {
        let Self { learner, optimizer, ranks, exchange, .. } = self;
        let Optimizer { host, owners, passes, window, .. } = optimizer;
        let (host, passes, window) = (host.as_mut(), passes.clone(), window.clone());
        exchange.sum(Pass { learner, data, host, owners, passes, window }, ranks)
    }

    fn step(mut self, step: u64) -> (Self, [u32; 2]) {
        let (grads, report) = self.gradients(&self.data(step)).expect("no failure");
        let settings = &self.config.train;
        let share = rate_share(&settings.schedule, step, 2 * STEPS);
        let stride = Stride::clipped(share, f64::from(report.gnorm), settings.grad_clip);
        let (learner, updated) =
            self.learner.map_gpt(|gpt| self.optimizer.update(gpt, grads, stride, self.ranks));
        updated.expect("no rank fails");
        self.learner = learner;
        (self, [report.loss.to_bits(), report.gnorm.to_bits()])
    }

    pub(super) fn steps(mut self, steps: std::ops::Range<u64>) -> (Self, Vec<[u32; 2]>) {
        let mut bits = Vec::new();
        for step in steps {
            let of_step;
            (self, of_step) = self.step(step);
            bits.push(of_step);
        }
        self.optimizer.settle().expect("it was stepped");
        (self, bits)
    }

    fn save(&mut self, folder: &Path) {
        let Self { config, learner, optimizer, ranks, .. } = self;
        let gpt = &learner.gpt;
        let parts = Parts::list(optimizer, ranks).expect("no rank fails");
        if ranks.leads() {
            let (progress, tokenizer) = (&Progress::start(1), &Tokenizer::bytes(&tokenizer::CHAT_SPECIALS));
            let contents = Contents { gpt, optimizer, config, progress, tokenizer };
            let announce = |places: &[u64]| parts::announce(Some(places), ranks);
            contents.save_except(folder, parts.as_ref(), announce).expect("saved");
        } else if let Some(parts) = &parts {
            let places = parts::announced(ranks).expect("no rank fails").expect("rank 0 began");
            let here = (ranks.rank(), false);
            parts.write((optimizer, gpt), (folder, &places), here).expect("rank 0 made the files");
        }
        if parts.is_some() {
            assert!(ranks.all_succeeded(true).expect("no rank fails"));
        }
    }
}

fn files(folder: &Path) -> Vec<Vec<u8>> {
    [WEIGHTS, MOMENTS, STATE].map(|file| fs::read(folder.join(file)).expect("it was saved")).into()
}

/// On each rank, before and after a resume.
pub(super) struct Trained {
    /// Loss and norm of each step, by rank.
    pub(super) steps: Vec<Vec<[u32; 2]>>,
    pub(super) saved: [Vec<Vec<u8>>; 2],
}

impl Trained {
    /// `one` is the run of one process, and `worlds` have been this one's ranks before and after the resume.
    pub(super) fn assert_has_bits_of(&self, one: &Self, worlds: [usize; 2], settings: &[&str]) {
        let (before, after) = self.steps.split_at(worlds[0]);
        assert!(before.iter().all(|bits| *bits == one.steps[0]), "{settings:?} on {worlds:?}");
        assert!(after.iter().all(|bits| *bits == one.steps[1]), "{settings:?} resumed on {worlds:?}");
        assert!(self.saved == one.saved, "{settings:?}: other files on {worlds:?}");
    }
}

/// As many steps again, with `later`, on `worlds[1]` ranks.
pub(super) fn trained(settings: &[&str], worlds: [usize; 2], later: &[&str]) -> Trained {
    let [middle, end] = [(), ()].map(|()| tempfile::tempdir().expect("a folder"));
    let (first, second) = (config(settings), config(&[settings, later].concat()));
    let begun = on_each(worlds[0], |ranks| {
        let (mut training, bits) = Training::new(&first, ranks).steps(1..1 + STEPS);
        training.save(middle.path());
        bits
    });
    let resumed = on_each(worlds[1], |ranks| {
        let training = Training::resume(middle.path(), &second, ranks);
        let (mut training, bits) = training.steps(1 + STEPS..1 + 2 * STEPS);
        training.save(end.path());
        bits
    });
    Trained { steps: [begun, resumed].concat(), saved: [files(middle.path()), files(end.path())] }
}

#[test]
fn ranks_that_shard_the_host_optimizer_have_the_bits_of_one_process() {
    let cases: [&[&str]; 8] = [
        &["memory.stream=fp8", "memory.optimizer_state=bf16", "model.compute=bf16", "train.recompute=1"],
        &["train.grad_clip=null"],
        &["memory.optimizer_state=bf16", "model.compute=bf16", "train.recompute=1"],
        &["memory.optimizer_state=compact", "model.compute=bf16"],
        &["memory.optimizer_state=bf16", "memory.gradients=int8", "train.recompute=1", "train.accumulate=6"],
        &["train.optimizer=muon", "memory.device_blocks=1"],
        &["train.optimizer=sgd", "memory.optimizer_state=bf16", "model.tie_word_embeddings=true"],
        &["memory.stream=int8", "memory.gradients=int8", "train.optimizer=sgd", "memory.device_blocks=1"],
    ];

    for &settings in suite::first(1, &cases) {
        let settings = [&["train.accumulate=4"], settings].concat();
        let one = trained(&settings, [1, 1], &[]);
        let divided = [&settings[..], &["memory.shard=true"]].concat();
        for worlds in [[1, 2], [2, 4], [4, 1]] {
            trained(&divided, worlds, &[]).assert_has_bits_of(&one, worlds, &settings);
        }
    }
}

#[cfg(target_os = "linux")]
#[test]
fn ranks_that_shard_states_on_disks_have_the_bits_of_ranks_with_states_in_memory() {
    let folder = tempfile::tempdir().expect("a folder");
    let disk = format!("memory.disk={}", folder.path().display());
    let cases: [&[&str]; 2] = [&[], &["memory.optimizer_state=compact", "model.compute=bf16"]];
    for settings in cases {
        let in_memory = [&["train.accumulate=4", "memory.shard=true"], settings].concat();
        let on_disk = [&in_memory[..], &[&disk]].concat();
        let expected = trained(&in_memory, [2, 2], &[]);
        for (settings, later) in [(&on_disk, None), (&in_memory, Some(&*disk))] {
            let found = trained(settings, [2, 2], later.as_slice());
            assert!(found.steps == expected.steps && found.saved == expected.saved, "{settings:?} {later:?}");
        }
        let held = |settings: &[&str]| {
            on_each(2, |ranks| Training::new(&config(settings), ranks).optimizer.host_bytes())
        };
        let [on_disk, in_memory] = [held(&on_disk), held(&in_memory)];
        assert!(
            on_disk.iter().zip(&in_memory).all(|(below, all)| below * 10 < *all),
            "{on_disk:?} {in_memory:?}"
        );
    }
}

#[test]
fn a_checkpoint_of_a_sharded_optimizer_resumes_with_any_placement() {
    // In f32 without clipping the host has the device's bits.
    let settings = ["train.accumulate=4", "train.grad_clip=null", "memory.shard=true"];
    let on_host = trained(&settings, [4, 2], &[]);
    let moved = trained(&settings, [2, 2], &["memory.optimizer=device"]);
    assert!(on_host.saved == moved.saved);
    let [on_device, device] = [&["memory.optimizer=device"][..], &settings].map(<[_]>::to_vec);
    let moved = trained(&[device, on_device].concat(), [2, 4], &["memory.optimizer=host"]);
    assert!(on_host.saved == moved.saved);
}

#[test]
fn a_checkpoint_passes_no_tensor_between_ranks() {
    let modes: [&[&str]; 3] = [
        &["memory.shard=true", "memory.optimizer_state=bf16", "model.compute=bf16"],
        &["memory.shard=weights", "train.recompute=1", "memory.optimizer=device"],
        &["ranks.pipeline=2", "train.recompute=1"],
    ];
    for mode in modes {
        let folder = tempfile::tempdir().expect("a folder");
        let config = config(&[&["train.accumulate=4"], mode].concat());
        let told = on_each(2, |ranks| {
            let (mut training, _) = Training::new(&config, ranks).steps(1..2);
            let sent = |training: &Training<'_>| training.ranks.spent().expect("two ranks").costs.sent;
            let before = sent(&training);
            training.save(folder.path());
            let parts = Parts::list(&mut training.optimizer, training.ranks).expect("no rank fails");
            (parts.expect("rank 1 has some").bytes(), sent(&training) - before)
        });
        for (moments, sent) in told {
            assert!(moments > 60_000 && sent < 8_000, "{mode:?}: {sent} of {moments}");
        }
    }
}

struct Sizes<'g> {
    gradients: &'g GradientsParams,
    all: Vec<u64>,
    with_gradient: u64,
}

impl<'g> Sizes<'g> {
    fn of(gpt: &Gpt<Tape>, gradients: &'g GradientsParams) -> Self {
        let mut sizes = Self { gradients, all: Vec::new(), with_gradient: 0 };
        gpt.visit(&mut sizes);
        sizes
    }

    fn owned(&self, world: usize) -> Vec<u64> {
        let mut owned = vec![0; world];
        for (size, owner) in self.all.iter().zip(exchange::shards(&self.all, world)) {
            owned[owner] += size;
        }
        owned
    }
}

impl ModuleVisitor<Tape> for Sizes<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<Tape, D>>) {
        self.all.push(param.lazy_shape().num_elements() as u64);
        let gradient = self.gradients.get::<Device, D>(param.id);
        self.with_gradient += gradient.map_or(0, |gradient| gradient.shape().num_elements() as u64);
    }
}

#[test]
fn a_rank_takes_host_memory_for_what_it_owns_and_no_more() {
    let config = config(&["train.accumulate=4", "memory.shard=true"]);
    for world in [2, 4] {
        let each = on_each(world, |ranks| {
            let (mut training, _) = Training::new(&config, ranks).steps(1..3);
            let bytes = |training: &Training<'_>| {
                let in_use = training.memory.usage().in_use;
                assert_eq!(in_use, training.optimizer.host_bytes());
                in_use
            };
            let states = bytes(&training);
            let (gradients, _) = training.gradients(&training.data(3)).expect("no failure");
            let sizes = Sizes::of(&training.learner.gpt, &gradients);
            (states, bytes(&training), sizes.owned(world)[training.ranks.rank()], sizes.all)
        });
        let parameters: u64 = each[0].3.iter().sum();
        let largest = each[0].3.iter().max().expect("parameters");
        for (rank, (states, with_gradients, owned, _)) in each.iter().enumerate() {
            // Master weights and two moments in f32, then with gradients.
            assert_eq!([*states, *with_gradients], [12 * owned, 16 * owned], "rank {rank} of {world}");
            assert!(*owned <= parameters / world as u64 + largest, "{owned} of {parameters}");
        }
        assert_eq!(each.iter().map(|(_, _, owned, _)| owned).sum::<u64>(), parameters);
    }
}

#[test]
fn a_rank_keeps_summed_gradients_of_what_it_owns_alone() {
    let settings = ["train.accumulate=4", "train.recompute=1", "memory.optimizer=device"];
    let held = |settings: &[&str]| {
        let config = config(settings);
        on_each(4, |ranks| {
            let mut training = Training::new(&config, ranks);
            let (gradients, report) = training.gradients(&training.data(1)).expect("no failure");
            let sizes = Sizes::of(&training.learner.gpt, &gradients);
            let owned = sizes.owned(4)[training.ranks.rank()];
            (4 * sizes.with_gradient, report.gradients_held.expect("four ranks"), 4 * owned)
        })
    };

    let whole = held(&settings);
    let all = whole[0].0;
    let divided = held(&[&settings[..], &["memory.shard=true"]].concat());
    for (rank, (summed, _, owned)) in divided.iter().enumerate() {
        assert_eq!(summed, owned, "rank {rank}");
    }
    assert_eq!(divided.iter().map(|(_, _, owned)| owned).sum::<u64>(), all);

    // A rank also holds the largest parameter during another.
    let peaks: Vec<u64> = divided.iter().map(|(_, peak, _)| *peak).collect();
    assert_eq!(peaks, [46_272, 71_616, 46_368, 46_272]);

    let largest = 4 * 264 * 24;
    assert!(divided.iter().all(|(_, peak, owned)| *peak <= owned + 2 * largest), "{divided:?}");
    assert!(whole.iter().all(|(summed, peak, _)| *summed == all && *peak == all), "{whole:?}");
}

#[test]
fn a_rank_that_fails_keeps_no_other_waiting() {
    let config = config(&["train.accumulate=4", "memory.shard=true"]);
    let told = on_each(2, |ranks| {
        let mut training = Training::new(&config, ranks);
        if training.ranks.rank() == 1 {
            let host = training.optimizer.host.as_mut().expect("it is on the host");
            let short = Tensor::<Device, 1>::ones([3], &FlexDevice);
            host.arrive(training.learner.gpt.wte.id, short, DType::F32, false).expect("it can be read");
        }
        training.gradients(&training.data(1)).expect_err("no rank can go on").to_string()
    });
    assert!(told[0].contains("another rank could not compute"), "{told:?}");
    assert!(told[1].contains("the gradient has 3 elements"), "{told:?}");
}

/// The head of rank 1, in bf16, has lost most of its rows, which the step would read.
#[test]
fn a_rank_whose_step_fails_keeps_no_other_waiting_for_its_weights() {
    let formats = ["memory.optimizer_state=compact", "model.compute=bf16"];
    let config = config(&[&["train.accumulate=4", "memory.shard=true"], &formats[..]].concat());
    let told = on_each(2, |ranks| {
        let mut training = Training::new(&config, ranks);
        let (grads, _) = training.gradients(&training.data(1)).expect("no failure");
        let Training { learner, mut optimizer, ranks, .. } = training;
        let (rank, stride) = (ranks.rank(), Stride { share: 1.0, scale: 1.0 });
        let (_, updated) = learner.map_gpt(|mut gpt| {
            if rank == 1 {
                let head = gpt.lm_head.take().expect("it is not tied");
                let short = |head: Tensor<Tape, 2>| head.inner().narrow(0, 0, 3);
                gpt.lm_head = Some(head.map(|head| Tensor::from_inner(short(head)).require_grad()));
            }
            optimizer.update(gpt, grads, stride, ranks)
        });
        let all_have = ranks.all_succeeded(updated.is_ok()).expect("no call has failed");
        (updated.err().map(|error| error.to_string()), all_have)
    });
    assert_eq!(told[0], (None, false));
    let (Some(said), false) = &told[1] else { panic!("{told:?}") };
    assert!(said.contains("lm_head: the parameter has"), "{said}");
}

#[test]
fn a_step_that_is_none_on_one_rank_is_withheld_by_all_owners_and_leaves_no_trace() {
    let steps = |settings: &[&str], world: usize, first_is_bad: bool| {
        let config = config(settings);
        on_each(world, |ranks| {
            let mut training = Training::new(&config, ranks);
            if first_is_bad {
                let mut data = training.data(9);
                let mut mask = vec![1.0; data.micro_batches[3].targets.len()];
                mask[..2].copy_from_slice(&[3e38, -3e38]);
                data.micro_batches[3].mask = Some(mask);
                let (_, report) = training.gradients(&data).expect("no failure");
                assert!(!report.is_usable(), "{report:?}");
                training.optimizer.withhold();
            }
            training.steps(1..3).1
        })
    };

    let settings = ["train.accumulate=4", "train.recompute=1"];
    let expected = steps(&settings, 1, false);
    let modes: [&[&str]; 4] =
        [&[], &["memory.shard=states"], &["memory.shard=weights"], &["ranks.pipeline=2"]];
    for mode in modes {
        let found = steps(&[&settings[..], mode].concat(), 2, true);
        assert!(found.iter().all(|bits| *bits == expected[0]), "{mode:?}: {found:?} {expected:?}");
    }
}
