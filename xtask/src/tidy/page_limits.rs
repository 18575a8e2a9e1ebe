//! Limits of the pages that a stranger reads first: bytes, lines and words of a sentence.

use std::mem::take;

use super::{File, Finding, fences};

const README: &str = "README.md";
const README_BYTES: usize = 6_144;
const README_LINES: usize = 120;
const SENTENCE_WORDS: usize = 20;

const GUIDE: &str = "docs/guide/";
const CHAPTER_BYTES: usize = 8_192;

pub(super) fn all(page: &File) -> Vec<Finding> {
    if page.path == README {
        let sizes = [bytes(page, README_BYTES), lines(page)];
        return sizes.into_iter().flatten().chain(long_sentences(page)).collect();
    }
    if page.path.starts_with(GUIDE) { bytes(page, CHAPTER_BYTES).into_iter().collect() } else { Vec::new() }
}

fn bytes(page: &File, most: usize) -> Option<Finding> {
    let bytes = page.text.len();
    let reason = format!("{bytes} bytes, more than {most}: shorten it, or give a part a page of its own");
    (bytes > most).then(|| page.finding(1, "page-length", reason))
}

fn lines(page: &File) -> Option<Finding> {
    let lines = page.text.lines().count();
    let reason = format!("{lines} lines, more than {README_LINES}: shorten it");
    (lines > README_LINES).then(|| page.finding(README_LINES + 1, "page-length", reason))
}

fn long_sentences(page: &File) -> Vec<Finding> {
    let long = sentences(page).into_iter().filter(|(_, words)| *words > SENTENCE_WORDS);
    let finding = |(line, words): (usize, usize)| {
        let reason = format!("a sentence of {words} words, more than {SENTENCE_WORDS}: split it");
        page.finding(line, "sentence-length", reason)
    };
    long.map(finding).collect()
}

/// Line and words of each sentence. Inline code is one word; headings, tables, blocks of code and HTML have none.
fn sentences(page: &File) -> Vec<(usize, usize)> {
    let mut sentences = Vec::new();
    let (mut first, mut words) = (1, 0);
    let unquoted = page.lines().map(|(number, line)| (number, line.trim_start_matches(['>', ' '])));
    for (number, line) in fences::blanked(unquoted) {
        let is_prose = !line.is_empty() && !line.starts_with(['#', '|', '<']);
        if !is_prose || line.starts_with("- ") {
            sentences.push((first, take(&mut words)));
        }
        if !is_prose {
            continue;
        }
        for word in shown(line).split_whitespace() {
            if words == 0 {
                first = number;
            }
            words += usize::from(word.contains(char::is_alphanumeric));
            if word.trim_end_matches(['*', '_', ')', ']', '"']).ends_with(['.', '?', '!']) {
                sentences.push((first, take(&mut words)));
            }
        }
    }
    sentences.push((first, words));
    sentences.retain(|(_, words)| *words > 0);
    sentences
}

/// Without targets of links, and with one word for inline code.
fn shown(line: &str) -> String {
    let parts = line.split('`').enumerate();
    let line: String = parts.map(|(n, part)| if n % 2 == 0 { part } else { "code" }).collect();
    let mut parts = line.split("](");
    let text = parts.next().unwrap_or_default().to_owned();
    parts.fold(text, |text, part| text + part.split_once(')').map_or("", |(_, rest)| rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<(&'static str, usize)> {
        all(&File { path, text }).into_iter().map(|finding| (finding.rule, finding.line)).collect()
    }

    #[test]
    fn the_readme_and_a_chapter_of_the_guide_have_at_most_their_bytes_and_lines() {
        for (path, most) in [("README.md", 6_144), ("docs/guide/tune.md", 8_192)] {
            assert_eq!(found(path, &"x".repeat(most)), []);
            assert_eq!(found(path, &"x".repeat(most + 1)), [("page-length", 1)]);
        }
        assert_eq!(found("docs/LOG.md", &"x".repeat(8_193)), []);
        assert_eq!(found("README.md", &"\n".repeat(120)), []);
        assert_eq!(found("README.md", &"\n".repeat(121)), [("page-length", 121)]);
        assert_eq!(found("docs/guide/tune.md", &"\n".repeat(121)), []);
    }

    #[test]
    fn a_sentence_of_the_readme_has_at_most_twenty_words() {
        let sentence = |words: usize| "word ".repeat(words - 1) + "end.\n";
        let long = [("sentence-length", 2)];
        assert_eq!(found("README.md", &(sentence(20) + &sentence(20))), []);
        assert_eq!(found("README.md", &(sentence(20) + &sentence(21))), long);
        assert_eq!(found("docs/guide/tune.md", &sentence(21)), []);
        assert_eq!(found("README.md", &format!("A.\n> **b**\n> {}", sentence(20))), long, "it goes on");
        assert_eq!(found("README.md", &format!("# A\nb\n\n{}- c\n{}", sentence(20), sentence(19))), []);
        let linked = sentence(21).replace("end.", "**[end.](a)**");
        assert_eq!(found("README.md", &format!("B.\n{linked}")), long);
    }

    #[test]
    fn code_tables_html_and_targets_of_links_do_not_lengthen_a_sentence() {
        let words = "word ".repeat(17);
        let many = "word ".repeat(21);
        let line = format!("{words}`{many}` [a]({many}) end.\n");
        let text = format!("{line}```\n{many}\n```\n| {many} |\n<p {many}>\n# {many}\n");
        assert_eq!(found("README.md", &text), []);
    }
}
