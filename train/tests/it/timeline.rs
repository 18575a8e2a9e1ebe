//! The timeline of one step in the report.

use std::fs;

use serde_json::Value;

use crate::tiny::{TIGHT, Tiny};

fn page(tiny: &Tiny, out: &str) -> String {
    fs::read_to_string(tiny.join(out).join("report.html")).expect("a report")
}

fn copied(timeline: &Value) -> [u64; 2] {
    ["bytes_in", "bytes_out"].map(|key| {
        let parts = timeline[key].as_array().expect("a list");
        parts.iter().map(|bytes| bytes.as_u64().expect("bytes")).sum()
    })
}

#[test]
fn the_report_of_a_run_under_a_budget_draws_a_step_with_its_counted_bytes() {
    let tiny = Tiny::new();
    for (out, settings, of_its_own) in [
        ("device", &[TIGHT, "train.steps=6"][..], false),
        ("host", &["memory.device_budget=1100KiB", "memory.optimizer=host", "train.optimizer=adamw"], true),
    ] {
        let summary = tiny.run(out, settings);
        let [timeline] = &tiny.records(out, "timeline")[..] else { panic!("one step is watched") };
        assert!(summary["link_bytes_per_second"].as_f64().is_some_and(|speed| speed > 0.0), "{summary:#}");
        let steps = tiny.records(out, "step");
        for (median, key) in [("spilled_in_median", "bytes_in"), ("spilled_out_median", "bytes_out")] {
            let mut bytes: Vec<_> = steps[1..].iter().map(|step| step[key].as_u64()).collect();
            bytes.sort_unstable();
            assert_eq!(summary[median].as_u64(), bytes[bytes.len() / 2], "{out}: {median}");
        }
        let step = &steps[3];
        assert_eq!((&timeline["step"], &step["step"]), (&4.into(), &4.into()));
        let counted = |key: &str| step[key].as_u64().expect("bytes");
        let own = if of_its_own { [counted("bytes_written"), counted("bytes_read")] } else { [0; 2] };
        let [bytes_in, bytes_out] = copied(timeline);
        assert_eq!(
            [bytes_in, bytes_out],
            [counted("bytes_in") + own[0], counted("bytes_out") + own[1]],
            "{out}"
        );
        assert!(bytes_in > 0 && bytes_out > 0, "{out} did not spill: {step}");

        let resident = timeline["resident"].as_array().expect("a list");
        let most = resident.iter().filter_map(Value::as_u64).max();
        assert!(most <= timeline["device_budget"].as_u64(), "{out}: {most:?}");
        assert_eq!(most, step["device_bytes"].as_u64(), "the peak is that of an operation");
        let drawn = format!("data-in=\"{bytes_in}\" data-out=\"{bytes_out}\"");
        assert!(page(&tiny, out).contains(&drawn), "{out}: {drawn} is not in the page");
    }
}

#[test]
fn the_report_of_a_run_that_moves_nothing_states_it() {
    let tiny = Tiny::new();
    tiny.run("roomy", &["memory.device_budget=64MiB"]);
    assert_eq!(copied(&tiny.records("roomy", "timeline")[0]), [0, 0]);
    assert!(page(&tiny, "roomy").contains("in step 4 nothing moved, as all it used had room"));
    tiny.run("unlimited", &[]);
    assert!(tiny.records("unlimited", "timeline").is_empty(), "nothing can move, so nothing is watched");
    assert!(page(&tiny, "unlimited").contains("without a device budget nothing is ever moved"));
}
