//! Accepted values, error messages and presets.

use std::fs;

use insta::assert_snapshot;
use models::Footprint;

use super::*;

fn preset(name: &str, set: &[&str]) -> Config {
    let set: Vec<String> = set.iter().map(|set| (*set).to_owned()).collect();
    Config::load(name, &set).unwrap_or_else(|error| panic!("{error}"))
}

fn refused(sections: &str) -> String {
    let model = r#""model": {"preset": "gpt2", "n_layer": 2}"#;
    let separator = if sections.is_empty() { "" } else { "," };
    refused_text(&format!("{{{model}{separator}{sections}}}"), &[])
}

fn refused_text(text: &str, set: &[&str]) -> String {
    let set: Vec<String> = set.iter().map(|set| (*set).to_owned()).collect();
    Config::from_text(text, "run.json", &set).expect_err("this must be refused").to_string()
}

#[test]
fn every_preset_has_the_parameters_it_is_named_for() {
    let expected = [
        ("toy.json", 917_504),
        ("shakespeare-char.json", 804_096),
        ("gpt-124m.json", 124_475_904),
        ("gpt-350m.json", 354_871_296),
        ("gpt-1.5b.json", 1_557_686_400),
        ("gpt-7b.json", 6_738_415_616),
        ("llama-14b.json", 13_540_234_240),
        ("llama-18b.json", 18_337_019_904),
        ("llama-32b.json", 31_533_962_240),
    ];
    assert!(presets().map(|(name, _)| name).eq(expected.map(|(name, _)| name)));

    for (name, parameters) in expected {
        let set: &[&str] = if name.starts_with("shakespeare") { &["data.path=input.txt"] } else { &[] };
        let config = preset(name, set);
        let counted = Footprint::of(&config.model).expect("it was checked").parameters;
        assert_eq!(counted, parameters, "{name}");
        let again = Config::from_text(&config.to_json(), "its own JSON", &[]).expect("it was written by us");
        assert_eq!(again, config, "{name}");
    }
}

#[test]
fn a_name_is_a_file_or_a_preset_with_or_without_its_ending() {
    assert_eq!(preset("toy", &[]), preset("toy.json", &[]));
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("mine.json");
    fs::write(&file, preset("toy", &["train.lr=0.25"]).to_json()).expect("written");
    assert!((preset(file.to_str().expect("text"), &[]).train.lr - 0.25).abs() < f64::EPSILON);
    assert_snapshot!(Config::load("gpt-3b", &[]).expect_err("no such preset"), @"no configuration `gpt-3b`: there is no such file, and the presets are toy, shakespeare-char, gpt-124m, gpt-350m, gpt-1.5b, gpt-7b, llama-14b, llama-18b, llama-32b");
}

