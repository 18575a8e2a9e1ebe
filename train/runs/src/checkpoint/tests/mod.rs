//! The checkpoint store on real files.

mod crash;
mod damage;
mod faults;

use std::{fs, path::Path};

use anyhow::Context;

use super::*;

const FILES: [(&str, usize); 3] =
    [("model", contents::PIECE + 1000), ("state", 300), ("tokenizer/vocabulary", 40)];

fn contents_of(step: u64, file: &str, bytes: usize) -> Vec<u8> {
    let begin = (step * 31 + file.len() as u64) as usize;
    (begin..begin + bytes).map(|at| (at % 251) as u8).collect()
}

fn write_files(folder: &Path, step: u64) -> anyhow::Result<()> {
    fs::create_dir(folder.join("tokenizer"))?;
    for (file, bytes) in FILES {
        fs::write(folder.join(file), contents_of(step, file, bytes))
            .with_context(|| format!("writing {file}"))?;
    }
    Ok(())
}

fn save(checkpoints: &Checkpoints, step: u64) -> Saved {
    checkpoints.save(step, 0, |folder| write_files(folder, step)).expect("nothing hinders")
}

fn assert_holds(found: &Verified, step: u64) {
    assert_eq!(found.step, step);
    for (file, bytes) in FILES {
        assert!(
            fs::read(found.path.join(file)).expect("it is there") == contents_of(step, file, bytes),
            "{file}"
        );
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder").flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn store() -> (tempfile::TempDir, Checkpoints) {
    let run = tempfile::tempdir().expect("a folder");
    let checkpoints = Checkpoints::in_run(run.path());
    (run, checkpoints)
}

#[test]
fn a_saved_checkpoint_is_found_as_the_latest_by_step_and_by_path() {
    let (_run, checkpoints) = store();
    let saved = [250, 500].map(|step| save(&checkpoints, step));
    assert_eq!(saved[1].bytes, FILES.iter().map(|(_, bytes)| *bytes as u64).sum::<u64>());
    let latest = checkpoints.find(Which::Latest).expect("it is whole");
    assert_holds(&latest, 500);
    assert_eq!(latest, Checkpoints::open(&saved[1].path).expect("it is whole"));
    assert_holds(&checkpoints.find(Which::Step(250)).expect("it is whole"), 250);
    assert_eq!(names(&checkpoints.folder), ["latest", "step-00000250", "step-00000500"]);
}

#[test]
fn a_checkpoint_exists_once_it_is_sealed_on_any_thread() {
    let (_run, checkpoints) = store();
    save(&checkpoints, 1);
    let unsealed = checkpoints.write(2, 0, |folder| write_files(folder, 2)).expect("nothing hinders");
    assert_holds(&checkpoints.find(Which::Latest).expect("it is whole"), 1);
    assert_eq!(checkpoints.folders().expect("a folder").len(), 1);
    let sealed = std::thread::spawn(|| unsealed.seal()).join().expect("no panic").expect("nothing hinders");
    let latest = checkpoints.find(Which::Latest).expect("it is whole");
    assert_holds(&latest, 2);
    assert_eq!((latest.path, latest.bytes), (sealed.path, sealed.bytes));
}

#[test]
fn the_best_is_the_one_that_was_marked() {
    let (_run, checkpoints) = store();
    save(&checkpoints, 1);
    assert!(
        checkpoints.find(Which::Best).is_err_and(|error| matches!(error, CheckpointError::Absent { .. }))
    );
    checkpoints.mark_best(1).expect("it is there");
    save(&checkpoints, 2);
    assert_holds(&checkpoints.find(Which::Best).expect("it is whole"), 1);
    assert_eq!(
        (checkpoints.best().expect("a pointer"), checkpoints.latest().expect("a pointer")),
        (Some(1), Some(2))
    );
    let error = checkpoints.mark_best(7).expect_err("there is no such step").to_string();
    assert!(error.contains("no checkpoint of step 7") && error.contains("the steps 1, 2"), "{error}");
    for _ in 0..2 {
        checkpoints.unmark_best().expect("nothing hinders");
        assert_eq!(checkpoints.best().expect("readable"), None);
    }
}

#[test]
fn another_save_of_the_same_step_is_another_last_save() {
    let (_run, checkpoints) = store();
    let last = || checkpoints.last_save().expect("readable");
    assert_eq!(last(), None);
    let saves = [100, 200, 100, 100].map(|step| {
        save(&checkpoints, step);
        last().expect("it is there")
    });
    assert_eq!(saves.map(|save| save.step), [100, 200, 100, 100]);
    assert!(saves[0] != saves[2] && saves[2] != saves[3]);
}

#[test]
fn a_run_without_checkpoints_says_so_and_makes_no_folder() {
    let (run, checkpoints) = store();
    let error = checkpoints.find(Which::Latest).expect_err("there is none").to_string();
    assert!(error.starts_with("there is no checkpoint in ") && error.ends_with(", nor any other"), "{error}");
    assert_eq!(names(run.path()), [""; 0]);
}

#[test]
fn pruning_spares_the_latest_the_best_and_every_nth() {
    let (_run, checkpoints) = store();
    for step in 1..=8 {
        save(&checkpoints, step);
    }
    checkpoints.mark_best(2).expect("it is there");
    fs::create_dir(checkpoints.folder.join("step-00000009.partial")).expect("an interrupted save");
    checkpoints.prune(1, Some(5)).expect("nothing hinders");
    let left = ["best", "latest", "step-00000002", "step-00000005", "step-00000008"];
    assert_eq!(names(&checkpoints.folder), left);
}

#[test]
fn the_latest_checkpoint_is_the_last_saved_even_at_a_lower_step() {
    let (_run, checkpoints) = store();
    for step in [100, 200, 300, 150] {
        save(&checkpoints, step);
    }
    assert_holds(&checkpoints.find(Which::Latest).expect("it is whole"), 150);
    // As if cut off before the last rename.
    fs::write(checkpoints.folder.join("latest"), "step-00000300\n").expect("written");
    assert_holds(&checkpoints.find(Which::Latest).expect("it is whole"), 150);
    checkpoints.prune(2, None).expect("nothing hinders");
    assert_eq!(names(&checkpoints.folder), ["latest", "step-00000150", "step-00000300"]);
}

#[test]
fn a_step_saved_again_replaces_its_predecessor() {
    let (_run, checkpoints) = store();
    save(&checkpoints, 1);
    let again =
        checkpoints.save(1, 0, |folder| Ok(fs::write(folder.join("model"), "other")?)).expect("saved");
    assert_eq!(again.bytes, 5);
    assert_eq!(checkpoints.find(Which::Latest).expect("it is whole").bytes, 5);
    assert_eq!(names(&checkpoints.folder), ["latest", "step-00000001"]);
}
