//! Rules for manifests: dependencies between members, inherited lints.

use xtask::workspace::{Dependency, Member};

use super::{File, Finding};

struct Arrows {
    from: &'static str,
    to: &'static [&'static str],
    /// More for its tests and benches.
    tests_to: &'static [&'static str],
}

/// Allowed dependencies on other members. An unlisted member is a finding.
const ARROWS: [Arrows; 22] = [
    Arrows { from: "pager", to: &[], tests_to: &[] },
    Arrows { from: "pager-replay", to: &["pager"], tests_to: &[] },
    Arrows { from: "backend-offload", to: &["pager"], tests_to: &[] },
    Arrows { from: "host-optim", to: &["backend-offload"], tests_to: &[] },
    // Never linked: loaded at run time, as the driver.
    Arrows { from: "stand-in", to: &[], tests_to: &[] },
    // Tests of `backend-offload`, which must not know its users.
    Arrows { from: "offload-tests", to: &[], tests_to: &["backend-offload", "pager", "pager-replay"] },
    Arrows { from: "on-vulkan", to: &[], tests_to: &["backend-offload", "host-optim", "pager"] },
    Arrows { from: "durable", to: &[], tests_to: &[] },
    Arrows { from: "models", to: &["durable"], tests_to: &["backend-offload", "tokenizer"] },
    Arrows { from: "tokenizer", to: &["durable"], tests_to: &[] },
    Arrows { from: "exchange", to: &[], tests_to: &[] },
    Arrows { from: "runs", to: &["backend-offload", "durable", "models", "tokenizer"], tests_to: &[] },
    Arrows {
        from: "train",
        // Plans replay recordings, which belong to the pager.
        to: &[
            "backend-offload",
            "durable",
            "exchange",
            "host-optim",
            "models",
            "pager",
            "pager-replay",
            "runs",
            "tokenizer",
        ],
        tests_to: &[],
    },
    Arrows {
        from: "train-units",
        to: &[],
        tests_to: &[
            "backend-offload",
            "durable",
            "exchange",
            "host-optim",
            "models",
            "pager",
            "pager-replay",
            "runs",
            "tokenizer",
        ],
    },
    Arrows {
        from: "serve-units",
        to: &[],
        tests_to: &["backend-offload", "models", "runs", "tokenizer", "train", "web"],
    },
    Arrows { from: "web", to: &[], tests_to: &[] },
    // The library of `train` has compiled the models for all devices.
    Arrows {
        from: "serve",
        to: &["backend-offload", "models", "runs", "tokenizer", "train", "web"],
        tests_to: &[],
    },
    Arrows {
        from: "examples",
        to: &["backend-offload", "host-optim", "models", "tokenizer", "train"],
        tests_to: &[],
    },
    Arrows { from: "xtask", to: &["suite"], tests_to: &[] },
    Arrows { from: "bench", to: &["exchange", "pager", "pager-replay", "xtask"], tests_to: &[] },
    // Manifests and variables only.
    Arrows { from: "pins", to: &[], tests_to: &[] },
    Arrows { from: "suite", to: &[], tests_to: &[] },
];

const EVERYWHERE: [&str; 1] = ["pins"];

/// For all members' tests.
const IN_TESTS: [&str; 1] = ["suite"];

/// Must build in seconds, without Burn or CubeCL.
const WITHOUT_BURN: [&str; 4] = ["bench", "exchange", "web", "xtask"];

pub(super) fn arrows(members: &[Member]) -> Vec<Finding> {
    members.iter().flat_map(|member| member_findings(member, members)).collect()
}

fn member_findings(member: &Member, members: &[Member]) -> Vec<Finding> {
    let manifest = File { path: &member.manifest, text: "" };
    let Some(arrows) = ARROWS.iter().find(|arrows| arrows.from == member.name) else {
        let reason = format!("`{}` has no entry in xtask's table of dependency arrows", member.name);
        return vec![manifest.finding(1, "arrows", reason)];
    };
    let refused = |dependency: &&Dependency| {
        let ours = members.iter().any(|other| other.name == dependency.name);
        let name = dependency.name.as_str();
        let itself = dependency.dev && name == member.name;
        let allowed = arrows.to.contains(&name)
            || EVERYWHERE.contains(&name)
            || (dependency.dev && (arrows.tests_to.contains(&name) || IN_TESTS.contains(&name)));
        (ours && !allowed && !itself)
            || (WITHOUT_BURN.contains(&member.name.as_str())
                && (name.starts_with("burn") || name.starts_with("cubecl")))
    };
    let finding = |dependency: &Dependency| {
        let reason =
            format!("`{}` must not depend on `{}`: see ARCHITECTURE.md", member.name, dependency.name);
        manifest.finding(1, "arrows", reason)
    };
    member.dependencies.iter().filter(refused).map(finding).collect()
}

