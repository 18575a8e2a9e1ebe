//! Equal bytes for any memory, threads and interruptions.

use std::{
    fs,
    sync::atomic::{AtomicBool, Ordering},
};

use tokenizer::{Error, IndexBuild, IndexManifest, IndexStep};

use super::sets::{Sets, run};
use crate::fixtures::contents;

fn set() -> Sets {
    let sets = Sets::new();
    let documents: Vec<String> =
        (0..60).map(|at| "abracadabra ".repeat(at * 7 % 5 + 1) + &at.to_string()).collect();
    sets.prepare("a", &documents, &[]);
    sets
}

fn stopped(build: &IndexBuild, pieces: usize) -> (Result<IndexManifest, Error>, u64) {
    let (stop, mut seen, mut reused) = (AtomicBool::new(false), 0, 0);
    let made = build.run(&stop, |progress| {
        seen += 1;
        reused = progress.reused;
        stop.store(seen >= pieces, Ordering::Relaxed);
    });
    (made, reused)
}

#[test]
fn chunks_memory_and_threads_change_no_byte() {
    let sets = set();
    let mut built = Vec::new();
    for (number, (chunk_tokens, memory, threads)) in
        [(Some(29), 128 << 10, 1), (Some(29), 128 << 10, 2), (Some(500), 128 << 10, 3), (None, 1 << 20, 2)]
            .into_iter()
            .enumerate()
    {
        let out = sets.path(&number.to_string());
        run(&IndexBuild { out: out.clone(), chunk_tokens, memory, threads, ..sets.build("a") })
            .expect("built");
        let files = contents(&out);
        let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["followers.bin", "index.json", "order.bin"]);
        built.push(files);
    }
    assert!(built.windows(2).all(|pair| pair[0] == pair[1]));
}

#[test]
fn a_build_that_is_stopped_anywhere_resumes_to_the_same_bytes() {
    let sets = set();
    run(&sets.build("a")).expect("built");
    let whole = contents(&sets.path("a-index"));
    let mut build = IndexBuild { out: sets.path("b-index"), ..sets.build("a") };

    let mut before = 0;
    for pieces in [1, 5, 9, 40, 70] {
        let (made, reused) = stopped(&build, pieces);
        assert!(matches!(made, Err(Error::Interrupted)), "{made:?}");
        assert!(!build.out.exists() && reused >= before.min(pieces as u64), "{reused} after {before}");
        before = pieces as u64;
    }

    let partial = sets.path("b-index.partial");
    let run_file = partial.join("run-00002");
    let mut bytes = fs::read(&run_file).expect("there");
    bytes[70] ^= 1;
    fs::write(&run_file, bytes).expect("writing");
    fs::write(partial.join("run-00003"), b"lm-run").expect("writing");
    fs::write(partial.join("stretch-00001.partial"), b"half").expect("writing");

    let mut reused = 0;
    build.threads = 1;
    build.run(&AtomicBool::new(false), |progress| reused = progress.reused).expect("it goes on");
    assert!(reused > 40, "{reused}");
    assert_eq!(contents(&build.out), whole);
    assert!(!partial.exists());
}

#[test]
fn pieces_of_another_text_or_other_chunks_are_not_reused() {
    let sets = set();
    sets.prepare("b", &["abracadabra".repeat(150)], &[]);
    let out = sets.path("out");
    let (made, _) = stopped(&IndexBuild { out: out.clone(), ..sets.build("a") }, 20);
    assert!(matches!(made, Err(Error::Interrupted)));
    let (made, reused) =
        stopped(&IndexBuild { out: out.clone(), chunk_tokens: Some(31), ..sets.build("a") }, 20);
    assert!(matches!(made, Err(Error::Interrupted)) && reused == 0);
    run(&IndexBuild { out: out.clone(), ..sets.build("b") }).expect("built");
    run(&sets.build("b")).expect("built");
    assert_eq!(contents(&out), contents(&sets.path("b-index")));
}

