//! The guide's whole project: an example of this workspace, whose manifest cargo resolves.

use std::fs;

use anyhow::{Context, Result};

use super::{File, Finding, Tree};
use xtask::{
    invocation::Invocation,
    workspace::{self, Workspace},
};

const PAGE: &str = "backend-offload/GUIDE.md";
const PROGRAM: &str = "examples/src/bin/whole_project.rs";

struct Project<'t> {
    manifest: &'t str,
    program: &'t str,
}

impl<'t> Project<'t> {
    fn in_page(text: &'t str) -> Option<Self> {
        let text = text.split_once("\n# A whole project\n")?.1;
        let block = |opens: &str| Some(text.split_once(opens)?.1.split_once("```\n")?.0);
        Some(Self { manifest: block("```toml\n")?, program: block("```rust,ignore\n")? })
    }
}

pub(super) fn all(tree: &Tree) -> Vec<Finding> {
    let page = File { path: PAGE, text: tree.get(PAGE).map_or("", String::as_str) };
    let finding = |reason: String| page.finding(1, "whole project", reason);
    let Some(project) = Project::in_page(page.text) else {
        return vec![finding("has no whole project".to_owned())];
    };
    let mut findings = Vec::new();
    if tree.get(PROGRAM).map(String::as_str) != Some(project.program) {
        findings.push(finding(format!("its program is not {PROGRAM}")));
    }
    findings.extend(
        resolve(&project).err().map(|error| finding(format!("cargo refuses its manifest: {error:#}"))),
    );
    findings
}

fn resolve(project: &Project) -> Result<()> {
    let folder = Workspace::read()?.target.join("whole-project");
    fs::create_dir_all(folder.join("src")).context("a folder for the project")?;
    let clone = workspace::root().to_string_lossy();
    let manifest = project.manifest.replace("../spillway", &clone) + "\n[workspace]\n";
    fs::write(folder.join("Cargo.toml"), manifest)?;
    fs::write(folder.join("src/main.rs"), project.program)?;
    fs::copy(workspace::root().join("Cargo.lock"), folder.join("Cargo.lock"))?;
    // Packages for other systems may not be downloaded.
    let metadata = "metadata --offline --quiet --format-version 1 --filter-platform host-tuple";
    let metadata = Invocation::cargo(metadata).output(&folder)?;
    anyhow::ensure!(
        metadata.contains("\"name\":\"backend-offload\""),
        "it does not depend on backend-offload"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_with_a_feature_that_does_not_exist_is_refused() {
        let page = fs::read_to_string(workspace::root().join(PAGE)).unwrap();
        let project = Project::in_page(&page).unwrap();
        resolve(&project).unwrap();
        let manifest = project.manifest.replace("\"router\"", "\"rooter\"");
        assert!(resolve(&Project { manifest: &manifest, ..project }).is_err());
    }

    mod gate {
        use super::*;

        #[test]
        #[ignore = "gate: compiles an example"]
        fn the_whole_project_prints_finite_losses_and_moves_bytes_out() {
            let run = Invocation::cargo("run --quiet --release --package examples --bin whole_project");
            let said = run.output(workspace::root()).unwrap();
            let loss = |line: &str| line.strip_prefix("step ")?.split_once(": loss ")?.1.parse::<f64>().ok();
            let losses: Vec<f64> = said.lines().filter_map(loss).collect();
            assert!(losses.len() == 10 && losses.iter().all(|loss| loss.is_finite()), "{said}");
            let moved = said.lines().find_map(|line| line.strip_prefix("moved ")).unwrap_or_default().trim();
            assert!(moved.contains(" out in ") && !moved.starts_with("0 B "), "{said}");
        }
    }
}
