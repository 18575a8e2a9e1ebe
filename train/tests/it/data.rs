//! The user's own data: shards of other programs, and chat records with a bad one.

use std::fs;

use crate::program::{assert_code, assert_success, json, last_words, stderr, write_text};
use crate::ranks::{SHARED, has_mpi};
use crate::tiny::{Tiny, bits};

#[test]
fn nanogpt_shards_train_without_conversion() {
    let tiny = Tiny::new();
    fs::create_dir(tiny.join("nano")).expect("a folder");
    let ids = |count: u16| (0..count).flat_map(|at| (at * 7 % 200).to_le_bytes()).collect::<Vec<_>>();
    fs::write(tiny.join("nano/train.bin"), ids(4000)).expect("writing");
    fs::write(tiny.join("nano/val.bin"), ids(400)).expect("writing");
    let shards = r#"data={"source":"shards","path":"nano"}"#;
    let plan =
        ["plan", "--config", "tiny.json", "--device", "cpu", "--set", shards, "--set", "eval.questions=[]"];
    let planned = tiny.train(&plan);
    assert_success(&planned);
    let said = crate::program::stdout(&planned);
    assert!(said.contains("124 sequences per epoch, which see 99.2 % of 4,000 counted targets"), "{said}");
    let summary = tiny.run("run", &[r#"data={"source":"shards","path":"nano"}"#, "eval.questions=[]"]);
    assert!(summary["val_loss"].as_f64().is_some_and(f64::is_finite), "{summary:#}");
}

#[test]
fn a_vocabulary_without_a_chat_template_trains_and_is_asked_nothing() {
    let tiny = Tiny::new();
    write_text(&tiny.join("book.txt"), 400);
    assert_success(&tiny.train(&[
        "prepare",
        "--input",
        "book.txt",
        "--tokenizer",
        "bytes",
        "--out",
        "set",
        "--sequence",
        "32",
    ]));
    let settings = [r#"data={"source":"shards","path":"set"}"#, r#"tokenizer={"kind":"file","path":"set"}"#];
    let output = tiny.attempt("run", &settings);
    assert_success(&output);
    assert!(stderr(&output).contains("`eval.questions` are left out"), "{}", stderr(&output));
    tiny.resume("run", &["train.steps=6"]);
}

#[test]
fn a_run_goes_on_with_its_tokens_when_its_text_has_changed_or_is_gone() {
    let tiny = Tiny::new();
    let book = tiny.join("book.txt");
    let settings = [r#"data={"source":"text","path":"book.txt","split":"position"}"#, "checkpoint.every=0"];
    write_text(&book, 400);
    let whole = tiny.run("whole", &[&settings[..], &["train.steps=4"]].concat());
    for (run, lines) in [("changed", Some(500)), ("gone", None)] {
        write_text(&book, 400);
        tiny.run(run, &[&settings[..], &["train.steps=2"]].concat());
        match lines {
            Some(lines) => write_text(&book, lines),
            None => fs::remove_file(&book).expect("removed"),
        }
        assert_eq!(bits(&tiny.resume(run, &["train.steps=4"])), bits(&whole), "{run}");
        let measured = tiny.train(&["eval", "--from", run, "--device", "cpu"]);
        assert_success(&measured);
        assert!(stderr(&measured).contains("goes on with these tokens"), "{}", stderr(&measured));
    }
}

fn refused(tiny: &Tiny, run: &str, settings: &[&str]) -> String {
    let mut arguments = vec!["--resume", run, "--device", "cpu"];
    arguments.extend(settings.iter().flat_map(|setting| ["--set", setting]));
    let output = tiny.train(&arguments);
    assert_code(&output, 2);
    last_words(&output, tiny.path())
}

#[test]
fn a_text_may_move_but_no_run_goes_on_under_the_name_of_another_text() {
    let tiny = Tiny::new();
    let [book, other] = ["book.txt", "other.txt"].map(|name| tiny.join(name));
    write_text(&book, 400);
    write_text(&other, 500);
    let settings = [r#"data={"source":"text","path":"book.txt","split":"position"}"#, "checkpoint.every=0"];
    let whole = tiny.run("whole", &[&settings[..], &["train.steps=4"]].concat());
    tiny.run("run", &[&settings[..], &["train.steps=2"]].concat());
    let config = fs::read_to_string(tiny.join("run/config.json")).expect("reading");
    for path in ["other.txt", "absent.txt"] {
        let said = refused(&tiny, "run", &["train.steps=4", &format!("data.path={path}")]);
        let named = format!("`data.path` = DIR/{path} is not the text that run/data/shards was cut from");
        assert!(said.contains(&named), "{said}");
        assert!(said.contains("leave it at DIR/book.txt to go on with the run's tokens"), "{said}");
    }
    assert_eq!(fs::read_to_string(tiny.join("run/config.json")).expect("reading"), config);
    fs::create_dir(tiny.join("moved")).expect("making");
    fs::rename(&book, tiny.join("moved/book.txt")).expect("moved");
    assert_eq!(bits(&tiny.resume("run", &["train.steps=4", "data.path=moved/book.txt"])), bits(&whole));

    fs::rename(tiny.join("moved/book.txt"), &book).expect("moved");
    let mixture = |first: &str, second: &str| {
        format!(
            r#"data={{"source":"text","align":"document","val_fraction":0.1,
            "mixture":[{{"path":"{first}","weight":1}},{{"path":"{second}","weight":1}}]}}"#
        )
    };
    tiny.run("mixed", &[&mixture("book.txt", "other.txt"), "train.steps=2"]);
    let said = refused(&tiny, "mixed", &[&mixture("other.txt", "book.txt"), "train.steps=4"]);
    assert!(said.contains("`data.mixture[0].path` = DIR/other.txt is not the text"), "{said}");
}

#[test]
fn a_validation_text_that_is_gone_is_kept_as_tokens_and_another_one_is_refused() {
    let tiny = Tiny::new();
    for (name, lines) in [("in.txt", 200), ("val.txt", 20), ("other.txt", 30)] {
        write_text(&tiny.join(name), lines);
    }
    let data = r#"data={"source":"text","path":"in.txt","val_path":"val.txt","align":"document"}"#;
    tiny.run("run", &[data, "train.steps=2"]);
    fs::remove_file(tiny.join("val.txt")).expect("removed");
    tiny.resume("run", &["train.steps=3"]);
    let measured = tiny.train(&["eval", "--from", "run", "--device", "cpu"]);
    assert_success(&measured);
    assert!(stderr(&measured).contains("goes on with these tokens"), "{}", stderr(&measured));

    let said = refused(&tiny, "run", &["train.steps=4", "data.val_path=other.txt"]);
    assert!(said.contains("`data.val_path` = DIR/other.txt is not the text"), "{said}");
    assert!(said.contains("or remove run/data/validation to validate with another text"), "{said}");
    fs::remove_dir_all(tiny.join("run/data/validation")).expect("removed");
    let resume = ["--resume", "run", "--device", "cpu", "--set", "train.steps=4"];
    let output = tiny.train(&[&resume[..], &["--set", "data.val_path=other.txt"]].concat());
    assert_success(&output);
    assert!(stderr(&output).contains("the next evaluation counts as the best so far"), "{}", stderr(&output));
    let evaluated = tiny.records("run", "eval");
    assert_eq!(evaluated.last().expect("at the end")["best"], true, "{evaluated:?}");
}

/// Settings to train on shards whose token `at` is none of the vocabulary.
fn with_unreadable_token(tiny: &Tiny, at: usize) -> [&'static str; 3] {
    write_text(&tiny.join("book.txt"), 400);
    let prepare = ["prepare", "--input", "book.txt", "--tokenizer", "bytes", "--out", "set"];
    assert_success(&tiny.train(&prepare));
    let shard = tiny.join("set/train-00000.bin");
    let mut bytes = fs::read(&shard).expect("reading");
    // Tokens follow a header.
    bytes[1024 + 2 * at..][..2].fill(0xFF);
    fs::write(&shard, bytes).expect("writing");
    [
        r#"data={"source":"shards","path":"set","shuffle":false}"#,
        r#"tokenizer={"kind":"file","path":"set"}"#,
        "eval.questions=[]",
    ]
}

#[test]
fn a_token_that_cannot_be_read_costs_no_step_before_it() {
    let tiny = Tiny::new();
    // Step 3 reads tokens 128 to 192.
    let output = tiny.attempt("run", &with_unreadable_token(&tiny, 160));
    assert_code(&output, 1);
    assert!(last_words(&output, tiny.path()).contains("set/train-00000.bin"), "{}", stderr(&output));
    assert_eq!((tiny.losses("run").len(), tiny.whole_checkpoints("run")), (2, vec![2]));
}

/// All ranks read the token. Then rank 0 saves, and the others wait for it.
#[test]
fn a_token_that_no_rank_can_read_costs_no_step_before_it() {
    if !has_mpi() {
        return;
    }
    let tiny = Tiny::new();
    // Step 3 reads tokens 256 to 384.
    let settings = with_unreadable_token(&tiny, 300);
    let output = tiny.attempt_on("2", "run", &[&SHARED[..], &settings].concat());
    assert_code(&output, 1);
    assert!(stderr(&output).contains("set/train-00000.bin"), "{}", stderr(&output));
    assert_eq!((tiny.losses("run").len(), tiny.whole_checkpoints("run")), (2, vec![2]));
}

#[test]
fn a_bad_record_is_named_and_the_rest_is_used() {
    let tiny = Tiny::new();
    let record = |at: usize| {
        format!(
            r#"{{"conversations": [{{"from": "human", "value": "{at}?"}}, {{"from": "gpt", "value": "{at}."}}]}}"#
        )
    };
    let clean = |from| (from..from + 50).map(|at| record(at) + "\n").collect::<String>();
    let lines = clean(0) + "{\"conversations\": []}\n" + &clean(50);
    fs::write(tiny.join("chats.jsonl"), lines).expect("writing");
    let data = r#"data={"source":"text","path":"chats.jsonl","align":"document","val_fraction":0.2}"#;
    let skipped = tiny.attempt("run", &[data]);
    assert_success(&skipped);
    let said = String::from_utf8_lossy(&skipped.stderr).into_owned();
    assert!(
        said.contains("left out 1 of the input's records") && said.contains("chats.jsonl document 51"),
        "{said}"
    );
    assert!(said.contains("100.0 % of"), "no answer is lost: {said}");

    let refused = tiny.attempt("refused", &[data, "data.on_bad_record=fail"]);
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("chats.jsonl document 51"));
}

fn write_chats(tiny: &Tiny) {
    let line = |at: usize| format!("{{\"instruction\": \"{at}?\", \"output\": \"It is {at}.\"}}");
    let records: Vec<_> = (0..60).map(line).collect();
    fs::write(tiny.join("chats.json"), format!("[{}]", records.join(",\n"))).expect("writing");
}

#[test]
fn a_validation_text_of_its_own_is_measured_whole_and_not_trained_on() {
    let tiny = Tiny::new();
    write_text(&tiny.join("in.txt"), 200);
    fs::write(tiny.join("val.txt"), "Quite another text, with sixty and some letters in its one line.")
        .expect("writing");
    let data = r#"data={"source":"text","path":"in.txt","val_path":"val.txt","align":"document"}"#;
    let output = tiny.attempt("run", &[data, "eval.sequences=null"]);
    assert_success(&output);
    let whole = fs::metadata(tiny.join("in.txt")).expect("written").len();
    let said = stderr(&output);
    assert!(
        said.contains(&format!("of {} counted targets", whole + 1)),
        "all of the text is trained on: {said}"
    );
    assert!(said.contains(" 2 to validate with"), "64 letters after the opening token: {said}");
    let measured = tiny.train(&["eval", "--from", "run", "--device", "cpu", "--json", "--data", "val.txt"]);
    assert_success(&measured);
    assert_eq!(json(&measured)["loss"], json(&output)["val_loss"]);
}

#[test]
fn a_mixture_takes_its_sources_by_weight_and_resumes_bit_for_bit() {
    let tiny = Tiny::new();
    write_text(&tiny.join("in.txt"), 200);
    write_chats(&tiny);
    let mixture = r#"data={"source":"text","align":"document","val_fraction":0.1,
        "mixture":[{"path":"in.txt","weight":3},{"path":"chats.json","weight":1}]}"#;
    let output = tiny.attempt("said", &[mixture, "train.steps=4"]);
    assert_success(&output);
    let said = stderr(&output);
    assert!(said.contains("75.0 % from ") && said.contains("in.txt: 6 sequences"), "{said}");
    assert!(said.contains("25.0 % from ") && said.contains("chats.json: 2 sequences"), "{said}");
    tiny.assert_resumes_to_the_same_bits("mixed", &[mixture]);
    let other = mixture.replace("\"weight\":3", "\"weight\":2");
    assert_ne!(
        bits(&tiny.run("other", &[&other, "train.steps=7"])),
        bits(&tiny.run("same", &[mixture, "train.steps=7"]))
    );
    let refused =
        tiny.train(&["--resume", "other", "--device", "cpu", "--set", "train.steps=9", "--set", mixture]);
    assert!(stderr(&refused).contains("the training data are not those"), "{}", stderr(&refused));
}
