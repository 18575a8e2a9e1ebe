//! `train prepare`.

use std::fs;

use tokenizer::Manifest;

use crate::program::{assert_success, failure, train, write_text};

#[test]
fn one_command_turns_text_into_shards() {
    let folder = tempfile::tempdir().expect("a folder");
    write_text(&folder.path().join("in.txt"), 1000);
    let arguments =
        ["prepare", "--input", "in.txt", "--tokenizer", "bytes", "--out", "set", "--split", "position"];
    let output = train(folder.path(), &arguments);
    assert_success(&output);

    let manifest = Manifest::read(folder.path().join("set")).expect("the set is there");
    let bytes = fs::metadata(folder.path().join("in.txt")).expect("it is there").len();
    assert_eq!(manifest.train.tokens + manifest.val.tokens, bytes);

    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        said.contains(&format!("train: {} tokens, 1 documents, 1 shards", manifest.train.tokens)),
        "{said}"
    );

    // Targets beyond full windows of 1024 are left out.
    let tokens = manifest.train.tokens;
    let seen = (tokens - 1) / 1024 * 1024;
    let share = format!(
        "which see {:.1} % of {},{:03} counted targets",
        100.0 * seen as f64 / tokens as f64,
        tokens / 1000,
        tokens % 1000
    );
    assert!(said.contains(&share), "{share:?} is not in {said}");

    let again = train(folder.path(), &arguments);
    assert_success(&again);
    assert!(String::from_utf8_lossy(&again.stdout).contains("holds this set already"));
    assert!(!String::from_utf8_lossy(&again.stderr).contains("written later"));

    let path = folder.path().join("in.txt");
    let text = fs::read_to_string(&path).expect("reading");
    fs::write(&path, text.to_uppercase()).expect("writing");
    let later = train(folder.path(), &arguments);
    assert_success(&later);
    let said = String::from_utf8_lossy(&later.stderr).into_owned();
    assert!(
        said.contains("in.txt was written later, with the same size") && said.contains("remove set"),
        "{said}"
    );
}

#[test]
fn failures_end_with_what_to_do() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("in.jsonl"), "{\"text\": \"one\"}\n").expect("writing");
    let said = |arguments: &[&str]| failure(&train(folder.path(), arguments), folder.path());
    let prepare = ["prepare", "--input", "in.jsonl", "--out", "set", "--tokenizer"];
    insta::assert_snapshot!("no_tokenizer", said(&[&prepare[..], &["absent"]].concat()));
    insta::assert_snapshot!("one_document", said(&[&prepare[..], &["bytes"]].concat()));
    insta::assert_snapshot!("fraction", said(&[&prepare[..], &["bytes", "--val-fraction", "1.5"]].concat()));
}

#[cfg(unix)]
mod unix {
    use std::{
        fs,
        path::Path,
        process::{Command, Stdio},
        thread,
        time::{Duration, Instant},
    };

    use crate::program::{LIMIT, PROGRAM, failure, write_text};

    /// `ulimit -f` counts blocks of 512 or 1024 bytes; untrapped, the signal ends the program.
    fn prepare_with_file_limit(folder: &Path, blocks: u32) -> std::process::Output {
        let script = format!(
            "trap '' XFSZ; ulimit -f {blocks}; exec {PROGRAM} prepare --input in.txt --tokenizer bytes --out set --split position"
        );
        Command::new("sh").args(["-c", &script]).current_dir(folder).output().expect("a shell")
    }

    #[test]
    fn a_full_disk_is_reported_and_leaves_nothing_that_looks_complete() {
        let folder = tempfile::tempdir().expect("a folder");
        write_text(&folder.path().join("in.txt"), 20_000);
        insta::assert_snapshot!(failure(&prepare_with_file_limit(folder.path(), 100), folder.path()));
        let left: Vec<_> =
            fs::read_dir(folder.path()).expect("reading").flatten().map(|entry| entry.file_name()).collect();
        assert_eq!(left, ["in.txt"]);
    }

    #[test]
    fn ctrl_c_leaves_nothing_that_looks_complete() {
        let folder = tempfile::tempdir().expect("a folder");
        write_text(&folder.path().join("in.txt"), 3_000_000);
        let made = tempfile::tempdir().expect("a folder");
        let lines = (0..200).map(|at| Ok(format!("At hour {at} the gauge read {at} and the water rose.\n")));
        let training = tokenizer::BpeTraining { vocab_size: 300, ..tokenizer::BpeTraining::default() };
        training.train(lines).expect("training").save(made.path()).expect("saving");
        let mut child = Command::new(PROGRAM)
            .args(["prepare", "--input", "in.txt", "--out", "set", "--split", "position", "--tokenizer"])
            .arg(made.path())
            .current_dir(folder.path())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let begun = Instant::now();
        let partial = folder.path().join("set.partial");
        while !partial.exists() {
            assert!(begun.elapsed() < LIMIT, "it writes nothing");
            thread::sleep(Duration::from_millis(5));
        }

        crate::ranks::signal(rustix::process::Signal::INT, child.id());
        let status = child.wait().expect("it ends");
        assert_eq!(status.code(), Some(3));
        assert!(!folder.path().join("set").exists() && !partial.exists());
    }
}
