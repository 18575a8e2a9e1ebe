//! `cargo xtask ci`: the gate. Steps run cheapest first and stop at the first failure. The CI service runs
//! this command and nothing beside it, so what passes here passes there.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};

use crate::{invocation::Invocation, readme::TestCommand, workspace, workspace::Workspace};

#[derive(Args)]
pub(crate) struct Ci {
    /// Run only these steps; whatever their order here, they run in the gate's
    #[arg(value_enum)]
    steps: Vec<Step>,
}

/// Steps in the order of the gate. Licences come last because they alone need a tool that has to be installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Step {
    /// Formatting
    Fmt,
    /// House rules
    Tidy,
    /// Lints, on the code the README's test command builds
    Clippy,
    /// Every feature of backend-offload alone, and none
    Features,
    /// The pager's instructions, beside the committed table
    Instructions,
    /// The README's test command
    Test,
    /// Documentation, on the same code
    Doc,
    /// Dependencies: bans, licences, sources
    Deny,
}

impl Ci {
    pub(crate) fn run(self) -> Result<()> {
        let plan =
            selected(&self.steps).map(|step| Ok((step, step.invocations()?))).collect::<Result<Vec<_>>>()?;
        let started = Instant::now();
        let mut spent = Vec::new();
        for (step, invocations) in plan {
            let step_started = Instant::now();
            for invocation in invocations {
                invocation.run(workspace::root()).with_context(|| failure(step))?;
            }
            spent.push(format!("{} {}", step.name(), minutes(step_started.elapsed())));
        }
        println!("all steps passed in {} ({})", minutes(started.elapsed()), spent.join(", "));
        Ok(())
    }
}

fn selected(named: &[Step]) -> impl Iterator<Item = Step> {
    Step::value_variants().iter().copied().filter(move |step| named.is_empty() || named.contains(step))
}

impl Step {
    fn invocations(self) -> Result<Vec<Invocation>> {
        Ok(match self {
            Self::Fmt => vec![Invocation::cargo("fmt --all --check")],
            Self::Tidy => vec![Invocation::cargo("xtask tidy")],
            Self::Clippy => vec![clippy(&TestCommand::read()?)],
            Self::Features => {
                let mut checks = each_feature_alone(&Workspace::read()?.member("backend-offload")?.features);
                checks.extend(each_device_of_the_trainer());
                checks
            }
            Self::Instructions => vec![Invocation::cargo("xtask instructions")],
            Self::Test => vec![TestCommand::read()?.invocation()],
            Self::Doc => vec![doc(&TestCommand::read()?)],
            Self::Deny => vec![Invocation::cargo("deny check bans licenses sources")],
        })
    }

    fn name(self) -> String {
        self.to_possible_value().expect("no step is hidden").get_name().to_owned()
    }
}

fn failure(step: Step) -> String {
    let hint = if step == Step::Deny { "; `.ci/run` installs the cargo-deny it needs" } else { "" };
    format!("step `{name}` failed; repeat it with `cargo xtask ci {name}`{hint}", name = step.name())
}

fn clippy(test: &TestCommand) -> Invocation {
    Invocation::cargo("clippy --workspace --all-targets")
        .arguments(test.feature_flags())
        .arguments(["--", "-D", "warnings"])
}

fn doc(test: &TestCommand) -> Invocation {
    Invocation::cargo("doc --workspace --no-deps")
        .arguments(test.feature_flags())
        .environment("RUSTDOCFLAGS", "-D warnings")
}

/// Read from the manifest, so that a feature added there is checked here.
fn each_feature_alone(features: &[String]) -> Vec<Invocation> {
    let check = Invocation::cargo("check -p backend-offload --no-default-features");
    let alone = features
        .iter()
        .filter(|feature| *feature != "default")
        .map(|feature| check.clone().arguments(["--features", feature]));
    std::iter::once(check.clone()).chain(alone).collect()
}

/// Checks of the trainer without any device feature and with the one that is not a default.
fn each_device_of_the_trainer() -> [Invocation; 2] {
    let check = Invocation::cargo("check -p train --no-default-features");
    [check.clone(), check.arguments(["--features", "vulkan"])]
}

fn minutes(elapsed: Duration) -> String {
    format!("{}m{:02}s", elapsed.as_secs() / 60, elapsed.as_secs() % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readme() -> TestCommand {
        TestCommand::parse("```sh\ncargo test --workspace --features backend-offload/wgpu\n```").unwrap()
    }

    #[test]
    fn without_names_every_step_runs_from_format_to_licences() {
        let names: Vec<_> = selected(&[]).map(Step::name).collect();
        assert_eq!(names, ["fmt", "tidy", "clippy", "features", "instructions", "test", "doc", "deny"]);
    }

    #[test]
    fn named_steps_run_once_and_in_the_order_of_the_gate() {
        let steps: Vec<_> = selected(&[Step::Tidy, Step::Fmt, Step::Tidy]).collect();
        assert_eq!(steps, [Step::Fmt, Step::Tidy]);
    }

    #[test]
    fn lints_and_docs_see_the_features_of_the_readme_and_deny_warnings() {
        assert_eq!(
            clippy(&readme()).to_string(),
            "cargo clippy --workspace --all-targets --features backend-offload/wgpu -- -D warnings"
        );
        assert_eq!(
            doc(&readme()).to_string(),
            "RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps --features backend-offload/wgpu"
        );
    }

    #[test]
    fn each_feature_is_checked_without_the_others_and_the_crate_without_any() {
        let checks = each_feature_alone(&["cuda".into(), "default".into(), "wgpu".into()]);
        let features: Vec<_> = checks
            .iter()
            .map(|check| check.to_string().split_whitespace().skip(5).collect::<String>())
            .collect();
        assert_eq!(features, ["", "--featurescuda", "--featureswgpu"]);
    }

    #[test]
    fn a_failure_names_its_step_and_how_to_repeat_it() {
        assert_eq!(failure(Step::Doc), "step `doc` failed; repeat it with `cargo xtask ci doc`");
    }
}
