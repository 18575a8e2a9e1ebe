//! Bad input: exit code 2, and a remedy.

use std::fs;
use std::time::Duration;

use crate::program::{assert_code, last_words, stdout};
use crate::tiny::{GPT2, Tiny};

fn refused(tiny: &Tiny, arguments: &[&str]) -> String {
    let output = tiny.train(arguments);
    assert_code(&output, 2);
    assert!(output.stdout.is_empty());
    let said = last_words(&output, tiny.path());
    assert_options_exist(tiny, arguments, &said);
    format!("train {}\n\n{said}", arguments.join(" "))
}

/// Options in an error are those of the called verb, or of the command of `train` beside them.
fn assert_options_exist(tiny: &Tiny, called: &[&str], said: &str) {
    for (n, part) in said.split('`').enumerate() {
        let (is_code, words) = (n % 2 == 1, part.split_whitespace().collect::<Vec<_>>());
        let command = match words.as_slice() {
            ["train", more @ ..] if is_code => more,
            // Another program, or a key.
            [first, ..] if is_code && !first.starts_with("--") => continue,
            _ => called,
        };
        let verb = match command {
            ["index" | "tokenizer", ..] => 2,
            [first, ..] if !first.starts_with("--") => 1,
            _ => 0,
        };
        let is_option = |word: &&str| word.len() > 2 && word.starts_with("--");
        let options = part.split(|letter: char| !letter.is_alphanumeric() && letter != '-').filter(is_option);
        for option in options {
            let help = stdout(&tiny.train(&[&command[..verb], &["--help"]].concat()));
            assert!(help.contains(option), "{option} is no option of train {command:?}: {said}");
        }
    }
}

#[test]
fn options_in_errors_are_those_of_the_verb_that_was_called() {
    let tiny = Tiny::new();
    fs::write(tiny.join("latin.txt"), b"caf\xe9 ".repeat(100)).expect("writing");
    let text = r#"data={"source":"text","path":"latin.txt","split":"position","val_fraction":0.2}"#;
    let train = set(&[text, "tokenizer.kind=characters"]);
    let learn = ["tokenizer", "train", "--input", "latin.txt", "--vocab-size", "300", "--out", "learned"];
    for arguments in [&train[..], &learn] {
        let output = tiny.train(arguments);
        let said = last_words(&output, tiny.path());
        assert!(said.contains("is not UTF-8"), "{said}");
        assert_options_exist(&tiny, arguments, &said);
    }
}

fn set<'a>(settings: &[&'a str]) -> Vec<&'a str> {
    ["--config", "tiny.json", "--device", "cpu", "--out", "run"]
        .into_iter()
        .chain(settings.iter().flat_map(|setting| ["--set", setting]))
        .collect()
}

#[test]
fn configurations_that_cannot_work_are_refused_with_the_reason() {
    let tiny = Tiny::new();
    fs::write(tiny.join("torn.json"), "{\"model\": {\"n_layer\": 1,}}").expect("writing");
    let cases: [(&str, &[&str]); 10] = [
        ("unknown_configuration", &["--config", "gpt-5"]),
        ("torn_configuration", &["--config", "torn.json"]),
        ("unknown_key", &set(&["train.stepz=4"])),
        ("set_without_a_value", &set(&["nonsense"])),
        ("value_of_another_type", &set(&["train.steps=many"])),
        ("several_at_once", &set(&["train.lr=-1", "train.micro_batch=0", "train.sequence=999"])),
        ("shakespeare_without_text", &["--config", "shakespeare-char", "--out", "run"]),
        ("more_ids_than_embedded", &set(&["model.vocab_size=200"])),
        ("unsupported_dropout", &set(&["model.attn_pdrop=0.1"])),
        ("budget_that_is_none", &set(&["memory.device_budget=plenty"])),
    ];
    for (name, arguments) in cases {
        insta::assert_snapshot!(name, refused(&tiny, arguments));
    }
    assert!(!tiny.join("run").exists(), "nothing is made for a run that is refused");

    // The data exist before the tokenizer lacks a character.
    fs::write(tiny.join("in.txt"), "words without a question mark. ".repeat(100)).expect("writing");
    let text = set(&[
        r#"data={"source":"text","path":"in.txt","split":"position","val_fraction":0.2}"#,
        "tokenizer.kind=characters",
    ]);
    insta::assert_snapshot!("question_beyond_the_alphabet", refused(&tiny, &text));

    assert!(!tiny.join("run").exists(), "a start that failed leaves no run behind");
    let corrected = [&text[..], &["--set", "eval.questions=[]"]].concat();
    crate::program::assert_success(&tiny.train(&corrected));
}

