//! The guide's table of measurements, from the record named there.

use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};

use crate::workspace;

/// The page with the table.
pub const PAGE: &str = "docs/guide/what-fits.md";
const OPENS: &str = "<!-- bench-vram: ";
const CLOSES: &str = "<!-- /bench-vram -->";
const TO_WRITE: &str = "give it these two lines: `<!-- bench-vram: RECORD -->` and `<!-- /bench-vram -->`";

struct Page<'a> {
    before: &'a str,
    /// Folder, relative to the root.
    record: &'a str,
    table: &'a str,
    after: &'a str,
}

impl<'a> Page<'a> {
    /// `None` if the page has no table.
    fn split(text: &'a str) -> Result<Option<Self>> {
        let Some((before, rest)) = text.split_once(OPENS) else { return Ok(None) };
        let (record, rest) =
            rest.split_once(" -->\n").with_context(|| format!("`{OPENS}` is not closed by ` -->`"))?;
        let (table, after) =
            rest.split_once(CLOSES).with_context(|| format!("`{CLOSES}` does not follow the table"))?;
        ensure!(!after.contains(OPENS), "there are two tables; one is kept up to date");
        Ok(Some(Self { before, record, table, after }))
    }

    fn with_table(&self, record: &str, table: &str) -> String {
        format!("{}{OPENS}{record} -->\n{table}{CLOSES}{}", self.before, self.after)
    }
}

fn render(record: &str, page: &str) -> Result<String> {
    let rows = page.lines().skip_while(|line| !line.starts_with("| Model |"));
    let table: String = rows.take_while(|line| line.starts_with('|')).flat_map(|row| [row, "\n"]).collect();
    ensure!(!table.is_empty(), "{record}/README.md has no table of budgets");
    Ok(format!("\n{table}\n[Command, machine, caveats and raw data](../../{record}/README.md).\n\n"))
}

/// Puts the record's table into [`PAGE`].
pub fn rewrite(record: &Path) -> Result<()> {
    let root = workspace::root().canonicalize()?;
    let folder =
        record.canonicalize().with_context(|| format!("there is no record at {}", record.display()))?;
    let name = folder.strip_prefix(&root).with_context(|| {
        format!("{} lies outside the repository, where readers cannot see it", record.display())
    })?;
    let name = name.to_string_lossy().replace('\\', "/");
    let measured = fs::read_to_string(folder.join("README.md"))
        .with_context(|| format!("{} holds no README.md", record.display()))?;
    let path = root.join(PAGE);
    let text = fs::read_to_string(&path).with_context(|| format!("{PAGE} is unreadable"))?;
    let page = Page::split(&text).context(PAGE)?;
    let page = page.with_context(|| format!("{PAGE} has no place for the table; {TO_WRITE}"))?;
    fs::write(&path, page.with_table(&name, &render(&name, &measured)?))
        .with_context(|| format!("{PAGE} could not be written"))?;
    println!("{PAGE} shows {name}");
    Ok(())
}

/// Line and reason if a table differs from its record. `read` finds files relative to the root.
pub fn fault<'a>(text: &str, read: impl Fn(&str) -> Option<&'a str>) -> Option<(usize, String)> {
    let line = text.lines().position(|line| line.contains(OPENS))? + 1;
    let check = || {
        let page = Page::split(text)?.context("the table is cut off")?;
        let measured = read(&format!("{}/README.md", page.record));
        let measured = measured.with_context(|| format!("`{}` holds no README.md", page.record))?;
        let again = format!("run `cargo xtask bench-vram --readme {}`", page.record);
        ensure!(page.table == render(page.record, measured)?, "the table differs from its record; {again}");
        Ok(())
    };
    check().err().map(|error: anyhow::Error| (line, format!("{error:#}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: &str = "# Title\n\n<!-- bench-vram: none -->\n<!-- /bench-vram -->\n\nMore.\n";

    const RECORD: &str = "\
# Device budgets

| Model | Device budget | Of unlimited |
|---|---|---|
| toy (1.2M) | 50% = 19.1 MiB | 0.72 |

| Model | Device budget | Out per step |
|---|---|---|
";

    fn filled() -> String {
        let table = render("runs/a", RECORD).unwrap();
        Page::split(EMPTY).unwrap().unwrap().with_table("runs/a", &table)
    }

    fn fault_of(text: &str) -> Option<(usize, String)> {
        fault(text, |path| (path == "runs/a/README.md").then_some(RECORD))
    }

    #[test]
    fn only_text_between_the_markers_is_rewritten() {
        let filled = filled();
        assert!(filled.starts_with("# Title\n\n<!-- bench-vram: runs/a -->\n\n| Model |"), "{filled}");
        assert!(filled.contains("| toy (1.2M) | 50% = 19.1 MiB | 0.72 |\n\n[Command"), "{filled}");
        assert!(
            filled.ends_with("](../../runs/a/README.md).\n\n<!-- /bench-vram -->\n\nMore.\n"),
            "{filled}"
        );
        let page = Page::split(&filled).unwrap().unwrap();
        assert_eq!(page.with_table("runs/a", &render("runs/a", RECORD).unwrap()), filled);
    }

    #[test]
    fn a_table_that_equals_its_record_passes() {
        assert_eq!(fault_of(&filled()), None);
        assert_eq!(fault_of("# A page without a table\n"), None);
    }

    #[test]
    fn a_number_typed_by_hand_is_found() {
        let (line, fault) = fault_of(&filled().replace("0.72", "0.99")).unwrap();
        assert_eq!(line, 3);
        assert!(fault.contains("cargo xtask bench-vram --readme runs/a"), "{fault}");
    }

    #[test]
    fn a_table_without_its_record_or_its_end_is_found() {
        let fault = |text: &str| fault_of(text).unwrap().1;
        assert!(fault(&filled().replace("runs/a -->", "runs/b -->")).contains("`runs/b` holds no README.md"));
        assert!(fault(&filled().replace(CLOSES, "")).contains("does not follow the table"));
        assert!(fault(&(filled() + &filled())).contains("two tables"));
    }
}
