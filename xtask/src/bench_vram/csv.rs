//! Comma-separated text. A field that holds a comma, a quote or a line's end is quoted.

use anyhow::{Result, bail};

pub(super) fn write(rows: &[Vec<String>]) -> String {
    let line = |row: &Vec<String>| row.iter().map(|field| quoted(field)).collect::<Vec<_>>().join(",");
    rows.iter().map(|row| line(row) + "\n").collect()
}

fn quoted(field: &str) -> String {
    if field.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}

pub(super) fn read(text: &str) -> Result<Vec<Vec<String>>> {
    let mut rows = Vec::new();
    let mut row = vec![String::new()];
    let mut inside_quotes = false;
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        let field = row.last_mut().expect("a row has a field");
        match character {
            '"' if inside_quotes && characters.next_if_eq(&'"').is_some() => field.push('"'),
            '"' => inside_quotes = !inside_quotes,
            ',' if !inside_quotes => row.push(String::new()),
            '\n' if !inside_quotes => rows.push(std::mem::replace(&mut row, vec![String::new()])),
            other => field.push(other),
        }
    }
    if inside_quotes || row != [""] {
        bail!("the last line is cut off");
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_written_reads_back() {
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
