//! Strict reading of a JSON tree into a [`Config`].
//!
//! The serialised defaults list the keys. Values replace them one by one: one wrong type hides no other. Later checks
//! see its default.

use models::GptConfig;
use models::presets;
use models::{REQUIRED_KEYS, nearest_key};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use super::error::Problems;
use super::overrides::Overrides;
use super::{
    CheckpointSection, Config, DataSection, EvalSection, MemorySection, RanksSection, ReportSection,
    TokenizerSection, TrainSection,
};

/// Wrong values are added to `problems`; defaults replace them.
pub(super) fn config(
    mut given: Map<String, Value>,
    overrides: &Overrides,
    problems: &mut Problems,
) -> Config {
    // Names the schema for editors.
    given.remove("$schema");
    rename(&mut given, "ranks", "local_steps", "round");
    let mut reader = Reader { known: known_keys(), given, overrides, problems };
    let config = Config {
        model: reader.model(),
        tokenizer: reader.section::<TokenizerSection>("tokenizer"),
        data: reader.section::<DataSection>("data"),
        train: reader.section::<TrainSection>("train"),
        eval: reader.section::<EvalSection>("eval"),
        checkpoint: reader.section::<CheckpointSection>("checkpoint"),
        memory: reader.section::<MemorySection>("memory"),
        ranks: reader.section::<RanksSection>("ranks"),
        report: reader.section::<ReportSection>("report"),
    };
    for (key, _) in std::mem::take(&mut reader.given) {
        reader.unknown("", &key);
    }
    config
}

/// Reads configurations of earlier versions.
fn rename(given: &mut Map<String, Value>, section: &str, from: &str, to: &str) {
    let Some(Value::Object(section)) = given.get_mut(section) else { return };
    if section.contains_key(to) {
        return;
    }
    if let Some(value) = section.remove(from) {
        section.insert(to.to_owned(), value);
    }
}

/// Lets other sections be checked.
fn placeholder_model() -> GptConfig {
    presets::preset("gpt2").expect("a preset of this name")
}

fn known_keys() -> Vec<String> {
    fn walk(tree: &Value, path: &str, keys: &mut Vec<String>) {
        for (key, below) in tree.as_object().into_iter().flatten() {
            let path = joined(path, key);
            walk(below, &path, keys);
            keys.push(path);
        }
    }

    let defaults = Config {
        model: placeholder_model(),
        tokenizer: TokenizerSection::default(),
        data: DataSection::default(),
        train: TrainSection::default(),
        eval: EvalSection::default(),
        checkpoint: CheckpointSection::default(),
        memory: MemorySection::default(),
        ranks: RanksSection::default(),
        report: ReportSection::default(),
    };
    let mut keys = Vec::new();
    walk(&tree_of(&defaults), "", &mut keys);

    // On a tie, `optimizer` means `train.optimizer`, not `memory.optimizer`.
    keys.sort_by_key(|key| key.starts_with("memory."));
    keys
}

fn tree_of(value: &impl Serialize) -> Value {
    serde_json::to_value(value).expect("numbers, texts and lists always serialise")
}

fn joined(section: &str, key: &str) -> String {
    if section.is_empty() { key.to_owned() } else { format!("{section}.{key}") }
}

struct Reader<'r> {
    known: Vec<String>,
    given: Map<String, Value>,
    overrides: &'r Overrides,
    problems: &'r mut Problems,
}

impl Reader<'_> {
    fn section<T: Default + Serialize + DeserializeOwned>(&mut self, name: &str) -> T {
        let mut tree = tree_of(&T::default());
        if let Some(given) = self.given.remove(name) {
            self.overlay::<T>(name, "", &mut tree, given);
        }
        serde_json::from_value(tree).expect("each of these values was read before")
    }

    fn overlay<T: DeserializeOwned>(&mut self, name: &str, pointer: &str, tree: &mut Value, given: Value) {
        let path = format!("{name}{}", pointer.replace('/', "."));
        let place = tree.pointer(pointer).expect("only known keys are followed");

        match (place.as_object().cloned(), given) {
            (Some(known), Value::Object(entries)) => {
                for (key, value) in entries {
                    if known.contains_key(&key) {
                        self.overlay::<T>(name, &format!("{pointer}/{key}"), tree, value);
                    } else {
                        self.unknown(&path, &key);
                    }
                }
            }
            (Some(_), other) => {
                self.problems.value(
                    path,
                    &format!("found {other}, expected a section in braces"),
                    self.overrides,
                );
            }
            (None, value) => {
                let mut changed = tree.clone();
                *changed.pointer_mut(pointer).expect("it was there in the original") = value;
                match serde_path_to_error::deserialize::<_, T>(&changed) {
                    Ok(_) => *tree = changed,
                    Err(error) => {
                        let path = format!("{name}.{}", error.path());
                        self.problems.value(path, &error.inner().to_string(), self.overrides);
                    }
                }
            }
        }
    }

    fn model(&mut self) -> GptConfig {
        let Some(given) = self.given.remove("model") else {
            let reason = format!(
                "missing; write {{\"preset\": \"gpt2\"}} (or {}), or give {}",
                presets::PRESETS[1..].join(", "),
                REQUIRED_KEYS.join(", ")
            );
            self.problems.value("model".to_owned(), &reason, self.overrides);
            return placeholder_model();
        };

        let wrong = match GptConfig::from_value(given) {
            Ok(model) => return model,
            Err(models::ConfigError::Several(all)) => all,
            Err(one) => vec![one],
        };

        self.problems.doubt("model");
        for error in wrong {
            match error {
                models::ConfigError::UnknownKey { key, nearest } => {
                    let other_section = self.known.iter().find(|known| last(known) == key).cloned();
                    let meant = other_section.unwrap_or_else(|| joined("model", &nearest));
                    self.problems.unknown_key(joined("model", &key), meant, self.overrides);
                }
                models::ConfigError::Value { path, reason } => {
                    self.problems.value(format!("model.{path}"), &reason, self.overrides);
                }
                other => self.problems.model(other),
            }
        }
        placeholder_model()
    }

    fn unknown(&mut self, section: &str, key: &str) {
        let path = joined(section, key);
        let meant = self.meant(section, key);
        self.problems.unknown_key(path, meant, self.overrides);
    }

    /// The most similar known key; on a tie, one of this section: `train.dialogues` means `data.dialogues`. A key that
    /// differs in underscores alone wins.
    fn meant(&self, section: &str, key: &str) -> String {
        let sibling = |known: &&String| **known == joined(section, last(known));
        let (mut known, others): (Vec<_>, Vec<_>) = self.known.iter().partition(sibling);
        let letters = |name: &str| name.replace('_', "");
        if let Some(same) = known.iter().find(|known| letters(last(known)) == letters(key)) {
            return (*same).clone();
        }
        known.extend(others);
        let name = nearest_key(key, known.iter().map(|known| last(known)));
        known.into_iter().find(|known| Some(last(known)) == name).cloned().unwrap_or_default()
    }
}

fn last(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or(path)
}
