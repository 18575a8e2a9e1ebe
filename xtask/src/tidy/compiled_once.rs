//! Rules for what cargo compiles: the README's commands share the first one's build, and code that runs during
//! compilation is not optimised.
//!
//! Cargo compiles a dependency once per set of features. One more feature in tests can compile Burn twice. So these
//! rules compare commands' unit graphs, printed without compiling.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use serde::Deserialize;

use super::{File, Finding};
use xtask::{invocation::Invocation, workspace};

const PINS: &str = "xtask/pins/Cargo.toml";

/// The README's first command.
const FIRST: &str = "build --release --package train";

/// The release whose symbols the CUDA bindings demand.
const CUDA: &str = "cuda-12080";

/// They reuse its build.
const LATER: [&str; 5] = [
    "test --release --no-run",
    "build --release --package examples",
    "build --release --package serve",
    "build --release --package xtask",
    "build --release --package bench",
];

#[derive(Deserialize)]
struct Graph {
    units: Vec<Unit>,
}

#[derive(Deserialize)]
struct Unit {
    pkg_id: String,
    target: Target,
    profile: Profile,
    mode: String,
    features: BTreeSet<String>,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
    name: String,
}

#[derive(Deserialize)]
struct Profile {
    opt_level: String,
}

/// Package, target, mode and optimisation level: such units differ only in features. A procedural macro's dependencies,
/// not optimised, are other units.
type Identity<'a> = (&'a str, &'a str, &'a str, &'a str);

impl Graph {
    fn for_command(command: &str) -> Result<Self> {
        // Makes stable cargo print unit graphs.
        let graph = Invocation::cargo(command)
            .arguments(["--unit-graph", "-Z", "unstable-options"])
            .environment("RUSTC_BOOTSTRAP", "1")
            .output(workspace::root())?;
        serde_json::from_str(&graph)
            .with_context(|| format!("`cargo {command} --unit-graph` has another form"))
    }

    fn features(&self) -> BTreeMap<Identity<'_>, Vec<&BTreeSet<String>>> {
        let mut features = BTreeMap::<_, Vec<_>>::new();
        for unit in self.units.iter().filter(|unit| unit.pkg_id.starts_with("registry+")) {
            let (name, level) = (unit.target.name.as_str(), unit.profile.opt_level.as_str());
            features
                .entry((unit.pkg_id.as_str(), name, unit.mode.as_str(), level))
                .or_default()
                .push(&unit.features);
        }
        features
    }
}

pub(super) fn all() -> Result<Vec<Finding>> {
    let first = Graph::for_command(FIRST)?;
    let mut findings = optimised(FIRST, &first);
    findings.extend(without_cuda_release(&first));
    for command in LATER {
        let later = Graph::for_command(command)?;
        findings.extend(compiled_again(&first, command, &later));
    }
    let dev = "build --workspace";
    findings.extend(optimised(dev, &Graph::for_command(dev)?));
    Ok(findings)
}

/// A feature: `.cargo/config.toml` does not reach `cargo install`.
fn without_cuda_release(first: &Graph) -> Option<Finding> {
    let is_linked = |unit: &&Unit| {
        unit.target.name == "cudarc" && unit.target.kind == ["lib"] && unit.profile.opt_level != "0"
    };
    let states = |unit: &Unit| unit.features.contains(CUDA);
    if first.units.iter().filter(is_linked).any(states) {
        return None;
    }
    let reason = format!(
        "cudarc lacks `{CUDA}`: the program would demand symbols of whatever CUDA the building machine has"
    );
    Some(File { path: "Cargo.toml", text: "" }.finding(1, "CUDA release", reason))
}

fn compiled_again(first: &Graph, command: &str, later: &Graph) -> Vec<Finding> {
    let known = first.features();
    let mut findings = Vec::new();
    for (unit, asked) in later.features() {
        let Some(compiled) = known.get(&unit) else { continue };
        for features in asked.into_iter().filter(|features| !compiled.contains(features)) {
            let differences = compiled[0].symmetric_difference(features).map(String::as_str);
            let differences: Vec<&str> = differences.collect();
            let reason = format!(
                "`cargo {command}` compiles {} again, and its dependents, since `cargo {FIRST}` compiles it with \
                 other features: {} has to name `{}`",
                unit.0.rsplit(['#', '/']).next().unwrap_or(unit.0),
                PINS,
                differences.join("`, `")
            );
            findings.push(File { path: PINS, text: "" }.finding(1, "compiled once", reason));
        }
    }
    findings
}

/// Procedural macros and build scripts run once, in less time than optimising takes.
fn optimised(command: &str, graph: &Graph) -> Vec<Finding> {
    let runs_while_compiling = |unit: &&Unit| {
        unit.target.kind.iter().any(|kind| matches!(kind.as_str(), "proc-macro" | "custom-build"))
            && unit.mode == "build"
            && unit.profile.opt_level != "0"
    };
    let finding = |unit: &Unit| {
        let reason = format!("`cargo {command}` optimises {}, which runs while compiling", unit.pkg_id);
        File { path: "Cargo.toml", text: "" }.finding(1, "compiled once", reason)
    };
    graph.units.iter().filter(runs_while_compiling).map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(units: &[(&str, &str, &str, &[&str])]) -> Graph {
        let unit = |(package, kind, level, features): &(&str, &str, &str, &[&str])| Unit {
            pkg_id: format!("registry+x#{package}@1.0.0"),
            target: Target { kind: vec![(*kind).to_owned()], name: (*package).to_owned() },
            profile: Profile { opt_level: (*level).to_owned() },
            mode: "build".to_owned(),
            features: features.iter().map(|feature| (*feature).to_owned()).collect(),
        };
        Graph { units: units.iter().map(unit).collect() }
    }

    #[test]
    fn a_dependency_with_one_more_feature_in_a_later_command_is_named_with_its_feature() {
        let first = graph(&[("bytes", "lib", "3", &["std"])]);
        let later = graph(&[("bytes", "lib", "3", &["std", "serde"]), ("tokio", "lib", "3", &[])]);
        let findings = compiled_again(&first, "test", &later);
        assert_eq!(findings.len(), 1, "{findings:?}");
        let reason = &findings[0].reason;
        assert!(reason.contains("bytes@1.0.0") && reason.ends_with("has to name `serde`"), "{reason}");
    }

    #[test]
    fn equal_features_and_dependencies_of_macros_are_no_finding() {
        let first = graph(&[("regex", "lib", "3", &["std"]), ("syn", "lib", "0", &["full"])]);
        let later = graph(&[("regex", "lib", "3", &["std"]), ("regex", "lib", "0", &["unicode"])]);
        assert_eq!(compiled_again(&first, "test", &later), []);
    }

    #[test]
    fn cuda_bindings_without_a_stated_release_are_a_finding() {
        let stated = graph(&[("cudarc", "lib", "0", &[]), ("cudarc", "lib", "3", &["driver", CUDA])]);
        assert_eq!(without_cuda_release(&stated), None);
        let guessed = graph(&[("cudarc", "lib", "3", &["driver", "cuda-version-from-build-system"])]);
        assert!(without_cuda_release(&guessed).is_some_and(|finding| finding.reason.contains("cuda-12080")));
    }

    #[test]
    fn an_optimised_macro_is_a_finding_and_an_optimised_library_is_none() {
        let units = graph(&[("serde_derive", "proc-macro", "2", &[]), ("serde", "lib", "2", &[])]);
        let findings = optimised("build", &units);
        assert_eq!(findings.len(), 1);
        assert!(findings[0].reason.contains("serde_derive"));
    }
}
