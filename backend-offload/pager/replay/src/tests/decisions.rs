//! Decisions of the planned policy on small programs. `PAGER_WRITE_GOLDEN=1` rewrites the table.

use super::planning::Script;
use super::*;
use std::fmt::Write;
use std::path::PathBuf;

/// Four like steps over four layers, each with weights and a moment: forward, backward, update.
fn training() -> Recording {
    let sizes = [30, 50, 40, 20];
    let mut script = Script::default();
    let mut first = || sizes.map(|bytes| script.born(bytes));
    let (mut weights, mut moments) = (first().to_vec(), first().to_vec());
    for block in weights.iter().chain(&moments) {
        script.operate(&[], &[*block]);
    }
    for _ in 0..4 {
        script.train(&mut weights, &mut moments, &sizes, true);
        script.step();
    }
    script.recording
}

fn sweep() -> Recording {
    let mut script = Script::default();
    let blocks: Vec<usize> = (0..6).map(|_| script.born(40)).collect();
    for block in &blocks {
        script.operate(&[], &[*block]);
    }
    for _ in 0..6 {
        for (n, block) in blocks.iter().enumerate() {
            if n % 2 == 0 { script.operate(&[*block], &[]) } else { script.operate(&[], &[*block]) }
        }
        script.step();
    }
    script.recording
}

impl Replay<'_> {
    /// Notes a move, decided `when` the latest operation runs or for it.
    pub(crate) fn note(&mut self, when: &str, step: Step) {
        let operation = self.pager().counters().operations;
        let number = |id: BlockId| self.number(id).expect("a block of the program");
        let what = match step {
            Step::Evict { block, copy: Some(_) } => format!("copy {} out", number(block)),
            Step::Evict { block, copy: None } => format!("drop {}", number(block)),
            Step::Bring { block, from: Some(_) } => format!("bring {} back", number(block)),
            Step::Bring { block, from: None } => format!("make {}", number(block)),
            Step::Wait(_) => "wait for the oldest copy".to_owned(),
            Step::Sweep => return,
            other => format!("{other:?}"),
        };
        writeln!(self.decisions, "{when} operation {operation}: {what}").expect("a string");
    }
}

#[test]
fn every_decision_of_small_programs_is_the_one_on_record() {
    let mut table = String::new();
    for (name, program, budget, memory) in [("training", training(), 180, 0.2), ("sweep", sweep(), 180, 1.0)]
    {
        let machine = Machine { link: 1.0, memory, ..Machine::INSTANT };
        let replay = Replay::new(&program, Limit::bytes(budget), Policy::Planned).on(machine);
        let replay = replay.run(1).expect("every operation fits");
        writeln!(table, "[{name}, {budget} bytes]\n{}", replay.decisions).expect("a string");
    }
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("traces/decisions.txt");
    if std::env::var_os("PAGER_WRITE_GOLDEN").is_some() {
        std::fs::write(&file, &table).expect("the table can be written");
    }
    let expected = std::fs::read_to_string(&file).expect("a committed table");
    for (line, (found, expected)) in table.lines().zip(expected.lines()).enumerate() {
        assert_eq!(found, expected, "line {}", line + 1);
    }
    assert_eq!(table.lines().count(), expected.lines().count());
    let has =
        |when: &str, what: &str| table.lines().any(|line| line.starts_with(when) && line.ends_with(what));
    for (when, what) in
        [("for", "out"), ("beside", "out"), ("for", "back"), ("beside", "back"), ("for", "copy")]
    {
        assert!(has(when, what), "nothing is on record of {when:?}, {what:?}");
    }
    assert!(table.contains(": drop "), "no clean block leaves");
}
