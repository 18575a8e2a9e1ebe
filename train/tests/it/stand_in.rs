//! The trainer on CUDA's stand-in, built by `cargo xtask stand-in`.

use std::{
    collections::HashSet,
    env, fmt, fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::OnceLock,
};

use pager::{Limit, Policy, Recording};
use pager_replay::Replay;
use serde_json::Value;
use suite::{Need, Size};

use crate::lora::{self, LORA};
use crate::plan::{SHAPES, assert_as_planned};
use crate::program::{CACHE, PROGRAM, assert_success, json};
use crate::tiny::{Tiny, bits};

/// Passed by `cargo xtask test`, or built by the first test.
pub(crate) fn installation() -> Option<&'static Path> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let built = BUILT.get_or_init(|| {
        if let Some(folder) = env::var_os("SPILLWAY_STAND_IN") {
            return Ok(folder.into());
        }
        if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
            return Err("the stand-in for CUDA runs on x86-64 Linux only".to_owned());
        }
        let mut build = Command::new(env!("CARGO"));
        build.args(["xtask", "stand-in"]).current_dir(env!("CARGO_MANIFEST_DIR"));
        let built = build.output().map_err(|error| error.to_string())?;
        if built.status.success() {
            Ok(PathBuf::from(String::from_utf8_lossy(&built.stdout).trim()))
        } else {
            Err(format!("`cargo xtask stand-in` failed: {}", String::from_utf8_lossy(&built.stderr).trim()))
        }
    });
    Need::StandIn.found(built.as_deref())
}

#[derive(Clone, Copy)]
enum Order {
    Eager,
    Lazy,
    Random(u64),
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Eager => f.write_str("eager"),
            Self::Lazy => f.write_str("lazy"),
            Self::Random(seed) => write!(f, "random-{seed}"),
        }
    }
}

fn orders() -> impl Iterator<Item = Order> {
    let lazy = (suite::size() > Size::Quick).then_some(Order::Lazy);
    [Order::Eager].into_iter().chain(lazy).chain(suite::schedule_seeds().map(Order::Random))
}

/// Keeps autotune's timings out of a real GPU's cache.
struct StandIn {
    installation: &'static Path,
    tiny: Tiny,
    /// Of every run.
    start: &'static [&'static str],
}

impl StandIn {
    fn prepared() -> Option<Self> {
        installation().map(|installation| Self::on(installation, Tiny::new(), &[]))
    }

    /// Runs start from weights that the CPU has trained.
    fn with_a_base() -> Option<Self> {
        installation().map(|installation| Self::on(installation, lora::based(), &["--from", "base"]))
    }

