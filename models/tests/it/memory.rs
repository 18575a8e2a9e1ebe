//! Live bytes: lean operations hold little, and footprints predict the tape.

use std::sync::Mutex;

use burn::optim::GradientsParams;
use burn::tensor::{DType, Tensor};
use models::activation::Pointwise;
use models::attention::AttentionOptions;
use models::dropout::DropoutKey;
use models::weights::{self, Incoming, Stored};
use models::{
    Chunks, Compute, Decoder, Footprint, Gpt, GptConfig, Kernels, Lean, PassOptions, Plain, presets,
    recompute,
};
use models::{NormKind, Positions};

use crate::alone::is_alone;
use crate::counting::bytes;
use crate::fixtures::{Cpu, DEVICE, Tape, batch, model, named_values, normal, shrunk, tokens, unusual};

fn attention_peak<K: Kernels<Tape>>(time: usize, kernels: &K) -> usize {
    let options = AttentionOptions { scale: 0.1, soft_cap: None, window: None, compute: Compute::F32 };
    let [q, k, v] =
        [1, 2, 3].map(|seed| normal::<Tape, 4>([1, 2, time, 16], seed, DType::F32).require_grad());
    let (peak, _) = bytes(|| kernels.attention(q.clone(), k.clone(), v.clone(), &options).sum().backward());
    peak
}

#[test]
fn attention_memory_grows_linearly_in_time_at_a_fixed_chunk() {
    if !is_alone() {
        return;
    }
    let lean = Lean(Chunks::of(32, 1));
    let [short, long] = [512, 2048].map(|time| attention_peak(time, &lean));
    assert!(long as f64 <= 4.5 * short as f64, "four times the length took {long} bytes after {short}");
    let square = 2048 * 2048 * 2 * 4;
    assert!(long < square / 4, "{long} bytes, while one T×T tensor takes {square}");
    let plain = attention_peak(512, &Plain(Chunks::WHOLE));
    assert!(plain > 3 * short, "plain attention took {plain} bytes, lean {short}");
}

#[test]
fn the_loss_never_holds_all_logits() {
    if !is_alone() {
        return;
    }
    let config = GptConfig { vocab_size: 6000, n_layer: 1, n_positions: 256, ..shrunk("llama-1.1b") };
    let model = model(&config);
    let peak = |chunks| {
        bytes(|| model.loss(batch(&config, 2, 256), &PassOptions::default(), &Lean(chunks)).backward()).0
    };
    let logits = 512 * 6000 * 4;
    let (chunked, whole) = (peak(Chunks::of(32, 32)), peak(Chunks::of(32, 512)));
    assert!(whole > 2 * logits, "one chunk of everything holds the logits: {whole} bytes");
    assert!(chunked < logits / 2 + 4 * 6000 * 32 * 4, "{chunked} bytes, while all logits take {logits}");
}

#[test]
fn activations_and_norms_keep_one_tensor_each() {
    if !is_alone() {
        return;
    }
    let dims = [2, 64, 128];
    let [one, other] = [1, 2].map(|seed| normal::<Tape, 3>(dims, seed, DType::F32).require_grad());
    let size = dims.iter().product::<usize>() * 4;
    // Inputs made inside count only if taped.
    let held = |work: &(dyn Fn([Tensor<Tape, 3>; 2]) -> Tensor<Tape, 3> + Sync)| {
        bytes(|| work([&one, &other].map(|leaf| leaf.clone().mul_scalar(2.0)))).1 as f64 / size as f64
    };

    let lean = Lean::default();
    for function in [Pointwise::GeluTanh, Pointwise::GeluErf, Pointwise::ReluSquared] {
        let tensors = held(&|[x, _]| lean.pointwise(x, function));
        assert!(
            (2.0..2.1).contains(&tensors),
            "{function:?}: {tensors} tensors held, input and output allowed"
        );
    }

    let tensors = held(&|[gate, up]| lean.swiglu(gate, up));
    assert!((3.0..3.1).contains(&tensors), "{tensors} tensors held, two inputs and the output allowed");

    for kind in [NormKind::LayerNorm, NormKind::RmsNorm] {
        let tensors = held(&|[x, _]| lean.normalise(x, kind, 1e-5));
        assert!((1.0..1.1).contains(&tensors), "{kind:?}: {tensors} tensors held, the output alone allowed");
    }
}

fn step_peak(config: &GptConfig, every: Option<usize>) -> usize {
    let model = model(config);
    let options = PassOptions::default();
    let kernels = Lean(Chunks::of(16, 16));
    let work = || {
        if let Some(every) = every {
            return recompute::loss_and_gradients(&model, batch(config, 8, 64), &options, kernels, every).1;
        }
        let loss = model.loss(batch(config, 8, 64), &options, &kernels);
        GradientsParams::from_grads(loss.backward(), &model)
    };
    bytes(work).0
}

