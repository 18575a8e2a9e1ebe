//! A record's page: measurements, fitted model, predictions.

use super::{
    cards::Card,
    cell::{self, Cell, Overhead},
    plot,
    sample::{Link, Sample},
    simulation::{Model, Network, Step},
    table,
};

pub(super) struct Findings {
    cells: Vec<Cell>,
    /// A world of one against plain loops.
    sums: Vec<Overhead>,
    /// Under MPI, against a process without.
    steps: Vec<Overhead>,
    models: Vec<Model>,
    step: Step,
    network: Network,
    /// Of simulated hosts.
    card: Option<Card>,
}

pub(super) struct Origin {
    pub(super) heading: String,
    pub(super) command: String,
    pub(super) commit: String,
    pub(super) facts: Vec<(&'static str, String)>,
    pub(super) started: Vec<String>,
}

impl Findings {
    pub(super) fn from_samples(samples: &[Sample], step: Step, network: Network) -> Self {
        let cells = cell::cells(samples);
        let models = super::LINKS.iter().filter_map(|link| Model::fit(&cells, *link)).collect();
        let [sums, steps] = [cell::SUMS, cell::STEPS].map(|trio| cell::overheads(samples, trio));
        Self { cells, sums, steps, models, step, network, card: None }
    }

    pub(super) fn behind(self, card: Option<Card>) -> Self {
        Self { card, ..self }
    }

    /// TCP is closer to a network than shared memory.
    fn model(&self) -> Option<&Model> {
        self.models.iter().find(|model| model.link == Link::Tcp)
    }

    pub(super) fn plot(&self) -> String {
        plot::svg(&self.cells, self.model(), &self.step, self.network)
    }

    pub(super) fn page(&self, origin: &Origin, raw: &str) -> String {
        let Origin { heading, command, commit, facts, started } = origin;
        let facts: Vec<_> = facts.iter().map(|(name, value)| format!("| {name} | {value} |")).collect();
        let caveats: Vec<_> = CAVEATS.iter().map(|caveat| format!("- {caveat}")).collect();
        format!(
            "# Exchange between ranks: {heading}\n\n`{command}`, built at commit {commit}. Raw data: [{raw}]({raw}).\n\n\
             {}\n{}\n![Measured rates and simulated scaling](plot.svg)\n\n## How\n\n| Machine | |\n|---|---|\n{}\n\n\
             ```sh\n{}\n```\n\n## Bear in mind\n\n{}\n",
            self.measurements(),
            self.simulation(),
            facts.join("\n"),
            started.join("\n"),
            caveats.join("\n")
        )
    }

    pub(super) fn measurements(&self) -> String {
        format!(
            "## Measured\n\n{}\n{}{}\n### A world of one\n\nThe sum of four contributions and the vote, beside the same \
             additions as plain loops, by turns. Times are medians, overheads are medians of the ratios within a \
             turn.\n\n{}\n{}\n### A step of training in a world of one\n\n{}",
            table::measured(&self.cells),
            table::calls(&self.cells),
            self.between_hosts(),
            table::by_turns(&self.sums, "Plain sum", "A world of one"),
            self.share_of_a_step(),
            self.training_overhead()
        )
    }

    fn between_hosts(&self) -> String {
        let Some(card) = &self.card else { return String::new() };
        format!("\n### Behind cards of {card}\n\n{ON_HOSTS}\n\n{}", card.table(&self.cells))
    }

    fn training_overhead(&self) -> String {
        let Some(step) = self.steps.first() else { return "None was measured.\n".to_owned() };
        let (low, high) = step.quartiles;
        let kept = if low >= LIMIT {
            "**not kept**"
        } else if high < LIMIT && step.noise.abs() < LIMIT {
            "kept"
        } else {
            "**not settled**, as turns differ by more"
        };
        format!(
            "{TRAINED}\n\n{}\nThe limit is {}: {kept}, with {}.\n",
            table::by_turns(&self.steps, "By itself", "Under MPI"),
            table::percent(LIMIT),
            table::signed_percent(step.share)
        )
    }

    fn share_of_a_step(&self) -> String {
        let Some(largest) = self.sums.iter().max_by_key(|overhead| overhead.bytes) else {
            return String::new();
        };
        let scale = self.step.gradient as f64 / largest.bytes as f64;
        let share = |seconds: f64| 100.0 * seconds * scale / self.step.compute;
        format!(
            "Carried over to {} of gradients, the whole sum is {:.2} % of a step of {}, plain loops or not, and what \
             the crate adds to it {:+.3} %.\n",
            megabytes(self.step.gradient),
            share(largest.second),
            table::duration(self.step.compute),
            share(largest.first * largest.share)
        )
    }

