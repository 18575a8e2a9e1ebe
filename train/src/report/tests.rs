//! The page for any content of a run.

use std::fmt::Write;
use std::fs;

use serde_json::{Value, json};

use super::*;

const SVG: &str = "xmlns=\"http://www.w3.org/2000/svg\"";

fn page(lines: &str) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let run = folder.path().join("toy");
    fs::create_dir(&run).expect("a folder");
    fs::write(run.join("metrics.jsonl"), lines).expect("written");
    page_of(&run)
}

fn page_of(run: &Path) -> String {
    write(run).expect("a report");
    let page = fs::read_to_string(run.join("report.html")).expect("it is there");
    write(run).expect("a report");
    assert_eq!(
        fs::read_to_string(run.join("report.html")).expect("it is there"),
        page,
        "it is not reproducible"
    );
    assert_well_formed(&page);
    page
}

fn jsonl(records: &[Value]) -> String {
    records.iter().fold(String::new(), |lines, record| lines + &record.to_string() + "\n")
}

fn start(step: u64) -> Value {
    json!({"kind": "start", "step": step, "device": "CPU", "parameters": 804_096, "tokens_per_step": 1024,
        "device_budget": 16 << 20, "optimizer_on": "device", "resumed": step > 0,
        "date": "2026-11-20T10:11:12.345678Z", "command": "train --config toy", "config": "toy", "version": "0.1.0"})
}

fn step(step: u64, steps: u64) -> Value {
    let wave = (step * 7919 % 1009) as f64 / 1009.0;
    json!({"kind": "step", "step": step, "steps": steps, "loss": 1.5 + 8.0 / (step as f64).sqrt() + wave * 0.3,
        "lr": 0.02 * step as f64 / steps as f64, "gnorm": 0.5 + wave, "ms": 80.0 + wave, "tokens": step * 1024,
        "tokens_per_second": 12_000.0 + 900.0 * wave, "mfu": 0.31, "device_bytes": (15 << 20) + step,
        "device_budget": 16 << 20, "host_bytes": 9 << 20, "bytes_out": (3 << 20) + ((step % 17) << 14),
        "bytes_in": 4 << 20, "disk_written": 1 << 20, "disk_read": 2 << 20, "ranks_sent": 7 << 20, "ranks_heard": 7 << 20, "ranks_ms": 3.0 * wave, "ranks_stall_ms": wave, "evictions": 12, "restores": 13, "stall_ms": 9.0 * wave, "seconds": step as f64 * 0.08})
}

fn timeline(step: u64, stretches: u64) -> Value {
    let list = |value: fn(u64) -> u64| (1..=stretches).map(value).collect::<Vec<_>>();
    json!({"kind": "timeline", "step": step, "device_budget": 16 << 20, "operations": stretches, "kept_inputs": 5 << 20,
        "until_us": list(|at| at * 1000), "resident": list(|at| (15 << 20) + at), "bytes_out": list(|at| at * 4096),
        "bytes_in": list(|at| at * 2048), "waited_us": list(|_| 250)})
}

fn eventful() -> Vec<Value> {
    let mut records = vec![start(0)];
    records.extend((1..=80).map(|at| step(at, 300)));

    records.push(start(60));
    for at in 61..=300 {
        records.push(step(at, 300));
        if at == 77 {
            records.push(
                json!({"kind": "withheld", "step": 77, "loss": null, "gnorm": null, "reason": "no number"}),
            );
        }
        if at % 100 == 0 {
            records.push(
                json!({"kind": "eval", "step": at, "loss": 5.0 - at as f64 / 100.0, "perplexity": 12.5,
                "bits_per_byte": null, "sequences": 64, "best": at == 200}),
            );
            records.push(json!({"kind": "sample", "step": at, "prompt": "What day is it?", "text": format!("Day {at}.")}));
            records.push(
                json!({"kind": "checkpoint", "step": at, "bytes": 9_650_000, "ms": 31.0, "waited_ms": 12.0}),
            );
        }
    }

    records.push(timeline(64, 900));
    records.push(json!({"kind": "checkpoint", "step": 300, "error": "the disk is full"}));
    records.push(json!({"kind": "stopping", "step": 300, "reason": "300 MiB were written to the disk"}));
    records.push(json!({"kind": "quiz", "step": 300, "held_out": {"right": 88, "asked": 100},
        "unseen_phrasings": {"right": 40, "asked": 100}}));
    records
}

