//! A panic in a host step ends the run and damages no saved file.

use std::fs;

use crate::program::{assert_code, stderr};
use crate::tiny::{Tiny, bits};

/// All other parameters have then taken their fourth step.
const PANIC_AT: &str = "lm_head 4";

#[test]
fn a_panic_in_an_update_ends_the_run_with_one_error_and_the_last_checkpoint_resumes() {
    let tiny = Tiny::new();
    let settings = ["memory.optimizer=host", "model.compute=bf16", "train.steps=6"];
    let cases: [(&str, u64, &[u64], &str); 3] = [
        ("compact", 3, &[3], "train: step 5 could not run: the last update could not run"),
        ("f32", 1, &[1, 2, 3], "train: the last update could not run"),
        ("compact", 2, &[2], "train: the last update could not run"),
    ];

    for (state, every, saved, expected) in suite::first(1, &cases) {
        let [format, every, keep] = [
            format!("memory.optimizer_state={state}"),
            format!("checkpoint.every={every}"),
            "checkpoint.keep_last=9".to_owned(),
        ];
        let settings = [&settings[..], &[&format, &every, &keep]].concat();
        let [whole, run] = ["whole", "run"].map(|run| format!("{run}-{state}-{every}"));
        let whole = tiny.run(&whole, &settings);
        let output =
            tiny.command(&run, &settings).env("HOST_OPTIM_PANIC_AT", PANIC_AT).output().expect("it starts");
        assert_code(&output, 1);
        let said = stderr(&output);
        let errors: Vec<_> = said.lines().filter(|line| line.starts_with("train: ")).collect();
        let reason =
            format!("the optimizer's steps on the host ended early: injected into step \"{PANIC_AT}\"");
        assert!(
            matches!(&errors[..], [error] if error.starts_with(*expected) && error.ends_with(&reason)),
            "{said}"
        );
        assert_eq!(said.matches("panicked at").count(), 1, "{said}");
        assert!(!fs::exists(tiny.join(&run).join("summary.json")).expect("a folder"), "it did not end");
        let mut found = tiny.whole_checkpoints(&run);
        found.sort_unstable();
        assert_eq!(found, *saved, "{said}");
        assert_eq!(bits(&tiny.resume(&run, &[])), bits(&whole), "{state}, {every}");
    }
}
