//! Builds test binaries with cargo.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use serde_json::Value;
use suite::Size;

use super::binary::{Binary, Ran, watch};
use crate::burn_22;
use xtask::{invocation::Invocation, workspace};

/// All targets without `test = false`, except examples.
const TARGETS: &str = "--tests";

/// The full suite tests this feature together with the defaults.
const MORE: &str = "tokenizer/parquet-zstd";

/// The full suite tests these once more, as far as the gate does. Both change what Burn is compiled from, so it is
/// compiled for both at once.
const OTHERWISE: [(&str, &str); 2] = [("on-vulkan", "spirv"), ("web", "structured")];

pub(super) fn binaries(size: Size, packages: &[String]) -> Result<Vec<Binary>> {
    let mut binaries = compiled(&cargo_test(size, packages), size)?;
    if size == Size::Full && packages.is_empty() {
        let (packages, features): (Vec<_>, Vec<_>) = OTHERWISE
            .iter()
            .map(|(package, feature)| ((*package).to_owned(), format!("{package}/{feature}")))
            .unzip();
        let test = cargo_test(size, &packages).arguments(["--features".to_owned(), features.join(",")]);
        for binary in compiled(&test, Size::Gate)? {
            let feature = OTHERWISE
                .iter()
                .find(|(package, _)| *package == binary.package)
                .map_or("", |(_, feature)| feature);
            binaries.push(Binary { target: format!("{} with {feature}", binary.target), ..binary });
        }
        burn_22::prepare()?;
        binaries.extend(compiled(&burn_22_test(), size)?);
    }
    Ok(binaries)
}

fn compiled(test: &Invocation, size: Size) -> Result<Vec<Binary>> {
    let messages = ["--no-run", "--message-format", "json-render-diagnostics"];
    let build = test.clone().arguments([TARGETS]).arguments(messages);
    println!("$ {build}");
    let messages = build.output(workspace::root())?;
    let binaries = messages
        .lines()
        .map(|line| parse(line, size))
        .filter_map(Result::transpose)
        .collect::<Result<Vec<_>>>()?;
    if binaries.is_empty() {
        bail!("`{build}` has built no test");
    }
    Ok(binaries)
}

pub(super) fn documentation(
    size: Size,
    packages: &[String],
    variables: &[(&'static str, String)],
) -> Result<Ran> {
    let test = cargo_test(size, packages).arguments(["--doc", "--quiet"]);
    println!("$ {test}");
    let test = variables.iter().fold(test, |test, (name, value)| test.environment(name, value));
    let child = test
        .command(workspace::root())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("`cargo` could not be started")?;
    watch(("documentation's examples", child), Duration::from_mins(30), &mut |_| Ok(()))
}

/// The quick suite covers the default members, which share the first command's build. Larger sizes add Vulkan, with a
/// second backend of Burn.
pub(super) fn cargo_test(size: Size, packages: &[String]) -> Invocation {
    let test = Invocation::cargo("test");
    let test = match size {
        Size::Full => test.arguments(["--profile", "checked", "--no-fail-fast"]),
        Size::Quick | Size::Gate => test.arguments(["--release", "--no-fail-fast"]),
    };
    match (packages, size) {
        ([], Size::Quick) => test,
        ([], Size::Gate) => test.arguments(["--workspace"]),
        ([], Size::Full) => test.arguments(["--workspace", "--features", MORE]),
        _ => test.arguments(packages.iter().flat_map(|package| ["--package".to_owned(), package.clone()])),
    }
}

/// The workspace's own profile has the checks of ours.
fn burn_22_test() -> Invocation {
    let manifest = format!("{}/Cargo.toml", burn_22::FOLDER);
    Invocation::cargo("test --profile checked --workspace --manifest-path").arguments([manifest])
}

fn parse(message: &str, size: Size) -> Result<Option<Binary>> {
    let message: Value = serde_json::from_str(message).context("cargo printed a message that is not JSON")?;
    let is_test = message["reason"] == "compiler-artifact" && message["profile"]["test"] == true;
    let (Some(executable), true) = (message["executable"].as_str(), is_test) else { return Ok(None) };
    let text = |value: &Value| value.as_str().context("cargo's message lacks a name").map(str::to_owned);
    let manifest = PathBuf::from(text(&message["manifest_path"])?);
    let folder = manifest.parent().unwrap_or(Path::new(".")).to_owned();
    let package = text(&message["package_id"])?;
    Ok(Some(Binary {
        package: name_in(&package, &folder),
        target: text(&message["target"]["name"])?,
        executable: executable.into(),
        folder,
        size,
    }))
}

/// From `path+file:///repository/models#0.1.0`, or `…#name@0.1.0` if the folder has another name.
fn name_in(identifier: &str, folder: &Path) -> String {
    let named = identifier.rsplit_once('#').and_then(|(_, rest)| rest.split_once('@'));
    let folder = folder.file_name().unwrap_or_default().to_string_lossy();
    named.map_or_else(|| folder.into_owned(), |(name, _)| name.to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_full_suite_tests_burn_22_with_the_checks_of_its_other_tests() {
        let nested = "backend-offload/burn-0.22/Cargo.toml";
        assert_eq!(
            burn_22_test().to_string(),
            format!("cargo test --profile checked --workspace --manifest-path {nested}")
        );
        let [own, theirs] = ["Cargo.toml", nested].map(|manifest| {
            let text = fs::read_to_string(workspace::root().join(manifest)).unwrap();
            let (_, profile) = text.split_once("[profile.checked]\n").unwrap();
            profile.split("\n\n").next().unwrap().trim_end().to_owned()
        });
        assert_eq!(theirs, own);
    }

    #[test]
    fn the_quick_suite_compiles_what_the_first_command_has_and_larger_ones_add_to_it() {
        assert_eq!(cargo_test(Size::Quick, &[]).to_string(), "cargo test --release --no-fail-fast");
        assert_eq!(
            cargo_test(Size::Gate, &[]).to_string(),
            "cargo test --release --no-fail-fast --workspace"
        );
        assert_eq!(
            cargo_test(Size::Full, &[]).to_string(),
            "cargo test --profile checked --no-fail-fast --workspace \
             --features tokenizer/parquet-zstd"
        );
        assert_eq!(
            cargo_test(Size::Full, &["pager".into(), "web".into()]).to_string(),
            "cargo test --profile checked --no-fail-fast --package pager --package web"
        );
    }

    #[test]
    fn messages_of_test_binaries_name_package_target_and_folder() {
        let message = |identifier: &str, test: bool| {
            format!(
                r#"{{"reason": "compiler-artifact", "package_id": "{identifier}", "manifest_path": "/r/vulkan/Cargo.toml",
                "profile": {{"test": {test}}}, "target": {{"name": "it"}}, "executable": "/t/it-1"}}"#
            )
        };
        let binary =
            parse(&message("path+file:///r/vulkan#on-vulkan@0.1.0", true), Size::Gate).unwrap().unwrap();
        assert_eq!((binary.package.as_str(), binary.target.as_str()), ("on-vulkan", "it"));
        assert_eq!(
            (binary.executable.as_path(), binary.folder.as_path()),
            (Path::new("/t/it-1"), Path::new("/r/vulkan"))
        );
        assert_eq!(
            parse(&message("path+file:///r/vulkan#0.1.0", true), Size::Gate).unwrap().unwrap().package,
            "vulkan"
        );
        assert_eq!(parse(&message("path+file:///r/vulkan#0.1.0", false), Size::Gate).unwrap(), None);
        assert_eq!(parse(r#"{"reason": "build-finished", "success": true}"#, Size::Gate).unwrap(), None);
    }
}