fn assert_well_formed(page: &str) {
    let mut rest = page.strip_prefix("<!DOCTYPE html>").expect("a document");
    let mut open = Vec::new();
    while let Some((text, after)) = rest.split_once('<') {
        assert_plain(text);
        let (tag, after) = after.split_once('>').expect("a tag ends");
        rest = after;
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name));
            continue;
        }
        let (name, attributes) =
            tag.trim_end_matches('/').split_once(' ').unwrap_or((tag.trim_end_matches('/'), ""));
        let mut quoted = attributes.split('"').collect::<Vec<_>>();
        assert_eq!(quoted.pop().map(str::trim), Some(""), "{tag}");
        for pair in quoted.chunks(2) {
            assert!(pair[0].trim_start().strip_suffix('=').is_some_and(|name| !name.contains(' ')), "{tag}");
            assert_plain(pair[1]);
        }
        if !tag.ends_with('/') {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "{open:?} stay open");
}

fn assert_plain(text: &str) {
    let entities = ["amp;", "lt;", "gt;", "quot;", "#39;"];
    for after in text.split('&').skip(1) {
        assert!(entities.iter().any(|entity| after.starts_with(entity)), "&{after}");
    }
}

fn text(page: &str) -> String {
    page.split('<').filter_map(|part| Some(part.split_once('>')?.1)).collect()
}

#[test]
fn a_page_shows_the_events_of_a_run() {
    let page = page(&jsonl(&eventful()));
    let titles: Vec<_> =
        page.split("<figcaption><b>").skip(1).filter_map(|part| Some(part.split_once("</b>")?.0)).collect();
    let expected = [
        "Loss",
        "Loss, second half",
        "Learning rate",
        "Throughput",
        "Memory",
        "Moved per step",
        "Waiting for copies",
        "Disk tier per step",
        "Exchanged per step",
        "Waiting for ranks",
        "Gradient norm",
    ];
    assert_eq!(titles, expected);

    let text = text(&page);
    for expected in [
        "The run stopped after step 300 of 300: 300 MiB",
        "Started2026-11-20 10:11 UTC",
        "Commandtrain --config toy",
        "Preset or filetoy",
        "DeviceCPU",
        "Optimizeron the device",
        "804,096",
        "16.00 MiB",
        "Resumedonce",
        "300 of 300",
        "Best validation loss3.0000 at step 200",
        "Held out, in known forms8810088 %",
        "Step 77: withheld: no number",
        "Step 300: stopped: 300 MiB were written to the disk",
        "Written to the disk tier300.00 MiB",
        "the step stood still, smoothed over 6 steps",
        "in calls, beside it too",
        "Waited for checkpoints36 ms",
        "no checkpoint was saved: the disk is full",
        "Day 300.",
    ] {
        assert!(text.contains(expected), "{expected} is missing");
    }
}

#[test]
fn every_chart_says_how_to_read_it() {
    let page = page(&jsonl(&eventful()));
    let charts = page.split("<figure>").skip(1).map(|rest| rest.split("</figure>").next().unwrap_or(""));
    for chart in charts {
        let reading = chart.split("<p class=\"reading\">").nth(1).and_then(|rest| rest.split("</p>").next());
        assert!(reading.is_some_and(|reading| reading.ends_with('.')), "{chart}");
    }
}

#[test]
fn the_verdict_says_whether_a_run_is_done_learns_overfits_spills_and_skips() {
    let verdict = |records: &[Value]| {
        let page = page(&jsonl(records));
        let verdict = page.split("<p class=\"verdict\">").nth(1).and_then(|rest| rest.split("</p>").next());
        verdict.expect("a verdict").to_owned()
    };
    let run = |to: u64, of: u64| [vec![start(0)], (1..=to).map(|at| step(at, of)).collect()].concat();
    let done = verdict(&run(200, 200));
    assert!(done.starts_with("All 200 steps are done. The model learns: its loss fell from "), "{done}");
    let spilled = "Memory was short on the device; up to 9.00 MiB were held on the host; 6 % of the time";
    assert!(done.contains(spilled) && !done.contains("skipped"), "{done}");
    let mut planned = run(200, 200);
    planned[0]["working_set"] = json!(51 << 20);
    let planned = verdict(&planned);
    let short = "By the plan, memory was short by 35.00 MiB on the device; up to 9.00 MiB were held";
    assert!(planned.contains(short), "{planned}");

    let killed = verdict(&run(50, 200));
    assert!(killed.starts_with("Step 50 of 200 is the last one recorded; "), "{killed}");

    let mut flat = run(100, 100);
    flat.iter_mut().skip(1).for_each(|record| record["loss"] = json!(2.0));
    assert!(verdict(&flat).contains("The model does not learn: its loss was 2.000 at first and is 2.000."));

    let mut worse = run(100, 100);
    for (at, loss, best) in [(50, 1.0, true), (100, 1.5, false)] {
        worse.push(json!({"kind": "eval", "step": at, "loss": loss, "perplexity": 2.0, "sequences": 1, "best": best}));
    }
    worse.push(json!({"kind": "withheld", "step": 3, "loss": null, "gnorm": null, "reason": "no number"}));
    let worse = verdict(&worse);
    assert!(worse.contains("Validation was best at step 50 (1.000) and is 1.500"), "{worse}");
    assert!(worse.contains("One step was skipped"), "{worse}");
}

