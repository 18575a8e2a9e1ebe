//! Tables in README and the guide against the plan.

use std::fs;
use std::path::Path;

use models::Footprint;
use runs::config::{Config, presets};

use super::table::span;
use super::{DescribedMachine, Plan, placed};
use crate::figures::{duration, grouped};

/// From here on, presets train 20 tokens per parameter.
const LARGE: u64 = 100_000_000;
const DAY: f64 = 86_400.0;

fn planned(preset: &str, on: &str, set: &[String]) -> Plan {
    let config = Config::load(preset, set).unwrap_or_else(|error| panic!("{error}"));
    let footprint = Footprint::of(&config.model).expect("it was checked");
    let machine = on.parse::<DescribedMachine>().expect("a machine").machine(&config).expect("described");
    let plan = Plan::new(&placed(&config, &footprint, &machine), &footprint, &machine);
    assert!(plan.refusals().is_empty(), "{preset} on {on}: {:?}", plan.refusals());
    plan
}

fn rows(path: &str, head: &str) -> Vec<Vec<String>> {
    // `CARGO_MANIFEST_DIR` belongs to the unit tests' package.
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path));
    let text = text.expect("a page");
    let rows = text.lines().skip_while(|line| !line.starts_with(head)).skip(2);
    let rows = rows.take_while(|line| line.starts_with('|'));
    rows.map(|row| row.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect()).collect()
}

fn needs(preset: &str) -> Vec<String> {
    let text = "data.path=text.txt".to_owned();
    let own = Config::load(preset, &[]).or_else(|_| Config::load(preset, std::slice::from_ref(&text)));
    let own = own.unwrap_or_else(|error| panic!("{error}"));
    let parameters = Footprint::of(&own.model).expect("it was checked").parameters;
    let per_step = own.tokens_per_step();
    let mut row = vec![format!("`{preset}`"), grouped(parameters)];
    if parameters < LARGE {
        let steps = own.train.steps;
        row.push(format!("its own {}", grouped(per_step * steps)));
        row.extend([format!("{}, its own", grouped(steps)), "minutes on a CPU".to_owned()]);
        return row;
    }

    let tokens = 20 * parameters;
    let steps = (tokens as f64 / per_step as f64 / 50.0).round() as u64 * 50;
    let memory = match preset {
        "llama-14b" | "llama-18b" => "192GiB",
        "llama-32b" => "384GiB",
        _ => "128GiB",
    };
    let plan = planned(preset, &format!("rtx-4090,{memory}"), &[format!("train.steps={steps}")]);
    let (fast, slow) = plan.step_seconds().expect("the card is known");
    let [fast, slow] = [fast, slow].map(|step| step * steps as f64);

    let billions = tokens as f64 / 1e9;
    let digits = usize::from(billions < 9.95);
    let mut time = span(fast, slow, duration);
    if memory != "128GiB" {
        time = format!("{time}, with {}", memory.replace("GiB", " GiB"));
    }
    if fast > 100.0 * DAY {
        time += ": begin with published weights instead (`--from`)";
    }
    row.extend([format!("{billions:.digits$} billion"), grouped(steps), time]);
    row
}

#[test]
fn the_guide_lists_every_preset_as_planned() {
    let expected: Vec<_> = presets().map(|(file, _)| needs(file.trim_end_matches(".json"))).collect();
    let found = rows("../docs/guide/presets.md", "| preset | parameters |");
    let line = |row: &Vec<String>| format!("| {} |\n", row.join(" | "));
    let shown = |rows: &[Vec<String>]| rows.iter().map(line).collect::<String>();
    assert_eq!(shown(&found), shown(&expected), "the plan's rows:\n{}", shown(&expected));
}

/// Numbers and their decimals: `20.5 GiB` is 20.5 with 1.
fn numbers(cell: &str) -> Vec<(f64, i32)> {
    let words = cell.split([' ', '×']).filter(|word| word.starts_with(|first: char| first.is_ascii_digit()));
    let read = |word: &str| {
        let decimals = word.split_once('.').map_or(0, |(_, digits)| digits.len() as i32);
        (word.parse().unwrap_or_else(|_| panic!("`{word}` in `{cell}`")), decimals)
    };
    words.map(read).collect()
}

fn short_steps(preset: &str) -> String {
    format!("train.accumulate={}", if preset == "llama-18b" { 1 } else { 4 })
}

fn settings(optimizer: &str, above_a_disk: bool) -> Vec<String> {
    let mut set = Vec::new();
    match optimizer.split('`').nth(1).filter(|_| optimizer.starts_with("host")) {
        Some(state) => {
            set.extend(["memory.optimizer=host".to_owned(), format!("memory.optimizer_state={state}")]);
        }
        None => set.extend(["memory.optimizer=device", "memory.optimizer_state=f32"].map(str::to_owned)),
    }
    if optimizer.ends_with("crossing in `int8`") {
        set.extend(["stream", "gradients", "activations"].map(|what| format!("memory.{what}=int8")));
    }
    if above_a_disk {
        let disk =
            ["memory.disk=/", "memory.disk_budget=160GiB", "train.micro_batch=16", "train.accumulate=1"];
        set.extend(disk.map(str::to_owned));
    }
    set
}

