//! A served model finds matches in its index and its own conversation.

use std::fs;
use std::ops::ControlFlow;
use std::sync::{Arc, atomic::AtomicBool};

use models::{Lookup, Matching, Request, Sampling, generate};
use runs::Indexes;
use runs::config::IndexEntry;
use serde_json::json;
use tempfile::TempDir;
use tokenizer::{Corpora, IndexBuild, Matcher, Message, OnBadRecord, Preparation, Role, Split, SplitRule};
use train::answering::Batching;
use web::Limits;

use crate::client::settings;
use crate::served_models::{model, served_with, tokenizer};

fn indexed() -> (TempDir, IndexEntry) {
    let folder = tempfile::tempdir().unwrap();
    let entry = IndexEntry { index: folder.path().join("index"), set: folder.path().join("set") };
    let input = folder.path().join("in.jsonl");
    let documents = ["the river rises at noon", "the river falls at night", "a mill stands by the river"];
    fs::write(&input, documents.map(|text| json!({ "text": text }).to_string()).join("\n")).unwrap();
    let stop = AtomicBool::new(false);
    let preparation = Preparation {
        inputs: vec![input],
        out: entry.set.clone(),
        split: SplitRule::Document { val_fraction: 0.0, seed: 0 },
        shard_tokens: 1000,
        on_bad_record: OnBadRecord::Fail,
    };
    preparation.run(&tokenizer(), &stop, |_| {}).unwrap();
    let (set, out) = (entry.set.clone(), entry.index.clone());
    let build = IndexBuild { set, out, split: Split::Train, memory: 1 << 20, chunk_tokens: None, threads: 1 };
    build.run(&stop, |_| {}).unwrap();
    (folder, entry)
}

#[derive(Debug)]
struct IndexLookup {
    corpora: Arc<Corpora>,
    own: bool,
}

impl Lookup for IndexLookup {
    fn begin(&self) -> Box<dyn Matching> {
        Box::new(IndexMatching(self.corpora.matcher(self.own)))
    }
}

#[derive(Debug)]
struct IndexMatching(Matcher);

impl Matching for IndexMatching {
    fn follower_after(&mut self, token: u32) -> Option<u32> {
        self.0.push(token).map(|found| found.next)
    }
}

#[test]
fn a_served_model_finds_matches_in_its_index_and_in_the_conversation() {
    let (_folder, entry) = indexed();
    let indexes = Indexes::open(&[entry]).unwrap();
    let corpora = Arc::clone(indexes.corpora());
    let server = served_with(settings(Limits::default()), Batching::default(), Arc::new(indexes));
    let model = model();

    // The first text is not in the index, the second is.
    for (said, only_itself) in [("xyz uvw xyz uvw xy", true), ("the river rises at", false)] {
        let body = json!({
            "messages": [{ "role": "user", "content": said }], "max_tokens": 16, "temperature": 0,
        });
        let answer = server.post_json("/v1/chat/completions", &body).json();
        let answer = answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
        let expected = |own: Option<bool>| {
            let searching = own.map(|own| IndexLookup { corpora: Arc::clone(&corpora), own });
            let prompt = tokenizer().encode_prompt(&[Message::new(Role::User, said)]).unwrap();
            let (prompts, ends) = ([prompt], tokenizer().ends_of_answers());
            let request = Request {
                sampling: Sampling::greedy(),
                end_tokens: &ends,
                lookup: searching.as_ref().map(|searching| searching as &dyn Lookup),
                ..Request::new(&prompts, 16)
            };
            let made = generate(&model, &request, |_| ControlFlow::Continue(())).unwrap();
            tokenizer().decode(&made[0].tokens).unwrap()
        };

        assert_eq!(answer, expected(Some(true)), "{said}");
        let without = if only_itself { expected(Some(false)) } else { expected(None) };
        assert_ne!(answer, without, "{said}: what is found counts");
    }
}
