//! Measures the index of longest matches: builds and look-ups.
//!
//! ```sh
//! cargo run --release -p tokenizer --example longest_match -- FOLDER [TOKENS] [MEMORY]
//! ```
//!
//! Writes seeded text with repeated passages into FOLDER, prepares a set and indexes it in MEMORY bytes. Reuses a set
//! but no index. Prints CSV.

use std::{
    collections::BTreeSet,
    env,
    error::Error,
    fs::{self, File},
    io::{BufWriter, Write},
    path::Path,
    sync::{Arc, atomic::AtomicBool},
    thread,
    time::Instant,
};

use tokenizer::{
    Align, Corpora, Cursor, IndexBuild, IndexStep, OnBadRecord, Preparation, Split, SplitRule, TokenDataset,
    Tokenizer, WindowPlan,
};

const SEED: u64 = 1;
const WORDS: u32 = 20_000;
const FIRST_WORD: u32 = 0x4E00;
/// Source tokens of repeated passages.
const MEMORABLE: usize = 1 << 22;
const LOOK_UPS: usize = 200_000;

type Done<T = ()> = Result<T, Box<dyn Error>>;

fn main() -> Done {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let number = |at: usize, otherwise: u64| arguments.get(at).map_or(Ok(otherwise), |text| text.parse());
    let folder = Path::new(arguments.first().ok_or("name a folder")?);
    let (tokens, memory) = (number(1, 100_000_000)?, number(2, 256 << 20)?);
    let tokenizer = Tokenizer::characters(&alphabet(), &["<|bos|>"])?;

    let set = folder.join("set");
    if !set.exists() {
        fs::create_dir_all(folder)?;
        let input = folder.join("text.jsonl");
        write_text(&input, tokens)?;
        let split = SplitRule::Document { val_fraction: 0.01, seed: SEED };
        let (inputs, shard_tokens) = (vec![input.clone()], Preparation::SHARD_TOKENS);
        let out = set.clone();
        let preparation = Preparation { inputs, out, split, shard_tokens, on_bad_record: OnBadRecord::Fail };
        preparation.run(&tokenizer, &AtomicBool::new(false), |_| {})?;
        fs::remove_file(input)?;
        println!("set,written; run the same command again to index it in a process that did nothing else");
        return Ok(());
    }

    let index = folder.join("index");
    let _ = fs::remove_dir_all(&index);
    let threads = thread::available_parallelism()?.get();
    let build = IndexBuild {
        set: set.clone(),
        split: Split::Train,
        out: index.clone(),
        memory,
        chunk_tokens: None,
        threads,
    };

    print("memory given", memory, "bytes");
    print("threads", threads as u64, "");
    report_build(&build)?;

    let corpora = Arc::new(Corpora::open([(index, set.clone())], Corpora::SHORTEST)?);
    let manifest = corpora.indexes()[0].manifest();
    let bytes = corpora.indexes()[0].bytes();
    print("index", bytes, "bytes");
    println!("index per token,{:.3},bytes", bytes as f64 / manifest.tokens as f64);
    report_look_ups(&corpora, &set, &tokenizer)
}

fn print(what: &str, value: u64, unit: &str) {
    println!("{what},{value},{unit}");
}

fn print_rate(what: &str, count: u64, start: Instant) {
    let seconds = start.elapsed().as_secs_f64();
    println!("{what},{seconds:.2},s");
    println!("{what},{:.0},per second", count as f64 / seconds);
}

fn report_build(build: &IndexBuild) -> Done {
    let start = Instant::now();
    let mut steps: Vec<(IndexStep, f64)> = Vec::new();
    let manifest = build.run(&AtomicBool::new(false), |progress| {
        let seconds = start.elapsed().as_secs_f64();
        match steps.last_mut().filter(|(step, _)| *step == progress.step) {
            Some(last) => last.1 = seconds,
            None => steps.push((progress.step, seconds)),
        }
    })?;
    print("tokens", manifest.tokens, "");
    print_rate("build", manifest.tokens, start);
    for (step, seconds) in steps {
        println!("until the end of {step:?},{seconds:.1},s");
    }
    print_memory("build");
    Ok(())
}

fn print_memory(when: &str) {
    let Ok(status) = fs::read_to_string("/proc/self/status") else { return };
    for name in ["VmHWM", "RssAnon", "RssFile"] {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        if let Some(value) = line {
            println!("{name} after {when},{},", value.trim());
        }
    }
}

