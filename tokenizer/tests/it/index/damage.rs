//! Hostile files: an error or no match, never a panic or a false match.

use std::{fs, path::PathBuf};

use proptest::{prelude::*, sample};
use tokenizer::{Error, Index, IndexProblem, Split};

use super::sets::{BOS, Sets, tokens};

const FILES: [&str; 3] = ["index.json", "order.bin", "followers.bin"];

fn documents() -> Vec<String> {
    (0..40).map(|at| "the cat sat on the mat ".repeat(at % 3 + 1) + &"xyz".repeat(at % 7)).collect()
}

fn set() -> Sets {
    let sets = Sets::new();
    sets.prepare("a", &documents(), &[]);
    sets.indexed(&["a"], 2);
    sets
}

fn open(sets: &Sets) -> Result<Index, Error> {
    Index::open(sets.path("a-index"), sets.path("a"))
}

fn file(sets: &Sets, name: &str) -> (PathBuf, Vec<u8>) {
    let path = sets.path("a-index").join(name);
    let whole = fs::read(&path).expect("it is there");
    (path, whole)
}

fn use_it(sets: &Sets) {
    let Ok(corpora) = sets.open(&["a"], 1) else { return };
    let text = tokens(&documents());
    for end in (1..text.len()).step_by(17) {
        if let Some(found) = corpora.longest(&text[..end]) {
            let at = found.at as usize;
            let matched = &text[at + 1 - found.length..=at];
            assert_eq!(matched, &text[end - found.length..end]);
            assert_eq!(found.next, text[at + 1]);
        }
    }
    let dataset = sets.dataset("a", Split::Train);
    let features = corpora.features(&dataset).expect("it is indexed");
    for at in 0..text.len() as u64 {
        match features.at(at..at + 1) {
            Ok(features) => assert!(features.iter().flatten().all(|id| *id <= BOS)),
            Err(error) => assert!(error.to_string().contains("impossible entry"), "{error}"),
        }
    }
}

#[test]
fn a_file_cut_anywhere_is_refused_by_name() {
    let sets = set();
    for name in FILES {
        let (path, whole) = file(&sets, name);
        let places = [0, 1, 7, 8, 16, 32, 63, 64, 65, whole.len() / 2, whole.len() - 1];
        for cut in places.into_iter().filter(|cut| *cut < whole.len()) {
            fs::write(&path, &whole[..cut]).expect("writing");
            let harmless = name == "index.json" && cut == whole.len() - 1;
            match open(&sets) {
                Err(Error::Index { path: named, .. }) => {
                    assert!(named.ends_with(name), "{}", named.display());
                }
                other => assert!(harmless, "{name} cut at {cut}: {other:?}"),
            }
        }

        let mut longer = whole.clone();
        longer.push(b'0');
        fs::write(&path, longer).expect("writing");
        assert!(matches!(open(&sets), Err(Error::Index { .. })), "{name}");
        fs::remove_file(&path).expect("removing");
        assert!(open(&sets).is_err(), "{name}");
        fs::write(&path, &whole).expect("writing");
    }
    open(&sets).expect("it opens").verify().expect("it is whole");
}

#[test]
fn a_changed_byte_of_a_header_is_refused_and_any_other_is_found_by_verifying() {
    let sets = set();
    for name in ["order.bin", "followers.bin"] {
        let (path, whole) = file(&sets, name);
        for at in (0..64).chain((64..whole.len()).step_by(97)) {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x10;
            fs::write(&path, bytes).expect("writing");
            match open(&sets) {
                Err(Error::Index { path: named, .. }) => assert!(at < 64 && named.ends_with(name)),
                Err(other) => panic!("{other}"),
                Ok(index) => {
                    let found = index.verify();
                    let checksum =
                        matches!(found, Err(Error::Index { problem: IndexProblem::Checksum { .. }, .. }));
                    assert!(at >= 64 && checksum, "byte {at} of {name}: {found:?}");
                }
            }
        }
        fs::write(&path, &whole).expect("writing");
    }
}