#[test]
fn unknown_devices_are_refused_with_the_known_ones() {
    let tiny = Tiny::new();
    insta::assert_snapshot!("unknown_device", refused(&tiny, &["--device", "nonsense"]));
    insta::assert_snapshot!("device_without_a_number", refused(&tiny, &["plan", "--device", "cuda:first"]));
    #[cfg(not(feature = "vulkan"))]
    insta::assert_snapshot!("device_not_built_in", refused(&tiny, &["--device", "vulkan"]));
    #[cfg(not(feature = "cuda"))]
    insta::assert_snapshot!("cuda_not_built_in", refused(&tiny, &["--device", "cuda"]));
}

#[cfg(feature = "cuda")]
#[test]
fn a_missing_driver_is_named() {
    if !suite::Need::NoCuda.is_met(backend_offload::cuda_driver_found().then_some("there is a driver")) {
        return;
    }
    let tiny = Tiny::new();
    let output = tiny.train(&["--config", "tiny.json", "--device", "cuda"]);
    assert_code(&output, 1);
    insta::assert_snapshot!(last_words(&output, tiny.path()));
    assert!(!tiny.join("runs").exists());
}

#[cfg(feature = "cuda")]
#[test]
fn steps_of_hours_on_the_cpu_are_refused_unless_it_was_asked_for() {
    if !suite::Need::NoCuda.is_met(backend_offload::cuda_driver_found().then_some("there is a driver")) {
        return;
    }
    let tiny = Tiny::new();
    let cache = tiny.join("cache");
    let train = |arguments: &[&str]| {
        let mut command = assert_cmd::Command::new(crate::program::PROGRAM);
        command.args(arguments).current_dir(tiny.path()).env(crate::program::CACHE.0, &cache);
        command.output().expect("the program starts")
    };
    crate::program::assert_success(&train(&["plan", "--config", "tiny.json", "--device", "cpu"]));
    let speeds = cache.join("spillway/speeds.json");
    let kept = fs::read(&speeds).expect("measured and kept");
    let mut kept: serde_json::Value = serde_json::from_slice(&kept).expect("JSON");
    kept["entries"][0]["speeds"]["flops_per_second"] = serde_json::json!(1000.0);
    fs::write(&speeds, kept.to_string()).expect("writing");

    let start = ["--config", "tiny.json", "--out", "run"];
    let refused = train(&start);
    assert_code(&refused, 2);
    let said = last_words(&refused, tiny.path());
    assert!(said.contains("no GPU is used, and a step would take "), "{said}");
    assert!(said.ends_with("and `--device cpu` trains nevertheless"), "{said}");
    assert_options_exist(&tiny, &start, &said);
    assert!(!tiny.join("run").exists());
    crate::program::assert_success(&train(&[&start[..], &["--device", "cpu"]].concat()));
}

