//! The program with runs on the disk: device budgets, adapters, forms of weights.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use burn::backend::Flex;
use burn::backend::flex::FlexDevice;
use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Tensor, TensorData, backend::Backend};
use models::random::Random;
use models::weights::{self, Layout, Stored};
use models::{BaseForm, Family, Gpt, GptConfig, LoraConfig, presets};
use runs::checkpoint::{CONFIG, Checkpoints, TOKENIZER, WEIGHTS, Which};
use runs::config::{Config, LoraBase};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::client::{Answer, TIMEOUT, post_request};
use crate::served_models::tokenizer;

fn config() -> GptConfig {
    GptConfig {
        n_layer: 2,
        n_head: 4,
        n_kv_head: None,
        n_embd: 256,
        n_inner: Some(512),
        n_positions: 128,
        vocab_size: 320,
        init: Family::Gpt2,
        initializer_range: 0.3,
        ..presets::preset("llama-160m").unwrap()
    }
}

fn model() -> Gpt<Flex> {
    Gpt::new(&config(), 5, &FlexDevice).unwrap()
}

fn lora() -> LoraConfig {
    LoraConfig { rank: 4, alpha: 16.0, ..LoraConfig::default() }
}

/// Adapters that change answers; new ones are zero.
fn adapted(base: Gpt<Flex>) -> Gpt<Flex> {
    base.with_adapters(&lora(), 1).unwrap().map(&mut Draw { random: Random::new(2), path: Vec::new() })
}

struct Draw {
    random: Random,
    path: Vec<String>,
}

impl<B: Backend> ModuleMapper<B> for Draw {
    models::keeps_path!();

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        if !self.path.iter().any(|part| part == "adapter") {
            return param;
        }
        param.map(|old| {
            let numbers = (0..old.shape().num_elements()).map(|_| self.random.normal() as f32 * 0.2);
            let data = TensorData::new(numbers.collect::<Vec<_>>(), old.shape());
            Tensor::from_data(data, &old.device())
        })
    }
}

struct Folder(TempDir);

impl Folder {
    fn with_run(gpt: &Gpt<Flex>) -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        folder.save("run", gpt);
        folder
    }

    fn join(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn save(&self, name: &str, gpt: &Gpt<Flex>) {
        self.write(name, &trained(), |path| weights::save(gpt, path, Layout::Native, Stored::F32).unwrap());
    }

    fn write(&self, name: &str, config: &Config, weights: impl Fn(&Path)) {
        let write = |folder: &Path| {
            fs::write(folder.join(CONFIG), config.to_json())?;
            tokenizer().save(folder.join(TOKENIZER))?;
            weights(&folder.join(WEIGHTS));
            Ok(())
        };
        Checkpoints::in_run(&self.join(name)).save(1, 0, write).unwrap();
    }

    fn program(&self, arguments: &[&str]) -> Command {
        let mut program = Command::new(env!("CARGO_BIN_EXE_serve"));
        program.args(["--port", "0"]).args(arguments).current_dir(&self.0);
        program
            .env_remove("SPILLWAY_API_KEY")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        program
    }

    fn served(&self, run: &str, arguments: &[&str]) -> Served {
        let fixed = ["--device", "cpu", "--from", run];
        // A pipe without a reader would fill up.
        let log = fs::File::create(self.join("log")).unwrap();
        let mut child = self.program(&[&fixed[..], arguments].concat()).stderr(log).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("http://").unwrap_or_default().to_owned();
        let mut served = Served { child, address };
        while served.get("/health").is_none_or(|answer| answer.status != 200) {
            let log = || fs::read_to_string(self.join("log")).unwrap();
            assert!(served.child.try_wait().unwrap().is_none(), "the server ended: {}", log());
            thread::sleep(Duration::from_millis(5));
        }
        served
    }
}