    pub(super) fn simulation(&self) -> String {
        let fitted = format!(
            "## Fitted\n\n{FITTED}\n\n{}\n{CHECKED}\n\n{}",
            table::lines(&self.cells),
            table::check(&self.cells, &self.models)
        );
        let Some(model) = self.model() else {
            return format!("{fitted}\n## Simulated\n\nNothing: a model needs two sizes over TCP.\n");
        };
        let Step { compute, gradient, every } = self.step;
        format!(
            "{fitted}\n## Simulated\n\n**None of this was measured.** A step computes {} on one rank and has {} of \
             gradients. The model is that of {}, fitted at {} ranks.\n\n{}\n\nA network as fast as the measured \
             link:\n\n{}\nThe same with a network of {} after it:\n\n{}",
            table::duration(compute),
            megabytes(gradient),
            model.link,
            model.ranks,
            FORMULA.replace("EVERY", &every.to_string()),
            table::simulated(model, &self.step, Network::AsMeasured),
            self.network,
            table::simulated(model, &self.step, self.network)
        )
    }
}

/// Most that MPI may cost one rank, as a share of a step.
const LIMIT: f64 = 0.01;

const ON_HOSTS: &str = "\
Each rank is a simulated host, a network namespace. *At the card's rate* is the time that the bytes of the busiest card take, one \
way. All ranks share this machine's cores.";

const TRAINED: &str = "\
The trainer on the CPU, as a process by itself, which loads no MPI, and as the one rank of `mpirun -n 1`, by turns. Each time \
is the fastest of a process's steps, as other work on the machine only ever adds to one. All ended with the same weights, to the bit.";

fn megabytes(bytes: u64) -> String {
    format!("{} MB", table::megabytes(bytes as f64))
}

const FITTED: &str = "\
`time = latency + gradients / rate`, by least squares: the latency of the error as a share of the measured time, so that \
small sizes count as much as large ones, and then the rate of the error in seconds, so that it is that of large ones. The \
times are the lower ends of the middle halves above: other work on the machine only ever adds to a time, and where it runs \
in most turns it moves the median too. *Largest error* is how far the line misses one of its sizes at worst, as a share of the time.";

const CHECKED: &str = "\
The model of a link is the lines at the most ranks measured. Carried over to fewer ranks, it misses their largest sums by \
this much, at the same lower ends:";

const FORMULA: &str = "\
With `n` ranks fitted and `N` simulated, `f(N) = (N − 1) / N`, and `B` bytes of gradients:

```text
sum(N)      = latency × (N − 1) / (n − 1) + B / rate × f(N) / f(n)
exchange(N) = sum(N) + commit × (N − 1) / (n − 1)   [ + 5 × network latency + bytes sent / network rate ]
strong(N)   = (compute / N) / (compute / N + exchange(N))
weak(N)     = compute / (compute + exchange(N))
```

*Strong*: the micro-batches of one step are dealt out to all ranks. *Weak*: each rank computes as much as one does, so a step
grows with the ranks. Every EVERY steps: local steps, and one exact exchange shared out over EVERY of them; they are another
algorithm, and one bit is not exact either: what both do to the loss is not part of this.

Assumed: every rank writes to every other, as the engine does; no exchange runs beside the backward pass; the network gives every
pair of ranks its rate at once; no rank is late; each rank has the share of a processor that it had here; sums on the host.";

const CAVEATS: [&str; 5] = [
    "Ranks share this machine's cores, its memory and its loopback, and with other work that ran at the same time: see the load. \
     Rates are lower bounds of what the crate can do. Where there are more ranks than cores, a wait can last until the others \
     have had their turn.",
    "A time is that of the slowest rank from a barrier on, the median of its turns. MB/s are millions of bytes of gradients \
     each second. Taking contributions in and dropping results is not timed; allocating what a sum needs is.",
    "One bit sends a thirtieth and computes more: where memory is the link it is slower than exact, and pays on slow networks.",
    "Overhead below the noise, which is how far the same thing is from itself, is no finding.",
    "Beyond the ranks that were started here everything is extrapolation by the formula above.",
];

#[cfg(test)]
pub(super) mod tests {
    use super::{
        super::sample::{Kind, tests::samples},
        *,
    };