#[test]
fn shakespeare_needs_only_its_text() {
    assert_snapshot!(Config::load("shakespeare-char", &[]).expect_err("its text is not embedded"), @r#"
    preset shakespeare-char.json has 1 problem:
      `data.path` is missing: `data.source` = "text" reads what it names; give it with --set data.path=PATH
    "#);
}

#[test]
fn overrides_replace_values_and_make_sections() {
    let text = r#"{"model": {"preset": "gpt2"}, "eval": {"prompts": ["a", "b"]}}"#;
    let set = [
        "train.schedule.kind=linear",
        "eval.prompts=[\"c\"]",
        "model.n_layer=3",
        "data.source=text",
        "data.path=a=b",
    ];
    let config = Config::from_text(text, "run.json", &set.map(str::to_owned)).expect("all of this is fine");
    assert_eq!(config.train.schedule.kind, ScheduleKind::Linear);
    assert_eq!(config.eval.prompts, ["c"]);
    assert_eq!(config.model.n_layer, 3);
    assert_eq!(config.data.path.as_deref(), Some(Path::new("a=b")), "only the first sign divides");
}

#[test]
fn everything_wrong_is_reported_at_once() {
    let text = r#"{
        "model": {"preset": "gpt2", "n_layers": 4, "n_embd": "wide", "activation_function": "gelu_old"},
        "tokenizer": {"kind": "words", "vocabsize": 9},
        "train": {"lrr": 1, "steps": -1, "betas": [0.9], "dialogues": 5, "schedule": {"kind": "cosine", "warmpu": 3}},
        "eval": 3,
        "lr": 0.1,
        "optimiser": {}
    }"#;

    assert_snapshot!(refused_text(text, &[]), @r#"
    run.json has 13 problems:
      unknown key `model.n_layers`; the nearest known key is `model.n_layer`
      `model.activation_function`: unknown value `gelu_old`, expected one of `gelu_new`, `gelu_pytorch_tanh`, `gelu`, `silu`, `swiglu`, `geglu`, `relu2`
      `model.n_embd`: found string "wide", expected a whole number
      `tokenizer.kind`: unknown value `words`, expected one of `bpe`, `characters`, `bytes`, `file`
      unknown key `tokenizer.vocabsize`; the nearest known key is `tokenizer.vocab_size`
      `train.betas`: invalid length 1, expected an array of length 2
      unknown key `train.dialogues`; the nearest known key is `data.dialogues`
      unknown key `train.lrr`; the nearest known key is `train.lr`
      unknown key `train.schedule.warmpu`; the nearest known key is `train.schedule.warmup`
      `train.steps`: found integer `-1`, expected a whole number
      `eval`: found 3, expected a section in braces
      unknown key `lr`; the nearest known key is `train.lr`
      unknown key `optimiser`; the nearest known key is `train.optimizer`
    "#);
}

#[test]
fn problems_of_overrides_say_where_they_come_from() {
    let text = r#"{"model": {"preset": "gpt2"}, "train": {"lr": 0.1, "stepps": 3}}"#;
    let set = ["train.lr=fast", "trian.lr=0.2", "model.n_layerz=3", "train.lr.peak=1", "train", "a..b=1"];
    assert_snapshot!(refused_text(text, &set), @r#"
    run.json has 7 problems:
      --set train.lr.peak=1: `train.lr` is "fast", not a section
      --set train: write it as section.key=value
      --set a..b=1: write it as section.key=value
      unknown key `model.n_layerz` (from --set); the nearest known key is `model.n_layer`
      `train.lr` (from --set): found string "fast", expected a number
      unknown key `train.stepps`; the nearest known key is `train.steps`
      unknown key `trian` (from --set); the nearest known key is `train`
    "#);
}

#[test]
fn unreadable_configurations_are_refused_with_their_place() {
    let error = |text: &str| {
        let error = Config::from_text(text, "run.json", &[]).expect_err("this must be refused");
        let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
        format!("{error}: {cause}")
    };
    assert_snapshot!(error("{\n  \"train\": {\"lr\": 1, \"lr\": 2}\n}"), @"cannot read run.json: the key `lr` is given twice at line 2 column 29");
    assert_snapshot!(error("{\"train\": }"), @"cannot read run.json: expected value at line 1 column 11");
    assert_snapshot!(error("[]"), @r#"cannot read run.json: expected an object with sections, as in {"model": {"preset": "gpt2"}}"#);
    assert_snapshot!(refused_text("{}", &[]), @r#"
    run.json has 1 problem:
      `model`: missing; write {"preset": "gpt2"} (or gpt2-medium, gpt2-large, gpt2-xl, llama-160m, llama-1.1b, llama-2-7b, llama-3-8b, nanochat), or give n_layer, n_head, n_embd, n_positions, vocab_size
    "#);
}

#[test]
fn models_that_cannot_be_built_are_refused_with_the_rest() {
    let text = r#"{"model": {"preset": "gpt2", "n_embd": 770, "n_kv_head": 5, "attn_pdrop": 0.1}, "train": {"lr": 0}}"#;
    assert_snapshot!(refused_text(text, &[]), @r"
    run.json has 4 problems:
      section `model`: `n_embd` = 770 is not divisible by `n_head` = 12; the nearest multiple is 768
      section `model`: `n_head` = 12 is not divisible by `n_kv_head` = 5; the nearest multiple is 10
      section `model`: `attn_pdrop` = 0.1: dropout on attention weights is not supported, since attention never holds them; set it to 0 and use `resid_pdrop`
      `train.lr` = 0 must be above 0
    ");
}

#[test]
fn counts_of_zero_are_refused() {
    assert_snapshot!(refused(
        r#""train": {"steps": 0, "micro_batch": 0, "accumulate": 0, "sequence": 0, "recompute": 0, "bad_steps": 0,
            "schedule": {"warmup": 0}},
           "eval": {"sequences": 0, "max_new_tokens": 0, "top_k": 0}, "data": {"dialogues": 0},
           "checkpoint": {"keep_last": 0, "keep_every": 0}"#
    ), @r"
    run.json has 12 problems:
      `train.steps` = 0 must be at least 1
      `train.micro_batch` = 0 must be at least 1
      `train.accumulate` = 0 must be at least 1
      `train.bad_steps` = 0 must be at least 1
      `eval.max_new_tokens` = 0 must be at least 1
      `checkpoint.keep_last` = 0 must be at least 1
      `train.sequence` = 0 must be at least 1, or null
      `train.recompute` = 0 must be at least 1, or null
      `eval.sequences` = 0 must be at least 1, or null
      `eval.top_k` = 0 must be at least 1, or null
      `checkpoint.keep_every` = 0 must be at least 1, or null
      `data.dialogues` = 0 must be at least 1
    ");
}

#[test]
fn numbers_outside_their_range_are_refused() {
    assert_snapshot!(refused(
        r#""train": {"lr": 0, "matrix_lr": 0, "optimizer": "muon", "betas": [0.9, 1.0], "epsilon": 0, "momentum": 1,
            "weight_decay": -0.1, "grad_clip": 0, "z_loss": -1, "schedule": {"decay": 1.5, "floor": -0.1}},
           "eval": {"temperature": -1}, "data": {"val_fraction": 1},
           "memory": {"device_budget": "6XB", "host_budget": "0%"}"#
    ), @r#"
    run.json has 14 problems:
      `memory.device_budget`: cannot read "6XB" as a memory budget: the unit is unknown; write bytes ("6GiB", "512MB", "1048576"), a share ("80%") or "unlimited", or "auto"
      `memory.host_budget`: cannot read "0%" as a memory budget: a share lies above 0 % and at most at 100 %; write bytes ("6GiB", "512MB", "1048576"), a share ("80%") or "unlimited", or "auto"
      `train.lr` = 0 must be above 0
      `train.betas` = [0.9, 1] must be at least 0 and below 1, both
      `train.epsilon` = 0 must be above 0
      `train.momentum` = 1 must be at least 0 and below 1
      `train.weight_decay` = -0.1 must be at least 0
      `train.z_loss` = -1 must be at least 0
      `train.grad_clip` = 0 must be above 0, or null not to clip
      `train.matrix_lr` = 0 must be above 0 with `train.optimizer` = "muon", which learns hidden matrices at that rate; 0.02 is usual
      `train.schedule.decay` = 1.5 must be a share from 0 to 1
      `train.schedule.floor` = -0.1 must be a share from 0 to 1
      `eval.temperature` = -1 must be at least 0 (0 takes the likeliest)
      `data.val_fraction` = 1 must be above 0 and below 1
    "#);

    // Other optimizers ignore it.
    preset("gpt-124m", &["train.matrix_lr=0"]);
}

#[test]
fn a_remedy_that_moves_the_optimizer_to_the_device_names_its_state_too() {
    for refused in ["ranks.exchange=rarely", "train.lora.rank=4"] {
        let refused =
            Config::load("gpt-7b", &[refused.to_owned()]).expect_err("the preset steps on the host");
        let said = refused.to_string();
        assert!(said.contains("to \"device\" and `memory.optimizer_state` to \"f32\""), "{said}");
    }
}

#[test]
fn a_length_on_the_command_line_takes_the_place_of_the_files() {
    let length = |file: &str, set: &str| {
        let text = format!(r#"{{"model": {{"preset": "gpt2"}}, "train": {file}}}"#);
        let train = Config::from_text(&text, "run.json", &[set.to_owned()]).expect("valid").train;
        (train.steps, train.tokens, train.epochs)
    };
    let saved = r#"{"steps": 15, "epochs": 3.0}"#;
    assert_eq!(length(saved, "train.steps=200"), (200, None, None));
    assert_eq!(length(saved, "train.epochs=4"), (15, None, Some(4.0)));
    assert_eq!(length(saved, "train.lr=0.1"), (15, None, Some(3.0)));
    assert_eq!(length(saved, "train.tokens=null"), (15, None, Some(3.0)));
    let (steps, tokens, epochs) = length(saved, "train.tokens=1");
    assert_eq!((steps, tokens, epochs), (1, Some(1), None));
    assert_eq!(length(r#"{"tokens": 1}"#, "train.steps=200"), (200, None, None));
}

#[test]
fn one_bit_is_refused_where_it_would_save_nothing() {
    let set = |more: &str| {
        format!(r#""train": {{"steps": 200}}, "ranks": {{"exchange": "one_bit", "warm_up": 200}}{more}"#)
    };

    assert_snapshot!(refused(&set(r#", "memory": {"shard": true}"#)), @r#"
    run.json has 2 problems:
      `memory.shard` sends whole weights in every step, so `ranks.exchange` = "one_bit" saves next to nothing; set `memory.shard` to false, or `ranks.exchange` to "exact"
      `ranks.warm_up` = 200 leaves no step to `ranks.exchange` = "one_bit": `train.steps` = 200; set the former to at most 199, or `ranks.exchange` to "exact"
    "#);
    assert_snapshot!(refused(r#""ranks": {"exchange": "two_bits", "warmup": 3}"#), @"
    run.json has 2 problems:
      `ranks.exchange`: unknown value `two_bits`, expected one of `exact`, `bf16`, `one_bit`, `rarely`
      unknown key `ranks.warmup`; the nearest known key is `ranks.warm_up`
    ");

    let fine = preset("toy", &["ranks.exchange=one_bit", "ranks.warm_up=0"]);
    assert_eq!(
        fine.ranks,
        RanksSection { exchange: ExchangeKind::OneBit, warm_up: 0, ..RanksSection::default() }
    );
    // A run of epochs writes its steps later, which must read back.
    for length in ["train.epochs=0.5", "train.tokens=1"] {
        let mut derived = preset("toy", &["ranks.exchange=one_bit", length]);
        derived.set_sequences(1);
        assert_eq!((derived.train.steps, derived.ranks.warm_up), (1, 100));
        assert_eq!(Config::from_text(&derived.to_json(), "it", &[]).expect("written by us"), derived);
    }
}

#[test]
fn exchanges_refuse_incompatible_settings() {
    assert_snapshot!(refused(
        r#""ranks": {"exchange": "rarely", "round": 0, "outer_rate": 1.5, "outer_momentum": 1},
           "memory": {"shard": true, "optimizer": "host"}"#
    ), @r#"
    run.json has 5 problems:
      `ranks.round` = "0 steps" must be longer
      `ranks.outer_rate` = 1.5 must be above 0 and at most 1
      `ranks.outer_momentum` = 1 must be at least 0 and below 1
      `memory.shard` divides the moments of one optimizer, and with `ranks.exchange` = "rarely" every process has its own; set `memory.shard` to false, or `ranks.exchange` to "exact"
      `memory.optimizer` = "host" keeps weights where `ranks.exchange` = "rarely" does not average them; set `memory.optimizer` to "device", or `ranks.exchange` to "exact"
    "#);
}

#[test]
fn local_steps_of_earlier_versions_are_a_round_of_steps() {
    assert_eq!(preset("toy", &["ranks.local_steps=7"]).ranks.round, Round::Steps(7));
    assert_eq!(preset("toy", &["ranks.round=90 s"]).ranks.round.to_string(), "90 s");
    assert_snapshot!(refused(r#""ranks": {"round": "an hour"}"#), @r#"
    run.json has 1 problem:
      `ranks.round`: found string "an hour", expected "50 steps", "60 s", or "as in DIRECTORY" of a run
    "#);
}

#[test]
fn the_removed_exchange_is_refused_with_its_replacement() {
    assert_snapshot!(refused(
        r#""ranks": {"exchange": "late"}, "memory": {"shard": true, "optimizer": "host"}"#
    ), @r#"
    run.json has 1 problem:
      `ranks.exchange`: `late` was removed; use `exact`, which sums gradients during the backward pass, or `rarely` for slow links
    "#);
}

#[test]
fn sharding_works_with_every_placement_and_stream_format() {
    for optimizer in ["device", "host", "auto"] {
        let place = format!("memory.optimizer={optimizer}");
        assert_eq!(preset("toy", &["memory.shard=true", &place]).memory.shard, ShardKind::States);
    }
    for stream in ["int8", "fp8"] {
        let stream = format!("memory.stream={stream}");
        let set = ["memory.shard=true", "memory.optimizer=host", "train.optimizer=adamw", &stream];
        assert!(preset("toy", &set).memory.shard.has_owners());
    }
}

#[test]
fn sharding_reads_its_old_and_new_names() {
    let read =
        |shard: &str| preset("toy", &[&format!("memory.shard={shard}"), "train.recompute=1"]).memory.shard;
    let found = ["false", "true", "states", "weights"].map(read);
    assert_eq!(found, [ShardKind::None, ShardKind::States, ShardKind::States, ShardKind::Weights]);
    let config = preset("toy", &["memory.shard=weights", "train.recompute=1"]);
    assert_eq!(Config::from_text(&config.to_json(), "its own text", &[]).expect("it is valid"), config);
}

#[test]
fn sizes_that_do_not_fit_together_are_refused() {
    assert_snapshot!(refused(
        r#""train": {"sequence": 2048}, "tokenizer": {"vocab_size": 60000}"#
    ), @r"
    run.json has 2 problems:
      `train.sequence` = 2048 is longer than `model.n_positions` = 1024; set `train.sequence` to at most 1024, or raise `model.n_positions`
      `tokenizer.vocab_size` = 60000 is more than the model knows, `model.vocab_size` = 50257; make them equal
    ");
    assert_snapshot!(refused(r#""train": {"micro_batch": 9007199254740992}"#), @r"
    run.json has 1 problem:
      `train.steps` = 1000, `train.micro_batch` = 9007199254740992, `train.accumulate` = 1 and sequences of 1024 make more tokens than can be counted; check them for stray digits
    ");
    assert_snapshot!(refused(r#""tokenizer": {"vocab_size": 260}"#), @r"
    run.json has 1 problem:
      `tokenizer.vocab_size` = 260 is too small: 256 bytes and 5 control tokens need 261, before any is learned
    ");
    assert_snapshot!(refused_text(
        r#"{"model": {"preset": "gpt2", "vocab_size": 256, "compute": "f16"}, "tokenizer": {"kind": "bytes"}}"#, &[]
    ), @r#"
    run.json has 2 problems:
      `model.compute` = "f16" cannot train: gradients below 6e-8 vanish in it and the loss is not scaled; set it to "bf16" or "f32"
      `tokenizer.kind` = "bytes" makes 261 tokens (256 bytes and 5 control tokens), and `model.vocab_size` = 256; set the latter to at least 261
    "#);
}

#[test]
fn paths_are_given_exactly_where_they_are_read() {
    assert_snapshot!(refused(r#""data": {"path": "corpus"}, "tokenizer": {"path": "tokenizer.json"}"#), @r#"
    run.json has 2 problems:
      `data.path` = "corpus" does nothing with `data.source` = "dialogues"; remove it, or set `data.source` to "text" or "shards"
      `tokenizer.path` = "tokenizer.json" does nothing with `tokenizer.kind` = "bpe"; remove it, or set `tokenizer.kind` to "file"
    "#);
    assert_snapshot!(refused(r#""data": {"source": "shards"}, "tokenizer": {"kind": "file"}"#), @r#"
    run.json has 2 problems:
      `data.path` is missing: `data.source` = "shards" reads what it names; give it with --set data.path=PATH
      `tokenizer.path` is missing: `tokenizer.kind` = "file" reads the tokenizer it names; give it with --set tokenizer.path=PATH
    "#);
    assert_snapshot!(refused(r#""data": {"source": "shards", "path": "shards"}"#), @r#"
    run.json has 1 problem:
      `tokenizer.kind` = "bpe" is learned from text, and `data.source` = "shards" has none; set `tokenizer.kind` to "file" and `tokenizer.path` to the shards' folder, which holds theirs, or for another program's shards to the tokenizer that made them
    "#);
}

#[test]
fn conversations_need_their_control_tokens() {
    let chatless = r#""tokenizer": {"chat": false}, "eval": {"questions": ["Why?"], "quiz": 3},"#;
    assert_snapshot!(refused(&format!(r#"{chatless} "data": {{"align": "document"}}"#)), @r#"
    run.json has 3 problems:
      `data.source` = "dialogues" needs control tokens, which `tokenizer.chat` = false leaves out; set that to true
      `data.align` = "document" needs control tokens, which `tokenizer.chat` = false leaves out; set that to true, or `data.align` to "anywhere"
      `eval.questions` needs control tokens, which `tokenizer.chat` = false leaves out; set that to true, or `eval.questions` to []
    "#);
    assert_snapshot!(refused(&format!(r#"{chatless} "data": {{"source": "text", "path": "a.txt"}}"#)), @r#"
    run.json has 1 problem:
      `eval.questions` needs control tokens, which `tokenizer.chat` = false leaves out; set that to true, or `eval.questions` to []
    "#);
    // A tokenizer file may have control tokens, whatever `chat` says.
    let set = ["tokenizer.kind=file", "tokenizer.path=tokenizer", "tokenizer.chat=false"];
    preset("gpt-124m", &set);
}

#[test]
fn a_value_in_doubt_causes_no_further_errors() {
    // A default `source` would make `path` look superfluous; an ignored typo, missing.
    assert_snapshot!(refused(r#""data": {"source": "txt", "path": "a.txt"}"#), @r"
    run.json has 1 problem:
      `data.source`: unknown value `txt`, expected one of `dialogues`, `text`, `shards`
    ");
    assert_snapshot!(refused(r#""data": {"source": "text", "pth": "a.txt"}"#), @r"
    run.json has 1 problem:
      unknown key `data.pth`; the nearest known key is `data.path`
    ");
}

#[test]
fn a_short_run_is_no_reason_to_refuse_its_warm_up() {
    preset("toy", &["train.steps=5", "train.schedule.warmup=100"]);
    preset("toy", &["train.steps=5", "train.schedule.warmup=0.03"]);
    assert_snapshot!(refused(r#""train": {"schedule": {"warmup": 1.5}}"#), @"
    run.json has 1 problem:
      `train.schedule.warmup`: found floating point `1.5`, expected a number of steps, or a share between 0 and 1
    ");
}

#[test]
fn the_length_is_given_in_steps_tokens_or_epochs() {
    assert_eq!(preset("toy", &["train.tokens=10000"]).train.steps, 10, "1,024 tokens a step");
    let mut epochs = preset("toy", &["train.epochs=1.5"]);
    epochs.set_sequences(100);
    assert_eq!(epochs.train.steps, 10, "16 sequences a step");
    assert_snapshot!(refused(r#""train": {"epochs": 1, "tokens": 5}"#), @"
    run.json has 1 problem:
      `train.epochs` and `train.tokens` both give the length of the run; set one of them to null
    ");
    assert_snapshot!(refused(r#""train": {"epochs": 0}"#), @"
    run.json has 1 problem:
      `train.epochs` = 0 must be above 0 and at most 1000000
    ");
}

#[test]
fn numbers_that_f32_rounds_to_nothing_are_refused_by_their_keys() {
    assert_snapshot!(refused(
        r#""train": {"lr": 1e39, "matrix_lr": 1e-300, "betas": [0.99999999, 0.999999999], "epsilon": 1e-46,
            "momentum": 0.99999999999, "weight_decay": 1e-60, "grad_clip": 1e-50, "z_loss": 1e-45}"#
    ), @r"
    run.json has 9 problems:
      `train.lr` = 1e39 must be between 1.2e-38 and 3.4e38, as f32 has it
      `train.matrix_lr` = 1e-300 must be between 1.2e-38 and 3.4e38, as f32 has it
      `train.epsilon` = 1e-46 must be between 1.2e-38 and 3.4e38, as f32 has it
      `train.weight_decay` = 1.0000000000000001e-60 must be between 1.2e-38 and 3.4e38, as f32 has it
      `train.z_loss` = 1.0000000000000001e-45 must be between 1.2e-38 and 3.4e38, as f32 has it
      `train.grad_clip` = 9.999999999999999e-51 must be between 1.2e-38 and 3.4e38, as f32 has it
      `train.betas` = 0.99999999 must be below 1 in f32 too, which rounds it up; 0.9999999 is the most
      `train.betas` = 0.999999999 must be below 1 in f32 too, which rounds it up; 0.9999999 is the most
      `train.momentum` = 0.99999999999 must be below 1 in f32 too, which rounds it up; 0.9999999 is the most
    ");

    preset("toy", &["train.epsilon=1e-37", "train.betas=[0.9999999, 0]", "train.weight_decay=0"]);
    let said = refused(r#""train": {"lr": 1e-4, "weight_decay": 1e-4}"#);
    assert!(
        said.contains("`train.weight_decay` = 1e-4 at a learning rate of 1e-4 changes no weight"),
        "{said}"
    );
    assert!(said.contains("set `train.weight_decay` to 0, or to 5e-4 and more"), "{said}");
    preset("gpt-124m", &["train.lr=1e-4", "train.weight_decay=5e-4"]);
}

#[test]
fn counts_with_stray_digits_are_refused_by_their_keys() {
    for count in ["100000000000", "18446744073709551615"] {
        for key in ["eval.quiz", "data.dialogues", "eval.max_new_tokens"] {
            let said =
                refused_text(r#"{"model": {"preset": "gpt2", "n_layer": 2}}"#, &[&format!("{key}={count}")]);
            assert!(said.contains(&format!("`{key}` = {count} must be at most ")), "{said}");
        }
    }
}

#[test]
fn groups_of_parameters_that_make_no_sense_are_refused() {
    assert_snapshot!(refused(
        r#""train": {"freeze": ["embedding", "blocks.2-3", "head", "biases", "followers"],
            "groups": [{"match": "head"}, {"match": "mlp", "lr_scale": 0}, {"match": "norms", "weight_decay": -1}]}"#
    ), @r#"
    run.json has 6 problems:
      `train.freeze`: the group "blocks.2-3" has no parameter of this model
      `train.freeze`: the group "head" has no parameter of this model; a tied head is in `embedding`
      `train.freeze`: the group "followers" has no parameter of this model
      `train.groups`: the group "head" has no parameter of this model; a tied head is in `embedding`
      `train.groups`: `lr_scale` of "mlp" must be a factor above 0, and not 0; `train.freeze` stops a group's learning
      `train.groups`: `weight_decay` of "norms" must be at least 0, and not -1
    "#);
    assert_snapshot!(refused(
        r#""train": {"freeze": ["embeddings"], "groups": [{"match": "norms", "lr": 3}]}"#
    ), @"
    run.json has 2 problems:
      `train.freeze[0]`: `embeddings` is no group of parameters; the groups are `embedding`, `followers`, `blocks`, `blocks.N`, `blocks.N-M` (from 0), `attention`, `mlp`, `norms`, `biases`, `head`
      `train.groups[0].lr`: unknown field `lr`, expected one of `match`, `lr_scale`, `weight_decay`
    ");
    assert_snapshot!(refused(
        r#""train": {"freeze": ["blocks.0-9"],
            "groups": [{"match": "mlp", "lr_scale": 2}, {"match": "norms", "weight_decay": 0.1}]}"#
    ), @r#"
    run.json has 3 problems:
      `train.freeze`: "blocks.0-9" names blocks beyond the last, 1
      `train.groups`: "mlp" is stopped by `train.freeze`; remove it from one of them
      `train.groups`: `weight_decay` of "norms" must be left out: only matrices decay
    "#);
    assert_snapshot!(refused(r#""train": {"freeze": ["embedding", "blocks", "norms"]}"#), @"
    run.json has 1 problem:
      `train.freeze` names all parameters, so nothing would learn; remove some of its groups
    ");
    assert_snapshot!(refused(
        r#""train": {"freeze": ["norms"], "groups": [{"match": "norms"}], "lora": {"rank": 2}}"#
    ), @r#"
    run.json has 2 problems:
      `train.freeze` does nothing with `train.lora`, which freezes all weights; remove it, or choose `train.lora.targets`
      `train.groups`: the group "norms" has no parameter of this model
    "#);
    let fine = preset(
        "toy",
        &[
            "train.freeze=[\"embedding\",\"blocks.0-1\"]",
            "train.groups=[{\"match\":\"mlp\",\"lr_scale\":0.1}]",
        ],
    );
    assert!(fine.train.freezes("wte") && !fine.train.freezes("blocks.2.mlp.up.weight"));
}

#[test]
fn the_last_group_that_has_a_parameter_decides_its_rate_and_decay() {
    let groups = r#"train.groups=[{"match":"blocks","lr_scale":0.5,"weight_decay":0},{"match":"mlp","lr_scale":0.25}]"#;
    let train = preset("toy", &["train.weight_decay=0.1", groups]).train;
    assert_eq!(train.rate_and_decay("wte"), (1.0, 0.1));
    assert_eq!(train.rate_and_decay("blocks.0.attention.query.weight"), (0.5, 0.0));
    assert_eq!(train.rate_and_decay("blocks.0.mlp.up.weight"), (0.25, 0.1));
}
