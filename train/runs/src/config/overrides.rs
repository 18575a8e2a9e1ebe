//! `--set section.key=value`, applied before reading, so checked like the file.

use serde_json::{Map, Value};

use super::error::{Problems, Source};

#[derive(Debug, Default)]
pub(super) struct Overrides(Vec<String>);

impl Overrides {
    /// A value that is not JSON is text.
    pub(super) fn apply(set: &[String], tree: &mut Map<String, Value>, problems: &mut Problems) -> Self {
        let mut overrides = Self::default();
        for given in set {
            match assign(given, tree) {
                Ok(path) => overrides.0.push(path),
                Err(reason) => problems.refused_override(given, reason),
            }
        }
        overrides.replace_length(tree);
        overrides
    }

    /// A length takes the place of the file's, of another kind too.
    fn replace_length(&self, tree: &mut Map<String, Value>) {
        let Some(train) = tree.get_mut("train").and_then(Value::as_object_mut) else { return };
        let is_set = |key: &str| self.source(&format!("train.{key}")) == Source::Set;
        let gives = |key: &str| is_set(key) && train.get(key).is_some_and(|value| !value.is_null());
        if ["steps", "tokens", "epochs"].into_iter().any(gives) {
            for key in ["tokens", "epochs"].into_iter().filter(|key| !is_set(key)) {
                train.remove(key);
            }
        }
    }

    pub(super) fn source(&self, path: &str) -> Source {
        let covers = |made: &String| {
            path.strip_prefix(made.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        if self.0.iter().any(covers) { Source::Set } else { Source::File }
    }
}

fn assign(given: &str, tree: &mut Map<String, Value>) -> Result<String, String> {
    let form = "write it as section.key=value";
    let (path, value) = given.split_once('=').ok_or(form)?;
    let keys: Vec<&str> = path.trim().split('.').collect();
    if keys.contains(&"") {
        return Err(form.to_owned());
    }

    let mut section = tree;
    let mut made = None;
    for (depth, key) in keys.iter().enumerate() {
        let walked = keys[..=depth].join(".");
        if !section.contains_key(*key) {
            made.get_or_insert(walked.clone());
        }
        let place = section.entry(*key).or_insert_with(|| Value::Object(Map::new()));
        if depth + 1 == keys.len() {
            *place = serde_json::from_str(value).unwrap_or_else(|_| value.into());
            break;
        }
        if place.is_null() {
            *place = Value::Object(Map::new());
        }
        let found = place.to_string();
        section = place.as_object_mut().ok_or_else(|| format!("`{walked}` is {found}, not a section"))?;
    }
    Ok(made.unwrap_or_else(|| path.trim().to_owned()))
}
