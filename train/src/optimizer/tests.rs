//! Updates computed by hand.

use burn::backend::{Autodiff, Flex, flex::FlexDevice};
use burn::module::ModuleVisitor;
use burn::tensor::TensorData;
use models::GptConfig;
use runs::config::TrainSection;

use super::*;

type Tape = Autodiff<Flex>;

fn gpt() -> Gpt<Tape> {
    let shape = r#"{"n_layer": 1, "n_head": 2, "n_embd": 4, "n_positions": 3, "vocab_size": 5}"#;
    let config = GptConfig::from_json(shape).expect("a small GPT-2");
    Gpt::new(&config, 7, &FlexDevice).expect("a valid shape")
}

#[derive(Default)]
struct Values {
    path: Vec<String>,
    found: Vec<(String, usize, Vec<f32>)>,
}

impl ModuleVisitor<Tape> for Values {
    models::keeps_path!();

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<Tape, D>>) {
        let values = param.val().into_data().into_vec().expect("floats");
        self.found.push((self.path.join("."), D, values));
    }
}

fn values(gpt: &Gpt<Tape>) -> Vec<(String, usize, Vec<f32>)> {
    let mut values = Values::default();
    gpt.visit(&mut values);
    values.found
}

/// Registers the same gradient for all numbers.
struct Uniform(f32, GradientsParams);

impl ModuleVisitor<Tape> for Uniform {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<Tape, D>>) {
        let value = param.val();
        let gradient = TensorData::new(vec![self.0; value.shape().num_elements()], value.shape());
        self.1.register::<Flex, D>(param.id, Tensor::from_data(gradient, &FlexDevice));
    }
}

fn gradients(gpt: &Gpt<Tape>, value: f32) -> GradientsParams {
    let mut uniform = Uniform(value, GradientsParams::new());
    gpt.visit(&mut uniform);
    uniform.1
}

fn assert_step(settings: &TrainSection, gradient: f32, stride: Stride, expected: impl Fn(usize, f32) -> f32) {
    let before = gpt();
    let old = values(&before);
    let gradients = gradients(&before, gradient);
    let (after, stepped) = Optimizer::<Flex>::new(settings).step(before, gradients, stride);
    stepped.expect("nothing is on the host");
    for ((name, dims, old), (_, _, new)) in old.iter().zip(&values(&after)) {
        for (old, new) in old.iter().zip(new) {
            let expected = expected(*dims, *old);
            assert!((new - expected).abs() < 1e-6, "{name}: {old} became {new}, not {expected}");
        }
    }
}

fn sgd() -> TrainSection {
    TrainSection { optimizer: OptimizerKind::Sgd, lr: 0.1, weight_decay: 0.0, ..TrainSection::default() }
}

pub(crate) fn norm_of(gpt: &Gpt<Tape>, gradients: &GradientsParams) -> f32 {
    struct Arrivals<'g>(&'g GradientsParams, SquaredNorms<Flex>);
    impl ModuleVisitor<Tape> for Arrivals<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<Tape, D>>) {
            let gradient = self.0.get::<Flex, D>(param.id).expect("every parameter has a gradient");
            self.1.add(param.id, gradient);
        }
    }
    let mut arrivals = Arrivals(gradients, SquaredNorms::new(Passes::none()));
    gpt.visit(&mut arrivals);
    arrivals.1.take_global(gpt).expect("there are gradients").into_scalar()
}

pub(crate) fn values_of(gpt: &Gpt<Tape>, gradients: &GradientsParams) -> Vec<u32> {
    struct Bits<'g>(&'g GradientsParams, Vec<u32>, Vec<ParamId>);
    impl ModuleVisitor<Tape> for Bits<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<Tape, D>>) {
            let gradient = self.0.get::<Flex, D>(param.id);
            assert_eq!(gradient.is_some(), self.2.contains(&param.id), "what learns has a gradient");
            self.1.extend(
                gradient
                    .into_iter()
                    .flat_map(|gradient| numbers(gradient).expect("on the CPU"))
                    .map(f32::to_bits),
            );
        }
    }
    let learning = gpt.learning().into_iter().map(|(id, _)| id).collect();
    let mut bits = Bits(gradients, Vec::new(), learning);
    gpt.visit(&mut bits);
    bits.1
}

