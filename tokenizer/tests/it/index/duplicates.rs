//! Copies of indexed documents in validation text.

use std::ops::Range;
use std::sync::atomic::AtomicBool;

use proptest::prelude::*;
use tokenizer::{Cursor, Duplicates, Error, Split};

use super::sets::{BOS, Sets, documents, tokens};

fn ranges(text: &[u32]) -> Vec<Range<usize>> {
    let starts: Vec<usize> = (0..text.len()).filter(|at| text[*at] == BOS).collect();
    let ends = starts.iter().skip(1).copied().chain([text.len()]);
    starts.iter().copied().zip(ends).map(|(start, end)| start..end).collect()
}

fn marked(found: &Duplicates) -> Vec<bool> {
    (0..found.positions).map(|at| found.contains(at)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(suite::cases(12)))]

    #[test]
    fn exactly_the_documents_of_an_index_are_duplicates(
        learned in documents(), more in documents(), measured in documents(), copied in 0usize..8
    ) {
        let sets = Sets::new();
        let measured = [measured, learned[..copied.min(learned.len())].to_vec(), more[..1].to_vec()].concat();
        sets.prepare("a", &learned, &measured);
        sets.prepare("b", &more, &[]);
        let corpora = sets.indexed(&["a", "b"], 2);
        let found = corpora.duplicates(&sets.dataset("a", Split::Val)).expect("reading");
        let is_copy = |text: &String| learned.contains(text) || more.contains(text);
        let text = tokens(&measured);
        let mut expected = vec![false; text.len()];
        for (range, document) in ranges(&text).into_iter().zip(&measured) {
            expected[range].fill(is_copy(document));
        }
        prop_assert_eq!(marked(&found), expected);
        let copies = measured.iter().filter(|text| is_copy(text));
        prop_assert_eq!((found.documents, found.duplicate_documents), (measured.len() as u64, copies.clone().count() as u64));
        prop_assert_eq!(found.duplicate_positions, copies.map(|text| text.len() as u64 + 1).sum::<u64>());
        prop_assert!(found.ranges.windows(2).all(|pair| pair[0].end < pair[1].start));
    }
}

#[test]
fn all_but_the_first_of_equal_documents_of_an_indexed_split_are_copies() {
    let documents = ["ab", "abc", "ab", "b", "ab"].map(str::to_owned);
    let sets = Sets::new();
    sets.prepare("a", &documents, &[]);
    let found = sets.indexed(&["a"], 2).duplicates(&sets.dataset("a", Split::Train)).expect("reading");
    assert_eq!((found.documents, found.duplicate_documents, found.duplicate_positions), (5, 2, 6));
    assert_eq!(found.ranges, [7..10, 12..15]);
}

#[test]
fn a_stopped_search_fails() {
    let documents = ["ab", "abc", "ab"].map(str::to_owned);
    let sets = Sets::new();
    sets.prepare("a", &documents, &documents);
    let corpora = sets.indexed(&["a"], 2);
    let (measured, stop) = (sets.dataset("a", Split::Val), AtomicBool::new(true));
    assert!(matches!(corpora.duplicates_unless(&measured, &stop), Err(Error::Interrupted)));
    let features = corpora.features(&measured).expect("it opens");
    let found = features.windows_unless(&[Cursor::start(0)], &stop);
    assert!(matches!(found, Err(Error::Interrupted)));
}