pub(super) fn inherited_lints(file: &File) -> Option<Finding> {
    let mut lines = file.text.lines().map(str::trim).skip_while(|line| *line != "[lints]").skip(1);
    let inherits = lines.next() == Some("workspace = true");
    (!inherits).then(|| {
        file.finding(1, "lints", "lacks `[lints]` with `workspace = true`: lints are the same everywhere")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(from: &str, to: &str, dev: bool) -> bool {
        let bare = |name: &str| Member { name: name.into(), ..Member::default() };
        let member = Member {
            manifest: format!("{from}/Cargo.toml"),
            dependencies: vec![Dependency { name: to.into(), dev }],
            ..bare(from)
        };
        let ours = [
            "pager",
            "pager-replay",
            "backend-offload",
            "durable",
            "exchange",
            "host-optim",
            "models",
            "runs",
            "serve",
            "stand-in",
            "tokenizer",
            "train",
            "web",
        ];
        !member_findings(&member, &ours.map(bare)).is_empty()
    }

    #[test]
    fn backend_offload_knows_none_of_its_users_even_in_tests() {
        for user in ["host-optim", "models", "tokenizer", "train"] {
            assert!(
                refused("backend-offload", user, false) && refused("backend-offload", user, true),
                "{user}"
            );
        }
        assert!(!refused("backend-offload", "burn-backend", false));
    }

    #[test]
    fn the_pager_depends_on_no_crate_and_runs_in_simulations() {
        for other in ["backend-offload", "models", "pager-replay", "tokenizer", "train"] {
            assert!(refused("pager", other, false) && refused("pager", other, true), "{other}");
        }
        assert!(!refused("backend-offload", "pager", false));
        assert!(!refused("bench", "pager", false));
        assert!(!refused("train", "pager", false));
        assert!(refused("models", "pager", true) && refused("runs", "pager", false));
    }

    #[test]
    fn the_host_optimizer_knows_no_model_and_no_trainer() {
        for other in ["models", "tokenizer", "train", "runs"] {
            assert!(refused("host-optim", other, false) && refused("host-optim", other, true), "{other}");
        }
        assert!(!refused("train", "host-optim", false) && refused("models", "host-optim", true));
    }

    #[test]
    fn ranks_exchange_bytes_without_burn_and_without_a_trainer() {
        for other in ["burn", "burn-ir", "cubecl-core", "backend-offload", "models", "runs", "train"] {
            assert!(refused("exchange", other, false) && refused("exchange", other, true), "{other}");
        }
        assert!(!refused("bench", "exchange", false));
        assert!(!refused("train", "exchange", false) && !refused("exchange", "libloading", false));
        assert!(refused("models", "exchange", false) && refused("backend-offload", "exchange", true));
    }

    #[test]
    fn the_server_builds_without_burn_and_the_trainer_without_the_server() {
        for other in ["backend-offload", "models", "tokenizer", "train"] {
            assert!(refused("web", other, false) && refused("web", other, true), "{other}");
        }
        assert!(refused("web", "burn", false) && !refused("web", "axum", false));
        for server in ["web", "serve"] {
            assert!(refused("train", server, false) && refused("models", server, true), "{server}");
        }
    }

    #[test]
    fn models_depend_on_spilling_only_in_tests() {
        assert!(refused("models", "backend-offload", false));
        assert!(!refused("models", "backend-offload", true));
        assert!(refused("models", "train", false) && refused("models", "train", true));
    }

    #[test]
    fn the_stand_in_has_no_dependencies_and_no_member_links_it() {
        for other in ["backend-offload", "models", "tokenizer", "train"] {
            assert!(refused("stand-in", other, false) && refused("stand-in", other, true), "{other}");
            assert!(refused(other, "stand-in", false) && refused(other, "stand-in", true), "{other}");
        }
    }

    #[test]
    fn the_tokenizer_stands_alone() {
        for other in ["backend-offload", "models", "train"] {
            assert!(refused("tokenizer", other, false) && refused("tokenizer", other, true), "{other}");
        }
        assert!(!refused("tokenizer", "tokenizers", false));
    }

    #[test]
    fn opening_a_trained_model_needs_no_trainer() {
        assert!(refused("runs", "train", false) && refused("runs", "train", true));
        assert!(!refused("train", "runs", false));
        assert!(!refused("runs", "backend-offload", false));
    }

    #[test]
    fn the_trainer_depends_on_backend_and_models() {
        assert!(!refused("train", "backend-offload", false));
        assert!(!refused("train", "models", false));
    }

    #[test]
    fn developer_commands_build_without_burn() {
        for other in ["burn", "burn-ir", "cubecl-core", "models"] {
            assert!(refused("xtask", other, false) && refused("bench", other, false), "{other}");
        }
        assert!(!refused("xtask", "clap", false));
    }

    #[test]
    fn an_unlisted_member_is_a_finding() {
        assert!(refused("server", "clap", false));
    }

    #[test]
    fn every_crate_inherits_the_lints() {
        let check = |text| inherited_lints(&File { path: "a/Cargo.toml", text });
        assert_eq!(check("[package]\nname = \"a\"\n\n[lints]\nworkspace = true\n"), None);
        assert!(check("[package]\nversion.workspace = true\n").is_some());
        assert!(check("[lints]\nrust.missing_docs = \"allow\"\n").is_some());
    }
}