#[test]
fn recomputation_holds_one_segment_at_a_time() {
    if !is_alone() {
        return;
    }
    let config = GptConfig { n_layer: 12, n_embd: 64, n_positions: 64, ..shrunk("gpt2") };
    let [whole, by_three, by_one] = [None, Some(3), Some(1)].map(|every| step_peak(&config, every));
    assert!(by_three < whole / 2, "{by_three} bytes by threes, {whole} without recomputation");
    assert!(by_one < by_three, "{by_one} bytes by ones, {by_three} by threes");
    let footprint = Footprint::of(&config).expect("small");
    for (every, peak) in [(3, by_three), (1, by_one)] {
        let tape = footprint.activation_bytes_per_token(Some(every)) * 8 * 64;
        let most = footprint.weight_bytes() + tape + tape / 3;
        assert!((tape..most).contains(&(peak as u64)), "{peak} bytes by {every}, {tape} to {most} predicted");
    }
}

#[test]
fn the_footprint_predicts_the_bytes_on_the_tape() {
    if !is_alone() {
        return;
    }
    let small = |config| GptConfig { n_layer: 6, n_embd: 64, n_inner: Some(192), n_positions: 64, ..config };
    let narrow = |compute, preset| GptConfig { compute, ..small(shrunk(preset)) };
    let configs = [
        small(shrunk("gpt2")),
        small(shrunk("llama-1.1b")),
        small(shrunk("nanochat")),
        small(unusual()),
        GptConfig { embd_pdrop: 0.1, resid_pdrop: 0.1, ..small(shrunk("gpt2")) },
        GptConfig { positions: Positions::Learned, ..small(shrunk("nanochat")) },
        narrow(Compute::Bf16, "gpt2"),
        narrow(Compute::Bf16, "nanochat"),
    ];

    let dropout = Some(DropoutKey { seed: 1, step: 2, micro_batch: 3 });
    for config in configs {
        let model = model(&config);
        let kernels = Lean(Chunks::of(16, 16));
        let options = PassOptions { dropout, ..PassOptions::default() };
        let held = |rows| bytes(|| model.loss(batch(&config, rows, 64), &options, &kernels)).1;
        let footprint = Footprint::of(&config).expect("small");

        // Nodes, narrow weights and the head's gradient do not grow with the batch.
        let more = (held(8) - held(4)) as u64;
        let predicted = footprint.activation_bytes_per_token(None) * 4 * 64;
        let ratio = more as f64 / predicted as f64;
        assert!(
            // The prediction is low for an unknown reason: see docs/LOG.md.
            (0.97..1.09).contains(&ratio),
            "four more rows hold {more} bytes, {predicted} predicted ({ratio:.4}), for {config:?}"
        );
    }
}

#[test]
fn the_footprint_bounds_the_bytes_of_a_chunk() {
    if !is_alone() {
        return;
    }
    let wide_vocabulary = GptConfig { vocab_size: 8000, n_layer: 1, n_positions: 256, ..shrunk("nanochat") };
    let long =
        GptConfig { n_layer: 1, n_positions: 1024, attention_softcap: Some(9.0), ..shrunk("nanochat") };
    for (config, chunks) in [(wide_vocabulary, Chunks::of(4, 64)), (long, Chunks::of(256, 4))] {
        let model = model(&config);
        let time = config.n_positions;

        let step = |chunks| {
            let work = || {
                let loss = model.loss(batch(&config, 1, time), &PassOptions::default(), &Lean(chunks));
                GradientsParams::from_grads(loss.backward(), &model)
            };
            bytes(work).0
        };

        let bare = step(Chunks::of(1, 1));
        let taken = step(chunks).saturating_sub(bare) as u64;
        let [attention, loss] = Footprint::of(&config).expect("small").working_bytes(1, time, chunks);
        let bound = attention.max(loss);
        assert!(
            (bound / 3..=bound).contains(&taken),
            "{taken} bytes more than without chunks, {bound} allowed"
        );
    }
}

#[test]
fn narrow_weights_on_the_tape_are_in_the_footprint() {
    if !is_alone() {
        return;
    }
    let config = GptConfig { n_layer: 6, n_embd: 96, n_positions: 8, ..shrunk("gpt2") };
    let held = |compute| {
        let model = model(&GptConfig { compute, ..config.clone() });
        bytes(|| model.loss(batch(&config, 1, 1), &PassOptions::default(), &Lean::default())).1
    };
    let narrow = held(Compute::Bf16) - held(Compute::F32);
    let footprint = |compute| Footprint::of(&GptConfig { compute, ..config.clone() }).expect("small");
    let predicted = footprint(Compute::Bf16).narrow_weight_bytes(None);
    assert!(
        (0.9..1.1).contains(&(narrow as f64 / predicted as f64)),
        "{narrow} bytes, {predicted} predicted"
    );
    assert_eq!(footprint(Compute::Bf16).narrow_weight_bytes(Some(2)), predicted / 3);
    assert_eq!(footprint(Compute::F32).narrow_weight_bytes(None), 0);
}