#[test]
fn compared_runs_have_a_row_and_a_curve_each() {
    let folder = tempfile::tempdir().expect("a folder");
    let runs = ["small", "large"].map(|name| {
        let run = folder.path().join(name);
        fs::create_dir(&run).expect("a folder");
        fs::write(run.join("metrics.jsonl"), jsonl(&eventful())).expect("written");
        run
    });
    let to = folder.path().join("both.html");
    compare(&runs, &to).expect("a page");
    let page = fs::read_to_string(&to).expect("it is there");
    assert_well_formed(&page);
    for part in
        ["small, large: training report", "<td>small</td>", "<polyline class=\"run-1\" data-name=\"large\""]
    {
        assert!(page.contains(part), "{part} is missing");
    }
    assert_eq!(page.matches("<figure>").count(), 6);
}

#[test]
fn a_watched_step_is_drawn_and_described_to_the_byte() {
    let page = page(&jsonl(&[start(0), step(1, 9), step(4, 9), timeline(4, 10)]));
    assert!(page.contains("data-in=\"112640\" data-out=\"225280\""), "{page}");
    let figure = page.split_once("<figure class=\"timeline\"").expect("it is drawn").1;
    let drawn = figure.split_once("</figure>").expect("it ends").0;
    let text = text(drawn);

    for expected in [
        "10 operations in 10.0 ms. 110.00 KiB were copied to the device and 220.00 KiB to the host; 2.5 ms (25.0 %) were \
         spent waiting for copies. At most 15.00 MiB of 16.00 MiB were on the device. Inputs of blocks, kept for the \
         backward pass, took 5.00 MiB.",
        "Bytes on the device, copies and waits of step 4",
        "to the device",
        "waiting",
        "10 ms",
    ] {
        assert!(text.contains(expected), "{expected} is missing: {text}");
    }

    for named in ["aria-labelledby=\"step-drawn\"", "aria-describedby=\"step-told\""] {
        assert!(drawn.contains(named), "{named}");
    }
    assert_eq!(drawn.matches("<path class=\"band ").count(), 3);
}

#[test]
fn a_page_shows_the_host_optimizers_place_time_and_bytes() {
    let on_host = |blocks: u64| {
        let mut begun = start(0);
        begun["optimizer_on"] = json!("host");
        begun["optimizer_state"] = json!("compact");
        begun["device_blocks"] = json!(blocks);
        let steps = (1..=3).map(|at| {
            let mut step = step(at, 9);
            (step["bytes_out"], step["bytes_in"]) = (json!(0), json!(0));
            (step["bytes_read"], step["bytes_written"]) = (json!(3 << 20), json!(6 << 20));
            let times = if at == 1 { [0.0, 0.0] } else { [30.0 + at as f64, 4.0] };
            (step["host_step_ms"], step["host_step_wait_ms"]) = (json!(times[0]), json!(times[1]));
            step
        });
        page(&jsonl(&[vec![begun], steps.collect()].concat()))
    };

    let page = on_host(2);
    let shown = text(&page);
    for expected in [
        "Optimizeron the host, its state in compact; of the first 2 blocks on the device",
        "Update on the host32.5 ms on average, of which steps waited for 4.0 ms",
        "Most host memory9.00 MiB",
    ] {
        assert!(shown.contains(expected), "{expected} is missing: {shown}");
    }
    for drawn in ["<b>Update on the host</b>", "<b>Moved per step</b>", "data-name=\"waited for\""] {
        assert!(page.contains(drawn), "{drawn}");
    }
    assert!(!page.contains("<b>Waiting for copies</b>"), "nothing spilled");
    assert!(text(&on_host(0)).contains("Optimizeron the host, its state in compact\n"));
}

