//! Vocabularies trained here.

use std::collections::BTreeSet;

use proptest::prelude::*;
use tokenizer::{BpeTraining, CHAT_SPECIALS, Pattern, Tokenizer};

use crate::fixtures::{CORPUS, SMALL, corpus_lines, small_training};

fn in_pool<R: Send>(threads: usize, work: impl FnOnce() -> R + Send) -> R {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool").install(work)
}

#[test]
fn training_does_not_depend_on_the_run_the_threads_or_the_order() {
    let expected = SMALL.fingerprint();
    for threads in [1, 2, 5] {
        let again = in_pool(threads, || small_training().train(corpus_lines())).expect("training");
        assert_eq!(again.fingerprint(), expected, "{threads} threads");
    }
    let backwards: Vec<_> = corpus_lines().collect::<Vec<_>>().into_iter().rev().collect();
    assert_eq!(small_training().train(backwards).expect("training").fingerprint(), expected);
}

#[test]
fn batches_do_not_depend_on_the_threads() {
    let texts: Vec<&str> = CORPUS.split('\n').collect();
    let expected: Vec<Vec<u32>> =
        texts.iter().map(|text| SMALL.encode(text).expect("text encodes")).collect();
    for threads in [1, 2, 5] {
        assert_eq!(in_pool(threads, || SMALL.encode_batch(&texts)).expect("texts encode"), expected);
    }
}

#[test]
fn saving_and_loading_keep_the_tokenizer() {
    let alphabet: BTreeSet<char> = CORPUS.chars().collect();
    let made = [
        small_training().train(corpus_lines()).expect("training"),
        Tokenizer::bytes(&CHAT_SPECIALS),
        Tokenizer::bytes(&[]),
        Tokenizer::characters(&alphabet, &CHAT_SPECIALS).expect("an alphabet"),
    ];
    for tokenizer in made {
        let folder = tempfile::tempdir().expect("a folder");
        tokenizer.save(folder.path()).expect("saving");
        let loaded = Tokenizer::load(folder.path()).expect("loading");
        assert_eq!(loaded.kind(), tokenizer.kind());
        assert_eq!(loaded.fingerprint(), tokenizer.fingerprint());
        assert_eq!((loaded.bos(), loaded.eos()), (tokenizer.bos(), tokenizer.eos()));
        assert_eq!(loaded.encode(CORPUS).expect("encodes"), tokenizer.encode(CORPUS).expect("encodes"));
    }
}

#[test]
fn control_tokens_follow_the_learned_ones() {
    let size = SMALL.vocab_size();
    let ids: Vec<_> = SMALL.specials().iter().map(|token| (token.text.as_str(), token.id)).collect();
    let expected: Vec<_> = CHAT_SPECIALS.into_iter().zip(size - 5..).collect();
    assert_eq!(ids, expected);
}

#[test]
fn a_capped_document_counts_only_up_to_the_cap() {
    let train = |documents: [&str; 2], document_chars| {
        let training = BpeTraining { vocab_size: 300, document_chars, ..BpeTraining::default() };
        training.train(documents.map(|text| Ok(text.to_owned()))).expect("training").fingerprint()
    };
    let long = format!("the water rises {}", "and the water falls ".repeat(50));
    assert_eq!(train(["the water", &long], 16), train(["the water", "the water rises "], 16));
    assert_ne!(train(["the water", &long], 16), train(["the water", &long], 10_000));
}

#[test]
fn samples_are_chosen_by_the_seed() {
    let train = |seed| {
        let training = BpeTraining { sample: 0.5, seed, ..small_training() };
        training.train(corpus_lines()).expect("training").fingerprint()
    };
    assert_eq!(train(1), train(1));
    assert_ne!(train(1), train(2));
}

#[test]
fn every_known_pattern_encodes_as_hugging_face_does() {
    for pattern in [
        Pattern::Whole,
        Pattern::Gpt2,
        Pattern::Digits1,
        Pattern::Digits2,
        Pattern::Digits3,
        Pattern::CaseAware,
    ] {
        let tokenizer = BpeTraining { pattern, ..small_training() }.train(corpus_lines()).expect("training");
        assert_eq!(tokenizer.pattern(), Some(pattern));

        let folder = tempfile::tempdir().expect("a folder");
        tokenizer.save(folder.path()).expect("saving");
        let theirs = hf::Tokenizer::from_file(folder.path().join("tokenizer.json")).expect("they load it");

        for text in CORPUS
            .split_inclusive('\n')
            .chain([CORPUS, "fooBar's HTTPServer'LL\n\n/x 12345 \u{3000}\u{3000}x"])
        {
            let expected = theirs.encode_fast(text, false).expect("they encode it").get_ids().to_vec();
            assert_eq!(tokenizer.encode(text).expect("text encodes"), expected, "{pattern:?}: {text:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(suite::cases(256)))]

    #[test]
    fn any_bytes_round_trip(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        for tokenizer in [&*SMALL, &Tokenizer::bytes(&[])] {
            let ids = tokenizer.encode_bytes(&bytes).expect("any bytes encode");
            prop_assert_eq!(tokenizer.decode_bytes(&ids).expect("ids decode"), bytes.clone());
        }
    }

    #[test]
    fn any_text_round_trips_without_control_tokens(text in "(<\\|bos\\|>|<\\|user_end\\|>|\\PC{0,20}|\\s{0,3}){0,6}") {
        let ids = SMALL.encode(&text).expect("any text encodes");
        prop_assert!(ids.iter().all(|id| !SMALL.specials().contains(*id)));
        prop_assert_eq!(SMALL.decode(&ids).expect("ids decode"), text);
    }

    #[test]
    fn text_encodes_as_hugging_face_does(text in any::<String>()) {
        static THEIRS: std::sync::LazyLock<hf::Tokenizer> = std::sync::LazyLock::new(|| {
            let mut theirs = hf::Tokenizer::from_file(crate::fixtures::goldens().join("trained.json")).expect("they load it");
            theirs.set_encode_special_tokens(true);
            theirs
        });
        let expected = THEIRS.encode_fast(text.as_str(), false).expect("they encode it").get_ids().to_vec();
        prop_assert_eq!(SMALL.encode(&text).expect("text encodes"), expected);
    }
}
