//! `train export`: a checkpoint in the layouts of other programs.

use std::path::{Path, PathBuf};

use anyhow::Context;
use backend_offload::{Offload, Offloadable};
use clap::ValueEnum;
use models::weights::gguf::Numbers;
use models::weights::{self, Layout, Stored};
use runs::BadInput;
use runs::Trained;
use runs::checkpoint::{CONFIG, WEIGHTS};
use runs::device::{self, Place, Setup, Work};
use serde_json::{Value, json};
use tokenizer::Tokenizer;

use super::CheckpointArgs;

mod gguf;
mod peft;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    checkpoint: CheckpointArgs,
    /// The folder to create.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// How tensors are named and laid out.
    #[arg(long, value_enum, default_value_t = Names::HuggingFace)]
    layout: Names,
    /// The type numbers are written in: f32 by default, f16 for gguf.
    #[arg(long, value_enum)]
    dtype: Option<Type>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Names {
    /// GPT-2 and Llama shapes as `transformers` loads them.
    HuggingFace,
    /// One file for `llama.cpp`, vocabulary and chat template included.
    Gguf,
    /// The adapters of `train.lora` alone, as PEFT loads them.
    Peft,
    /// Every model of this trainer.
    Native,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Type {
    F32,
    Bf16,
    F16,
    /// Eight bits, and a scale for every 32 numbers: gguf only.
    #[value(name = "q8_0")]
    Q8_0,
}

impl Type {
    /// `None` for types that only GGUF has.
    fn stored(self) -> Option<Stored> {
        match self {
            Self::F32 => Some(Stored::F32),
            Self::Bf16 => Some(Stored::Bf16),
            Self::F16 => Some(Stored::F16),
            Self::Q8_0 => None,
        }
    }
}

#[derive(Clone, Copy)]
enum Target {
    Published(Stored),
    Gguf(Numbers),
    Peft(Stored),
    Native(Stored),
}

impl Target {
    fn of(args: &Args) -> Result<Self, BadInput> {
        match (args.layout, args.dtype.map_or(Some(Stored::F32), Type::stored)) {
            (Names::Gguf, _) => {
                let numbers = |dtype: Type| dtype.stored().map_or(Numbers::Q8_0, Numbers::Plain);
                Ok(Self::Gguf(args.dtype.map_or(Numbers::Plain(Stored::F16), numbers)))
            }
            (Names::HuggingFace, Some(stored)) => Ok(Self::Published(stored)),
            (Names::Peft, Some(stored)) => Ok(Self::Peft(stored)),
            (Names::Native, Some(stored)) => Ok(Self::Native(stored)),
            (_, None) => Err(BadInput("--dtype q8_0 needs --layout gguf".to_owned())),
        }
    }

    /// Files that it would replace, or that would hide it from readers.
    fn files(self) -> &'static [&'static str] {
        match self {
            Self::Gguf(_) => &[gguf::FILE],
            Self::Peft(_) => &[weights::PEFT_WEIGHTS],
            Self::Published(_) | Self::Native(_) => &[WEIGHTS, weights::INDEX, CONFIG, "tokenizer.json"],
        }
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let target = Target::of(args)?;
    if args.checkpoint.adapter.is_some() && matches!(target, Target::Peft(_)) {
        let text =
            "the adapters of --adapter are in PEFT's layout; export the merged model by another --layout";
        return Err(BadInput(text.to_owned()).into());
    }
    let mut files = target.files().iter().map(|name| args.out.join(name));
    if let Some(there) = files.find(|path| path.exists()) {
        return Err(BadInput(format!("{} exists; choose another --out", there.display())).into());
    }
    let trained = args.checkpoint.open()?;
    let setup = Setup::from(&trained.config).without_disk();
    device::with(args.checkpoint.device, &setup, Exporting { out: &args.out, target, trained })
}

struct Exporting<'a> {
    out: &'a Path,
    target: Target,
    trained: Trained,
}

impl Work for Exporting<'_> {
    type Output = ();

    fn on<I: Offloadable>(self, device: &I::Device, _place: &Place) -> anyhow::Result<()> {
        let Self { out, target, trained } = self;
        let gpt = trained.separate::<Offload<I>>(device)?;
        let gpt = if matches!(target, Target::Peft(_)) { gpt } else { gpt.merged() };
        match target {
            Target::Peft(stored) => return peft::export(out, stored, &trained, &gpt),
            Target::Gguf(numbers) => return gguf::export(out, numbers, &trained, &gpt),
            Target::Published(stored) => {
                // First: a refused shape leaves no empty folder.
                weights::config_to_hugging_face(gpt.config()).map_err(|error| BadInput(error.to_string()))?;
                make(out)?;
                weights::save_pretrained(&gpt, out, stored)?;
                trained.tokenizer.save(out)?;
                describe_control_tokens(out, &trained.tokenizer)?;
            }
            Target::Native(stored) => {
                make(out)?;
                weights::save(&gpt, &out.join(WEIGHTS), Layout::Native, stored)?;
                trained.tokenizer.save(out)?;
            }
        }
        println!("{}: weights and tokenizer of step {}", out.display(), trained.checkpoint.step);
        Ok(())
    }
}

