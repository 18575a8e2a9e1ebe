//! `cargo xtask reference`: the tests that hold `docs/reference/` write it instead.

use std::fs;

use anyhow::Result;
use xtask::{invocation::Invocation, workspace};

use crate::{errors, tidy};

const PACKAGES: [&str; 4] = ["runs", "train-units", "web", "serve"];

pub(crate) fn run() -> Result<()> {
    let tree = tidy::read_tree()?;
    let page = tree.get(errors::PAGE).map_or("", String::as_str);
    let page = errors::page(tree.iter().map(|(path, text)| (path.as_str(), text.as_str())), page);
    fs::write(workspace::root().join(errors::PAGE), page)?;

    let packages = PACKAGES.iter().flat_map(|package| ["--package", package]);
    let test = Invocation::cargo("test --release --lib --bins --tests").arguments(packages);
    test.arguments(["the_reference_has"]).environment(suite::WRITE_REFERENCE, "1").run(workspace::root())
}
