//! From chat text to counted targets, and how often they are seen.

use std::{fs, path::Path};

use proptest::prelude::*;
use tempfile::TempDir;
use tokenizer::{
    Align, CHAT_SPECIALS, Cursor, Error, Message, Role, ShardProblem, Split, TokenDataset, Tokenizer, Window,
    WindowPlan,
};

use crate::fixtures::{by_document, preparation, written};

/// Letters of questions and answers.
type Turns = Vec<(usize, usize)>;

fn bytes() -> Tokenizer {
    Tokenizer::bytes(&CHAT_SPECIALS)
}

/// Lower-case questions, upper-case answers.
fn messages(conversation: usize, turns: &Turns) -> Vec<Message> {
    let text =
        |first: u8, letters: usize| String::from((first + (conversation % 26) as u8) as char).repeat(letters);
    let turn = |(question, answer): &(usize, usize)| {
        [Message::new(Role::User, text(b'a', *question)), Message::new(Role::Assistant, text(b'A', *answer))]
    };
    turns.iter().flat_map(turn).collect()
}

struct Set {
    _folder: TempDir,
    path: std::path::PathBuf,
    tokenizer: Tokenizer,
    conversations: Vec<Vec<Message>>,
}

impl Set {
    fn new(conversations: &[Turns], shard_tokens: u64) -> Self {
        Self::encoded_by(bytes(), conversations, shard_tokens)
    }

    fn encoded_by(tokenizer: Tokenizer, conversations: &[Turns], shard_tokens: u64) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let conversations: Vec<_> =
            conversations.iter().enumerate().map(|(at, turns)| messages(at, turns)).collect();
        let line = |messages: &Vec<Message>| serde_json::json!({ "messages": messages }).to_string() + "\n";
        let (input, path) = (folder.path().join("chats.jsonl"), folder.path().join("set"));
        fs::write(&input, conversations.iter().map(line).collect::<String>()).expect("writing");
        let mut preparation = preparation(&input, &path, by_document(0.0));
        preparation.shard_tokens = shard_tokens;
        written(&preparation, &tokenizer);
        Self { _folder: folder, path, tokenizer, conversations }
    }

    fn open(&self, length: usize, align: Align) -> TokenDataset {
        let plan = WindowPlan { length, align, shuffle: false };
        TokenDataset::open(&self.path, Split::Train, &self.tokenizer, plan).expect("the set opens")
    }

    /// By the chat template.
    fn answer_tokens(&self) -> Vec<u32> {
        let marked = |messages: &Vec<Message>| {
            let chat = self.tokenizer.encode_chat(messages).expect("it encodes");
            chat.ids.into_iter().zip(chat.trained).filter_map(|(id, on)| on.then_some(id)).collect::<Vec<_>>()
        };
        self.conversations.iter().flat_map(marked).collect()
    }
}

fn open(set: &Path, length: usize, align: Align) -> Result<TokenDataset, Error> {
    TokenDataset::open(set, Split::Train, &bytes(), WindowPlan { length, align, shuffle: false })
}

fn epoch(dataset: &TokenDataset) -> Vec<Window> {
    let windows = dataset.stream(Cursor::start(0)).take(dataset.windows() as usize);
    windows.map(|window| window.expect("a window").1).collect()
}

fn counted(window: &Window) -> Vec<u32> {
    let all = vec![true; window.y.len()];
    let mask = window.mask.as_ref().unwrap_or(&all);
    window.y.iter().zip(mask).filter_map(|(id, on)| on.then_some(*id)).collect()
}

#[test]
fn a_mask_marks_the_same_answer_tokens_in_chat_text_and_in_windows() {
    let set = Set::new(&[vec![(3, 4)]], 1000);
    let dataset = set.open(16, Align::Document);
    let [window] = &epoch(&dataset)[..] else { panic!("one window") };
    let specials = bytes();
    let id = |text: &str| specials.specials().id(text).expect("a control token");
    let [bos, user, user_end, assistant, end] = CHAT_SPECIALS.map(id);
    let (a, b) = (u32::from(b'a'), u32::from(b'A'));
    // 12 tokens, then padding.
    assert_eq!(window.x[..11], [bos, user, a, a, a, user_end, assistant, b, b, b, b]);
    assert_eq!(window.y[..11], [user, a, a, a, user_end, assistant, b, b, b, b, end]);
    let mask = window.mask.as_ref().expect("a set of conversations has a mask");
    let marked: Vec<usize> = mask.iter().enumerate().filter_map(|(at, on)| on.then_some(at)).collect();
    assert_eq!(marked, [6, 7, 8, 9, 10], "four letters and the token that ends the answer");
    assert_eq!((window.x.len(), window.y.len(), mask.len()), (16, 16, 16));
}

fn templated(specials: &[&str], bos: Option<&str>, template: &str) -> Tokenizer {
    let folder = tempfile::tempdir().expect("a folder");
    Tokenizer::bytes(specials).save(folder.path()).expect("saving works");
    let config =
        serde_json::json!({ "bos_token": bos, "eos_token": specials.last(), "chat_template": template });
    fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).expect("writing");
    Tokenizer::load(folder.path()).expect("it loads")
}

#[test]
fn windows_begin_with_conversations_where_the_template_writes_no_opening_token() {
    let zephyr = "{% for message in messages %}{{ '<|' + message['role'] + '|>\n' + message['content'] + eos_token + \
                  '\n' }}{% endfor %}";
    let tokenizer = templated(&["</s>"], None, zephyr);
    let opening = tokenizer.encode("<|user|>\n").expect("text encodes");
    let set = Set::encoded_by(tokenizer, &vec![vec![(10, 10), (10, 10)]; 9], 100_000);
    let windows = epoch(&set.open(100, Align::Document));
    assert_eq!(windows.len(), 9, "a conversation is a little shorter than a window");
    assert!(windows.iter().all(|window| window.x.starts_with(&opening)));
}

