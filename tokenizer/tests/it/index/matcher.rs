//! Matching token by token equals matching from scratch.

use proptest::prelude::*;
use tokenizer::{Source, Split};

use super::{
    brute,
    sets::{BOS, Sets, documents, tokens},
};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(suite::cases(12)))]

    #[test]
    fn each_token_matches_as_if_computed_from_scratch(
        learned in documents(), spoken in documents(), own: bool, shortest in 1usize..4
    ) {
        let sets = Sets::new();
        sets.prepare("a", &learned, &[]);
        let corpora = sets.indexed(&["a"], shortest);
        let mut matcher = corpora.matcher(own);
        let text = tokens(&spoken);
        for at in 0..text.len() {
            let found = matcher.push(text[at]);
            let start = text[..=at].iter().rposition(|id| *id == BOS).expect("documents are opened");
            let so_far = &text[start..=at];
            let indexed = corpora.longest(so_far);
            let repeated = brute::longest(so_far, at - start, so_far).filter(|(length, _)| own && *length >= shortest);
            let expected = match repeated {
                Some((length, place)) if indexed.is_none_or(|indexed| indexed.length < length) => {
                    Some((length, so_far[place + 1], Source::Document, place as u64))
                }
                _ => indexed.map(|found| (found.length, found.next, found.source, found.at)),
            };
            prop_assert_eq!(found.map(|found| (found.length, found.next, found.source, found.at)), expected);
        }
    }

    #[test]
    fn decoding_a_document_matches_as_training_on_it_after_the_corpus(
        learned in documents(), document in "[ab]{1,80}"
    ) {
        let sets = Sets::new();
        sets.prepare("a", &learned, &[]);
        let both = [learned.clone(), vec![document.clone()]].concat();
        sets.prepare("both", &both, &[]);
        let (corpora, behind) = (sets.indexed(&["a"], 2), sets.indexed(&["both"], 2));
        let dataset = sets.dataset("both", Split::Train);
        let from = tokens(&learned).len() as u64;
        let trained = behind.features(&dataset).expect("it is indexed").at(from..dataset.tokens());
        let mut matcher = corpora.matcher(true);
        let decoded: Vec<_> =
            tokens(&[document]).into_iter().map(|id| matcher.push(id).map(|found| found.next)).collect();
        // The corpus has no follower of its last token.
        let text = tokens(&both);
        for (at, (trained, decoded)) in (from as usize..).zip(trained.expect("reading").into_iter().zip(decoded)) {
            let last = brute::longest(&text, at, &text[..=at]).is_some_and(|(_, found)| found as u64 == from - 1);
            prop_assert!(last || trained == decoded, "at {at}: {trained:?} and {decoded:?}");
        }
    }
}
