//! `docs/reference/errors.md`: messages and meanings from the sources, remedies as the page has them.

use std::collections::BTreeMap;
use std::fmt::Write;

pub(crate) const PAGE: &str = "docs/reference/errors.md";

const HEAD: &str = "\
# Errors

Every error of the libraries, by the enum that holds it. `train` and `serve` print the message, after what they were doing.
[Troubleshooting](../guide/troubleshooting.md) begins with symptoms. `cargo xtask reference` writes messages and meanings;
remedies are written here.
";

const LIBRARIES: [&str; 4] = ["backend-offload/", "models/src/", "tokenizer/src/", "train/"];

#[derive(Debug, PartialEq, Eq)]
struct Variant {
    name: String,
    message: String,
    meaning: String,
}

/// The page for these sources, with the remedies of `page`.
pub(crate) fn page<'t>(sources: impl IntoIterator<Item = (&'t str, &'t str)>, page: &str) -> String {
    let remedies = remedies(page);
    let mut new = HEAD.to_owned();
    for (path, text) in sources {
        if !LIBRARIES.iter().any(|folder| path.starts_with(folder)) || path.contains("/tests/") {
            continue;
        }
        for (name, variants) in enums(text) {
            let head = "| error | message | meaning | remedy |\n|---|---|---|---|";
            writeln!(new, "\n## `{name}` in `{path}`\n\n{head}").expect("a string");
            for Variant { name: variant, message, meaning } in variants {
                let remedy = remedies.get(&(format!("`{name}` in `{path}`"), format!("`{variant}`")));
                let remedy = remedy.map_or("", String::as_str);
                writeln!(new, "| `{variant}` | {message} | {meaning} | {remedy} |").expect("a string");
            }
        }
    }
    new
}

pub(crate) fn without_remedy(page: &str) -> Vec<(usize, &str)> {
    let rows = (1..).zip(page.lines()).filter(|(_, line)| line.starts_with("| `"));
    rows.filter(|(_, line)| line.ends_with("|  |")).map(|(n, line)| (n, cells(line)[0])).collect()
}

fn remedies(page: &str) -> BTreeMap<(String, String), String> {
    let mut remedies = BTreeMap::new();
    let mut section = "";
    for line in page.lines() {
        section = line.strip_prefix("## ").unwrap_or(section);
        if let [variant, _, _, remedy] = cells(line)[..] {
            remedies.insert((section.to_owned(), variant.to_owned()), remedy.to_owned());
        }
    }
    remedies
}

fn cells(line: &str) -> Vec<&str> {
    let inner = line.strip_prefix("| ").and_then(|line| line.strip_suffix('|'));
    inner.into_iter().flat_map(|line| line.split(" | ")).map(str::trim).collect()
}

fn enums(text: &str) -> Vec<(&str, Vec<Variant>)> {
    let mut found = Vec::new();
    let mut lines = text.lines();
    let mut is_error = false;
    while let Some(line) = lines.next() {
        match line.strip_prefix("pub enum ").and_then(|rest| rest.strip_suffix(" {")) {
            Some(name) if is_error => found.push((name, variants(&mut lines))),
            _ if line.starts_with("#[derive(") => is_error = line.contains("Error"),
            _ if line.is_empty() => is_error = false,
            _ => {}
        }
    }
    found
}

fn variants<'t>(lines: &mut impl Iterator<Item = &'t str>) -> Vec<Variant> {
    let mut variants = Vec::new();
    let (mut meaning, mut message) = (Vec::new(), String::new());
    while let Some(line) = lines.next().filter(|line| *line != "}") {
        let Some(line) = line.strip_prefix("    ").filter(|line| !line.starts_with(' ')) else { continue };
        if let Some(doc) = line.strip_prefix("/// ") {
            meaning.push(doc);
        } else if line.starts_with("#[error(") {
            let mut attribute = line.to_owned();
            while !attribute.ends_with(")]") {
                let more = lines.next().expect("an attribute ends").trim_start();
                attribute = attribute.strip_suffix('\\').unwrap_or(&attribute).to_owned() + more;
            }
            message = literal(&attribute).unwrap_or_else(|| "that of its cause".to_owned());
        } else if line.starts_with(|letter: char| letter.is_ascii_uppercase()) {
            let name = line.split(|letter: char| !letter.is_alphanumeric()).next().unwrap_or_default();
            let text =
                if meaning.is_empty() { "–".to_owned() } else { meaning.join(" ").replace('|', "\\|") };
            variants.push(Variant {
                name: name.to_owned(),
                message: std::mem::take(&mut message),
                meaning: text,
            });
            meaning.clear();
        }
    }
    variants
}

fn literal(attribute: &str) -> Option<String> {
    let mut text = String::new();
    let mut letters = attribute.split_once('"')?.1.chars();
    loop {
        match letters.next()? {
            '"' => return Some(text.replace('|', "\\|").replace('<', "&lt;")),
            '\\' => match letters.next()? {
                'n' => text.push(' '),
                other => text.push(other),
            },
            letter => text.push(letter),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = r#"
/// Errors.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MyError {
    /// No
    /// room.
    #[error("no room for {} of \"{name}\", which is \
             too large", bytes)]
    Full {
        /// In bytes.
        bytes: u64,
    },
    #[error(transparent)]
    Other(#[from] Other),
}

#[derive(Debug)]
pub enum NoError {
    A,
}
"#;

    #[test]
    fn every_variant_is_listed_with_its_message_and_meaning_and_keeps_its_remedy() {
        let sources = [("models/src/error.rs", SOURCE), ("xtask/src/x.rs", SOURCE)];
        let first = page(sources, "");
        assert!(
            first.contains("| `Full` | no room for {} of \"{name}\", which is too large | No room. |  |\n"),
            "{first}"
        );
        assert!(
            first.contains("| `Other` | that of its cause | – |  |\n") && !first.contains("NoError"),
            "{first}"
        );
        assert_eq!(
            without_remedy(&first).iter().map(|(_, name)| *name).collect::<Vec<_>>(),
            ["`Full`", "`Other`"]
        );

        let written = first.replace("| No room. |  |", "| No room. | Buy some. |");
        let moved = page([("models/src/error.rs", SOURCE.replace("no room", "no place").as_str())], &written);
        assert!(moved.contains("no place") && moved.contains("| No room. | Buy some. |"), "{moved}");
        assert_eq!(without_remedy(&moved).len(), 1);
    }
}