#[test]
fn missing_and_occupied_folders_are_refused_with_a_remedy() {
    let tiny = Tiny::trained(&["train.steps=1"]);
    let text = ["--config", "tiny.json", "--set", "data.source=text", "--set", "data.path=absent.txt"];
    fs::create_dir(tiny.join("empty")).expect("making");
    let cases: [(&str, &[&str]); 13] = [
        ("out_holds_a_run", &["--config", "tiny.json", "--out", "run"]),
        ("resume_of_nothing", &["--resume", "absent"]),
        ("resume_of_an_absent_checkpoint", &["--resume", "run/checkpoints/step-00000099"]),
        ("resume_with_another_model", &["--resume", "run", "--set", "model.n_layer=3"]),
        ("resume_with_another_optimizer", &["--resume", "run", "--set", "train.optimizer=sgd"]),
        (
            "resume_with_other_batches",
            &["--resume", "run", "--set", "train.micro_batch=4", "--set", "train.seed=1"],
        ),
        ("sample_of_nothing", &["sample", "--from", "empty"]),
        ("eval_of_an_absent_step", &["eval", "--from", "run", "--step", "99"]),
        ("inspect_of_nothing", &["inspect", "empty"]),
        ("import_into_a_run", &["import", "--from", "empty", "--out", "run"]),
        ("import_of_nothing", &["import", "--from", "empty", "--out", "imported"]),
        ("text_that_is_not_there", &[&text[..], &["--device", "cpu"]].concat()),
        ("eval_of_another_model", &["eval", "--from", "run", "--device", "cpu", "--set", "model.n_layer=2"]),
    ];
    for (name, arguments) in cases {
        insta::assert_snapshot!(name, refused(&tiny, arguments));
    }
    assert_eq!(tiny.whole_checkpoints("run"), [1]);
}

#[test]
fn requests_that_a_model_cannot_answer_are_refused() {
    let tiny = Tiny::trained(&["train.steps=1"]);
    let long = "What is 3 plus 4? ".repeat(5);
    let endless = ["sample", "--from", "run", "--device", "cpu", "--max-new-tokens", "18446744073709551615"];
    fs::create_dir(tiny.join("sharded")).expect("making");
    fs::write(tiny.join("sharded/model.safetensors.index.json"), "{}").expect("writing");
    let run = fs::read(tiny.join("run/config.json")).expect("reading");
    let cases: [(&str, &[&str]); 7] = [
        ("more_tokens_than_anybody_reads", &endless),
        ("question_longer_than_the_window", &["chat", "--from", "run", "--device", "cpu", "-p", &long]),
        ("export_of_an_unknown_shape", &["export", "--from", "run", "--device", "cpu", "--out", "published"]),
        ("temperature_below_nothing", &["sample", "--from", "run", "--device", "cpu", "--temperature=-1"]),
        ("export_over_another", &["export", "--from", "run", "--out", "run/checkpoints/step-00000001"]),
        ("export_over_a_run", &["export", "--from", "run", "--out", "run"]),
        ("export_beside_shards", &["export", "--from", "run", "--out", "sharded", "--layout", "native"]),
    ];
    for (name, arguments) in cases {
        insta::assert_snapshot!(name, refused(&tiny, arguments));
    }
    assert!(fs::read(tiny.join("run/config.json")).expect("reading") == run, "it is no run any more");
    assert!(!tiny.join("published").exists());
}

#[test]
fn broken_published_folders_are_refused_and_leave_nothing() {
    let tiny = Tiny::trained(&GPT2);
    let export = ["export", "--from", "run", "--device", "cpu", "--out", "published"];
    crate::program::assert_success(&tiny.train(&export));
    let failed = |arguments: &[&str]| {
        let output = tiny.train(arguments);
        assert_code(&output, 2);
        assert!(!tiny.join("imported").exists(), "nothing is made of what cannot be read");
        let said = last_words(&output, tiny.path());
        assert_options_exist(&tiny, arguments, &said);
        said
    };

    let import = ["import", "--from", "published", "--out", "imported", "--config", "tiny.json"];
    let (weights, config) = (tiny.join("published/model.safetensors"), tiny.join("published/config.json"));
    let [tokenizer, aside] = ["published/tokenizer.json", "aside.json"].map(|file| tiny.join(file));
    fs::rename(&tokenizer, &aside).expect("moving");
    insta::assert_snapshot!("import_without_a_tokenizer", failed(&import));
    fs::rename(&aside, &tokenizer).expect("moving back");
    let described = fs::read_to_string(&config).expect("reading");
    fs::write(&config, described.replace("\"n_layer\": 1", "\"n_layer\": 1000000000000")).expect("writing");
    insta::assert_snapshot!("import_of_more_blocks_than_there_are", failed(&import));
    fs::write(&config, &described).expect("writing");
    let mut bytes = fs::read(&weights).expect("reading");
    let last = bytes.len() - 4;
    bytes[last..].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(&weights, bytes).expect("writing");
    insta::assert_snapshot!("import_of_nan", failed(&import));
    fs::remove_file(&weights).expect("removing");
    insta::assert_snapshot!("import_without_weights", failed(&import));
    fs::write(tiny.join("published/model.safetensors"), "no tensors").expect("writing");
    insta::assert_snapshot!("import_of_torn_weights", failed(&import));
    fs::remove_file(&weights).expect("removing");
    let index = r#"{"weight_map": {"transformer.wte.weight": "../model.safetensors"}}"#;
    fs::write(tiny.join("published/model.safetensors.index.json"), index).expect("writing");
    insta::assert_snapshot!("import_of_an_index_that_leads_elsewhere", failed(&import));
    let stretched = r#"{"model_type": "llama", "rope_scaling": {"rope_type": "llama3", "factor": 8.0}, "hidden_size": 64,
        "num_attention_heads": 2, "num_hidden_layers": 1, "vocab_size": 264, "max_position_embeddings": 64}"#;
    fs::write(&config, stretched).expect("writing");
    insta::assert_snapshot!("import_of_stretched_positions", failed(&import));
    fs::write(tiny.join("published/tokenizer.json"), "{").expect("writing");
    insta::assert_snapshot!("import_of_a_torn_tokenizer", failed(&import));
}

