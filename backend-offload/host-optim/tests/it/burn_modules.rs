//! The optimizer on Burn modules, against Burn's own.

use std::panic::catch_unwind;

use backend_offload::{Budget, HostMemory, Offload, OffloadConfig, host_memory};
use burn::backend::{Autodiff, Flex, flex::FlexDevice};
use burn::module::{Module, ModuleMapper, Param};
use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsParams, Optimizer};
use burn::record::Record;
use burn::tensor::{FloatDType, Tensor, TensorData, backend::Backend};
use host_optim::{Format, HostAdamW, HostAdamWConfig};

type Plain = Autodiff<Flex>;
type Spilling = Autodiff<Offload<Flex>>;

#[derive(Module, Debug)]
struct Net<B: Backend> {
    first: Linear<B>,
    norm: LayerNorm<B>,
    last: Linear<B>,
}

impl<B: Backend> Net<B> {
    fn new(device: &B::Device) -> Self {
        let net = Self {
            first: LinearConfig::new(24, 40).init(device),
            norm: LayerNormConfig::new(40).init(device),
            last: LinearConfig::new(40, 3).with_bias(false).init(device),
        };
        net.map(&mut Fixed(0))
    }

    fn loss(&self, step: usize, device: &B::Device) -> Tensor<B, 1> {
        let input = Tensor::<B, 2>::from_data(numbers([8, 24], 100 + step as u32), device);
        let hidden = self.norm.forward(self.first.forward(input)).tanh();
        self.last.forward(hidden).powf_scalar(2.0).mean()
    }
}

struct Fixed(u32);

impl<B: Backend> ModuleMapper<B> for Fixed {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        self.0 += 1;
        param.map(|tensor| {
            let data = numbers(tensor.dims(), self.0);
            Tensor::from_data(data, &tensor.device()).set_require_grad(true)
        })
    }
}

pub(crate) fn numbers<const D: usize>(shape: [usize; D], seed: u32) -> TensorData {
    let mut x = seed.wrapping_mul(0x9e37_79b9) | 1;
    let numbers = (0..shape.iter().product()).map(|_| {
        x = x.wrapping_mul(0x915f_77f5).wrapping_add(0x6a09_e667);
        (x >> 8) as f32 / 16_777_216.0 - 0.5
    });
    TensorData::new(numbers.collect::<Vec<f32>>(), shape)
}

fn weights<B: Backend>(net: &Net<B>) -> Vec<u32> {
    let tensors = [
        net.first.weight.val().flatten::<1>(0, 1),
        net.last.weight.val().flatten::<1>(0, 1),
        net.norm.gamma.val(),
    ];
    tensors
        .iter()
        .flat_map(|tensor| tensor.to_data().iter::<f32>().map(f32::to_bits).collect::<Vec<_>>())
        .collect()
}

fn train<B: burn::tensor::backend::AutodiffBackend>(
    mut net: Net<B>,
    optimizer: &mut impl Optimizer<Net<B>, B>,
    steps: std::ops::Range<usize>,
    device: &B::Device,
) -> Net<B> {
    for step in steps {
        let gradients = GradientsParams::from_grads(net.loss(step, device).backward(), &net);
        net = optimizer.step(1e-2, net, gradients);
    }
    net
}

fn settings() -> HostAdamWConfig {
    HostAdamWConfig::new().with_betas(0.9, 0.95).with_epsilon(1e-8).with_weight_decay(0.1)
}

#[test]
fn two_hundred_steps_end_with_the_bits_of_burns_own_optimizer() {
    let device = FlexDevice;
    let burns = AdamWConfig::new().with_beta_2(0.95).with_epsilon(1e-8).with_weight_decay(0.1);
    let burns = train(Net::<Plain>::new(&device), &mut burns.init(), 0..200, &device);
    let mut ours = settings().init(HostMemory::unlimited());
    let net = train(Net::<Plain>::new(&device), &mut ours, 0..200, &device);
    assert_eq!(weights(&net), weights(&burns));
    assert_eq!(ours.host_bytes(), 12 * net.num_params() as u64);
}

