//! The workspace as cargo describes it.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::invocation::Invocation;

/// Members and the build folder.
pub struct Workspace {
    /// All members.
    pub members: Vec<Member>,
    /// The build folder.
    pub target: PathBuf,
}

/// A package.
#[derive(Debug, Default)]
pub struct Member {
    /// Package name.
    pub name: String,
    /// Relative to the repository's root.
    pub manifest: String,
    /// Feature names.
    pub features: Vec<String>,
    /// Dependencies on members and others.
    pub dependencies: Vec<Dependency>,
    /// Whether documentation examples are tests.
    pub tests_documentation: bool,
}

/// A dependency of a member.
#[derive(Debug)]
pub struct Dependency {
    /// Package name.
    pub name: String,
    /// Only for the crate's tests and benches.
    pub dev: bool,
}

/// The repository's root.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is a member below the root")
}

/// The checked-out commit, with `-dirty` if tracked files differ.
pub fn commit() -> Result<String> {
    let described = Invocation::new("git")
        .arguments(["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"])
        .output(root())?;
    Ok(described.trim().to_owned())
}

impl Workspace {
    /// Reads the workspace that holds this program's source.
    pub fn read() -> Result<Self> {
        let metadata = Invocation::cargo("metadata --no-deps --format-version 1").output(root())?;
        Self::parse(&metadata, root())
    }

    /// Finds a member by name.
    pub fn member(&self, name: &str) -> Result<&Member> {
        self.members
            .iter()
            .find(|member| member.name == name)
            .with_context(|| format!("the workspace has no member `{name}`"))
    }

    fn parse(metadata: &str, root: &Path) -> Result<Self> {
        let metadata: Value = serde_json::from_str(metadata).context("cargo metadata printed no JSON")?;
        let packages = metadata["packages"].as_array().context("cargo metadata lists no packages")?;
        let members = packages.iter().map(|package| Member::parse(package, root)).collect::<Result<_>>()?;
        Ok(Self { members, target: text(&metadata, "target_directory")?.into() })
    }
}

impl Member {
    fn parse(package: &Value, root: &Path) -> Result<Self> {
        let manifest = PathBuf::from(text(package, "manifest_path")?);
        let manifest = manifest.strip_prefix(root).context("a member lies outside of the repository")?;
        let features = package["features"].as_object().context("a package without features")?;
        let dependencies = package["dependencies"].as_array().context("a package without dependencies")?;
        let targets = package["targets"].as_array().context("a package without targets")?;
        Ok(Self {
            name: text(package, "name")?,
            manifest: manifest.to_string_lossy().replace('\\', "/"),
            features: features.keys().cloned().collect(),
            dependencies: dependencies.iter().map(Dependency::parse).collect::<Result<_>>()?,
            tests_documentation: targets.iter().any(|target| target["doctest"] == true),
        })
    }
}

impl Dependency {
    fn parse(dependency: &Value) -> Result<Self> {
        Ok(Self { name: text(dependency, "name")?, dev: dependency["kind"] == "dev" })
    }
}

fn text(object: &Value, key: &str) -> Result<String> {
    let value = object[key].as_str().with_context(|| format!("cargo metadata lacks `{key}`"))?;
    Ok(value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_carry_features_and_kinds_of_dependencies() {
        let metadata = r#"{"target_directory": "/t", "packages": [{
            "name": "a", "manifest_path": "/r/a/Cargo.toml", "features": {"default": [], "x": ["dep:c"]},
            "dependencies": [{"name": "b", "kind": null}, {"name": "c", "kind": "dev"}],
            "targets": [{"doctest": false}, {"doctest": true}]}]}"#;
        let workspace = Workspace::parse(metadata, Path::new("/r")).unwrap();
        let member = workspace.member("a").unwrap();
        assert_eq!((member.manifest.as_str(), member.features.len()), ("a/Cargo.toml", 2));
        assert_eq!(member.dependencies.iter().map(|d| d.dev).collect::<Vec<_>>(), [false, true]);
        assert!(member.tests_documentation);
    }

    #[test]
    fn an_unknown_member_is_named() {
        let workspace = Workspace { members: Vec::new(), target: PathBuf::new() };
        assert_eq!(workspace.member("z").unwrap_err().to_string(), "the workspace has no member `z`");
    }
}
