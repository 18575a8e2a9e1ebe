//! Needs that some machines do not meet. No test is skipped silently: it reports the need, and leaves a line for `cargo
//! xtask test` or, if the need is required, fails.

use std::{
    env, fmt,
    fs::OpenOptions,
    io::{Write, stderr},
    thread,
};

/// Required needs: `all`, or names separated by commas. `all,-mounts` requires all others.
pub const REQUIRE: &str = "SPILLWAY_REQUIRE";

/// File that gets a line per test that did not run: need, tab, test, tab, file name of the test's program.
pub const NOT_RUN: &str = "SPILLWAY_NOT_RUN";

/// Something outside the repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Need {
    /// A Vulkan device.
    Vulkan,
    /// The stand-in for CUDA: x86-64 Linux and a C++ compiler.
    StandIn,
    /// An installed Open MPI.
    Mpi,
    /// Open MPI 5: ranks survive the loss of others.
    Mpi5,
    /// The right to mount in a namespace.
    Mounts,
    /// The right to a network namespace, and `ip`.
    Namespace,
    /// `openai` for Python and Node, and a browser with its driver.
    Clients,
    /// nginx.
    Nginx,
    /// Caddy.
    Caddy,
    /// Python's `lm-eval`.
    Harness,
    /// Valgrind.
    Valgrind,
    /// Python with `torch` and `transformers`.
    Torch,
    /// Python's `tensorboard`.
    TensorBoard,
    /// The program `mdbook`.
    MdBook,
    /// Node's package `node-llama-cpp`.
    LlamaCpp,
    /// A folder with the published GPT-2.
    Gpt2,
    /// A machine without CUDA.
    NoCuda,
    /// A kernel that permits `io_uring`.
    Ring,
    /// A folder in memory.
    MemoryFolder,
}

impl Need {
    /// In the order of summaries.
    pub const ALL: [Self; 19] = [
        Self::Vulkan,
        Self::StandIn,
        Self::Mpi,
        Self::Mpi5,
        Self::Mounts,
        Self::Namespace,
        Self::Clients,
        Self::Nginx,
        Self::Caddy,
        Self::Harness,
        Self::Valgrind,
        Self::Torch,
        Self::TensorBoard,
        Self::MdBook,
        Self::LlamaCpp,
        Self::Gpt2,
        Self::NoCuda,
        Self::Ring,
        Self::MemoryFolder,
    ];