fn make(folder: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))
}

/// Writes ids that open texts and end answers, for `transformers`.
fn describe_control_tokens(folder: &Path, tokenizer: &Tokenizer) -> anyhow::Result<()> {
    let (bos, eos) = (tokenizer.bos(), tokenizer.eos());
    let mut description = Description::read(folder.join("config.json"))?;
    description.fields["bos_token_id"] = json!(bos);
    description.fields["eos_token_id"] = json!(eos);
    description.write()?;

    let ends = tokenizer.ends_of_answers();
    let ends = if ends.is_empty() { Value::Null } else { json!(ends) };
    let fields = json!({ "bos_token_id": bos, "eos_token_id": ends, "pad_token_id": eos });
    Description { path: folder.join("generation_config.json"), fields }.write()?;

    let mut words = Description::read(folder.join("tokenizer_config.json"))?;
    words.fields["add_bos_token"] = json!(tokenizer.opens_texts());
    let opening = bos.filter(|_| tokenizer.opens_texts());
    if let Some((id, text)) = opening.and_then(|id| Some((id, tokenizer.specials().text(id)?))) {
        words.fields["bos_token"] = json!(text);
        if tokenizer.written_opening().as_deref() != Some(text) {
            let mut pieces = Description::read(folder.join("tokenizer.json"))?;
            pieces.fields["post_processor"] = opening_with(text, id);
            pieces.write()?;
        }
    }
    words.write()
}

/// A post-processor that opens each text with `text`. Chat templates open conversations.
fn opening_with(text: &str, id: u32) -> Value {
    let token = json!({ "SpecialToken": { "id": text, "type_id": 0 } });
    let sequence = |name: &str| json!({ "Sequence": { "id": name, "type_id": 0 } });
    json!({
        "type": "TemplateProcessing",
        "single": [token, sequence("A")],
        "pair": [token, sequence("A"), sequence("B")],
        "special_tokens": { text: { "id": text, "ids": [id], "tokens": [text] } },
    })
}

struct Description {
    path: PathBuf,
    fields: Value,
}

impl Description {
    fn read(path: PathBuf) -> anyhow::Result<Self> {
        let reading = || format!("reading {}", path.display());
        let text = std::fs::read(&path).with_context(reading)?;
        let fields = serde_json::from_slice(&text).with_context(reading)?;
        Ok(Self { path, fields })
    }

    fn write(&self) -> anyhow::Result<()> {
        durable::write(&self.path, format!("{:#}\n", self.fields).as_bytes())
            .with_context(|| format!("writing {}", self.path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Its `tokenizer_config.json` and the post-processor, where a file has `post_processor` and names `bos`.
    fn exported(post_processor: &Value, bos: &str) -> (Value, Value) {
        let folder = tempfile::tempdir().expect("a folder");
        let file = |name: &str| folder.path().join(name);
        let write =
            |name: &str, fields: Value| Description { path: file(name), fields }.write().expect("written");
        let read = |name: &str| Description::read(file(name)).expect("read").fields;

        Tokenizer::bytes(&["<s>", "<|endoftext|>", "<|bos|>"]).save(folder.path()).expect("saving");
        let mut pieces = read("tokenizer.json");
        pieces["post_processor"] = post_processor.clone();
        write("tokenizer.json", pieces);
        write("tokenizer_config.json", json!({ "bos_token": bos, "add_bos_token": true }));
        write("config.json", json!({}));
        let tokenizer = Tokenizer::load(folder.path()).expect("it loads");
        describe_control_tokens(folder.path(), &tokenizer).expect("it is described");
        (read("tokenizer_config.json"), read("tokenizer.json")["post_processor"].clone())
    }

    #[test]
    fn the_opening_token_of_an_exported_vocabulary_is_the_one_that_its_files_write() {
        let bytes = json!({ "type": "ByteLevel", "trim_offsets": true });
        let template = opening_with("<s>", 256);
        let both = json!({ "type": "Sequence", "processors": [bytes, template] });
        for (published, bos, expected) in [
            (&template, "<s>", &template),
            (&both, "<s>", &both),
            (&Value::Null, "<s>", &template),
            (&template, "<|endoftext|>", &opening_with("<|endoftext|>", 257)),
            (&bytes, "<|bos|>", &opening_with("<|bos|>", 258)),
        ] {
            let (words, post_processor) = exported(published, bos);
            assert_eq!(words, json!({ "bos_token": bos, "add_bos_token": true }), "{published}");
            assert_eq!(post_processor, *expected, "{published}");
        }

        let (words, post_processor) = exported(&bytes, "<s>");
        assert_eq!(words, json!({ "bos_token": "<s>", "add_bos_token": false }));
        assert_eq!(post_processor, bytes);
    }
}
