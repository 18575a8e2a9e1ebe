//! A sweep's record: page, raw cells and pictures, rewritten after every cell.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use crate::records::{self, machine::Machine};

use super::{
    bounds,
    cell::{self, Cell},
    plot,
    suite::{Model, Place},
    table, trainer,
};

pub(super) struct Record {
    pub(super) folder: PathBuf,
    heading: String,
    circumstances: String,
    planned: usize,
}

pub(super) const CELLS: &str = "cells.csv";
const BYTES: &str = "bytes.svg";

impl Record {
    pub(super) fn begin(
        out: Option<&Path>,
        machine: &Machine,
        place: &Place,
        models: &[Model],
        trainer: &str,
        planned: usize,
    ) -> Result<Self> {
        let date = records::today()?;
        let device = place.name(machine);
        let folder = match out {
            Some(folder) => records::claim(folder, &[CELLS, "README.md"])?,
            None => records::fresh_folder(&records::runs(), &date, &device)?,
        };
        let heading = format!("# Device budgets: {device}, {date}\n\n`{}`, {trainer}. ", records::command());
        Ok(Self { folder, heading, circumstances: circumstances(machine, place, models), planned })
    }

    pub(super) fn write(&self, cells: &[Cell]) -> Result<()> {
        let files =
            [(CELLS, cell::to_csv(cells)), ("plot.svg", plot::svg(cells)), ("README.md", self.page(cells))];
        let bytes = plot::bytes(cells).map(|drawn| (BYTES, drawn));
        for (name, text) in files.into_iter().chain(bytes) {
            let path = self.folder.join(name);
            fs::write(&path, text).with_context(|| format!("{} could not be written", path.display()))?;
        }
        Ok(())
    }

    fn page(&self, cells: &[Cell]) -> String {
        let unfinished = match cells.len() {
            done if done < self.planned => {
                format!("**Not finished: {done} of {} cells were measured.**\n\n", self.planned)
            }
            _ => String::new(),
        };
        let drawn = format!("![Bytes of a step against the least that could move]({BYTES})\n\n");
        let bytes = plot::bytes(cells).map(|_| drawn).unwrap_or_default();
        let reasons = match table::reasons(cells) {
            none if none.is_empty() => String::new(),
            reasons => format!("\nNot measured:\n\n{}\n", bullets(&reasons)),
        };
        format!(
            "{}Raw data: [{CELLS}]({CELLS}).\n\n{unfinished}{}{}{}{reasons}\n![Speed and peak memory against the budget]\
             (plot.svg)\n\n{bytes}{}",
            self.heading,
            table::markdown(cells),
            table::over_the_link(cells),
            bounds::markdown(cells),
            self.circumstances
        )
    }
}

fn circumstances(machine: &Machine, place: &Place, models: &[Model]) -> String {
    let facts: Vec<_> = machine.facts.iter().map(|(name, value)| format!("| {name} | {value} |")).collect();
    let commands: Vec<_> = models.iter().map(|model| trainer::shown(model, &place.device)).collect();
    let caveats: Vec<_> =
        if place.has_gpu { CAVEATS.to_vec() } else { [&CAVEATS[..], &[WITHOUT_GPU]].concat() };
    format!(
        "## How\n\n| Machine | |\n|---|---|\n{}\n\nEach cell is one process, started once:\n\n```sh\n{}\n```\n\n\
         ## Bear in mind\n\n{}\n",
        facts.join("\n"),
        commands.join("\n"),
        bullets(&caveats)
    )
}

fn bullets(items: &[impl AsRef<str>]) -> String {
    let items: Vec<_> = items.iter().map(|item| format!("- {}", item.as_ref())).collect();
    items.join("\n")
}

const CAVEATS: [&str; 5] = [
    "Percentages are of the peak device bytes of the same model's unlimited run, which is the one that losses, weights \
     and speed are compared with.",
    "Bits are not compared where the plan chose another place of the optimizer (`memory.optimizer=auto`), which changes \
     last digits.",
    "Tokens/s are those of the median step, the first one left out. A cell is measured once: small differences are \
     noise, and on a machine that does other work large ones are too.",
    "Moved per step and stall are means over the whole run, its start included; moved counts both directions.",
    "Few steps, no evaluation and no sampling: nothing is said about what the models learn.",
];

const WITHOUT_GPU: &str = "The CPU's memory plays the device, and sequences of large models are short. Peaks \
     show that budgets hold, and losses and weights that no bit changed; speeds say nothing about a GPU.";

#[cfg(test)]
mod tests {
    use crate::records::machine;

    use super::{super::cell::tests::three, *};

    fn record(out: &Path) -> Result<Record> {
        let machine = machine::tests::cpu_machine();
        let place = Place::choose("auto", &machine);
        let turns = super::super::suite::Turns::default();
        let models = super::super::suite::models(&["toy".to_owned()], Some(5), turns, &[], &place);
        Record::begin(Some(out), &machine, &place, &models, "built at commit abc", 3)
    }

    #[test]
    fn a_record_says_command_commit_machine_numbers_and_caveats() {
        let folder = std::env::temp_dir().join(format!("bench-vram-record-{}", std::process::id()));
        let record = record(&folder).unwrap();
        record.write(&three()[..2]).unwrap();
        let early = fs::read_to_string(folder.join("README.md")).unwrap();
        record.write(&three()).unwrap();
        let page = fs::read_to_string(folder.join("README.md")).unwrap();
        let cells = fs::read_to_string(folder.join(CELLS)).unwrap();
        record.write(&bounds::tests::measured()).unwrap();
        let measured = fs::read_to_string(folder.join("README.md")).unwrap();
        let drawn = fs::read_to_string(folder.join(BYTES)).unwrap();
        let again = self::record(&folder).err();
        fs::remove_dir_all(&folder).unwrap();

        assert!(early.contains("**Not finished: 2 of 3 cells were measured.**"), "{early}");
        assert!(!page.contains("Not finished"));
        let said = [
            "# Device budgets: Some CPU, ",
            "`cargo xtask",
            "built at commit abc. Raw data",
            "| cores | 2 |",
            "| toy (1.2M) | 50% = 19.1 MiB | yes |",
            "| toy (1.2M) | 50% = 19.1 MiB | 10.0 MiB | 20.0 MiB | 26.21 |",
            "- toy at 25%, does not fit: step 1",
            "train run --config toy --device cpu --out DIR --json --set train.steps=5",
            "--set memory.device_budget=BUDGET\n",
            "speeds say nothing about a GPU",
        ];
        for expected in said {
            assert!(page.contains(expected), "{expected} is missing from:\n{page}");
        }
        assert_eq!(cells, cell::to_csv(&three()));
        assert!(!page.contains(BYTES), "no cell has a bound");
        assert!(
            measured.contains("| 1.200 | 3.00 of 6.00 GB/s") && measured.contains("](bytes.svg)"),
            "{measured}"
        );
        assert!(drawn.contains("toy at 50 %: 300 B of at least 250 B"), "{drawn}");
        assert!(again.unwrap().to_string().contains("never overwritten"));
    }
}
