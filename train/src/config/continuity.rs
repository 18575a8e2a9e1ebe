//! Two configurations of one run: what may differ, and what paths mean wherever the program is started.

use std::path::Path;

use anyhow::Context;

use super::Config;

impl Config {
    /// Keys by which `before` led to other weights or other data than this would. Of a run that has not taken a step,
    /// only what its files depend on.
    pub(crate) fn contradicts(&self, before: &Self, begun: bool) -> Vec<&'static str> {
        let (ours, theirs) = (&self.train, &before.train);
        let always =
            [("model", self.model == before.model), ("tokenizer", self.tokenizer == before.tokenizer)];
        let once_begun = [
            ("data", self.data == before.data),
            ("train.seed", ours.seed == theirs.seed),
            ("train.micro_batch", ours.micro_batch == theirs.micro_batch),
            ("train.accumulate", ours.accumulate == theirs.accumulate),
            ("train.sequence", self.sequence() == before.sequence()),
            ("train.optimizer", ours.optimizer == theirs.optimizer),
            ("train.overfit_one_batch", ours.overfit_one_batch == theirs.overfit_one_batch),
        ];
        let compared = always.into_iter().chain(once_begun.into_iter().filter(|_| begun));
        compared.filter(|(_, same)| !same).map(|(key, _)| key).collect()
    }

    /// Makes paths absolute: a saved configuration is read from any folder.
    pub(crate) fn resolve_paths(&mut self) -> anyhow::Result<()> {
        for path in [&mut self.data.path, &mut self.tokenizer.path].into_iter().flatten() {
            *path = std::path::absolute(&path).with_context(|| format!("resolving {}", path.display()))?;
        }
        Ok(())
    }

    /// Keys whose path leads nowhere, with the path.
    pub(crate) fn dead_paths(&self) -> Vec<(&'static str, &Path)> {
        let paths = [("data.path", &self.data.path), ("tokenizer.path", &self.tokenizer.path)];
        let given = paths.into_iter().filter_map(|(key, path)| Some((key, path.as_deref()?)));
        given.filter(|(_, path)| !path.exists()).collect()
    }
}