#[test]
fn a_page_says_how_many_micro_batches_pass_each_segment_together() {
    let said = |count: u64| {
        let mut begun = start(0);
        begun["together"] = json!(count);
        text(&page(&jsonl(&[begun, step(1, 9)])))
    };
    assert!(said(16).contains("Micro-batches16 pass each segment together"), "{}", said(16));
    assert!(!said(1).contains("Micro-batches"));
}

#[test]
fn peaks_and_gathered_weights_of_each_rank_and_the_planned_exchange_are_shown() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = folder.path().join("toy");
    fs::create_dir_all(run.join("ranks/1")).expect("a folder");
    // A rank of an earlier start with more of them.
    fs::create_dir_all(run.join("ranks/3")).expect("a folder");
    for (rank, place) in ["", "ranks/1", "ranks/3"].into_iter().enumerate() {
        let mut begun = start(0);
        (begun["ranks"], begun["sent_per_step"]) = (json!(3), json!(8 << 20));
        let mut records = vec![begun];
        records.extend((1..=5).map(|at| step(at, 5)));
        records[2]["device_bytes"] = json!((20 + rank) << 20);
        records.push(json!({"kind": "moments", "step": 5, "bytes": 3 << 20, "gathered_bytes": 2 << 20}));
        fs::write(run.join(place).join("metrics.jsonl"), jsonl(&records)).expect("written");
    }

    let page = page_of(&run);
    for drawn in [
        "<b>Memory of ranks</b>",
        "<polyline class=\"run-1\" data-name=\"rank 1\"",
        "<polyline class=\"limit\" data-name=\"sent by a rank in the plan\"",
        "The highest one decides which budget works",
        "The dashed line is the plan&#39;s figure",
    ] {
        assert!(page.contains(drawn), "{drawn}");
    }
    let shown = text(&page);
    for expected in [
        "Ranks3",
        "The journals of 1 of 3 ranks are not here",
        "0520.00 MiB9.00 MiB3.00 MiB2.00 MiB",
        "1521.00 MiB9.00 MiB3.00 MiB2.00 MiB",
    ] {
        assert!(shown.contains(expected), "{expected} is missing: {shown}");
    }
    assert!(!page.contains("rank 3"), "it is no rank of this start");
}

#[test]
fn a_page_without_a_drawn_step_gives_the_reason() {
    let said = |records: &[Value]| {
        let page = page(&jsonl(records));
        assert!(!page.contains("class=\"timeline\""));
        page.split("No timeline of a step is drawn: ")
            .nth(1)
            .and_then(|rest| Some(rest.split_once("</p>")?.0.to_owned()))
    };

    let mut still = timeline(4, 3);
    (still["bytes_out"], still["bytes_in"]) = (json!([0, 0, 0]), json!([0, 0, 0]));
    let fits = said(&[start(0), step(4, 9), still]);
    assert_eq!(fits.as_deref(), Some("in step 4 nothing moved, as all it used had room."));

    let mut unlimited = start(0);
    unlimited["device_budget"] = Value::Null;
    let unlimited = said(&[unlimited, step(4, 9)]);
    assert_eq!(unlimited.as_deref(), Some("without a device budget nothing is ever moved."));

    let early = said(&[start(0), step(2, 9)]);
    assert_eq!(
        early.as_deref(),
        Some("none was watched, as a process watches its fourth step, or its last one if it takes fewer.")
    );

    let repeated = said(&[start(0), step(4, 9), timeline(4, 3), start(2), step(3, 9)]);
    assert_eq!(repeated, early, "the step that was watched is one that did not count");
    assert_eq!(said(&[start(0)]), None, "no step has been taken");
}

#[test]
fn a_page_fetches_nothing() {
    let page = page(&jsonl(&eventful())).replace(SVG, "");
    for way in ["http", "//", "src=", "href", "url(", "@import", "fetch", "import("] {
        assert!(!page.contains(way), "{way}");
    }
}

#[test]
fn every_colour_of_the_page_has_a_light_and_a_dark_form() {
    let (colours, rest) = include_str!("page.css").split_once("body {").expect("colours come first");
    let (light, dark) = colours.split_once("@media").expect("two forms");
    let names = |part: &str| {
        let rules = part.split(['{', ';']).map(str::trim);
        rules.filter_map(|rule| Some(rule.split_once(": #")?.0.to_owned())).collect::<Vec<_>>()
    };
    assert_eq!(names(light), names(dark));
    assert!(!rest.contains('#'), "a colour has no name");
}