#[test]
fn the_norm_covers_all_gradients() {
    let gpt = gpt();
    let count: usize = values(&gpt).iter().map(|(_, _, values)| values.len()).sum();
    let norm = norm_of(&gpt, &gradients(&gpt, -0.5));
    assert!((norm - 0.5 * (count as f32).sqrt()).abs() < 1e-4, "{norm} of {count} halves");
}

#[test]
fn gradients_above_the_limit_are_clipped_and_others_kept() {
    // Norm 5, limit 2.
    assert_eq!(Stride::clipped(1.0, 5.0, Some(2.0)), Stride { share: 1.0, scale: 0.4 });
    for (norm, limit) in [(1.5, Some(2.0)), (0.0, Some(2.0)), (5.0, None)] {
        assert_eq!(Stride::clipped(0.5, norm, limit), Stride { share: 0.5, scale: 1.0 });
    }
    // 0.1 · 2/5 · 3.
    assert_step(&sgd(), 3.0, Stride::clipped(1.0, 5.0, Some(2.0)), |_, old| old - 0.12);
}

#[test]
fn a_step_scales_with_its_share_of_the_rate() {
    let stride = Stride { share: 0.25, scale: 1.0 };
    assert_step(&sgd(), -2.0, stride, |_, old| old + 0.05);
    // AdamW's first update has the size of the rate.
    let adamw = TrainSection { optimizer: OptimizerKind::AdamW, ..sgd() };
    assert_step(&adamw, -2.0, stride, |_, old| old + 0.025);
}

#[test]
fn weight_decay_shrinks_matrices_only() {
    for optimizer in [OptimizerKind::AdamW, OptimizerKind::Sgd, OptimizerKind::Muon] {
        let settings = TrainSection { optimizer, weight_decay: 0.5, matrix_lr: 0.1, ..sgd() };
        // 0.1 · 0.5 · 0.5.
        assert_step(&settings, 0.0, Stride { share: 0.5, scale: 1.0 }, |dims, old| {
            if dims == 2 { old * 0.975 } else { old }
        });
    }
}

#[test]
fn a_group_has_its_own_rate_and_decay_under_every_rule() {
    let groups = r#"[{"match": "embedding", "lr_scale": 0.25, "weight_decay": 0}, {"match": "mlp", "weight_decay": 2}]"#;
    let groups: Vec<runs::config::GroupSection> = serde_json::from_str(groups).expect("groups");
    for optimizer in [OptimizerKind::AdamW, OptimizerKind::Sgd, OptimizerKind::Muon] {
        let settings =
            TrainSection { optimizer, weight_decay: 0.5, matrix_lr: 0.1, groups: groups.clone(), ..sgd() };
        let stepped = |gradient: f32| {
            let before = gpt();
            let gradients = gradients(&before, gradient);
            let (after, _) =
                Optimizer::<Flex>::new(&settings).step(before, gradients, Stride { share: 1.0, scale: 1.0 });
            values(&after)
        };
        let old = values(&gpt());
        let of = |all: &[(String, usize, Vec<f32>)], name: &str| {
            all.iter().find(|(found, ..)| found == name).expect("there").2[0]
        };
        let still = stepped(0.0);
        for (name, kept) in
            [("wte", 1.0), ("blocks.0.mlp.up.weight", 0.8), ("blocks.0.attention.query.weight", 0.95)]
        {
            let (old, new) = (of(&old, name), of(&still, name));
            assert!((new - kept * old).abs() < 1e-6, "{optimizer:?}, {name}: {old} became {new}");
        }
        if optimizer == OptimizerKind::AdamW {
            let moved = of(&old, "wte") - of(&stepped(3.0), "wte");
            assert!((moved - 0.025).abs() < 1e-5, "{moved}");
        }
    }
}
