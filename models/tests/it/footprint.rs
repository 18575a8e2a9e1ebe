//! The footprint's predictions equal real models' costs.

use burn::module::Module;
use models::{Footprint, Gpt, presets};

use crate::fixtures::{Cpu, DEVICE, shrunk, unusual};

fn footprint(preset: &str) -> Footprint {
    Footprint::of(&presets::preset(preset).expect("a preset")).expect("presets fit")
}

#[test]
fn presets_have_their_published_parameter_counts() {
    let published = [
        ("gpt2", 124_439_808),
        ("gpt2-medium", 354_823_168),
        ("gpt2-large", 774_030_080),
        ("gpt2-xl", 1_557_611_200),
        ("llama-1.1b", 1_100_048_384),
        ("llama-2-7b", 6_738_415_616),
        ("llama-3-8b", 8_030_261_248),
        ("nanochat", 560_988_160),
    ];
    for (preset, parameters) in published {
        assert_eq!(footprint(preset).parameters, parameters, "{preset}");
    }
}

#[test]
fn the_parameter_count_equals_the_models() {
    let shapes = presets::PRESETS.iter().map(|preset| shrunk(preset)).chain([unusual()]);
    for config in shapes {
        let model = Gpt::<Cpu>::new(&config, 0, &DEVICE).expect("a valid configuration");
        let counted = Footprint::of(&config).expect("small").parameters;
        assert_eq!(counted, model.num_params() as u64, "{config:?}");
    }
}

#[test]
fn listed_block_matrices_have_the_shapes_of_a_blocks_parameters() {
    let shapes = presets::PRESETS.iter().map(|preset| shrunk(preset)).chain([unusual()]);
    for config in shapes {
        let sorted = |sides: [usize; 2]| [sides[0].min(sides[1]), sides[0].max(sides[1])];
        let parameters = config.parameters().into_iter();
        let block = parameters.filter(|listed| listed.block() == Some(0) && listed.is_matrix());
        let mut block: Vec<_> = block.map(|listed| sorted([listed.shape[0], listed.shape[1]])).collect();
        let mut matrices: Vec<_> = config.block_matrices().into_iter().map(sorted).collect();
        block.sort_unstable();
        matrices.sort_unstable();
        assert_eq!(block, matrices, "{config:?}");
    }
}

#[test]
fn flops_are_six_per_multiplied_parameter_and_twelve_per_position_attended() {
    let gpt2 = footprint("gpt2");
    let without_positions = (gpt2.parameters - 1024 * 768) as f64;
    let final_norm = 2.0 * 768.0;
    let expected = 6.0 * (without_positions - final_norm) + 12.0 * 12.0 * 768.0 * 1024.0;
    assert_eq!(gpt2.flops_per_token(1024, false) as u64, expected as u64);
    let extra = gpt2.flops_per_token(1024, true) / expected;
    assert!((1.2..1.34).contains(&extra), "one more forward through the blocks, not the head: {extra}");
}

#[test]
fn weights_take_four_bytes_a_parameter_and_the_table_is_the_largest() {
    let gpt2 = footprint("gpt2");
    assert_eq!(gpt2.weight_bytes(), 4 * gpt2.parameters);
    assert_eq!(gpt2.largest_tensor, 50257 * 768);
    assert_eq!(gpt2.hidden_matrices, 12 * (4 + 2 * 4) * 768 * 768);
}

#[test]
fn rotary_tables_are_a_cosine_and_a_sine_per_position_and_feature_of_a_head() {
    assert_eq!(footprint("gpt2").rotary_bytes(), 0);
    assert_eq!(footprint("llama-2-7b").rotary_bytes(), 2 * 4096 * 128 * 4);
}
