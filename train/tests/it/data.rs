//! The user's own data: shards of other programs, and chat records with a bad one.

use std::fs;

use crate::program::assert_success;
use crate::tiny::Tiny;

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
    // 124 windows of 32; the first token and 31 others are left over.
    let said = crate::program::stdout(&planned);
    assert!(said.contains("124 sequences per epoch, which see 99.2 % of 4,000 counted targets"), "{said}");
    let summary = tiny.run("run", &[r#"data={"source":"shards","path":"nano"}"#, "eval.questions=[]"]);
    assert!(summary["val_loss"].as_f64().is_some_and(f64::is_finite), "{summary:#}");
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
