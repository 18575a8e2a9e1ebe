//! Parquet input.

use std::{fs::File, path::Path, sync::Arc};

use parquet::{
    basic::Compression,
    data_type::{ByteArray, ByteArrayType, Int64Type},
    file::{properties::WriterProperties, writer::SerializedFileWriter},
    schema::parser::parse_message_type,
};
use tokenizer::{Body, Corpus, Error, Format, Message, Part, Role};

fn write(path: &Path, column: &str, groups: &[&[Option<&str>]], compression: Compression) {
    let schema =
        parse_message_type(&format!("message m {{ optional binary {column} (UTF8); }}")).expect("a schema");
    let properties = Arc::new(WriterProperties::builder().set_compression(compression).build());
    let file = File::create(path).expect("creating");
    let mut writer = SerializedFileWriter::new(file, Arc::new(schema), properties).expect("a writer");
    for rows in groups {
        let mut group = writer.next_row_group().expect("a row group");
        let mut column = group.next_column().expect("a column").expect("the only one");
        let values: Vec<ByteArray> = rows.iter().flatten().map(|text| ByteArray::from(*text)).collect();
        let present: Vec<i16> = rows.iter().map(|text| i16::from(text.is_some())).collect();
        column.typed::<ByteArrayType>().write_batch(&values, Some(&present), None).expect("writing");
        column.close().expect("closing");
        group.close().expect("closing");
    }
    writer.close().expect("closing");
}

fn read(path: &Path) -> Result<Vec<Part>, Error> {
    let corpus = Corpus::find(&[path.to_owned()], false)?;
    assert_eq!(corpus.files()[0].format, Format::Parquet);
    corpus.parts(None).collect()
}

#[test]
fn rows_of_the_text_column_are_documents() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("x.parquet");
    let many: Vec<String> = (0..1000).map(|at| format!("row {at}")).collect();
    let many: Vec<Option<&str>> = many.iter().map(|text| Some(text.as_str())).collect();
    for compression in [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        #[cfg(feature = "parquet-zstd")]
        Compression::ZSTD(parquet::basic::ZstdLevel::default()),
    ] {
        write(&path, "text", &[&[Some("é"), None, Some("b")], &[], &many], compression);
        let parts = read(&path).expect("the file reads");
        let texts: Vec<&str> = parts
            .iter()
            .map(|part| match &part.body {
                Body::Text(text) => text.as_str(),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!((texts.len(), texts[0], texts[1], texts[1001]), (1002, "é", "b", "row 999"));
        assert!(parts.windows(2).all(|two| two[0].position <= two[1].position));
    }
}

fn write_messages(path: &Path, list: &str, names: [&str; 2], turns: &[[&str; 2]]) {
    let fields = names.map(|name| format!("optional binary {name} (UTF8);")).concat();
    let schema = parse_message_type(&format!(
        "message m {{ optional int64 id; optional group {list} (LIST) {{ repeated group list {{ optional group element {{ \
         {fields} }} }} }} }}"
    ))
    .expect("a schema");
    let file = File::create(path).expect("creating");
    let mut writer = SerializedFileWriter::new(file, Arc::new(schema), Arc::default()).expect("a writer");
    let mut group = writer.next_row_group().expect("a row group");
    let mut column = group.next_column().expect("a column").expect("ids");
    column.typed::<Int64Type>().write_batch(&[], Some(&[0, 0]), None).expect("writing");
    column.close().expect("closing");
    // Each row holds all turns.
    let levels = [vec![4; turns.len()], vec![4; turns.len()]].concat();
    let begins: Vec<i16> = (0..2 * turns.len()).map(|at| i16::from(at % turns.len() > 0)).collect();
    for part in 0..2 {
        let mut column = group.next_column().expect("a column").expect("texts");
        let values: Vec<ByteArray> =
            [turns, turns].concat().iter().map(|turn| ByteArray::from(turn[part])).collect();
        column.typed::<ByteArrayType>().write_batch(&values, Some(&levels), Some(&begins)).expect("writing");
        column.close().expect("closing");
    }
    group.close().expect("closing");
    writer.close().expect("closing");
}

#[test]
fn rows_with_messages_are_conversations() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("x.parquet");
    for (list, names, roles) in [
        ("messages", ["role", "content"], ["user", "assistant"]),
        ("conversations", ["from", "value"], ["human", "gpt"]),
    ] {
        write_messages(&path, list, names, &[[roles[0], "Up?"], [roles[1], "Down."]]);
        let parts = read(&path).expect("the file reads");
        assert_eq!(parts.len(), 2);
        let expected = vec![Message::new(Role::User, "Up?"), Message::new(Role::Assistant, "Down.")];
        assert!(parts.iter().all(|part| part.body == Body::Chat(expected.clone())), "{parts:?}");
    }
    write_messages(&path, "messages", ["role", "content"], &[["robot", "who?"]]);
    let refused = read(&path).expect_err("an unknown role").to_string();
    assert!(refused.contains("x.parquet row 1: has the role \"robot\""), "{refused}");
}

#[test]
fn a_file_without_the_column_lists_its_columns() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("x.parquet");
    write(&path, "body", &[&[Some("a")]], Compression::UNCOMPRESSED);
    let refused = read(&path).expect_err("there is no such column").to_string();
    assert!(refused.ends_with("its columns are body"), "{refused}");
}

#[test]
fn a_file_cut_short_is_an_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("x.parquet");
    write(&path, "text", &[&[Some("a"); 100]], Compression::SNAPPY);
    let whole = std::fs::read(&path).expect("reading");
    for end in [4, 20, whole.len() / 2, whole.len() - 1] {
        std::fs::write(&path, &whole[..end]).expect("writing");
        assert!(matches!(read(&path), Err(Error::Parquet { .. })), "cut at {end}");
    }
}