fn report_look_ups(corpora: &Arc<Corpora>, set: &Path, tokenizer: &Tokenizer) -> Done {
    let plan = WindowPlan { length: 32, align: Align::Anywhere, shuffle: true };
    for split in [Split::Val, Split::Train] {
        let dataset = TokenDataset::open(set, split, tokenizer, plan)?;
        let windows = dataset.stream(Cursor::start(SEED)).take(LOOK_UPS);
        let contexts = windows.map(|window| Ok(window?.1.x)).collect::<Done<Vec<_>>>()?;
        let start = Instant::now();
        let lengths: usize =
            contexts.iter().filter_map(|context| corpora.longest(context)).map(|found| found.length).sum();
        print_rate(&format!("look-up of random {} contexts", split.name()), contexts.len() as u64, start);
        println!("mean length,{:.2},tokens", lengths as f64 / contexts.len() as f64);
    }

    let train = TokenDataset::open(set, Split::Train, tokenizer, plan)?;
    let features = corpora.features(&train)?;
    let (start, mut matched, mut right) = (Instant::now(), 0, 0);
    for from in (0..train.tokens()).step_by(1 << 20) {
        matched += features.at(from..from + (1 << 20))?.iter().flatten().count() as u64;
    }
    print_rate("features in sequence", train.tokens(), start);
    print("positions with a match", matched, "");

    let val = TokenDataset::open(set, Split::Val, tokenizer, plan)?;
    let features = corpora.features(&val)?;
    let start = Instant::now();
    for window in val.stream(Cursor::start(SEED)).take(2000) {
        let (cursor, window) = window?;
        let found = features.window(cursor)?;
        right += found.iter().zip(&window.y).filter(|(found, next)| **found == Some(**next)).count();
    }
    print_rate("features of random val windows", 2000 * 32, start);
    println!("right guesses there,{:.3},", right as f64 / (2000.0 * 32.0));

    let start = Instant::now();
    let copies = corpora.duplicates(&val)?;
    print_rate("duplicates", train.tokens() + val.tokens(), start);
    print("val documents", copies.documents, "");
    print("val documents that are copies", copies.duplicate_documents, "");
    print_memory("look-ups");
    Ok(())
}

fn alphabet() -> BTreeSet<char> {
    (0..WORDS).map(word).collect()
}

fn word(number: u32) -> char {
    char::from_u32(FIRST_WORD + number).unwrap_or('?')
}

struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    /// Below `limit`, by Zipf's law.
    fn zipf(&mut self, limit: u32) -> u32 {
        let share = (self.next() >> 11) as f64 / (1u64 << 53) as f64;
        (f64::from(limit).powf(share) as u32).clamp(1, limit) - 1
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ bits >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ bits >> 31
}

fn write_text(path: &Path, tokens: u64) -> Done {
    let mut file = BufWriter::new(File::create(path)?);
    let mut numbers = Numbers(SEED);
    let mut memory: Vec<u32> = Vec::with_capacity(MEMORABLE);
    let mut written = 0;
    while written < tokens {
        let document = match (numbers.below(50), memory.len()) {
            (0, 4000..) => passage(&mut numbers, &memory, 1000),
            _ => new_document(&mut numbers, &memory),
        };
        let text: String = document.iter().map(|number| word(*number)).collect();
        writeln!(file, "{{\"text\": \"{text}\"}}")?;
        written += document.len() as u64 + 1;
        if memory.len() + document.len() <= MEMORABLE {
            memory.extend(document);
        }
    }
    Ok(file.flush()?)
}

/// Up to `most` earlier tokens; few starts, to repeat passages.
fn passage(numbers: &mut Numbers, memory: &[u32], most: u64) -> Vec<u32> {
    let length = numbers.below(most).min(memory.len() as u64) as usize + 1;
    let from = numbers.below((memory.len() / 1000).max(1) as u64) as usize * 1000;
    memory[from..(from + length).min(memory.len())].to_vec()
}

fn new_document(numbers: &mut Numbers, memory: &[u32]) -> Vec<u32> {
    let length = 50 + numbers.below(1500) as usize;
    let mut document: Vec<u32> = Vec::with_capacity(length);
    while document.len() < length {
        if numbers.below(400) == 0 && !memory.is_empty() {
            document.extend(passage(numbers, memory, 200));
        }
        let last = document.last().copied().filter(|_| numbers.below(2) == 0);
        let next = match last {
            Some(last) => {
                let choice = numbers.zipf(64);
                (mix(u64::from(last) << 8 | u64::from(choice)) % u64::from(WORDS)) as u32
            }
            None => numbers.zipf(WORDS),
        };
        document.push(next);
    }
    document
}
