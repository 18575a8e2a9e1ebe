//! Compares two configurations of a run, and resolves paths.

use std::fmt;
use std::path::Path;

use anyhow::Context;
use serde_json::Value;

use super::{Config, Round};
use crate::text_of;

/// A key whose value differs.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// Full key: `train.steps`.
    pub key: String,
    before: Value,
    now: Value,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, before, now } = self;
        write!(f, "`{key}` from {before} to {now}")
    }
}

/// Differences from a run's trained configuration.
#[derive(Debug, Default)]
pub struct Changes {
    /// Changes for resuming.
    pub allowed: Vec<Change>,
    /// Changes to weights, moments or data order.
    pub refused: Vec<Change>,
}

impl Config {
    /// Unless `begun`, only model and vocabulary are fixed.
    pub fn changes_since(&self, before: &Self, begun: bool) -> Changes {
        let mut changes = Changes::default();
        let [old, new] = [before, self]
            .map(|config| serde_json::to_value(config).expect("numbers, texts and lists always serialise"));
        for change in differences("", &old, &new) {
            if change.key == "train.sequence" && self.sequence() == before.sequence() {
                continue;
            }
            let kept = if self.may_change(&change.key, before, begun) {
                &mut changes.allowed
            } else {
                &mut changes.refused
            };
            kept.push(change);
        }
        changes
    }

    fn may_change(&self, key: &str, before: &Self, begun: bool) -> bool {
        let (ours, theirs) = (&self.train, &before.train);
        let (section, _) = key.split_once('.').unwrap_or((key, ""));
        match key {
            // Weights are stored in f32. Data, indexes and frozen weights are compared by digest: they may move.
            "model.compute"
            | "data.path"
            | "data.mixture"
            | "data.val_path"
            | "data.indexes"
            | "data.on_bad_record"
            | "train.lora_base.path" => true,
            "train.micro_batch" | "train.accumulate" => {
                !begun || ours.micro_batch * ours.accumulate == theirs.micro_batch * theirs.accumulate
            }
            "train.seed"
            | "train.sequence"
            | "train.optimizer"
            | "train.overfit_one_batch"
            | "train.freeze" => !begun,
            "memory.base" => false,
            _ if key.starts_with("train.lora") => false,
            _ => match section {
                "model" | "tokenizer" => false,
                "data" => !begun,
                _ => true,
            },
        }
    }

    /// Makes paths absolute, for use from any folder. Refuses those that JSON cannot hold.
    pub fn resolve_paths(&mut self) -> anyhow::Result<()> {
        let Self { data, tokenizer, memory, ranks, .. } = self;
        let paths = [&mut data.path, &mut data.val_path, &mut tokenizer.path, &mut memory.disk];
        let recorded = if let Round::AsIn(run) = &mut ranks.round { Some(run) } else { None };
        let parts = data.mixture.iter_mut().map(|part| &mut part.path);
        let base = self.train.lora_base.iter_mut().map(|base| &mut base.path);
        let listed = data.indexes.iter_mut().flat_map(|listed| [&mut listed.index, &mut listed.set]);
        for path in paths.into_iter().flatten().chain(parts).chain(listed).chain(base).chain(recorded) {
            *path = std::path::absolute(&path).with_context(|| format!("resolving {}", path.display()))?;
            text_of(path)?;
        }
        Ok(())
    }

    /// Keys with missing paths.
    pub fn dead_paths(&self) -> Vec<(&'static str, &Path)> {
        let paths = [
            ("data.path", &self.data.path),
            ("data.val_path", &self.data.val_path),
            ("tokenizer.path", &self.tokenizer.path),
            ("memory.disk", &self.memory.disk),
        ];
        let given = paths.into_iter().filter_map(|(key, path)| Some((key, path.as_deref()?)));
        let listed = self.data.indexes.iter().flat_map(|listed| [&listed.index, &listed.set]);
        let given = given.chain(listed.map(|path| ("data.indexes", path.as_path())));
        let recorded = if let Round::AsIn(run) = &self.ranks.round { Some(run) } else { None };
        let given = given.chain(recorded.map(|run| ("ranks.round", run.as_path())));
        let given = given.chain(self.data.mixture.iter().map(|part| ("data.mixture", part.path.as_path())));
        given.filter(|(_, path)| !path.exists()).collect()
    }
}