#[test]
fn every_learning_rate_decays_to_the_bits_of_burns_own_optimizer() {
    let device = FlexDevice;
    let linear: Linear<Plain> = LinearConfig::new(8, 8).with_bias(false).init(&device);
    let linear = linear.map(&mut Fixed(0));
    // The highest rate leaves next to nothing of a weight.
    for (burns, ours, highest) in [
        (AdamWConfig::new(), HostAdamWConfig::new(), 1e4),
        (AdamWConfig::new().with_weight_decay(0.1), HostAdamWConfig::new().with_weight_decay(0.1), 10.0),
    ] {
        let mut burns = burns.init::<Plain, Linear<Plain>>();
        let mut ours = ours.init(HostMemory::unlimited());
        let (mut net, mut expected) = (linear.clone(), linear.clone());
        for n in 1..=300u32 {
            let gradients = || {
                let mut gradients = GradientsParams::new();
                let gradient = Tensor::<Flex, 2>::from_data(numbers([8, 8], n), &device);
                gradients.register(linear.weight.id, gradient);
                gradients
            };
            let lr = highest * f64::from(n) / 300.0;
            net = ours.step(lr, net, gradients());
            expected = burns.step(lr, expected, gradients());
            let [found, expected] = [&net, &expected].map(|linear| {
                let weights = linear.weight.val().into_data();
                weights.iter::<f32>().map(f32::to_bits).collect::<Vec<_>>()
            });
            assert_eq!(found, expected, "a learning rate of {lr}");
        }
    }
}

#[test]
fn state_is_in_the_host_tier_and_a_full_host_is_reported_before_anything_changes() {
    let device = FlexDevice;
    OffloadConfig::new().host_budget(Budget::Bytes(1 << 20)).install::<Flex>(&device).expect("not started");
    let memory = host_memory::<Flex>(&device);
    let mut optimizer = settings().init(memory.clone());
    let net = train(Net::<Spilling>::new(&device), &mut optimizer, 0..3, &device);
    assert_eq!(memory.usage().in_use, 12 * net.num_params() as u64);

    let rest = (1 << 20) - memory.usage().in_use as usize - 4 * 24 * 40;
    let filler = memory.take(rest, "a test").expect("fits");
    let mut gradients = GradientsParams::from_grads(net.loss(3, &device).backward(), &net);
    let refused =
        optimizer.arrive::<Spilling, _>(&net, &mut gradients).expect_err("one gradient fits").to_string();
    assert!(refused.contains("first.bias") && refused.contains("1.00 MiB"), "{refused}");
    drop(filler);
    assert_eq!(memory.usage().in_use, 12 * net.num_params() as u64, "what had arrived is dropped");

    let net = train(net, &mut optimizer, 3..5, &device);
    let mut undisturbed = settings().init(HostMemory::unlimited());
    let expected = train(Net::<Spilling>::new(&device), &mut undisturbed, 0..5, &device);
    assert_eq!(weights(&net), weights(&expected));
    drop(optimizer);
    assert_eq!(memory.usage().in_use, 0);
}

fn narrowed<B: Backend>(net: Net<B>) -> Net<B> {
    struct Narrow;
    impl<B: Backend> ModuleMapper<B> for Narrow {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
            param.map(|tensor| {
                if D == 2 { tensor.cast(FloatDType::BF16).detach().set_require_grad(true) } else { tensor }
            })
        }
    }
    net.map(&mut Narrow)
}