fn trained() -> Config {
    let model = format!("model={}", config().to_value());
    let set =
        [&model, "tokenizer.kind=bytes", "train.optimizer=adamw", "data.dialogues=100"].map(str::to_owned);
    Config::load("toy", &set).unwrap()
}

struct Served {
    child: Child,
    address: String,
}

impl Drop for Served {
    fn drop(&mut self) {
        // It may have ended.
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

impl Served {
    fn send(&self, request: &str) -> Option<Answer> {
        let mut stream = TcpStream::connect(&self.address).ok()?;
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.write_all(request.as_bytes()).ok()?;
        Some(Answer::read(&mut stream))
    }

    fn get(&self, path: &str) -> Option<Answer> {
        self.send(&format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"))
    }

    /// Greedy, with the likelihood of each token.
    fn answer(&self) -> Value {
        let messages = [json!({ "role": "user", "content": "What does the river do at noon?" })];
        let body = json!({ "messages": messages, "max_tokens": 24, "temperature": 0, "logprobs": true });
        let answer = self.send(&post_request("/v1/chat/completions", &body.to_string())).unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
        let answer = answer.json();
        assert!(answer["usage"]["completion_tokens"].as_u64() > Some(8), "{answer}");
        answer["choices"][0].clone()
    }

    fn text(&self) -> Value {
        self.answer()["message"]["content"].clone()
    }

    /// Counters follow an answer's end.
    fn until(&self, holds: impl Fn() -> bool) {
        let held = (0..2000).any(|_| {
            thread::sleep(Duration::from_millis(5));
            holds()
        });
        assert!(held, "{}", self.get("/metrics").unwrap().text());
    }

    fn metric(&self, name: &str) -> u64 {
        let page = self.get("/metrics").unwrap().text();
        let line = page.lines().find_map(|line| line.strip_prefix(&format!("spillway_{name} ")));
        line.unwrap().parse::<f64>().unwrap() as u64
    }
}

#[test]
fn a_model_larger_than_its_budget_gives_the_answers_of_one_that_fits() {
    let folder = Folder::with_run(&model());
    let roomy = folder.served("run", &[]);
    let expected = roomy.answer();
    assert_eq!(roomy.metric("evictions_total"), 0);
    let whole = roomy.metric("device_bytes");

    let tight = folder.served("run", &["--set", "memory.device_budget=2MiB", "--kv-budget", "1MiB"]);
    assert_eq!(tight.metric("device_budget_bytes"), 2 << 20);
    assert!(whole > 4 << 20, "{whole} bytes are less than twice the budget");
    assert_eq!(tight.answer(), expected);
    tight.until(|| tight.metric("evictions_total") > 0 && tight.metric("restores_total") > 0);
}

#[test]
fn adapters_from_peft_give_the_text_of_merged_weights() {
    let folder = Folder::with_run(&model());
    let adapted = adapted(model());
    weights::save_peft(&adapted, &lora(), "run", &folder.join("peft"), Stored::F32).unwrap();
    folder.save("merged", &adapted.merged());

    let plain = folder.served("run", &[]).text();
    let with_adapters = folder.served("run", &["--adapter", "peft"]).text();
    assert_ne!(with_adapters, plain);
    assert_eq!(with_adapters, folder.served("merged", &[]).text());
}

#[test]
fn weights_in_eight_bits_give_the_answers_of_rounded_ones_in_less_memory() {
    let folder = Folder::with_run(&model());
    folder.save("rounded", &model().rounded(BaseForm::Int8));
    let int8 = ["--set", "memory.base=int8"];
    let [exact, packed, rounded] =
        [("run", &[][..]), ("run", &int8), ("rounded", &[])].map(|(run, more)| folder.served(run, more));
    let expected = rounded.answer();
    assert_eq!(packed.answer(), expected);
    assert_ne!(expected, exact.answer(), "eight bits round");
    // A quarter of the blocks' matrices, and the rest of the model.
    let [exact, packed] = [exact, packed].map(|served| served.metric("device_bytes"));
    assert!(packed < exact / 2, "{packed} of {exact}");

    let tight = [&int8[..], &["--set", "memory.device_budget=2MiB", "--kv-budget", "1MiB"]].concat();
    let tight = folder.served("run", &tight);
    assert_eq!(tight.answer(), expected);
    tight.until(|| tight.metric("restores_total") > 0);
}

#[test]
fn adapters_beside_weights_in_eight_bits_give_the_text_of_rounded_and_merged_ones() {
    let folder = Folder::with_run(&model());
    let adapted = adapted(model().rounded(BaseForm::Int8));
    weights::save_peft(&adapted, &lora(), "run", &folder.join("peft"), Stored::F32).unwrap();

    // A run that learned them names its base.
    let base = Checkpoints::in_run(&folder.join("run")).find(Which::Latest).unwrap();
    let mut config = trained();
    config.train.lora = Some(lora());
    config.train.lora_base = Some(LoraBase { path: base.path, sha256: base.weights.unwrap() });
    config.memory.base = BaseForm::Int8;
    folder.write("tuned", &config, |path| weights::save_adapters(&adapted, path).unwrap());
    folder.save("merged", &adapted.merged());

    let merged = folder.served("merged", &[]).text();
    assert_eq!(folder.served("tuned", &[]).text(), merged);
    let beside = ["--adapter", "peft", "--set", "memory.base=int8"];
    assert_eq!(folder.served("run", &beside).text(), merged);
}

#[test]
fn rounds_of_sixty_four_streams_leave_weights_and_kept_caches_only() {
    let folder = Folder::with_run(&model());
    let served = folder.served("run", &["--kv-budget", "1MiB"]);
    let weights = served.metric("device_bytes");
    for round in 0..4 {
        thread::scope(|clients| {
            for seed in 0..64 {
                let served = &served;
                clients.spawn(move || {
                    let prompt = format!("stream {}", "and ".repeat(seed % 16));
                    let body = json!({ "prompt": prompt, "max_tokens": 16, "stream": true, "seed": seed });
                    let answer = served.send(&post_request("/v1/completions", &body.to_string())).unwrap();
                    assert!(answer.chunks().len() > 1);
                });
            }
        });
        served.until(|| served.metric("active_sequences") == 0);
        served.until(|| served.metric("device_bytes") == weights + served.metric("kv_bytes"));
        let kept = served.metric("kv_bytes");
        assert!(0 < kept && kept <= 1 << 20, "{kept} bytes after round {round}");
    }
}

#[test]
fn a_bf16_model_takes_two_bytes_a_number() {
    let folder = Folder::with_run(&model());
    let [wide, narrow] = ["f32", "bf16"].map(|kind| {
        let served = folder.served("run", &["--set", &format!("model.compute={kind}")]);
        served.metric("device_bytes")
    });
    // The embedding, which is looked up, keeps four.
    let embedding = 4 * (320 * 256) as u64;
    let matrices = 4 * (2 * (4 * 256 * 256 + 3 * 256 * 512) + 320 * 256) as u64;
    assert!(wide >= matrices + embedding, "{wide}");
    assert!(narrow < wide - matrices * 9 / 20, "{narrow} of {wide}");
}

#[test]
fn a_run_is_served_under_its_alias_or_its_folders_name() {
    let folder = Folder::with_run(&model());
    for (arguments, name) in [(&["--alias", "mine"][..], "mine"), (&[], "run")] {
        let models = folder.served("run", arguments).get("/v1/models").unwrap().json();
        assert_eq!(models["data"][0]["id"], name);
    }
}

#[cfg(not(feature = "vulkan"))]
#[test]
fn a_device_that_is_not_built_in_is_added_to_this_program() {
    let folder = Folder::with_run(&model());
    let output = folder.program(&["--from", "run", "--device", "vulkan"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("`cargo build -p serve --release --features vulkan`"), "{said}");
}