#[cfg(target_os = "linux")]
#[test]
fn folders_whose_names_are_not_utf_8_are_refused_by_name() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    let tiny = Tiny::trained(&GPT2);
    let export = ["export", "--from", "run", "--device", "cpu", "--out", "published"];
    crate::program::assert_success(&tiny.train(&export));
    crate::program::write_text(&tiny.join("in.txt"), 200);
    let odd = tiny.path().join(OsStr::from_bytes(b"caf\xe9"));
    fs::create_dir(&odd).expect("making");
    let text = ["--set", "data.source=text", "--set", "data.path=../in.txt"];
    for arguments in [
        &["import", "--from", "../published", "--out", "imported"][..],
        &["--from", "../run", "--device", "cpu", "--out", "tuned"],
        &[&["--config", "../tiny.json", "--device", "cpu", "--out", "new"][..], &text].concat()[..],
    ] {
        let output = crate::program::train(&odd, arguments);
        assert_code(&output, 2);
        let said = last_words(&output, tiny.path());
        assert!(said.contains("DIR/caf") && said.contains("is not UTF-8"), "{arguments:?}: {said}");
    }
}

#[cfg(unix)]
#[test]
fn endless_files_are_refused_wherever_a_file_is_given() {
    let tiny = Tiny::trained(&["train.steps=1"]);
    let fifo = tiny.join("fifo");
    let made = std::process::Command::new("mkfifo").arg(&fifo).status().expect("mkfifo runs");
    assert!(made.success());

    fs::create_dir(tiny.join("published")).expect("making");
    std::os::unix::fs::symlink(&fifo, tiny.join("published/config.json")).expect("linking");
    fs::write(tiny.join("large"), "").expect("writing");
    fs::File::options()
        .write(true)
        .open(tiny.join("large"))
        .and_then(|file| file.set_len(200 << 30))
        .expect("a sparse file");
    let vocabulary = tiny.join("run/tokenizer").display().to_string();
    let cases: [&[&str]; 5] = [
        &["plan", "--config", "fifo"],
        &["plan", "--config", "/dev/zero"],
        &["import", "--from", "published", "--out", "imported", "--tokenizer", vocabulary.as_str()],
        &["sample", "--from", "run", "--device", "cpu", "--prompt", "FILE:fifo"],
        &["sample", "--from", "run", "--device", "cpu", "--prompt", "FILE:large"],
    ];

    for arguments in cases {
        let mut command = assert_cmd::Command::new(crate::program::PROGRAM);
        // Reading such a file never ends, or fills the memory.
        let command = command.args(arguments).current_dir(tiny.path()).timeout(Duration::from_mins(1));
        let said = last_words(&command.output().expect("the program starts"), tiny.path());
        let expected = ["it is no regular file", "it has 214748364800 bytes"];
        assert!(expected.iter().any(|words| said.contains(words)), "{arguments:?}: {said}");
    }
}
