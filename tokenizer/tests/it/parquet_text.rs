//! Parquet input, with the feature `parquet`.

use std::{fs::File, path::Path, sync::Arc};

use parquet::{
    basic::{Compression, ZstdLevel},
    data_type::{ByteArray, ByteArrayType},
    file::{properties::WriterProperties, writer::SerializedFileWriter},
    schema::parser::parse_message_type,
};
use tokenizer::{Body, Corpus, Error, Format, Part};

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
    for compression in
        [Compression::UNCOMPRESSED, Compression::SNAPPY, Compression::ZSTD(ZstdLevel::default())]
    {
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

#[test]
fn a_file_without_the_column_lists_its_columns() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("x.parquet");
    write(&path, "body", &[&[Some("a")]], Compression::UNCOMPRESSED);
    let refused = read(&path).expect_err("there is no such column").to_string();
    assert!(refused.ends_with("has no column `text`; its columns are body"), "{refused}");
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
