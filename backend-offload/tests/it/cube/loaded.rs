//! Models loaded by burn-store as a thread's first use of its device.

use super::{Machine, Spilling, Target, children, counted, install};
use crate::child::Facts;
use crate::folders;
use crate::numbers::{Series, initialise};
use burn::backend::Autodiff;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsParams, Optimizer};
use burn::prelude::*;
use burn::tensor::backend::AutodiffBackend;
use burn_store::{BurnpackStore, ModuleSnapshot};
use std::hash::{DefaultHasher, Hash, Hasher};

children! { "cube/stored model" => stored_model }

const LAYERS: usize = 8;
const WIDTH: usize = 256;
const STEPS: usize = 6;

fn stored_model<T: Target>(parameters: &Facts) -> Facts {
    let device = T::device();
    install::<T>(parameters, &device);
    let fingerprint = train::<Autodiff<Spilling<T>>>(&device, parameters);
    counted::<T>(&device, Facts::default().with("fingerprint", fingerprint))
}

fn train<B: AutodiffBackend>(device: &B::Device, parameters: &Facts) -> u64 {
    let model: Vec<Linear<B>> = (0..LAYERS).map(|_| LinearConfig::new(WIDTH, WIDTH).init(device)).collect();
    let mut model = made_or_loaded(model, device, parameters);
    let mut optimizer = AdamWConfig::new().init::<B, Vec<Linear<B>>>();
    let mut hasher = DefaultHasher::new();

    for step in 0..STEPS {
        let data = Series::new(1, &format!("batch {step}")).floats(&[64, WIDTH], 1.0);
        let x = Tensor::<B, 2>::from_data(data, device);
        let y = model.iter().fold(x, |x, layer| layer.forward(x).tanh());
        let loss = (y - 0.5).square().mean();
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(1e-3, model, gradients);
        loss.into_data().as_bytes().hash(&mut hasher);
    }
    for layer in model {
        layer.weight.val().into_data().as_bytes().hash(&mut hasher);
    }
    hasher.finish()
}

fn made_or_loaded<B: Backend>(
    mut model: Vec<Linear<B>>,
    device: &B::Device,
    parameters: &Facts,
) -> Vec<Linear<B>> {
    let store = BurnpackStore::from_file(parameters.text("file"));
    match parameters.text("weights") {
        "made" => {
            let model = initialise::<B, _>(model, device, 1);
            ModuleSnapshot::<B>::save_into(&model, &mut store.overwrite(true)).expect("our file");
            model
        }
        weights => {
            // The file is mapped either way. Tensors of its own pages ask the runtime for staging first.
            let mut store = store.zero_copy(weights == "mapped");
            let loaded = ModuleSnapshot::<B>::load_from(&mut model, &mut store).expect("the model's file");
            assert!(loaded.unused.is_empty(), "of another model: {:?}", loaded.unused);
            model
        }
    }
}

mod gate {
    use super::*;

    #[test]
    #[ignore = "gate: trains five times"]
    fn a_model_loaded_from_a_file_overlaps_as_one_that_is_made() {
        let Some(machine) = Machine::eager("a_model_loaded_from_a_file_overlaps_as_one_that_is_made") else {
            return;
        };
        let folder = folders::fresh(folders::SETTINGS);
        let file = folder.path().join("model.bpk");
        let with = |weights: &str| {
            machine.child("cube/stored model").with("file", file.display()).with("weights", weights)
        };
        let unlimited = machine.run(with("made"));
        let budget = unlimited.number("device peak") * 3 / 4;
        for weights in ["made", "copied", "mapped"] {
            let report = machine.run(with(weights).with("budget", budget));
            println!("{weights}: {} blocks came ahead", report.text("brought ahead"));
            assert_eq!(report.text("fingerprint"), unlimited.text("fingerprint"), "{weights} weights");
            assert!(report.number("brought ahead") > 0, "{weights} weights: {report:?}");
        }
    }
}