#[test]
fn a_window_never_begins_with_an_answer_where_each_turn_has_the_opening_token() {
    let chatml = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + \
                  '<|im_end|>\n' }}{% endfor %}";
    let tokenizer = templated(&["<|im_start|>", "<|im_end|>"], Some("<|im_start|>"), chatml);
    let question = tokenizer.encode_with_specials("<|im_start|>user\n").expect("it encodes");
    let set = Set::encoded_by(tokenizer, &[vec![(8, 8); 12], vec![(8, 8)]], 100_000);
    let windows = epoch(&set.open(140, Align::Document));
    let seen: Vec<u32> = windows.iter().flat_map(counted).collect();
    assert_eq!(seen, set.answer_tokens());
    assert!(windows.len() > 3, "the first conversation fills several");
    let begin = windows.iter().filter(|window| window.x.starts_with(&question)).count();
    assert!(begin >= windows.len() - 1, "{begin} of {}", windows.len());
}

#[test]
fn every_answer_token_of_long_conversations_is_seen() {
    let conversations: Vec<Turns> = (0..20).map(|_| vec![(20, 20), (20, 20), (10, 30)]).collect();
    let set = Set::new(&conversations, 100_000);
    for align in [Align::Document, Align::Anywhere] {
        let dataset = set.open(100, align);
        assert_eq!(dataset.targets().counted, 20 * (20 + 20 + 30 + 3));
        assert_eq!(dataset.targets().seen, dataset.targets().counted, "{align:?}");
        let seen: Vec<u32> = epoch(&dataset).iter().flat_map(counted).collect();
        assert_eq!(seen, set.answer_tokens(), "{align:?}");
    }
}

#[test]
fn a_short_answer_to_a_long_document_is_seen_with_the_documents_end() {
    let set = Set::new(&[vec![(1000, 5)], vec![(990, 5)]], 100_000);
    let dataset = set.open(64, Align::Document);
    let windows = epoch(&dataset);
    assert_eq!(windows.len(), 2, "windows without an answer are left out");
    for window in &windows {
        assert_eq!(counted(window).len(), 6);
        let first = window.mask.as_ref().and_then(|mask| mask.iter().position(|on| *on)).expect("an answer");
        assert!(first >= 32, "the answer begins at {first}, behind half a window of its document");
    }
}

#[test]
fn conversations_shorter_than_a_window_fill_one() {
    let set = Set::new(&[vec![(3, 4)], vec![(2, 2)]], 1000);
    for align in [Align::Document, Align::Anywhere] {
        let dataset = set.open(512, align);
        assert_eq!((dataset.windows(), dataset.targets().seen), (1, 5 + 3));
        assert_eq!(counted(&epoch(&dataset)[0]), set.answer_tokens());
    }
}

#[test]
fn a_window_length_out_of_range_is_refused() {
    let set = Set::new(&[vec![(3, 4)]], 1000);
    for length in [0, (1 << 24) + 1, 100_000_000_000, usize::MAX] {
        let opened = open(&set.path, length, Align::Document);
        assert!(matches!(opened, Err(Error::Option { option: "window length", .. })), "{length}");
    }
}

#[test]
fn an_empty_mask_is_refused() {
    let set = Set::new(&[vec![(3, 4)]], 1000);
    let path = set.path.join("train-00000.mask");
    let mut mask = fs::read(&path).expect("reading");
    mask[1024..].fill(0);
    fs::write(&path, mask).expect("writing");
    assert!(matches!(
        open(&set.path, 8, Align::Document),
        Err(Error::Shard { problem: ShardProblem::NoTarget, .. })
    ));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(suite::cases(48)))]

    #[test]
    fn every_answer_token_counts_in_exactly_one_window(
        conversations in prop::collection::vec(prop::collection::vec((1usize..60, 1usize..60), 1..5), 1..12),
        length in 1usize..120,
        by_document in any::<bool>(),
    ) {
        let align = if by_document { Align::Document } else { Align::Anywhere };
        let set = Set::new(&conversations, 100_000);
        let dataset = set.open(length, align);
        let windows = epoch(&dataset);
        let seen: Vec<u32> = windows.iter().flat_map(counted).collect();
        prop_assert_eq!(&seen, &set.answer_tokens());
        prop_assert!(windows.iter().all(|window| !counted(window).is_empty()), "a window without a target");
        prop_assert!(windows.iter().all(|window| window.x.len() == length && window.y.len() == length));
    }

    #[test]
    fn stated_targets_equal_the_windows_counted_targets(
        conversations in prop::collection::vec(prop::collection::vec((1usize..40, 1usize..40), 1..4), 1..12),
        length in 1usize..100,
        shard_tokens in 20u64..200,
        by_document in any::<bool>(),
    ) {
        let align = if by_document { Align::Document } else { Align::Anywhere };
        let set = Set::new(&conversations, shard_tokens);
        let Ok(dataset) = open(&set.path, length, align) else { return Ok(()) };
        let targets = dataset.targets();
        prop_assert_eq!(targets.counted, set.answer_tokens().len() as u64);
        prop_assert_eq!(targets.seen, epoch(&dataset).iter().map(|window| counted(window).len() as u64).sum::<u64>());
        let shards = dataset.manifest().map_or(0, |manifest| manifest.train.shards.len()) as u64;
        prop_assert!(targets.counted - targets.seen < shards, "at most the first token of each later shard is lost");
    }
}
