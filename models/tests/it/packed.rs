//! A frozen base in fewer bits.

use burn::module::AutodiffModule;
use burn::optim::GradientsParams;
use burn::tensor::DType;
use models::weights::{self, Factors, Layout, Stored};
use models::{BaseForm, Chunks, Compute, Gpt, GptConfig, Lean, LoraConfig, PassOptions, Plain, recompute};

use crate::alone::is_alone;
use crate::fixtures::{Cpu, DEVICE, Tape, batch, model, named_values, numbers, shrunk, tokens, unusual};

const KERNELS: Lean = Lean(Chunks::of(4, 5));

const FORMS: [BaseForm; 4] = [BaseForm::Computed, BaseForm::Bf16, BaseForm::Int8, BaseForm::Nf4];

fn adapted(base: Gpt<Tape>) -> Gpt<Tape> {
    let lora = LoraConfig { rank: 3, ..LoraConfig::default() };
    base.with_adapters(&lora, 5).expect("it has these projections")
}

type Gradients = Vec<(String, Vec<f64>)>;

fn passes(model: &Gpt<Tape>) -> Vec<(Vec<f64>, Gradients)> {
    let batch = || batch::<Cpu>(model.config(), 2, 11);
    let options = PassOptions::default();
    let loss = model.loss(models::Batch::from_inner(batch()), &options, &KERNELS);
    let value = numbers(&loss);
    let kept = GradientsParams::from_grads(loss.backward(), model);
    let (again, recomputed) = recompute::loss_and_gradients(model, batch(), &options, KERNELS, 1);
    assert_eq!(numbers(&again), value);
    [kept, recomputed].into_iter().map(|gradients| (value.clone(), learned(model, &gradients))).collect()
}

fn learned(model: &Gpt<Tape>, gradients: &GradientsParams) -> Gradients {
    let learning = model.learning();
    let of = |(id, info): &(_, models::ParameterInfo)| {
        let gradient = gradients.get::<Cpu, 2>(*id).expect("an adapter learns");
        (info.name.clone(), numbers(&gradient))
    };
    assert_eq!(gradients.len(), learning.len(), "only adapters learn");
    learning.iter().map(of).collect()
}

#[test]
fn a_packed_base_has_the_bits_of_its_decoded_weights() {
    if !is_alone() {
        return;
    }
    let narrow = GptConfig { compute: Compute::Bf16, ..shrunk("llama-3-8b") };
    for config in [shrunk("gpt2"), unusual(), narrow] {
        for base in FORMS {
            let packed = adapted(model(&config).frozen(base));
            let rounded = adapted(model(&config).rounded(base).narrowed());
            assert!(passes(&packed) == passes(&rounded), "{base:?}");
            let logits = |model: &Gpt<Tape>| {
                let tokens = tokens::<Cpu>(1, 9, config.vocab_size, 3);
                numbers(&model.valid().narrowed().forward(tokens, &Plain::default()))
            };
            assert_eq!(logits(&packed), logits(&rounded), "{base:?}: below the tape");
            let exact = adapted(model(&config).narrowed());
            let rounds =
                base != BaseForm::Computed && (base, config.compute) != (BaseForm::Bf16, Compute::Bf16);
            assert_eq!(logits(&packed) != logits(&exact), rounds, "{base:?}");
        }
    }
}

#[test]
fn weights_that_are_frozen_as_they_are_read_equal_those_frozen_later() {
    if !is_alone() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("weights");
    let wide = shrunk("gpt2");
    for config in [GptConfig { compute: Compute::Bf16, ..shrunk("llama-3-8b") }, wide] {
        let whole = model(&config);
        weights::save(&whole, &path, Layout::Native, Stored::F32).expect("saved");
        for base in FORMS {
            for factors in [Factors::Frozen(base), Factors::FrozenBlocks(base), Factors::Rounded(base)] {
                let read: Gpt<Tape> =
                    weights::load_as(&config, factors, &[&path], Layout::Native, &DEVICE).expect("loaded");
                let later = factors.apply(whole.clone());
                let kind = |gpt: &Gpt<Tape>| gpt.blocks[0].mlp.up.weight.val().dtype();
                assert_eq!(kind(&read), kind(&later));
                let same = |gpt: &Gpt<Tape>| {
                    let values = named_values(gpt, None).into_iter();
                    values
                        .map(|(name, values)| {
                            (name, values.into_iter().map(f64::to_bits).collect::<Vec<_>>())
                        })
                        .collect::<Vec<_>>()
                };
                assert!(same(&read) == same(&later), "{factors:?}");
                assert!(passes(&adapted(read)) == passes(&adapted(later)), "{factors:?}");
            }
        }
    }
}

#[test]
fn merging_adapters_decodes_a_packed_base() {
    let config = shrunk("llama-3-8b");
    let packed = adapted(model(&config).frozen(BaseForm::Nf4)).merged();
    let rounded = adapted(model(&config).rounded(BaseForm::Nf4)).merged();
    assert_eq!(packed.blocks[0].mlp.up.weight.val().dtype(), DType::F32);
    assert_eq!(named_values(&packed, None), named_values(&rounded, None));
}
