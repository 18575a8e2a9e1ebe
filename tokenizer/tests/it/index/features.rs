//! Features, compared with the definition.

use proptest::prelude::*;
use tokenizer::{Align, Cursor, Source, Split, TokenDataset, WindowPlan};

use super::{
    brute,
    sets::{BOS, Sets, bytes, documents, tokens},
};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(suite::cases(12)))]

    #[test]
    fn every_position_has_the_follower_of_its_longest_earlier_match(
        documents in documents(), shortest in 1usize..5
    ) {
        let sets = Sets::new();
        sets.prepare("a", &documents, &[]);
        let corpora = sets.indexed(&["a"], shortest);
        corpora.indexes()[0].verify().expect("it is whole");
        let text = tokens(&documents);
        let dataset = sets.dataset("a", Split::Train);
        let features = corpora.features(&dataset).expect("it is indexed");
        let found = features.at(0..text.len() as u64).expect("reading");
        prop_assert_eq!(found, brute::features(&text, shortest));
    }

    #[test]
    fn any_context_finds_its_longest_match_and_the_first_of_many(
        documents in documents(), query in "[a-d]{1,50}", inner in 0usize..1000, opened: bool
    ) {
        let sets = Sets::new();
        sets.prepare("a", &documents, &[]);
        let corpora = sets.indexed(&["a"], 1);
        let text = tokens(&documents);
        let end = inner % text.len() + 1;
        let opening = opened.then_some(BOS);
        let foreign: Vec<u32> = opening.into_iter().chain(query.bytes().map(u32::from)).collect();
        for context in [&text[end.saturating_sub(40)..end], &foreign[..]] {
            let found = corpora.longest(context);
            let expected = brute::longest(&text, text.len(), context);
            prop_assert_eq!(found.map(|found| (found.length, found.at as usize)), expected);
            prop_assert_eq!(found.map(|found| found.next), expected.map(|(_, at)| text[at + 1]));
        }
    }

    #[test]
    fn the_longest_match_in_several_indexes_counts_and_the_first_of_equal_ones(
        first in documents(), second in documents(), query in "[ab]{1,12}"
    ) {
        let sets = Sets::new();
        sets.prepare("a", &first, &[]);
        sets.prepare("b", &second, &[]);
        let corpora = sets.indexed(&["a", "b"], 2);
        let texts = [tokens(&first), tokens(&second)];
        for end in 1..=query.len() {
            let context: Vec<u32> = query[..end].bytes().map(u32::from).collect();
            let mut expected: Option<(usize, usize, Source)> = None;
            for (number, text) in texts.iter().enumerate() {
                let found = brute::longest(text, text.len(), &context).filter(|(length, _)| *length >= 2);
                if let Some((length, at)) = found && expected.is_none_or(|(longest, ..)| longest < length) {
                    expected = Some((length, at, Source::Index(number)));
                }
            }
            let found = corpora.longest(&context);
            prop_assert_eq!(found.map(|found| (found.length, found.at as usize, found.source)), expected);
        }
    }

    #[test]
    fn a_text_indexed_in_parts_gives_each_position_what_the_whole_gives(
        first in documents(), second in documents(), measured in documents(), shortest in 1usize..4
    ) {
        let sets = Sets::new();
        sets.prepare("a", &first, &[]);
        sets.prepare("b", &second, &measured);
        let corpora = sets.indexed(&["a", "b"], shortest);

        let whole = tokens(&[first.clone(), second].concat());
        let expected = brute::features(&whole, shortest);

        let mut found = Vec::new();
        for name in ["a", "b"] {
            let dataset = sets.dataset(name, Split::Train);
            let features = corpora.features(&dataset).expect("it is indexed");
            found.extend(features.at(0..dataset.tokens()).expect("reading"));
        }

        // Only in the whole text, the first part's last position has a follower.
        let last = tokens(&first).len() - 1;
        let differ = |(at, (found, expected)): (usize, (&Option<u32>, &Option<u32>))| {
            let opens_next = *expected == Some(BOS) || brute::longest(&whole, at, &whole[..=at]).is_some_and(|(_, at)| at == last);
            (found != expected && !opens_next).then_some(at)
        };

        let differences: Vec<usize> = found.iter().zip(&expected).enumerate().filter_map(differ).collect();
        prop_assert!(differences.is_empty(), "at {differences:?}");
        prop_assert_eq!(found.len(), expected.len());
    }

    #[test]
    fn a_validation_document_matches_the_index_and_itself(
        learned in documents(), measured in documents(), from in 0usize..300
    ) {

        let sets = Sets::new();
        sets.prepare("a", &learned, &measured);
        let corpora = sets.indexed(&["a"], 2);
        let dataset = sets.dataset("a", Split::Val);
        let text = tokens(&measured);
        let from = from % text.len();
        let found = corpora.features(&dataset).expect("it opens").at(from as u64..u64::MAX >> 1);

        let indexed = tokens(&learned);
        let expected: Vec<_> = (from..text.len())
            .map(|at| {
                let start = text[..=at].iter().rposition(|id| *id == BOS).expect("documents are opened");
                let own = brute::longest(&text[start..=at], at - start, &text[start..=at]);
                let other = brute::longest(&indexed, indexed.len(), &text[..=at]);
                let (own_length, other_length) = (own.map_or(0, |own| own.0), other.map_or(0, |other| other.0));
                match (own, other) {
                    _ if own_length.max(other_length) < 2 => None,
                    (Some((_, own)), _) if own_length > other_length => Some(text[start + own + 1]),
                    (_, other) => other.map(|(_, at)| indexed[at + 1]),
                }
            })
            .collect();
        prop_assert_eq!(found.expect("reading"), expected);
    }
}

