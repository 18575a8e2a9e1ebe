//! Differences between a model's tensors and a file's.

use std::collections::BTreeMap;
use std::fmt;

/// All differences.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Tensors that only the model has.
    pub missing: Vec<String>,
    /// Tensors that only the file has.
    pub extra: Vec<String>,
    /// Name, expected shape, found shape.
    pub reshaped: Vec<(String, Vec<usize>, Vec<usize>)>,
}

impl Report {
    pub(crate) fn compare(
        wanted: &BTreeMap<String, Vec<usize>>,
        found: &BTreeMap<String, Vec<usize>>,
        ignored: impl Fn(&str) -> bool,
    ) -> Self {
        let mut report = Self::default();
        for (name, shape) in wanted {
            match found.get(name) {
                None => report.missing.push(name.clone()),
                Some(other) if other != shape => {
                    report.reshaped.push((name.clone(), shape.clone(), other.clone()));
                }
                Some(_) => {}
            }
        }
        report.extra =
            found.keys().filter(|name| !wanted.contains_key(*name) && !ignored(name)).cloned().collect();
        report
    }

    pub(crate) fn is_clean(&self) -> bool {
        self.missing.is_empty() && self.extra.is_empty() && self.reshaped.is_empty()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |out: &mut fmt::Formatter<'_>, title: &str, names: &[String]| match names {
            [] => Ok(()),
            names => writeln!(out, "  {title} ({}): {}", names.len(), names.join(", ")),
        };
        list(out, "missing", &self.missing)?;
        list(out, "extra", &self.extra)?;
        for (name, wanted, found) in &self.reshaped {
            writeln!(out, "  `{name}` has shape {found:?}, the model needs {wanted:?}")?;
        }
        Ok(())
    }
}