    /// Name in `SPILLWAY_REQUIRE` and summaries.
    pub fn name(self) -> &'static str {
        match self {
            Self::Vulkan => "vulkan",
            Self::StandIn => "g++",
            Self::Mpi => "mpi",
            Self::Mpi5 => "mpi-5",
            Self::Mounts => "mounts",
            Self::Namespace => "namespace",
            Self::Clients => "clients",
            Self::Nginx => "nginx",
            Self::Caddy => "caddy",
            Self::Harness => "lm-eval",
            Self::Valgrind => "valgrind",
            Self::Torch => "torch",
            Self::TensorBoard => "tensorboard",
            Self::MdBook => "mdbook",
            Self::LlamaCpp => "llama.cpp",
            Self::Gpt2 => "gpt-2",
            Self::NoCuda => "no-cuda",
            Self::Ring => "io-uring",
            Self::MemoryFolder => "shm",
        }
    }

    /// How to meet it.
    pub fn remedy(self) -> &'static str {
        match self {
            Self::Vulkan => "apt-get install libvulkan1 mesa-vulkan-drivers",
            Self::StandIn => "apt-get install g++",
            Self::Mpi => "apt-get install openmpi-bin libopenmpi3",
            Self::Mpi5 => "train/exchange/tests/install-open-mpi-5",
            Self::Mounts => "allow unprivileged user namespaces, or run as root",
            Self::Namespace => {
                "apt-get install iproute2, and allow unprivileged user namespaces or run as root"
            }
            Self::Clients => "serve/web/tests/install-clients",
            Self::Nginx => "apt-get install nginx-light",
            Self::Caddy => "apt-get install caddy",
            Self::Harness => "serve/tests/install-harness",
            Self::Valgrind => "apt-get install valgrind",
            Self::Torch => "pip install torch transformers",
            Self::TensorBoard => "pip install tensorboard",
            Self::MdBook => "cargo install mdbook --locked",
            Self::LlamaCpp => "train/tests/goldens/continue.mjs says how to install it",
            Self::Gpt2 => "set GPT2_DIR to a folder with the published GPT-2",
            Self::NoCuda => {
                "these tests are for machines without CUDA; here `cargo xtask gpu-check` says more"
            }
            Self::Ring => "a container has to permit io_uring in its seccomp profile",
            Self::MemoryFolder => "mount a tmpfs at /dev/shm",
        }
    }

    /// Whether a test without it must fail.
    pub fn is_required(self) -> bool {
        is_required(&env::var(REQUIRE).unwrap_or_default(), self.name())
    }

    /// True if nothing is `missing`. Otherwise reports and counts the calling test, which must return.
    ///
    /// # Panics
    /// If this need is required.
    pub fn is_met(self, missing: Option<&str>) -> bool {
        let Some(missing) = missing else { return true };
        let test = thread::current().name().unwrap_or("a test").to_owned();
        assert!(!self.is_required(), "`{test}` has to run, but {missing}: {}", self.remedy());
        // Print macros show output only of failed tests.
        writeln!(stderr(), "not run: {test}: {missing} ({})", self.remedy()).expect("standard error");
        if let Some(file) = env::var_os(NOT_RUN) {
            let mut file =
                OpenOptions::new().append(true).create(true).open(file).expect("a file for the summary");
            // A single write: concurrent lines stay whole.
            file.write_all(self.line(&test).as_bytes()).expect("a line for the summary");
        }
        false
    }

    fn line(self, test: &str) -> String {
        let program = env::current_exe().unwrap_or_default();
        format!("{self}\t{test}\t{}\n", program.file_name().unwrap_or_default().display())
    }

    /// Like [`is_met`](Self::is_met), with a value or the reason for its absence.
    pub fn found<T, E: fmt::Display>(self, found: Result<T, E>) -> Option<T> {
        match found {
            Ok(found) => Some(found),
            Err(missing) => {
                self.is_met(Some(&missing.to_string()));
                None
            }
        }
    }
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

fn is_required(required: &str, name: &str) -> bool {
    let mut words = required.split(',').map(str::trim);
    let exempt = words.clone().any(|word| word.strip_prefix('-') == Some(name));
    !exempt && words.any(|word| word == "all" || word == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_requires_every_need_that_is_not_exempt() {
        assert!(is_required("all", "mpi") && is_required("all,-mounts", "mpi"));
        assert!(!is_required("all,-mounts", "mounts") && !is_required("all, -mounts", "mounts"));
    }

    #[test]
    fn a_name_requires_only_that_need() {
        assert!(is_required("vulkan,mpi", "mpi") && !is_required("vulkan,mpi", "mpi-5"));
        assert!(!is_required("", "mpi"));
    }

    #[test]
    fn a_line_of_the_summary_names_need_test_and_program() {
        let line = Need::Mpi.line("ranks::one");
        let parts: Vec<_> = line.trim_end().split('\t').collect();
        assert_eq!(parts[..2], ["mpi", "ranks::one"]);
        assert!(parts.len() == 3 && parts[2].starts_with("suite-"), "{line}");
    }

    #[test]
    fn each_need_has_a_name_of_its_own_and_a_remedy() {
        let mut names = Need::ALL.map(Need::name).to_vec();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Need::ALL.len());
        assert!(Need::ALL.iter().all(|need| !need.remedy().is_empty()));
    }
}
