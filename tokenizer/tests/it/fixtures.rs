//! Material of several tests.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{LazyLock, atomic::AtomicBool},
};

use tokenizer::{BpeTraining, Error, Manifest, OnBadRecord, Outcome, Preparation, SplitRule, Tokenizer};

pub(crate) const CORPUS: &str = include_str!("goldens/corpus.txt");

/// As in `goldens/make.py`.
pub(crate) const SMALL_VOCABULARY: usize = 450;

pub(crate) fn corpus_lines() -> impl Iterator<Item = Result<String, Error>> + Send {
    CORPUS.split_inclusive('\n').map(|line| Ok(line.to_owned()))
}

pub(crate) fn small_training() -> BpeTraining {
    BpeTraining { vocab_size: SMALL_VOCABULARY, ..BpeTraining::default() }
}

pub(crate) static SMALL: LazyLock<Tokenizer> =
    LazyLock::new(|| small_training().train(corpus_lines()).expect("the corpus trains"));

pub(crate) fn goldens() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/goldens")
}

pub(crate) fn by_document(val_fraction: f64) -> SplitRule {
    SplitRule::Document { val_fraction, seed: 1 }
}

pub(crate) fn preparation(input: &Path, out: &Path, split: SplitRule) -> Preparation {
    let (inputs, out) = (vec![input.to_owned()], out.to_owned());
    Preparation { inputs, out, split, shard_tokens: 1000, on_bad_record: OnBadRecord::Fail }
}

pub(crate) fn run(preparation: &Preparation, tokenizer: &Tokenizer) -> Result<Outcome, Error> {
    preparation.run(tokenizer, &AtomicBool::new(false), |_| {})
}

pub(crate) fn written(preparation: &Preparation, tokenizer: &Tokenizer) -> Manifest {
    match run(preparation, tokenizer).expect("preparing works") {
        Outcome::Written(manifest) => manifest,
        Outcome::AlreadyThere(_) => panic!("{} was empty", preparation.out.display()),
    }
}

pub(crate) fn write_documents(path: &Path, count: usize) {
    let lines =
        (0..count).map(|at| format!("{{\"text\": \"Document {at}: the gauge reads {}.\"}}\n", at * 37 % 101));
    fs::write(path, lines.collect::<String>()).expect("writing the fixture");
}

pub(crate) fn contents(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(folder).expect("the folder is there");
    let mut files: Vec<_> = entries
        .map(|entry| {
            let path = entry.expect("reading the folder").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            (name, fs::read(&path).expect("reading a file"))
        })
        .collect();
    files.sort();
    files
}
