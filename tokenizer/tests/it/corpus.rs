//! Finding files and reading documents.

use std::{fs, path::Path};

use tokenizer::{Body, Corpus, Error, Format, Part};

use crate::fixtures::{CORPUS, SMALL};

fn find(path: &Path) -> Corpus {
    Corpus::find(&[path.to_owned()], false).expect("the input is there")
}

fn parts(corpus: &Corpus, cut: Option<u64>) -> Vec<Part> {
    corpus.parts(cut).collect::<Result<_, _>>().expect("the input reads")
}

fn text(part: &Part) -> &str {
    match &part.body {
        Body::Text(text) => text,
        other => panic!("expected text, got {other:?}"),
    }
}

#[test]
fn folders_are_read_in_the_order_of_names_without_hidden_and_empty_files() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::create_dir(folder.path().join("b")).expect("a folder");
    for (name, contents) in
        [("z.txt", "last"), ("b/a.txt", "second"), ("a.txt", "first"), (".hidden", "x"), ("empty", "")]
    {
        fs::write(folder.path().join(name), contents).expect("writing");
    }
    let corpus = find(folder.path());
    let names: Vec<&str> = corpus.files().iter().map(|file| file.name.as_str()).collect();
    assert_eq!(names, ["a.txt", "b/a.txt", "z.txt"]);
    let read = parts(&corpus, None);
    assert_eq!(read.iter().map(text).collect::<Vec<_>>(), ["first", "second", "last"]);
    assert_eq!(read.iter().map(|part| part.position).collect::<Vec<_>>(), [0, 5, 11]);
}

#[test]
fn contents_decide_the_format_of_a_file() {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, contents, format) in [
        ("lines.txt", "{\"text\": \"a\"}\n{\"text\": \"b\"}\n", Format::JsonLines),
        ("prose.txt", "{ a brace } opens this prose\n", Format::Text),
        ("columns.txt", "PAR1 is how Parquet begins", Format::Parquet),
        // Contents precede names.
        ("columns.jsonl", "PAR1\u{0} \"text\": \"y\"", Format::Parquet),
    ] {
        let path = folder.path().join(name);
        fs::write(&path, contents).expect("writing");
        assert_eq!(find(&path).files()[0].format, format, "{name}");
    }
}

#[test]
fn parts_of_a_long_text_encode_to_the_ids_of_the_whole() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("long.txt");
    let whole = CORPUS.repeat(200);
    fs::write(&path, &whole).expect("writing");
    let read = parts(&find(&path), None);
    assert!(read.len() > 5, "{} parts", read.len());
    assert!(read.iter().skip(1).all(|part| !part.begins && part.document == 1));
    let ids: Vec<u32> =
        read.iter().flat_map(|part| SMALL.encode(text(part)).expect("text encodes")).collect();
    assert_eq!(ids, SMALL.encode(&whole).expect("text encodes"));
}

#[test]
fn text_without_a_safe_cut_is_cut_between_characters_within_bounds() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("endless.txt");
    let whole = "漢".repeat(6 << 20);
    fs::write(&path, &whole).expect("writing");
    let read = parts(&find(&path), None);
    assert!(read.iter().all(|part| part.body.len() <= 8 << 20));
    assert_eq!(read.iter().map(text).collect::<String>(), whole);
}

#[test]
fn a_cut_begins_a_document_at_that_byte_or_the_next_character() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("cut.txt");
    let whole = format!("{}é{}", "word ".repeat(20_000), " tail".repeat(20_000));
    fs::write(&path, &whole).expect("writing");
    let corpus = find(&path);
    for (cut, expected) in
        [(5, 5), (100_000, 100_000), (100_001, 100_002), (150_000, 150_000), (65_536, 65_536)]
    {
        let read = parts(&corpus, Some(cut));
        let begins: Vec<u64> = read.iter().filter(|part| part.begins).map(|part| part.position).collect();
        assert_eq!(begins, [0, expected]);
        assert_eq!(read.iter().map(text).collect::<String>(), whole);
    }
}

#[test]
fn a_byte_order_mark_is_no_text() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("marked.txt");
    fs::write(&path, "\u{feff}one two").expect("writing");
    let read = |cut| -> Vec<(String, u64)> {
        parts(&find(&path), cut).iter().map(|part| (text(part).to_owned(), part.position)).collect()
    };
    assert_eq!(read(None), [("one two".to_owned(), 3)]);
    assert_eq!(read(Some(7)), [("one ".to_owned(), 3), ("two".to_owned(), 7)]);
    // As it always was: a cut within the mark.
    assert_eq!(read(Some(2)).iter().map(|(text, _)| text.as_str()).collect::<String>(), "\u{feff}one two");
    fs::write(&path, "\u{feff}").expect("writing");
    assert!(read(None).is_empty(), "nothing else is there");
}

#[test]
fn a_byte_tokenizer_reads_any_bytes() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("raw.bin");
    let raw: Vec<u8> = (0..200_000u32).map(|at| (at * 31 % 251) as u8 | 0x80).collect();
    fs::write(&path, &raw).expect("writing");
    let corpus = Corpus::find(std::slice::from_ref(&path), true).expect("the input is there");
    let mut read = Vec::new();
    for part in parts(&corpus, Some(70_000)) {
        match part.body {
            Body::Bytes(bytes) => read.extend(bytes),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(read, raw);
    let as_text: Result<Vec<Part>, Error> = find(&path).parts(None).collect();
    assert!(matches!(as_text, Err(Error::NotUtf8 { at: 0, .. })));
}

#[test]
fn json_lines_hold_texts_and_conversations_and_may_have_other_fields() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("x.jsonl");
    let lines = "\u{feff}{\"id\": 3, \"text\": \"a\\nb\"}\r\n\n{\"messages\": [{\"role\": \"user\", \"content\": \"c\"}]}";
    fs::write(&path, lines).expect("writing");
    let read = parts(&find(&path), None);
    assert_eq!(text(&read[0]), "a\nb");
    assert!(matches!(&read[1].body, Body::Chat(messages) if messages[0].content == "c"));
    assert_eq!(read.iter().map(|part| part.document).collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn hostile_json_lines_are_errors_with_their_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("x.jsonl");
    let deep = "[".repeat(200_000);
    for line in [
        "{",
        "[]",
        "{\"text\": 3}",
        "{\"text\": \"\\ud800\"}",
        "{}",
        "{\"text\": \"a\", \"prompt\": \"b\"}",
        "\u{0}",
        deep.as_str(),
    ] {
        fs::write(&path, format!("{{\"text\": \"fine\"}}\n{line}\n")).expect("writing");
        let read: Result<Vec<Part>, Error> = find(&path).parts(None).collect();
        assert!(matches!(read, Err(Error::Line { line: 2, .. })), "{line:.40}");
    }
    fs::write(&path, b"{\"text\": \"\xff\"}\n").expect("writing");
    let read: Result<Vec<Part>, Error> = find(&path).parts(None).collect();
    assert!(matches!(read, Err(Error::Line { line: 1, .. })));
}