#[test]
fn a_changed_manifest_byte_is_refused_or_harmless() {
    let sets = set();
    let (path, whole) = file(&sets, "index.json");
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        fs::write(&path, &bytes).expect("writing");
        if let Ok(index) = open(&sets) {
            index.verify().unwrap_or_else(|error| panic!("byte {at}: {error}"));
            assert!(whole[at].is_ascii_whitespace(), "byte {at}");
        }
    }
}

#[test]
fn no_header_or_manifest_bytes_make_opening_panic() {
    let sets = set();
    let files = FILES.map(|name| file(&sets, name));
    let put = prop_oneof![
        "[-0-9eE.,:{}\\[\\]\"a-z_]{0,12}".prop_map(String::into_bytes),
        sample::select(vec![b"18446744073709551615".to_vec(), b"-1".to_vec(), b"null".to_vec()]),
        prop::collection::vec(any::<u8>(), 0..12),
    ];
    let only = prop::option::weighted(0.2, prop::collection::vec(any::<u8>(), 0..200));
    proptest!(ProptestConfig::with_cases(suite::cases(64)), |(of in 0..3_usize, at in any::<sample::Index>(), removed in 0..24_usize, put in put, only in only)| {
        let (path, whole) = &files[of];
        let at = at.index(if of == 0 { whole.len() } else { 72 });
        let spliced = [&whole[..at], &put, &whole[(at + removed).min(whole.len())..]].concat();
        fs::write(path, only.unwrap_or(spliced)).expect("writing");
        use_it(&sets);
        fs::write(path, whole).expect("writing");
    });
    open(&sets).expect("all is back").verify().expect("it is whole");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(suite::cases(12)))]

    #[test]
    fn no_entry_bytes_make_a_look_up_panic_or_lie(
        order in prop::collection::vec((any::<usize>(), any::<u32>()), 0..60),
        followers in prop::collection::vec((any::<usize>(), any::<u8>()), 0..60),
        all in prop::option::of(any::<u32>())
    ) {
        let sets = set();
        let (path, mut bytes) = file(&sets, "order.bin");
        let entries = (bytes.len() - 64) / 4;
        if let Some(value) = all {
            bytes[64..].chunks_exact_mut(4).for_each(|entry| entry.copy_from_slice(&value.to_le_bytes()));
        }
        for (at, value) in order {
            let at = 64 + at % entries * 4;
            bytes[at..at + 4].copy_from_slice(&(value >> (value % 32)).to_le_bytes());
        }
        fs::write(path, bytes).expect("writing");
        let (path, mut bytes) = file(&sets, "followers.bin");
        for (at, value) in followers {
            let length = bytes.len() - 64;
            bytes[64 + at % length] = value;
        }
        fs::write(path, bytes).expect("writing");
        use_it(&sets);
    }
}

#[test]
fn other_shards_and_other_tokenizers_are_refused_with_the_way_out() {
    let sets = set();
    sets.prepare("b", &["another text".to_owned()], &[]);
    let error = Index::open(sets.path("a-index"), sets.path("b")).expect_err("other shards");
    let said = error.to_string();
    assert!(said.contains("Name the set it was built from, or build the index of this set"), "{said}");
    assert!(matches!(error, Error::Index { problem: IndexProblem::OtherShards { .. }, .. }));
    let nothing = Index::open(sets.path("b"), sets.path("b")).expect_err("a set is no index");
    assert!(nothing.to_string().contains("goes on when it is started again"), "{nothing}");
    let shard = sets.path("a").join("train-00000.bin");
    let mut bytes = fs::read(&shard).expect("there");
    bytes[1030] ^= 1;
    fs::write(&shard, bytes).expect("writing");
    let verified = open(&sets).expect("sizes are right").verify().expect_err("contents are not");
    assert!(matches!(verified, Error::Shard { .. }), "{verified}");
    use_changed(&sets);
}

fn use_changed(sets: &Sets) {
    let corpora = sets.open(&["a"], 1).expect("it opens");
    let text = tokens(&documents());
    for end in (1..text.len()).step_by(7) {
        let _ = corpora.longest(&text[..end]);
    }
}