#[test]
fn the_guides_memory_table_matches_the_plan() {
    let mut wrong = Vec::new();
    let mut rows = rows("../docs/guide/what-fits.md", "| Preset | Card and host memory |");
    rows.retain(|row| !row[0].starts_with("**measured**"));
    assert!(rows.len() > 5, "{rows:?}");
    for row in rows {
        let [preset, place, optimizer, memory, each, link, step, touched] = &row[..] else {
            panic!("{row:?}")
        };
        let above_a_disk = place.contains("a disk of 3 GB/s");
        let sizes: Vec<_> = numbers(place).into_iter().take(2).map(|(gib, _)| format!("{gib}GiB")).collect();
        let disk = if above_a_disk { ",disk=3GB/s" } else { "" };
        let on = format!("{},25GB/s,80TFLOP/s{disk}", sizes.join(","));
        let preset = preset.trim_matches('`');
        let set = [vec![short_steps(preset)], settings(optimizer, above_a_disk)].concat();
        let plan = planned(preset, &on, &set);

        let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        let (moved, on_disk) = (
            plan.bytes_in_per_step + plan.bytes_out_per_step,
            plan.disk_written_per_step + plan.disk_read_per_step,
        );
        let slowdown = [plan.slowdown_hidden, plan.slowdown_waiting].map(|times| times.expect("speeds"));
        let below = |bytes: u64| above_a_disk.then(|| gib(bytes));
        let held = [Some(gib(plan.host_bytes)), below(plan.optimizer_disk_bytes + plan.sinks)];
        let per_parameter = |gib: f64| gib * f64::from(1 << 30) / plan.parameters as f64;

        let cells = [
            (memory, held),
            (each, held.map(|gib| gib.map(per_parameter))),
            (link, [Some(gib(moved)), below(on_disk)]),
            (step, slowdown.map(Some)),
            (touched, [Some(gib(plan.optimizer_step_bytes)).filter(|bytes| *bytes > 0.0), None]),
        ];
        for (cell, expected) in cells {
            let expected: Vec<f64> = expected.into_iter().flatten().collect();
            let written = numbers(cell);
            let near = |((written, decimals), expected): (&(f64, i32), &f64)| {
                (written - expected).abs() <= 0.5001 * 10_f64.powi(-decimals)
            };
            if written.len() != expected.len() || !written.iter().zip(&expected).all(near) {
                wrong.push(format!("{preset} on {on} ({optimizer}): `{cell}` should be {expected:.2?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn short(number: f64) -> String {
    let digits = usize::from(number < 10.0);
    format!("{number:.digits$}")
}

#[test]
fn the_first_pages_table_matches_the_plan() {
    let host = ["memory.optimizer=host", "memory.optimizer_state=bf16"].map(str::to_owned);
    let expected = [
        ("gpt-350m", "RTX 4060, 8 GB", "rtx-4060,32GiB", &[][..]),
        ("gpt-1.5b", "RTX 4060, 8 GB", "rtx-4060,32GiB", &host[..]),
        ("gpt-7b", "RTX 4060, 8 GB", "rtx-4060,128GiB", &[]),
        ("gpt-7b", "RTX 4090, 24 GB", "rtx-4090,128GiB", &[]),
    ]
    .map(|(preset, card, on, set)| {
        let set = &[&[short_steps(preset)], set].concat();
        let plan = planned(preset, on, set);
        let config = Config::load(preset, set).unwrap_or_else(|error| panic!("{error}"));
        let billions = Footprint::of(&config.model).expect("it was checked").parameters as f64 / 1e9;
        let digits = if billions < 1.0 { 2 } else { 1 };
        let (fast, slow) = plan.step_seconds().expect("the card is known");
        let slowdown = [plan.slowdown_hidden, plan.slowdown_waiting].map(|times| times.expect("speeds"));
        [
            format!("{billions:.digits$} B"),
            card.to_owned(),
            format!("{} GiB", short(plan.host_bytes as f64 / f64::from(1 << 30))),
            short(plan.host_bytes as f64 / plan.parameters as f64),
            span(fast, slow, short),
            format!("{}×", span(slowdown[0], slowdown[1], |times| format!("{times:.1}"))),
        ]
    });
    assert_eq!(rows("../README.md", "| Model | Card | RAM taken |"), expected);
}

#[test]
fn the_table_of_frozen_bases_matches_the_plan() {
    let cards = [6, 8, 12];
    let expected = ["bf16", "int8", "nf4"].into_iter().flat_map(|base| {
        cards.map(|gib| {
            let fixed = ["train.lora.rank=16", "memory.optimizer=device", "memory.optimizer_state=f32"];
            let batch = ["train.micro_batch=1", "train.accumulate=16", "train.sequence=1024"];
            let mut set = [fixed, batch].concat().into_iter().map(str::to_owned).collect::<Vec<_>>();
            set.push(format!("memory.base={base}"));
            let plan = planned("gpt-7b", &format!("{gib}GiB,32GiB,25GB/s,80TFLOP/s"), &set);
            let frozen = plan.held.iter().find(|held| held.what == "weights, frozen").expect("adapters");
            let shown = |bytes: u64| format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30));
            let copies = plan.slowdown_waiting.expect("speeds") - 1.0;
            vec![
                format!("`{base}`"),
                format!("{gib} GiB"),
                shown(frozen.bytes),
                shown(frozen.stays),
                shown(plan.bytes_in_per_step + plan.bytes_out_per_step),
                format!("{:.0} %", 100.0 * copies / (1.0 + copies)),
            ]
        })
    });
    let expected: Vec<_> = expected.collect();
    let line = |row: &Vec<String>| format!("| {} |\n", row.join(" | "));
    let shown = |rows: &[Vec<String>]| rows.iter().map(line).collect::<String>();
    let found = rows("../docs/guide/adapters.md", "| `memory.base` | Card |");
    assert_eq!(shown(&found), shown(&expected), "the plan's rows:\n{}", shown(&expected));
}