fn differences(key: &str, before: &Value, now: &Value) -> Vec<Change> {
    if let (Value::Object(old), Value::Object(new)) = (before, now) {
        let mut keys: Vec<_> = old.keys().chain(new.keys().filter(|key| !old.contains_key(*key))).collect();
        keys.sort();
        let within = |name: &String| if key.is_empty() { name.clone() } else { format!("{key}.{name}") };
        let at = |name: &String| {
            let [old, new] = [old, new].map(|values| values.get(name).unwrap_or(&Value::Null));
            differences(&within(name), old, new)
        };
        return keys.into_iter().flat_map(at).collect();
    }
    if before == now {
        return Vec::new();
    }
    vec![Change { key: key.to_owned(), before: before.clone(), now: now.clone() }]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(set: &[&str]) -> Config {
        let set: Vec<_> = set.iter().map(|given| (*given).to_owned()).collect();
        Config::load("toy", &set).expect("a preset with valid values")
    }

    /// Changes to a toy run resumed with `set`.
    fn changes(set: &[&str], begun: bool) -> [Vec<String>; 2] {
        let Changes { allowed, refused } = config(set).changes_since(&config(&[]), begun);
        [allowed, refused].map(|changes| changes.into_iter().map(|change| change.key).collect())
    }

    #[cfg(unix)]
    #[test]
    fn a_path_that_is_not_utf_8_is_refused_by_name() {
        use std::ffi::OsStr;
        use std::os::unix::ffi::OsStrExt;

        let mut odd = config(&[]);
        odd.data.path = Some(OsStr::from_bytes(b"/texts/caf\xe9.txt").into());
        let said = odd.resolve_paths().expect_err("no text").to_string();
        assert!(said.contains("/texts/caf") && said.contains("is not UTF-8"), "{said}");
    }

    #[test]
    fn the_run_whose_rounds_are_repeated_is_found_from_any_folder() {
        let mut config = config(&["ranks.exchange=rarely", "ranks.round=as in no/such/run"]);
        config.resolve_paths().expect("text");
        let Round::AsIn(run) = &config.ranks.round else { panic!("{:?}", config.ranks.round) };
        assert!(run.is_absolute() && run.ends_with("no/such/run"), "{}", run.display());
        assert_eq!(config.dead_paths(), [("ranks.round", run.as_path())]);
    }

    #[test]
    fn a_run_resumes_with_other_steps_evaluations_and_budgets_and_prints_which() {
        let set = ["train.steps=7777", "eval.every=3", "memory.device_budget=9MiB", "model.compute=bf16"];
        let [allowed, refused] = changes(&set, true);
        assert_eq!(allowed, ["eval.every", "memory.device_budget", "model.compute", "train.steps"]);
        assert!(refused.is_empty(), "{refused:?}");
        let said = config(&set[..1]).changes_since(&config(&["train.steps=100"]), true).allowed;
        assert_eq!(said[0].to_string(), "`train.steps` from 100 to 7777");
    }

    #[test]
    fn a_step_may_split_its_sequences_differently_but_keeps_their_number() {
        let before = config(&["train.micro_batch=8", "train.accumulate=2"]);
        let otherwise = config(&["train.micro_batch=4", "train.accumulate=4"]);
        assert!(otherwise.changes_since(&before, true).refused.is_empty());
        let more = config(&["train.micro_batch=8", "train.accumulate=4"]);
        let refused = more.changes_since(&before, true).refused;
        assert_eq!(refused[0].to_string(), "`train.accumulate` from 2 to 4");
        assert_eq!(more.changes_since(&before, false).refused, []);
    }

    #[test]
    fn adapters_never_change_and_their_base_may_move() {
        let digest = "00".repeat(32);
        let based = |path: &str| format!(r#"train.lora_base={{"path": "{path}", "sha256": "{digest}"}}"#);
        let adamw = "train.optimizer=adamw";
        let tuned =
            |set: &[&str], path: &str| config(&[&[adamw, "train.lora.rank=4", &based(path)], set].concat());
        let before = tuned(&[], "base");
        let moved = tuned(&[], "elsewhere").changes_since(&before, true);
        assert_eq!((moved.allowed.len(), moved.refused.len()), (1, 0), "{moved:?}");
        for begun in [false, true] {
            for set in [&["train.lora.rank=5"][..], &["train.lora.dropout=0.1"], &["memory.base=nf4"]] {
                let refused = tuned(set, "base").changes_since(&before, begun).refused;
                assert_eq!(refused.len(), 1, "{refused:?}");
            }
            let whole = config(&[adamw]).changes_since(&before, begun).refused;
            assert_eq!(whole.len(), 2, "{whole:?}");
        }
    }

    #[test]
    fn frozen_groups_change_before_the_first_step_only_and_rates_of_groups_always() {
        let freeze = [r#"train.freeze=["embedding"]"#];
        assert_eq!(changes(&freeze, true), [vec![], vec!["train.freeze".to_owned()]]);
        assert_eq!(changes(&freeze, false), [vec!["train.freeze".to_owned()], vec![]]);
        let groups = [r#"train.groups=[{"match": "embedding", "lr_scale": 0.1}]"#];
        assert_eq!(changes(&groups, true), [vec!["train.groups".to_owned()], vec![]]);
    }

    #[test]
    fn an_explicit_sequence_equal_to_the_default_is_no_change() {
        let left = config(&["train.sequence=null"]);
        let written = config(&[&format!("train.sequence={}", left.model.n_positions)]);
        let changes = written.changes_since(&left, true);
        assert!(changes.allowed.is_empty() && changes.refused.is_empty(), "{changes:?}");
    }

    #[test]
    fn model_and_vocabulary_never_change_and_data_not_after_the_first_step() {
        let set = ["model.n_layer=9", "tokenizer.vocab_size=300", "train.seed=5", "data.val_fraction=0.2"];
        let all = ["data.val_fraction", "model.n_layer", "tokenizer.vocab_size", "train.seed"];
        assert_eq!(changes(&set, true)[1], all);
        assert_eq!(changes(&set, false)[1], [all[1], all[2]]);
    }
}
