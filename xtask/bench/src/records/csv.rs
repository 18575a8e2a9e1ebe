//! Comma-separated tables, refused if truncated.

use anyhow::{Context, Result, ensure};

pub(crate) fn write(rows: &[Vec<String>]) -> String {
    let mut writer = csv::WriterBuilder::new().flexible(true).from_writer(Vec::new());
    for row in rows {
        writer.write_record(row).expect("memory takes what is written");
    }
    let bytes = writer.into_inner().expect("memory takes what is written");
    String::from_utf8(bytes).expect("fields of text, separated by commas, are text")
}

pub(crate) fn read(text: &str) -> Result<Vec<Vec<String>>> {
    ensure!(text.is_empty() || text.ends_with('\n'), "the last line is cut off");
    let mut reader = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(text.as_bytes());
    let rows = reader.records().map(|row| Ok(row?.iter().map(str::to_owned).collect()));
    rows.collect::<Result<_>>().context("reading comma-separated fields")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_written_table_reads_back() {
        let rows = vec![
            vec!["plain".to_owned(), String::new(), "with, comma".to_owned()],
            vec!["\"quoted\"".to_owned(), "two\nlines".to_owned(), "\"".to_owned()],
        ];
        assert_eq!(read(&write(&rows)).unwrap(), rows);
    }

    #[test]
    fn plain_fields_stay_unquoted() {
        assert_eq!(write(&[vec!["a b".into(), "50%".into()]]), "a b,50%\n");
    }

    #[test]
    fn a_table_that_breaks_off_is_refused() {
        assert!(read("a,b\n1,\"2").is_err());
        assert!(read("a,b\n1,2").is_err());
        assert_eq!(read("").unwrap(), Vec::<Vec<String>>::new());
    }
}