#[test]
fn a_repeated_document_matches_only_earlier_copies() {
    let documents = vec!["abcdefghij".to_owned(); 40];
    let sets = Sets::new();
    sets.prepare("a", &documents, &[]);
    let corpora = sets.indexed(&["a"], 2);
    let dataset = sets.dataset("a", Split::Train);
    let found = corpora.features(&dataset).expect("it is indexed").at(0..dataset.tokens()).expect("reading");
    assert!(found[..11].iter().all(Option::is_none), "nothing is before the first document: {found:?}");
    let text = tokens(&documents);
    for at in 11..text.len() {
        // A match of one token, below `shortest`.
        let expected = if text[at] == BOS { None } else { Some(text.get(at + 1).copied().unwrap_or(BOS)) };
        assert_eq!(found[at], expected, "at {at}");
    }
    let first = corpora.longest(&text).expect("a match");
    assert_eq!((first.length, first.at, first.source), (11, 10, Source::Index(0)));
}

#[test]
fn a_text_of_one_letter_builds_and_matches() {
    let documents = vec!["a".repeat(5000)];
    let sets = Sets::new();
    sets.prepare("a", &documents, &[]);
    let mut build = sets.build("a");
    build.chunk_tokens = Some(600);
    super::sets::run(&build).expect("it is built");
    let corpora = sets.open(&["a"], 2).expect("it opens");
    let found = corpora.longest(&vec![u32::from(b'a'); 100]).expect("a match");
    assert_eq!((found.length, found.at), (32, 32));
}

#[test]
fn windows_have_the_features_of_their_inputs() {
    let documents: Vec<String> = (0..30).map(|at| "abcdefgh".repeat(at % 5 + 1)).collect();
    let sets = Sets::new();
    sets.prepare("a", &documents, &[]);
    let corpora = sets.indexed(&["a"], 2);
    let text = tokens(&documents);
    let expected = brute::features(&text, 2);

    for (length, align) in [(9, Align::Document), (50, Align::Document)] {
        let plan = WindowPlan { length, align, shuffle: true };
        let dataset = TokenDataset::open(sets.path("a"), Split::Train, &bytes(), plan);
        let Ok(dataset) = dataset else { continue };
        let features = corpora.features(&dataset).expect("it is indexed");
        for (cursor, window) in
            dataset.stream(Cursor::start(3)).take(dataset.windows() as usize).map(Result::unwrap)
        {
            let positions = dataset.positions(cursor);
            let range = positions.start as usize..positions.end as usize;
            assert_eq!(window.x[..range.len()], text[range.clone()]);
            let found = features.window(cursor).expect("reading");
            assert_eq!(found[..range.len()], expected[range.clone()]);
            assert!(found.len() == length && found[range.len()..].iter().all(Option::is_none));
        }
    }
}

#[test]
fn windows_looked_up_together_equal_single_look_ups() {
    let learned: Vec<String> = (0..30).map(|at| "abcdefgh".repeat(at % 5 + 1)).collect();
    let measured: Vec<String> = (0..40).map(|at| "hgfeabba".repeat(at % 7 + 1)).collect();
    let sets = Sets::new();
    sets.prepare("a", &learned, &measured);
    let corpora = sets.indexed(&["a"], 2);
    for (length, align) in [(9, Align::Document), (30, Align::Document), (7, Align::Anywhere)] {
        for split in [Split::Train, Split::Val] {
            let plan = WindowPlan { length, align, shuffle: true };
            let dataset = TokenDataset::open(sets.path("a"), split, &bytes(), plan).expect("it opens");
            let features = corpora.features(&dataset).expect("it opens");
            let cursors = dataset.stream(Cursor::start(3)).take(dataset.windows() as usize + 5);
            let cursors: Vec<Cursor> = cursors.map(|window| window.expect("reading").0).collect();
            let alone: Vec<_> =
                cursors.iter().map(|cursor| features.window(*cursor).expect("reading")).collect();
            assert_eq!(features.windows(&cursors).expect("reading"), alone);
        }
    }
}

#[test]
fn a_document_longer_than_the_reach_gives_each_window_the_same_features() {
    let long =
        (0..75_000_u32).map(|at| char::from(b'a' + (at.wrapping_mul(2_654_435_761) >> 29) as u8)).collect();
    let sets = Sets::new();
    sets.prepare("a", &["abcdefgh".to_owned()], &[long]);
    let corpora = sets.indexed(&["a"], 2);
    let plan = WindowPlan { length: 40, align: Align::Anywhere, shuffle: false };
    let dataset = TokenDataset::open(sets.path("a"), Split::Val, &bytes(), plan).expect("it opens");
    let features = corpora.features(&dataset).expect("it opens");
    let cursors = [1800, 100, 1801, 1700, 1701].map(|index| Cursor { index, ..Cursor::start(0) });
    let together = features.windows(&cursors).expect("reading");
    for (cursor, found) in cursors.into_iter().zip(&together) {
        assert_eq!(*found, features.window(cursor).expect("reading"), "{cursor:?}");
    }
    assert!(together.iter().all(|found| found.iter().flatten().count() > 20), "it matches itself");
}