    fn on(installation: &'static Path, tiny: Tiny, start: &'static [&'static str]) -> Self {
        fs::write(tiny.join("cubecl.toml"), "[autotune]\ncache = \"local\"\nlevel = \"minimal\"\n")
            .expect("writing");
        Self { installation, tiny, start }
    }

    fn command(&self, out: &str, order: Order, settings: &[&str]) -> Command {
        let mut command = self.program(out, order);
        command
            .args(["--config", "tiny.json", "--device", "cuda"])
            .args(self.start)
            .args(settings.iter().flat_map(|setting| ["--set", setting]));
        command
    }

    fn program(&self, out: &str, order: Order) -> Command {
        let Self { installation, tiny, .. } = self;
        let [mode, seed] = match order {
            Order::Eager => ["eager".to_owned(), String::new()],
            Order::Lazy => ["lazy".to_owned(), String::new()],
            Order::Random(seed) => ["random".to_owned(), seed.to_string()],
        };

        let mut command = Command::new(PROGRAM);
        command
            .args(["--json", "--out", out])
            .current_dir(tiny.path())
            .envs([CACHE])
            .env("CUDA_PATH", installation)
            .env("LD_LIBRARY_PATH", installation.join("lib"))
            .env("STAND_IN_CACHE", installation.join("kernels"))
            .env("STAND_IN_MODE", mode)
            .env("STAND_IN_SEED", seed)
            .env("STAND_IN_RACES", if matches!(order, Order::Eager) { "1" } else { "0" })
            .env("STAND_IN_TRACE", tiny.join(&format!("{out}.trace")))
            .env("STAND_IN_REPORT", tiny.join(&format!("{out}.json")));
        command
    }

    /// A step of the toy. CUDA computes nothing.
    fn recorded_on(&self, device: &str) -> Recording {
        let settings = [
            "train.steps=6",
            "train.schedule.warmup=0",
            // Batches name different numbers of embedding rows.
            "train.overfit_one_batch=true",
            "data.dialogues=2000",
            "eval.every=0",
            "eval.sequences=1",
            "eval.sample_every=0",
            "eval.questions=[]",
            "eval.quiz=0",
            "checkpoint.every=0",
            "checkpoint.last=false",
            "memory.device_budget=unlimited",
        ];
        let file = self.tiny.join(&format!("{device}.recording"));
        let mut command = self.program(device, Order::Lazy);
        command
            .args(["--device", device])
            .args(settings.iter().flat_map(|setting| ["--set", setting]))
            .env("STAND_IN_COMPUTE", "0")
            .env("OFFLOAD_TRACE", &file);
        assert_success(&command.output().expect("the program starts"));
        let recording = Recording::from_bytes(&fs::read(file).expect("a recording at exit"));
        recording.and_then(Recording::repeating).unwrap_or_else(|error| panic!("{device}: {error}"))
    }

    fn train(&self, out: &str, order: Order, settings: &[&str]) -> Output {
        self.output_and_report(out, self.command(out, order, settings)).0
    }

    fn output_and_report(&self, out: &str, mut command: Command) -> (Output, Value) {
        let output = command.output().expect("the program starts");
        assert_success(&output);
        let report = fs::read(self.tiny.join(&format!("{out}.json"))).expect("a report at exit");
        let report: Value = serde_json::from_slice(&report).expect("JSON");
        assert_eq!(report["findings"].to_string(), "{}", "{out}");
        (output, report)
    }

    fn assert_spills_to_the_same_bits(&self, name: &str, budget: &str, settings: &[&str]) -> [String; 2] {
        let settings = [settings, &["train.steps=3"]].concat();
        self.assert_spills_in(orders(), (name, budget), &settings)
    }

    fn assert_spills_in(
        &self,
        orders: impl Iterator<Item = Order>,
        (name, budget): (&str, &str),
        settings: &[&str],
    ) -> [String; 2] {
        let settings = [settings, &["eval.questions=[]"]].concat();
        let roomy = json(&self.train(&format!("{name}-roomy"), Order::Lazy, &settings));
        assert_eq!(roomy["evictions"], 0, "{name}");
        let tight = [&settings[..], &[budget]].concat();
        for order in orders {
            let run = json(&self.train(&format!("{name}-{order}"), order, &tight));
            assert!(run["restores"].as_u64() > Some(20), "{name}, {order}: it did not spill: {run:#}");
            assert!(
                run["peak_device_bytes"].as_u64() <= run["device_budget"].as_u64(),
                "{name}, {order}: {run:#}"
            );
            assert_eq!(bits(&run), bits(&roomy), "{name}, {order}");
        }
        bits(&roomy)
    }
}

/// Lines of copies and kernels, and the streams of kernels.
fn traced(trace: &Path) -> (Vec<Value>, HashSet<Option<u64>>) {
    let text = fs::read_to_string(trace).expect("a trace");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let computing =
        lines.iter().filter(|line| line["kind"] == "compute").map(|line| line["stream"].as_u64()).collect();
    (lines, computing)
}

/// Large copies that share no stream with kernels.
fn copies_beside_kernels(trace: &Path) -> usize {
    let (lines, computing) = traced(trace);
    let is_copy = |line: &&Value| line["kind"] != "compute" && line["bytes"].as_u64() >= Some(64 << 10);
    lines.iter().filter(is_copy).filter(|line| !computing.contains(&line["stream"].as_u64())).count()
}

/// Fails if a large read shares a stream with kernels.
fn overlapped_reads(trace: &Path) -> u64 {
    let (lines, computing) = traced(trace);
    let is_read = |line: &&Value| line["kind"] == "to host" && line["bytes"].as_u64() >= Some(64 << 10);
    let reads: Vec<_> = lines.iter().filter(is_read).collect();
    let behind = reads.iter().find(|line| computing.contains(&line["stream"].as_u64()));
    assert_eq!(behind, None, "kernels wait behind it");
    reads.len() as u64
}

const ON_HOST: [&str; 4] =
    ["memory.optimizer=host", "model.tie_word_embeddings=false", "model.n_layer=2", "train.recompute=1"];
const NARROW: &str = "model.compute=bf16";
const COMPACT: &str = "memory.optimizer_state=compact";
const TIGHT_ON_HOST: &str = "memory.device_budget=800KiB";

#[test]
fn a_host_optimizer_has_the_same_bits_on_cuda_in_any_order_of_work() {
    let Some(stand_in) = StandIn::prepared() else { return };
    let cases: [(&str, &[&str]); 3] =
        [("f32", &[]), ("bf16", &[NARROW, "memory.optimizer_state=bf16"]), ("compact", &[NARROW, COMPACT])];
    for (name, settings) in suite::first(1, &cases) {
        stand_in.assert_spills_to_the_same_bits(name, TIGHT_ON_HOST, &[&ON_HOST[..], *settings].concat());
    }
}

mod gate {
    use super::*;