    pub(in super::super) fn origin() -> Origin {
        Origin {
            heading: "Some CPU, 2026-01-02".to_owned(),
            command: "cargo xtask bench-scale".to_owned(),
            commit: "abc".to_owned(),
            facts: vec![("cores", "2".to_owned()), ("load after", "1.5".to_owned())],
            started: vec!["rates 4096 3".to_owned()],
        }
    }

    fn findings(samples: &[Sample]) -> Findings {
        let network = Network::Assumed { bytes_per_second: 125e6, latency: 1e-4 };
        Findings::from_samples(samples, Step { compute: 10.0, gradient: 500_000_000, every: 8 }, network)
    }

    #[test]
    fn a_page_says_what_was_measured_what_is_simulated_and_how() {
        let page = findings(&samples()).page(&origin(), "samples.csv");
        let said = [
            "# Exchange between ranks: Some CPU, 2026-01-02\n",
            "`cargo xtask bench-scale`, built at commit abc. Raw data: [samples.csv](samples.csv).",
            "**None of this was measured.**",
            "exchange(N) = sum(N) + commit",
            "Every 8 steps: local steps",
            "network of 125 MB/s and 100 µs after it",
            "| load after | 1.5 |",
            "rates 4096 3",
            "lower bounds",
        ];
        for expected in said {
            assert!(page.contains(expected), "{expected} is missing from:\n{page}");
        }
    }

    #[test]
    fn a_world_of_one_is_a_share_of_the_simulated_step() {
        let said = findings(&samples()).measurements();
        // 500 MB are 29.8 times 16 MiB: 29.8 × 0.1005 s of 10 s.
        assert!(said.contains("the whole sum is 29.95 % of a step of 10.0 s"), "{said}");
        assert!(said.contains("adds to it +0.149 %"), "{said}");
    }

    #[test]
    fn a_training_step_is_compared_with_its_limit_if_one_was_measured() {
        let said = findings(&samples()).measurements();
        assert!(said.contains("\nThe limit is 1.0 %: kept, with +0.50 %.\n"), "{said}");
        let slow = |sample: &Sample| {
            let times = if sample.kind == Kind::StepUnderMpi { 1.02 } else { 1.0 };
            Sample { seconds: times * sample.seconds, ..sample.clone() }
        };
        let said = findings(&samples().iter().map(slow).collect::<Vec<_>>()).measurements();
        assert!(said.contains("\nThe limit is 1.0 %: **not kept**, with +2.51 %.\n"), "{said}");
        let busy = |turn: u64, times: f64| {
            let again = move |sample: Sample| {
                let times = if sample.kind == Kind::StepUnderMpi { times } else { 1.0 };
                Sample { turn, seconds: times * sample.seconds, ..sample }
            };
            samples().into_iter().map(again)
        };
        let turns = (0..).zip([0.95, 0.96, 1.02, 1.03, 1.04]).flat_map(|(turn, times)| busy(turn, times));
        let said = findings(&turns.collect::<Vec<_>>()).measurements();
        assert!(said.contains("1.0 %: **not settled**, as turns differ by more, with +2.51 %.\n"), "{said}");
        let turns = (0..).zip([0.995, 0.995, 0.996, 1.02, 1.03]).flat_map(|(turn, times)| busy(turn, times));
        let said = findings(&turns.collect::<Vec<_>>()).measurements();
        assert!(said.contains("1.0 %: **not settled**, as turns differ by more, with +0.10 %.\n"), "{said}");
        let unsteady = |mut sample: Sample| {
            sample.seconds *= if sample.kind == Kind::StepAgain { 0.97 } else { 1.0 };
            sample
        };
        let said = findings(&samples().into_iter().map(unsteady).collect::<Vec<_>>()).measurements();
        assert!(said.contains("1.0 %: **not settled**, as turns differ by more, with +0.50 %.\n"), "{said}");
        let older: Vec<_> = samples().into_iter().filter(|sample| sample.kind != Kind::Step).collect();
        assert!(findings(&older).measurements().ends_with("world of one\n\nNone was measured.\n"));
    }

    #[test]
    fn without_a_second_size_nothing_is_simulated_and_the_page_says_why() {
        let one: Vec<_> = samples().into_iter().filter(|sample| sample.bytes == 1 << 20).collect();
        assert!(findings(&one).simulation().contains("a model needs two sizes"));
    }
}
