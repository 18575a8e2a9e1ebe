//! Checks of features without those that other packages of the workspace turn on.

use anyhow::Result;

use xtask::{invocation::Invocation, workspace::Workspace};

/// Left to the full suite: they choose another compiler, or no user names them.
const WITHOUT_CODE_OF_THEIR_OWN: [&str; 4] = ["cube", "default", "metal", "vulkan"];

/// For the gate. Burn and CubeCL keep the features that they have for the workspace, so most of their crates are not
/// checked again.
pub(crate) fn beside_pins() -> Result<Vec<Invocation>> {
    let mut checks = each_beside_pins(&Workspace::read()?.member("backend-offload")?.features);
    checks.push(Invocation::cargo("check --release -p train --no-default-features"));
    checks.push(Invocation::cargo("check --release -p web -p pins --features structured"));
    Ok(checks)
}

/// For the full suite: each feature of the library as a user gets it, with no more features of Burn and CubeCL than it
/// asks for.
pub(crate) fn alone() -> Result<Vec<Invocation>> {
    let check = Invocation::cargo("check --profile checked --no-default-features");
    let mut checks: Vec<_> = Workspace::read()?
        .member("backend-offload")?
        .features
        .iter()
        .map(|feature| check.clone().arguments(["--package", "backend-offload", "--features", feature]))
        .collect();
    checks.push(check.arguments(["--package", "train", "--features", "vulkan"]));
    Ok(checks)
}

/// Read from the manifest: an added one is checked too.
fn each_beside_pins(features: &[String]) -> Vec<Invocation> {
    let check = Invocation::cargo("check --release -p backend-offload -p pins --no-default-features")
        .arguments(["--features", "pins/burn"]);
    let each = features
        .iter()
        .filter(|feature| !WITHOUT_CODE_OF_THEIR_OWN.contains(&feature.as_str()))
        .map(|feature| check.clone().arguments(["--features", feature]));
    std::iter::once(check.clone()).chain(each).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_feature_is_checked_without_the_others_and_the_crate_without_any() {
        let checks = each_beside_pins(&["cuda".into(), "default".into(), "wgpu".into()]);
        let features: Vec<_> = checks
            .iter()
            .map(|check| check.to_string().split_once("pins/burn").expect("named").1.to_owned())
            .collect();
        assert_eq!(features, ["", " --features cuda", " --features wgpu"]);
    }
}