    #[test]
    #[ignore = "gate: trains for minutes"]
    fn a_run_has_the_same_bits_on_cuda_in_any_order_of_work() {
        let Some(stand_in) = StandIn::prepared() else { return };
        // Muon's largest operation takes 1,280 KiB.
        let settings = ["train.optimizer=muon", "model.n_layer=2"];
        stand_in.assert_spills_to_the_same_bits("device", "memory.device_budget=1536KiB", &settings);
    }

    #[test]
    #[ignore = "gate: trains for minutes"]
    fn a_budget_changes_no_bit_of_eight_bits_on_cuda() {
        let Some(stand_in) = StandIn::prepared() else { return };
        let crossing = [NARROW, "memory.stream=int8", "memory.gradients=int8"];
        stand_in.assert_spills_to_the_same_bits("int8", TIGHT_ON_HOST, &[&ON_HOST[..], &crossing].concat());
        assert!(
            overlapped_reads(&stand_in.tiny.join("int8-roomy.trace")) >= 8 * 3,
            "of every large gradient"
        );
    }

    #[test]
    #[ignore = "gate: trains for minutes"]
    fn micro_batches_that_pass_segments_together_have_the_same_bits_on_cuda() {
        let Some(stand_in) = StandIn::prepared() else { return };
        // A sum of eight gradients has five operands of 256 KiB.
        let budget = "memory.device_budget=1400KiB";
        let settings = [&ON_HOST[..], &["train.accumulate=8", "train.micro_batch=1"]].concat();
        let mut lengths = vec![("3", orders().collect::<Vec<_>>())];
        if suite::size() == Size::Full {
            lengths.push(("20", vec![Order::Eager, Order::Lazy]));
        }
        for (steps, orders) in lengths {
            let length = format!("train.steps={steps}");
            let settings = [&settings[..], &[&length]].concat();
            let one = [&settings[..], &["eval.questions=[]", "train.together=1"]].concat();
            let alone = bits(&json(&stand_in.train(&format!("alone-{steps}"), Order::Lazy, &one)));
            for count in &["8", "2"][..suite::size().pick(1, 1, 2)] {
                let (name, together) = (format!("{count}-{steps}"), format!("train.together={count}"));
                let settings = [&settings[..], &[&together]].concat();
                let run = (name.as_str(), budget);
                let group = stand_in.assert_spills_in(orders.iter().copied(), run, &settings);
                assert_eq!(group, alone, "{count} together, {steps} steps");
            }
        }
    }

    #[test]
    #[ignore = "gate: trains for minutes"]
    fn copies_of_a_host_optimizer_run_beside_kernels_and_change_no_bit() {
        let Some(stand_in) = StandIn::prepared() else { return };
        let settings = [&ON_HOST[..], &[TIGHT_ON_HOST, "eval.questions=[]"]].concat();
        let run = |out: &str, overlap: &str| {
            let mut command = stand_in.command(out, Order::Eager, &settings);
            command
                .env("STAND_IN_KERNEL_US", "20")
                .env("STAND_IN_BANDWIDTH", "5e8")
                .env("OFFLOAD_OVERLAP", overlap);
            let (output, report) = stand_in.output_and_report(out, command);
            (bits(&json(&output)), report["simulated_ms"].as_f64().expect("milliseconds"))
        };

        let (tuned, _) = run("tuned", "1");
        let (beside, overlapped) = run("beside", "1");
        let (in_line, serial) = run("in-line", "0");
        println!("{overlapped} ms, in line {serial} ms");
        assert!(beside == tuned && in_line == tuned, "other bits");
        // Threads decide the order of work, and so the simulated times.
        let [beside, in_line] = ["beside", "in-line"]
            .map(|out| copies_beside_kernels(&stand_in.tiny.join(&format!("{out}.trace"))));
        assert!(beside > in_line, "{beside} copies beside kernels, in line {in_line}");
    }

    #[test]
    #[ignore = "gate: trains for minutes"]
    fn a_run_on_cuda_uses_the_memory_of_its_plan() {
        let Some(stand_in) = StandIn::prepared() else { return };
        for (n, settings) in SHAPES.into_iter().enumerate() {
            let settings = [settings, &["eval.questions=[]"]].concat();
            assert_as_planned(&stand_in.train(&format!("run-{n}"), Order::Lazy, &settings), &settings);
        }
    }