#[test]
fn a_piece_of_equal_name_and_size_from_other_chunks_is_not_reused() {
    let sets = Sets::new();
    let text: String = "abcdefg".repeat(10).chars().rev().collect();
    sets.prepare("a", &[text], &[]);
    // Of 70 positions in chunks of 30, the third has 10, like every chunk of 10.
    let (out, chunk_tokens) = (sets.path("out"), Some(30));
    let (made, _) = stopped(&IndexBuild { out: out.clone(), chunk_tokens, ..sets.build("a") }, 3);
    assert!(matches!(made, Err(Error::Interrupted)));
    let mut reused = 0;
    let build = IndexBuild { out: out.clone(), chunk_tokens: Some(10), ..sets.build("a") };
    build.run(&AtomicBool::new(false), |progress| reused = progress.reused).expect("built");
    assert_eq!(reused, 0);
    run(&sets.build("a")).expect("built");
    assert_eq!(contents(&out), contents(&sets.path("a-index")));
}

#[test]
fn a_finished_index_is_left_alone_and_another_refused() {
    let sets = set();
    sets.prepare("b", &["abra".to_owned()], &[]);
    let build = sets.build("a");
    let made = run(&build).expect("built");
    let again = build.run(&AtomicBool::new(false), |_| panic!("nothing is left to do")).expect("it is there");
    assert_eq!(made, again);
    assert_eq!(IndexManifest::read(&build.out).expect("there"), made);
    let other = run(&IndexBuild { out: build.out.clone(), ..sets.build("b") }).expect_err("another set's");
    assert!(other.to_string().contains("was built from other shards"), "{other}");
    let something = run(&IndexBuild { out: sets.path("a"), ..sets.build("b") }).expect_err("a set");
    assert!(matches!(something, Error::Occupied { .. }), "{something}");
}

#[test]
fn only_one_build_at_a_time_writes_an_index() {
    let sets = set();
    let build = sets.build("a");
    let mut second = None;
    build
        .run(&AtomicBool::new(false), |_| {
            second.get_or_insert_with(|| run(&build));
        })
        .expect("built");
    assert!(matches!(second, Some(Err(Error::Occupied { .. }))), "{second:?}");
}

#[test]
fn an_index_that_cannot_be_built_is_refused_before_anything_is_written() {
    let sets = set();
    let build = sets.build("a");
    for refused in [
        IndexBuild { threads: 0, ..build.clone() },
        IndexBuild { memory: 500, ..build.clone() },
        IndexBuild { chunk_tokens: Some(0), ..build.clone() },
        IndexBuild { chunk_tokens: Some(1), ..build.clone() },
        IndexBuild { memory: 10 << 10, threads: 8, ..build.clone() },
    ] {
        let error = run(&refused).expect_err("too small");
        assert!(matches!(error, Error::Option { .. }), "{error}");
    }
    assert!(!sets.path("a-index.partial").exists());
}

#[test]
fn an_index_takes_at_most_eight_bytes_a_token_and_its_steps_count_every_token() {
    let sets = set();
    let (mut sorted, mut matched) = (0, 0);
    let made = sets.build("a").run(&AtomicBool::new(false), |progress| match progress.step {
        IndexStep::Sort => sorted = progress.tokens,
        IndexStep::Merge => assert!(progress.tokens <= progress.all),
        IndexStep::Match => matched = progress.tokens,
    });
    let made = made.expect("built");
    assert_eq!((sorted, matched), (made.tokens - 1, made.tokens - 1));
    let corpora = sets.open(&["a"], 2).expect("it opens");
    assert!(corpora.indexes()[0].bytes() <= 8 * made.tokens, "{} bytes", corpora.indexes()[0].bytes());
}

#[test]
fn texts_of_one_and_two_tokens_have_an_index() {
    let sets = Sets::new();
    for (name, text) in [("a", ""), ("b", "x")] {
        sets.prepare("c", &["filler".to_owned()], &[]);
        let _ = fs::remove_dir_all(sets.path("c"));
        sets.prepare(name, &[text.to_owned(), "y".to_owned()][usize::from(text.is_empty())..], &[]);
        let corpora = sets.indexed(&[name], 1);
        assert!(corpora.longest(&[u32::from(b'z')]).is_none());
    }
}
