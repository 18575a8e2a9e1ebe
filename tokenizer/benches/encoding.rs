//! Speed of encoding.
//!
//! A shared machine changes speed from minute to minute. So ratios alternate both sides, and are also printed by
//! processor time. A word on the command line selects by name.
//!
//! The text is the file named by `TINYSHAKESPEARE`, or generated dialogues.

use std::{env, fs, hint::black_box, path::Path, sync::atomic::AtomicBool, time::Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rayon::{ThreadPool, ThreadPoolBuilder};
use tempfile::TempDir;
use tokenizer::{BpeTraining, OnBadRecord, Outcome, Preparation, SplitRule, Tokenizer, dialogues::Dialogues};

const DOCUMENT_BYTES: usize = 4096;
const PREPARED_BYTES: usize = 256 << 20;
const ROUNDS: usize = 11;
const BATCHES: usize = 10;

struct Subject {
    folder: TempDir,
    tokenizer: Tokenizer,
    theirs: hf::Tokenizer,
    documents: Vec<String>,
}

impl Subject {
    fn new() -> Self {
        let text = match env::var_os("TINYSHAKESPEARE") {
            Some(path) => fs::read_to_string(path).expect("TINYSHAKESPEARE names a text"),
            None => {
                Dialogues::training(1).take(20_000).flatten().map(|message| message.content + "\n").collect()
            }
        };
        let documents = documents(&text);
        let folder = tempfile::tempdir().expect("a folder");
        // Merges of this letter make a long run hard to encode.
        let run = "a".repeat(DOCUMENT_BYTES);
        let training = documents.iter().chain(std::iter::repeat_n(&run, 3)).map(|text| Ok(text.clone()));
        let training: Vec<_> = training.collect();
        let settings = BpeTraining { vocab_size: 4096, ..BpeTraining::default() };
        let tokenizer = settings.train(training).expect("the text trains");
        tokenizer.save(folder.path()).expect("saving");
        let theirs = hf::Tokenizer::from_file(folder.path().join("tokenizer.json")).expect("they load it");
        Self { folder, tokenizer, theirs, documents }
    }

    fn bytes(&self) -> usize {
        self.documents.iter().map(String::len).sum()
    }

    fn ours(&self) {
        for document in &self.documents {
            black_box(self.tokenizer.encode(document).expect("text encodes"));
        }
    }

    fn theirs(&self) {
        for document in &self.documents {
            black_box(self.theirs.encode_fast(document.as_str(), false).expect("they encode it"));
        }
    }

    fn batch(&self, pool: &ThreadPool) {
        pool.install(|| black_box(self.tokenizer.encode_batch(&self.documents)).expect("texts encode"));
    }
}

fn documents(text: &str) -> Vec<String> {
    let mut documents = vec![String::new()];
    for line in text.split_inclusive('\n') {
        if documents[documents.len() - 1].len() > DOCUMENT_BYTES {
            documents.push(String::new());
        }
        let last = documents.len() - 1;
        documents[last].push_str(line);
    }
    documents
}

fn pool(threads: usize) -> ThreadPool {
    ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool")
}

fn encoding(criterion: &mut Criterion) {
    let subject = Subject::new();
    let mut group = criterion.benchmark_group("encoding");
    group.sample_size(20).throughput(Throughput::Bytes(subject.bytes() as u64));
    group.bench_function("ours, one thread", |bench| bench.iter(|| subject.ours()));
    group.bench_function("hf, one thread", |bench| bench.iter(|| subject.theirs()));
    for threads in [1, 2] {
        let pool = pool(threads);
        group.bench_function(BenchmarkId::new("ours, batch, threads", threads), |bench| {
            bench.iter(|| subject.batch(&pool));
        });
    }
    group.finish();
    one_letter(criterion, &subject.tokenizer);
    ratios(&subject);
}

fn one_letter(criterion: &mut Criterion, tokenizer: &Tokenizer) {
    let mut group = criterion.benchmark_group("one letter");
    group.sample_size(20);
    for megabytes in [1, 2] {
        let text = "a".repeat(megabytes << 20);
        group.throughput(Throughput::Bytes(text.len() as u64));
        group.bench_function(BenchmarkId::new("MB", megabytes), |bench| {
            bench.iter(|| black_box(tokenizer.encode(&text).expect("text encodes")));
        });
    }
    group.finish();
}

fn ratios(subject: &Subject) {
    let megabytes = subject.bytes() as f64 / 1e6;
    ratio("ours to hf, one thread", megabytes, || subject.theirs(), || subject.ours());
    let (one, two) = (pool(1), pool(2));
    let often = |pool: &ThreadPool| (0..BATCHES).for_each(|_| subject.batch(pool));
    ratio("two threads to one", megabytes * BATCHES as f64, || often(&one), || often(&two));
    let (small, large) = ("a".repeat(1 << 20), "a".repeat(2 << 20));
    let letters = |text: &str| drop(black_box(subject.tokenizer.encode(text).expect("text encodes")));
    ratio("1 MB of one letter to 2 MB (2 is linear)", 1.0, || letters(&large), || letters(&small));
    let many = subject.documents.iter().cycle();
    let many: Vec<&String> = many.take(PREPARED_BYTES / subject.bytes() * subject.documents.len()).collect();
    let input = subject.folder.path().join("input.jsonl");
    let lines = many.iter().map(|text| format!("{}\n", serde_json::json!({ "text": text })));
    fs::write(&input, lines.collect::<String>()).expect("writing the input");
    let megabytes = many.iter().map(|text| text.len()).sum::<usize>() as f64 / 1e6;
    let raw =
        || two.install(|| drop(black_box(subject.tokenizer.encode_batch(&many)).expect("texts encode")));
    let prepared = || two.install(|| prepare(&subject.tokenizer, &input, &subject.folder.path().join("set")));
    ratio("prepare to raw encoding, two threads", megabytes, raw, prepared);
}

fn prepare(tokenizer: &Tokenizer, input: &Path, out: &Path) {
    let split = SplitRule::Document { val_fraction: 0.01, seed: 1 };
    let preparation = Preparation {
        inputs: vec![input.to_owned()],
        out: out.to_owned(),
        split,
        shard_tokens: Preparation::SHARD_TOKENS,
        on_bad_record: OnBadRecord::Fail,
    };
    let outcome = preparation.run(tokenizer, &AtomicBool::new(false), |_| {}).expect("preparing works");
    assert!(matches!(outcome, Outcome::Written(_)), "the folder was empty");
    fs::remove_dir_all(out).expect("removing the set");
}

/// Seconds by the clock, and of all threads' processor time.
fn timed(work: &impl Fn()) -> (f64, f64) {
    let (begun, before) = (Instant::now(), processor_seconds());
    work();
    (begun.elapsed().as_secs_f64(), processor_seconds() - before)
}

/// Hundredths of a second; 0 where unknown.
fn processor_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let behind_name = stat.rsplit(')').next().unwrap_or_default();
    let ticks = behind_name.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<f64>().ok());
    ticks.sum::<f64>() / 100.0
}

fn ratio(name: &str, megabytes: f64, baseline: impl Fn(), subject: impl Fn()) {
    let wanted = env::args().skip(1).find(|word| !word.starts_with('-'));
    if wanted.is_some_and(|word| !name.contains(&word)) {
        return;
    }

    baseline();
    subject();

    let (mut rounds, mut processor) = (Vec::new(), (0.0, 0.0));
    for _ in 0..ROUNDS {
        let ((before, before_busy), (after, after_busy)) = (timed(&baseline), timed(&subject));
        rounds.push((before, after));
        processor = (processor.0 + before_busy, processor.1 + after_busy);
    }

    rounds.sort_by(|a, b| (a.0 / a.1).total_cmp(&(b.0 / b.1)));
    let at = |share: usize| rounds[ROUNDS * share / 4].0 / rounds[ROUNDS * share / 4].1;
    let (before, after) = rounds[ROUNDS / 2];

    println!(
        "ratio  {name}: {:.2} (quartiles {:.2} to {:.2}), by processor time {:.2}; {:.1} to {:.1} MB/s",
        at(2),
        at(1),
        at(3),
        processor.0 / processor.1,
        megabytes / before,
        megabytes / after
    );
}

criterion_group!(benches, encoding);
criterion_main!(benches);