#[test]
fn a_narrowed_model_holds_narrow_weights_and_casts_none_again() {
    if !is_alone() {
        return;
    }
    let config = GptConfig { n_layer: 4, n_embd: 128, compute: Compute::Bf16, ..shrunk("llama-1.1b") };
    let fresh = || Gpt::<Cpu>::new(&config, 7, &DEVICE).expect("valid");
    let (_, wide) = bytes(fresh);
    let (_, narrow) = bytes(|| fresh().narrowed());
    let matrices = Footprint::of(&config).expect("small").multiplied * 4;
    let spared = (wide - narrow) as f64 / (matrices / 2) as f64;
    assert!((0.97..1.0).contains(&spared), "{spared:.3} of half the matrices' {matrices} bytes spared");

    let step = |model: &Gpt<Cpu>| {
        let decode = || Decoder::new(model, 8).feed(tokens(1, 1, 60, 1)).expect("it fits");
        bytes(decode).0
    };
    let largest = 128 * 128 * 2;
    let spared = step(&fresh()).saturating_sub(step(&fresh().narrowed()));
    assert!(spared > largest * 9 / 10, "{spared} bytes less in a step; the largest cast takes {largest}");
}

#[test]
fn inference_holds_nothing_but_its_result() {
    if !is_alone() {
        return;
    }
    let config = GptConfig { n_layer: 6, n_embd: 64, n_positions: 64, ..shrunk("gpt2") };
    let model = Gpt::<Cpu>::new(&config, 7, &DEVICE).expect("valid");
    let loss = || model.loss(batch(&config, 4, 64), &PassOptions::default(), &Plain::default());
    let (_, held) = bytes(loss);
    assert!(held < 4096, "a loss is one number, {held} bytes are held");
}

#[test]
fn a_decoding_step_allocates_no_second_cache() {
    if !is_alone() {
        return;
    }
    let config = GptConfig { n_positions: 4096, ..shrunk("gpt2") };
    let model = Gpt::<Cpu>::new(&config, 7, &DEVICE).expect("valid");
    let decoder = Mutex::new(Decoder::new(&model, 4096));
    let step = || decoder.lock().expect("one thread").feed(tokens(1, 1, 60, 1)).expect("it fits");
    let (peak, held) = bytes(step);
    // The cache is six such tensors; the CPU backend copies the written one.
    let keys_of_one_layer = 4096 * 32 * 4;
    assert!(
        peak < keys_of_one_layer * 3 / 2,
        "{peak} bytes in a step, {keys_of_one_layer} hold one layer's keys"
    );
    assert!(
        held < keys_of_one_layer / 2,
        "the cache has its size from the start, yet {held} bytes came on top"
    );
}

#[test]
fn weights_are_converted_with_a_few_tensors_in_memory() {
    if !is_alone() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    for (preset, stored) in [("llama-1.1b", Stored::Bf16), ("gpt2", Stored::F32), ("gpt2", Stored::F16)] {
        let full = presets::preset(preset).expect("a preset");
        let (n_inner, vocab_size) = (full.n_inner.map(|_| 256), 300);
        let config = GptConfig { n_layer: 12, n_head: 4, n_embd: 128, n_inner, vocab_size, ..full };
        let config = GptConfig { n_kv_head: config.n_kv_head.map(|_| 2), n_positions: 64, ..config };
        let published = folder.path().join(format!("{preset}-{stored:?}"));
        std::fs::create_dir(&published).expect("a folder");
        weights::save_pretrained(&model(&config), &published, stored).expect("saved");
        let native = published.join("native");
        let (peak, _) = bytes(|| {
            let incoming = Incoming::open(&published).expect("a published folder");
            incoming.save(&native, |_| {}).expect("converted");
        });
        let footprint = Footprint::of(&config).expect("valid");
        let largest = 4 * footprint.largest_tensor.max(3 * 128 * 128) as usize;
        assert!(peak < 5 * largest + 64_000, "{preset}: {peak} bytes, the largest tensor has {largest}");
        assert!(peak < footprint.weight_bytes() as usize / 3, "{preset}: {peak} bytes");

        let loaded: Gpt<Tape> = weights::load_pretrained(&published, &DEVICE).expect("loads");
        let converted: Gpt<Tape> = weights::load_native(&native, &DEVICE).expect("loads");
        assert_eq!(converted.config(), loaded.config());
        assert!(named_values(&converted, None) == named_values(&loaded, None), "{preset}: other numbers");
        let file = std::fs::metadata(&native).expect("written").len();
        let number = if stored == Stored::F32 { 4 } else { 2 };
        assert!(file.abs_diff(number * footprint.parameters) < 32_000, "{preset}: {file} bytes");
    }
}