#[test]
fn repeated_steps_are_drawn_once() {
    let page = page(&jsonl(&eventful()));
    let curve = page
        .split("data-name=\"rate\" points=\"")
        .nth(1)
        .and_then(|rest| rest.split('"').next())
        .expect("it is drawn");
    assert_eq!(curve.split(' ').count(), 300);
    let xs: Vec<f64> = curve
        .split(' ')
        .map(|point| point.split(',').next().unwrap_or("").parse().expect("a number"))
        .collect();
    assert!(xs.is_sorted());
}

#[test]
fn generated_text_is_escaped_in_the_report() {
    let hostile =
        "</pre><script>alert(1)</script><img src=x onerror=\"alert('2')\"> & \u{0} \u{1b}[31m ]]> <!-- 🌊";
    let sample = json!({"kind": "sample", "step": 1, "prompt": hostile, "text": hostile});
    let withheld = json!({"kind": "withheld", "step": 1, "reason": hostile});
    let failed = json!({"kind": "checkpoint", "step": 1, "error": hostile});
    let mut begin = start(0);
    begin["device"] = json!(hostile);
    let page = page(&jsonl(&[begin, step(1, 2), sample, withheld, failed]));
    assert_eq!(page.matches("&lt;script&gt;alert(1)&lt;/script&gt;&lt;img src=x onerror=&quot;").count(), 5);
    assert_eq!(page.matches("<script").count(), 1);
    assert!(
        !page.contains("<img") && !page.contains('\u{0}') && !page.contains('\u{1b}') && page.contains('🌊')
    );
}

#[test]
fn torn_and_foreign_lines_do_not_hide_the_rest() {
    let torn = format!("{}{{\"kind\":\"step\",\"st", jsonl(&[start(0), step(1, 3), step(2, 3)]));
    assert!(!page(&torn).contains("Failures and stops"));
    let foreign = json!({"kind": "weather", "step": 1, "rain": true});
    let lines = format!("{}nonsense\n\u{0}\n{}", jsonl(&[foreign, step(1, 3)]), jsonl(&[step(2, 3)]));
    let page = page(&lines);
    assert!(page.contains("2 lines are unreadable in metrics.jsonl") && page.contains("2 of 3"));
}

#[test]
fn a_run_without_steps_has_a_page() {
    assert!(page("").contains("No step has been taken yet"));
    assert!(page(&jsonl(&[start(0)])).contains("804,096"));
    assert!(page(&jsonl(&[start(0), step(1, 500)])).contains("<polyline"));
    let run = tempfile::tempdir().expect("a folder");
    let error = format!("{:#}", write(run.path()).expect_err("there are no metrics"));
    assert!(error.contains("metrics.jsonl"), "{error}");
}

#[test]
fn absent_and_huge_numbers_do_not_break_the_page() {
    let mut records = vec![start(0)];
    for (at, loss) in [json!(2.5), json!(null), json!(1e300), json!(-1e300), json!(0.0), json!(2.25)]
        .into_iter()
        .enumerate()
    {
        let mut record = step(at as u64 + 1, 6);
        record["loss"] = loss;
        record["gnorm"] = json!(if at == 3 { 1e30 } else { 1.0 });
        record["lr"] = json!(0.0);
        records.push(record);
    }
    let page = page(&jsonl(&records));
    assert!(!page.contains("NaN") && !page.contains("inf"));
    assert!(page.contains("before clipping, powers of ten"));
}

#[test]
fn a_hundred_thousand_steps_stay_under_a_megabyte() {
    let mut lines = jsonl(&[start(0), timeline(4, 1025)]);
    let all = 100_000;
    let long = "the river rises and falls ".repeat(20);

    for at in 1..=all {
        writeln!(lines, "{}", step(at, all)).expect("a string takes everything");
        if at % 100 == 0 {
            let records = [
                json!({"kind": "eval", "step": at, "loss": 2.0, "perplexity": 7.4, "bits_per_byte": 1.1, "sequences": 64,
                    "best": true}),
                json!({"kind": "sample", "step": at, "prompt": "Tell me of the river.", "text": long}),
                json!({"kind": "withheld", "step": at, "loss": null, "gnorm": null, "reason": "no number"}),
                json!({"kind": "checkpoint", "step": at, "bytes": 1 << 30, "ms": 900.0}),
            ];
            lines += &jsonl(&records);
        }
    }
    let page = page(&lines);
    assert!(page.len() < 1_000_000, "{} bytes", page.len());

    for points in page.split(" points=\"").skip(1) {
        let count = points.split('"').next().unwrap_or("").split(' ').count();
        assert!((500..=2000).contains(&count), "{count} points");
    }
}