#[test]
fn a_record_continues_to_the_same_bits_in_every_format() {
    let device = FlexDevice;
    for format in [Format::F32, Format::Bf16Moments, Format::Compact] {
        let fresh = || settings().with_format(format).init(HostMemory::unlimited());
        let mut whole = fresh();
        let expected = train(Net::<Plain>::new(&device), &mut whole, 0..6, &device);
        let mut first = fresh();
        let net = train(Net::<Plain>::new(&device), &mut first, 0..3, &device);
        let record = <HostAdamW as Optimizer<Net<Plain>, Plain>>::to_record(&first);
        let item = Record::<Plain>::into_item::<burn::record::FullPrecisionSettings>(record);
        let record = Record::<Plain>::from_item::<burn::record::FullPrecisionSettings>(item, &device);
        let mut second = <HostAdamW as Optimizer<Net<Plain>, Plain>>::load_record(fresh(), record);
        let net = train(net, &mut second, 3..6, &device);
        assert_eq!(weights(&net), weights(&expected), "{format:?}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn states_on_the_disk_have_the_bits_of_states_in_memory_through_clones_and_records() {
    let (device, folder) = (FlexDevice, tempfile::tempdir().expect("a folder"));
    for format in [Format::F32, Format::Bf16Moments, Format::Compact] {
        let mut in_memory = settings().with_format(format).init(HostMemory::unlimited());
        let expected = train(Net::<Plain>::new(&device), &mut in_memory, 0..6, &device);
        let memory = HostMemory::above_disk(folder.path(), 1 << 20).expect("there is room");
        let disk = memory.disk().expect("it was named");
        let mut first = settings().with_format(format).init(disk.clone());
        let net = train(Net::<Plain>::new(&device), &mut first, 0..2, &device);
        assert_eq!((first.host_bytes(), memory.usage().in_use), (0, 0));
        assert!(first.disk_bytes() > in_memory.host_bytes());
        let mut second = first.clone();
        let net = train(net, &mut second, 2..4, &device);
        assert_eq!(first.disk_bytes(), second.disk_bytes(), "the clone has states of its own");
        let record = <HostAdamW as Optimizer<Net<Plain>, Plain>>::to_record(&second);
        drop((first, second));
        let fresh = settings().with_format(format).init(disk.clone());
        let mut third = <HostAdamW as Optimizer<Net<Plain>, Plain>>::load_record(fresh, record);
        let net = train(net, &mut third, 4..6, &device);
        assert_eq!(weights(&net), weights(&expected), "{format:?}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_recorded_or_shared_state_without_room_for_its_copy_keeps_its_moments() {
    const BYTES: usize = 1 << 20;
    let (device, folder) = (FlexDevice, tempfile::tempdir().expect("a folder"));
    let memory = HostMemory::above_disk(folder.path(), BYTES as u64).expect("there is room");
    let disk = memory.disk().expect("it was named");
    let mut undisturbed = settings().init(HostMemory::unlimited());
    let expected = train(Net::<Plain>::new(&device), &mut undisturbed, 0..6, &device);

    for is_recorded in [true, false] {
        let mut optimizer = settings().init(disk.clone());
        let net = train(Net::<Plain>::new(&device), &mut optimizer, 0..3, &device);
        let mut clone = None;
        if is_recorded {
            let record = <HostAdamW as Optimizer<Net<Plain>, Plain>>::to_record(&optimizer);
            optimizer = <HostAdamW as Optimizer<Net<Plain>, Plain>>::load_record(optimizer, record);
        } else {
            clone = Some(optimizer.clone());
        }

        let rest = BYTES - optimizer.disk_bytes() as usize;
        let filler = disk.take(&[rest], "a test").expect("it is free");
        let mut gradients = GradientsParams::from_grads(net.loss(3, &device).backward(), &net);
        let refused = optimizer.arrive::<Plain, _>(&net, &mut gradients).expect_err("no room").to_string();
        assert!(refused.contains("for the state of first.weight"), "{refused}");
        drop((filler, clone));

        let net = train(net, &mut optimizer, 3..6, &device);
        assert_eq!(weights(&net), weights(&expected), "recorded: {is_recorded}");
    }
}

#[test]
fn adopted_weights_step_with_the_moments_of_before() {
    let device = FlexDevice;
    let burns = AdamWConfig::new().with_beta_2(0.95).with_epsilon(1e-8).with_weight_decay(0.1);
    let mut burns = burns.init::<Plain, Net<Plain>>();
    let expected = train(Net::<Plain>::new(&device), &mut burns, 0..3, &device);
    let expected = train(expected.map(&mut Fixed(9)), &mut burns, 3..6, &device);

    for is_recorded in [true, false] {
        let mut optimizer = settings().init(HostMemory::unlimited());
        let net = train(Net::<Plain>::new(&device), &mut optimizer, 0..3, &device);
        if is_recorded {
            let record = <HostAdamW as Optimizer<Net<Plain>, Plain>>::to_record(&optimizer);
            optimizer = <HostAdamW as Optimizer<Net<Plain>, Plain>>::load_record(optimizer, record);
        }
        let net = net.map(&mut Fixed(9));
        optimizer.adopt_weights::<Plain, _>(&net).expect("readable");
        let net = train(net, &mut optimizer, 3..6, &device);
        assert_eq!(weights(&net), weights(&expected), "recorded: {is_recorded}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn states_on_the_disk_adopt_weights_to_the_bits_of_states_in_memory() {
    let (device, folder) = (FlexDevice, tempfile::tempdir().expect("a folder"));
    let memory = HostMemory::above_disk(folder.path(), 1 << 20).expect("there is room");
    let disk = memory.disk().expect("it was named");
    let trained = |mut optimizer: HostAdamW| {
        let net = train(Net::<Plain>::new(&device), &mut optimizer, 0..3, &device);
        let net = net.map(&mut Fixed(9));
        optimizer.adopt_weights::<Plain, _>(&net).expect("readable");
        weights(&train(net, &mut optimizer, 3..6, &device))
    };
    for format in [Format::F32, Format::Bf16Moments] {
        let settings = || settings().with_format(format);
        let [on_disk, in_memory] = [settings().init(disk.clone()), settings().init(HostMemory::unlimited())];
        assert_eq!(trained(on_disk), trained(in_memory), "{format:?}");
    }
}

#[test]
fn steps_below_the_bf16_spacing_accumulate_on_the_host() {
    let device = FlexDevice;
    let net = narrowed(Net::<Plain>::new(&device));
    let gradients = |net: &Net<Plain>| {
        let mut gradients = GradientsParams::new();
        gradients
            .register(net.first.weight.id, Tensor::<Flex, 2>::ones([24, 40], &device).cast(FloatDType::BF16));
        gradients
    };
    for format in [Format::F32, Format::Compact] {
        let mut optimizer = settings().with_format(format).init(HostMemory::unlimited());
        let mut stepped = net.clone();
        for _ in 0..400 {
            let gradients = gradients(&stepped);
            // Below the bf16 spacing of these weights: the lower halves count.
            stepped = optimizer.step(1e-5, stepped, gradients);
            optimizer.adopt_weights::<Plain, _>(&stepped).expect("readable");
        }
        let difference = (net.first.weight.val() - stepped.first.weight.val()).cast(FloatDType::F32);
        let mean: f32 = difference.mean().into_scalar();
        assert!((mean - 400.0 * 1e-5).abs() < 4e-4, "{format:?}: moved by {mean}");
        assert_eq!(stepped.first.weight.val().dtype(), burn::tensor::DType::BF16);
    }
}

#[test]
fn clones_share_a_state_until_one_of_them_steps() {
    let device = FlexDevice;
    let mut optimizer = settings().init(HostMemory::unlimited());
    let net = train(Net::<Plain>::new(&device), &mut optimizer, 0..2, &device);
    let mut clone = optimizer.clone();
    let theirs = train(net.clone(), &mut clone, 2..4, &device);
    let ours = train(net, &mut optimizer, 2..4, &device);
    assert_eq!(weights(&ours), weights(&theirs));
}

#[test]
fn a_clone_has_no_gradient_and_does_not_block_the_original_step() {
    let device = FlexDevice;
    let mut optimizer = settings().init(HostMemory::unlimited());
    let net = train(Net::<Plain>::new(&device), &mut optimizer, 0..2, &device);
    let mut undisturbed = optimizer.clone();
    let mut gradients = GradientsParams::from_grads(net.loss(2, &device).backward(), &net);
    optimizer.arrive::<Plain, _>(&net, &mut gradients).expect("memory");
    let mut clone = optimizer.clone();
    let stepped = optimizer.apply::<Plain, _>(1e-2, net.clone()).expect("readable");
    assert_eq!(weights(&stepped), weights(&train(net.clone(), &mut undisturbed, 2..3, &device)));
    let unchanged = clone.apply::<Plain, _>(1e-2, net.clone()).expect("readable");
    assert_eq!(weights(&unchanged), weights(&net));
}

#[test]
fn the_norm_of_all_gradients_together_is_held_to_its_limit() {
    let device = FlexDevice;
    let net = Net::<Plain>::new(&device);
    let mut optimizer = settings().with_max_norm(1e-3).init(HostMemory::unlimited());
    let mut gradients = GradientsParams::from_grads(net.loss(0, &device).backward(), &net);
    optimizer.arrive::<Plain, _>(&net, &mut gradients).expect("memory");
    let norm = optimizer.norm().expect("memory");
    assert!(norm > 1e-3, "{norm}");
    let clipped = optimizer.apply::<Plain, _>(1e-2, net.clone()).expect("readable");
    let mut unclipped = settings().init(HostMemory::unlimited());
    let full = train(net, &mut unclipped, 0..1, &device);
    let [clipped, full] =
        [train(clipped, &mut optimizer, 1..2, &device), train(full, &mut unclipped, 1..2, &device)];
    assert_ne!(weights(&clipped), weights(&full));
}

#[test]
fn parameters_of_one_name_in_two_modules_all_count_in_the_norm() {
    let device = FlexDevice;
    let mut optimizer = settings().init(HostMemory::unlimited());
    for number in [3.0f32, 4.0] {
        let linear: Linear<Plain> = LinearConfig::new(2, 2).with_bias(false).init(&device);
        let gradient = Tensor::<Flex, 2>::from_floats([[0.0, number], [0.0, 0.0]], &device);
        let mut gradients = GradientsParams::new();
        gradients.register(linear.weight.id, gradient);
        optimizer.arrive::<Plain, _>(&linear, &mut gradients).expect("memory");
    }
    assert_eq!(optimizer.norm().expect("memory").to_bits(), 5.0f64.to_bits());
}

#[test]
fn a_norm_between_micro_batches_changes_no_bit() {
    let device = FlexDevice;
    let mut optimizer = settings().init(HostMemory::unlimited());
    let net = train(Net::<Plain>::new(&device), &mut optimizer, 0..2, &device);
    let mut undisturbed = optimizer.clone();
    for micro_batch in 2..6 {
        optimizer.norm().expect("memory");
        for optimizer in [&mut optimizer, &mut undisturbed] {
            let mut gradients = GradientsParams::from_grads(net.loss(micro_batch, &device).backward(), &net);
            optimizer.arrive::<Plain, _>(&net, &mut gradients).expect("memory");
        }
    }
    let [found, expected] = [optimizer, undisturbed].map(|mut optimizer| {
        let norm = optimizer.norm().expect("memory").to_bits();
        let stepped = optimizer.apply::<Plain, _>(1e-2, net.clone()).expect("readable");
        (norm, weights(&stepped))
    });
    assert_eq!(found, expected);
}

#[test]
fn a_maximum_norm_that_is_not_above_zero_is_refused() {
    for limit in [0.0, -1.0, f64::NAN] {
        let refused = catch_unwind(|| HostAdamWConfig::new().with_max_norm(limit));
        let message = refused.expect_err("it is not above 0");
        let message = message.downcast_ref::<String>().expect("it names the limit");
        assert!(message.contains(&format!("a maximum norm of {limit} must be above 0")), "{message}");
    }
}

#[test]
fn an_infinite_maximum_norm_clips_nothing() {
    let device = FlexDevice;
    let [found, expected] = [settings().with_max_norm(f64::INFINITY), settings()].map(|settings| {
        let mut optimizer = settings.init(HostMemory::unlimited());
        weights(&train(Net::<Plain>::new(&device), &mut optimizer, 0..2, &device))
    });
    assert_eq!(found, expected);
}

#[test]
fn a_norm_without_a_finite_square_in_f32_skips_the_step_and_leaves_no_trace() {
    let device = FlexDevice;
    for broken in [f32::NAN, f32::INFINITY, 2e19] {
        let mut optimizer = settings().with_max_norm(1.0).init(HostMemory::unlimited());
        let net = train(Net::<Plain>::new(&device), &mut optimizer, 0..2, &device);
        let mut undisturbed = optimizer.clone();

        let mut gradients = GradientsParams::from_grads(net.loss(2, &device).backward(), &net);
        let id = net.norm.gamma.id;
        let gamma = gradients.remove::<Flex, 1>(id).expect("gamma has a gradient");
        gradients.register(id, gamma.slice_fill(3..4, broken));
        let skipped = optimizer.step(1e-2, net.clone(), gradients);
        assert_eq!(weights(&skipped), weights(&net), "{broken}");

        let [ours, theirs] = [(skipped, &mut optimizer), (net, &mut undisturbed)]
            .map(|(net, optimizer)| train(net, optimizer, 3..5, &device));
        assert_eq!(
            weights(&ours),
            weights(&theirs),
            "{broken}: moments and steps are those without the step"
        );
    }
}