    /// An embedding of 8 MiB: its update names at least 48 MiB in one piece, at most 44 by rows.
    #[test]
    #[ignore = "gate: trains for minutes"]
    fn cuda_steps_an_embedding_under_a_budget_that_only_its_update_by_rows_fits() {
        let Some(stand_in) = StandIn::prepared() else { return };
        let settings = [
            "train.optimizer=adamw",
            "model.n_embd=256",
            "model.vocab_size=8192",
            "train.micro_batch=1",
            "train.sequence=16",
            "train.steps=3",
            "eval.questions=[]",
        ];
        let trained = |out: &str, more: &[&str]| {
            json(&stand_in.train(out, Order::Lazy, &[&settings[..], more].concat()))
        };
        let roomy = trained("roomy", &[]);
        assert!(roomy["largest_launch"].as_u64() <= Some(45 << 20), "{roomy:#}");

        let tight = trained("tight", &["memory.device_budget=46MiB"]);
        assert!(tight["evictions"].as_u64() > Some(0), "{tight:#}");
        assert!(tight["peak_device_bytes"].as_u64() <= Some(46 << 20), "{tight:#}");
        assert_eq!(bits(&tight), bits(&roomy));
    }

    /// A plan replays what the CPU records. CUDA fuses operations, so it has fewer.
    #[test]
    #[ignore = "gate: records two runs"]
    fn a_step_recorded_on_cuda_moves_the_bytes_of_one_recorded_on_the_cpu() {
        const ROUNDS: usize = 4;
        let Some(stand_in) = StandIn::prepared() else { return };
        let steps = ["cpu", "cuda"].map(|device| stand_in.recorded_on(device));
        assert!(steps[1].events.len() < steps[0].events.len(), "nothing is fused");
        let [peak, on_cuda] = steps.each_ref().map(|step| {
            let free = Replay::new(step, Limit::NONE, Policy::Planned).run(2).expect("no limit");
            free.pager().ledger().resident_peak()
        });
        assert_eq!(peak, on_cuda);
        for share in [75, 50, 25] {
            let budget = Limit::bytes(peak * share / 100);
            let [(bytes, trims), (cuda_bytes, cuda_trims)] = steps.each_ref().map(|step| {
                let replay = Replay::new(step, budget, Policy::Planned).with_pool();
                let played = replay.run(ROUNDS).expect("every operation fits");
                (played.steps()[ROUNDS - 1].total(), played.trim_steps()[ROUNDS - 1])
            });
            assert!(
                bytes > 0 && bytes.abs_diff(cuda_bytes) * 100 <= bytes,
                "{share} %: {bytes}, {cuda_bytes}"
            );
            assert!(trims <= cuda_trims && cuda_trims <= 2 * trims, "{share} %: {trims}, {cuda_trims} trims");
        }
    }
}

mod full {
    use super::*;

    #[test]
    #[ignore = "full: trains for minutes"]
    fn adapters_beside_a_plain_or_packed_base_have_the_same_bits_on_cuda_in_any_order_of_work() {
        let Some(stand_in) = StandIn::with_a_base() else { return };
        // As many tokens as an embedding has features: Burn's kernel that selects rows reads beyond fewer indices.
        let recomputed = ["train.recompute=1", "train.micro_batch=4", "train.sequence=64"];
        let cases: [(&str, &str, &[&str]); 2] = [
            ("groups", "4MiB", &["train.accumulate=2"]),
            ("nf4", "3MiB", &[NARROW, "memory.base=nf4", "train.lora.dropout=0.2"]),
        ];
        for (name, budget, settings) in cases {
            let budget = format!("memory.device_budget={budget}");
            let settings = [&LORA[..], &recomputed, settings].concat();
            stand_in.assert_spills_to_the_same_bits(name, &budget, &settings);
        }
    }

    #[test]
    #[ignore = "full: trains for minutes"]
    fn frozen_parts_and_rates_by_group_have_the_same_bits_on_cuda_in_any_order_of_work() {
        let Some(stand_in) = StandIn::prepared() else { return };
        let frozen = [
            r#"train.freeze=["embedding","blocks.0"]"#,
            r#"train.groups=[{"match":"mlp","lr_scale":0.1,"weight_decay":0}]"#,
        ];
        let settings = [&ON_HOST[..], &frozen].concat();
        stand_in.assert_spills_to_the_same_bits("frozen", TIGHT_ON_HOST, &settings);
    }
}
