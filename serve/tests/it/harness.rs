//! lm-evaluation-harness scores a served model.

mod full {
    use std::path::Path;
    use std::process::Command;

    use serde_json::Value;
    use suite::Need;
    use train::answering::Batching;
    use web::Limits;

    use crate::client::settings;
    use crate::scores::own;
    use crate::served_models::{model, served};

    #[test]
    #[ignore = "full: starts Python with a harness of many packages"]
    fn lm_evaluation_harness_reads_the_models_own_probabilities() {
        // Installed by `serve/tests/install-harness`.
        let python = Path::new(env!("CARGO_TARGET_TMPDIR")).join("harness/bin/python3");
        let missing = (!python.exists()).then_some("Python with the package `lm-eval` is not here");
        if !Need::Harness.is_met(missing) {
            return;
        }
        let server = served(settings(Limits::default()), Batching::default());
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/harness.py");
        let home = tempfile::tempdir().unwrap();
        let mut harness = Command::new(python);
        harness.arg(script).arg(format!("http://{}", server.address));
        // Without proxies and downloads.
        harness.env_clear().env("HOME", home.path()).env("HF_HUB_OFFLINE", "1");
        let output = harness.output().unwrap();
        let wrong = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{wrong}");
        let said = String::from_utf8_lossy(&output.stdout);
        let scored: Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();

        let model = model();
        let ids = |text: &str| -> Vec<u32> { text.bytes().map(u32::from).collect() };
        for (at, (question, choices)) in [
            ("The river", [" rises", " sleeps"]),
            ("A mill stands by", [" noon", " the river"]),
            ("Two and two are", [" four", " a fish"]),
        ]
        .into_iter()
        .enumerate()
        {
            for (choice, text) in choices.into_iter().enumerate() {
                let (question, all) = (ids(question), [ids(question), ids(text)].concat());
                let expected: f64 =
                    (question.len()..all.len()).map(|end| own(&model, &all[..end], all[end]).0).sum();
                let score = scored["scores"][at][choice].as_f64().unwrap();
                assert!(
                    (score - expected).abs() < 1e-2,
                    "question {at}, choice {choice}: {score}, {expected}"
                );
            }
        }
        assert!(scored["accuracy"].is_number());
    }
}
