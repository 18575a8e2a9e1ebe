//! `cargo xtask ci`: the gate, also the CI service's command. Steps run cheapest first and stop at the first failure.

use std::time::Instant;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};

use xtask::{
    invocation::Invocation,
    workspace::{self, Workspace},
};

use crate::{
    features,
    test::Test,
    times::{Times, minutes},
};

#[derive(Args)]
pub(crate) struct Ci {
    /// Run only these steps; their order is always the gate's
    #[arg(value_enum)]
    steps: Vec<Step>,
}

/// Steps in the order of the gate. Licences come last: only they need a tool that has to be installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Step {
    /// Formatting
    Fmt,
    /// House rules
    Tidy,
    /// Lints, on all code and its tests
    Clippy,
    /// Features of backend-offload, each without the others; the trainer without any; the server's grammars
    Features,
    /// The pager's instruction counts, compared with the committed table
    Instructions,
    /// `cargo xtask test --gate`
    Test,
    /// Documentation
    Doc,
    /// Dependencies: bans, licences, sources
    Deny,
}

impl Ci {
    pub(crate) fn run(self) -> Result<()> {
        let mut times = Times::in_file(Workspace::read()?.target.join("ci-times.csv"));
        let started = Instant::now();
        let outcome = selected(&self.steps).try_for_each(|step| {
            times.measure("step", &step.name(), |times| step.run(times)).with_context(|| failure(step))
        });
        print!("{}", times.slowest());
        outcome?;
        println!("all steps passed in {}", minutes(started.elapsed()));
        Ok(())
    }
}

fn selected(named: &[Step]) -> impl Iterator<Item = Step> {
    Step::value_variants().iter().copied().filter(move |step| named.is_empty() || named.contains(step))
}

impl Step {
    fn run(self, times: &mut Times) -> Result<()> {
        if self == Self::Test {
            println!("{}", Test::for_gate().run_timed(times)?);
            return Ok(());
        }
        self.invocations()?.iter().try_for_each(|invocation| invocation.run(workspace::root()))
    }

    fn invocations(self) -> Result<Vec<Invocation>> {
        Ok(match self {
            Self::Fmt => vec![Invocation::cargo("fmt --all --check")],
            Self::Tidy => vec![Invocation::cargo("xtask tidy")],
            Self::Clippy => vec![clippy()],
            Self::Features => features::beside_pins()?,
            Self::Instructions => vec![Invocation::cargo("xtask instructions")],
            Self::Test => Vec::new(),
            Self::Doc => vec![doc()],
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

// In the tests' profile: procedural macros and build scripts are compiled once.
fn clippy() -> Invocation {
    Invocation::cargo("clippy --release --workspace --all-targets -- -D warnings")
}

fn doc() -> Invocation {
    Invocation::cargo("doc --release --workspace --no-deps").environment("RUSTDOCFLAGS", "-D warnings")
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn lints_and_docs_deny_warnings() {
        assert!(clippy().to_string().ends_with(" -- -D warnings"));
        assert!(doc().to_string().starts_with("RUSTDOCFLAGS='-D warnings' cargo doc "));
    }

    #[test]
    fn a_failure_names_its_step_and_how_to_repeat_it() {
        assert_eq!(failure(Step::Doc), "step `doc` failed; repeat it with `cargo xtask ci doc`");
    }
}
