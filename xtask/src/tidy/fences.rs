//! Fenced code in Markdown: rules for prose read a page without it.

/// Blanks fences and the lines between them, so that line numbers stay. An open fence reaches to the end.
pub(super) fn blanked<'a>(
    lines: impl Iterator<Item = (usize, &'a str)>,
) -> impl Iterator<Item = (usize, &'a str)> {
    let mut fenced = false;
    lines.map(move |(number, line)| {
        let is_fence = line.trim_start().starts_with("```");
        fenced ^= is_fence;
        (number, if is_fence || fenced { "" } else { line })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fenced_lines_are_blank_and_the_others_keep_text_and_number() {
        let text = " a\n  ```sh\n# b\n  ```\n`c`\n```\nd";
        let lines: Vec<_> = blanked((1..).zip(text.lines())).collect();
        assert_eq!(lines, [(1, " a"), (2, ""), (3, ""), (4, ""), (5, "`c`"), (6, ""), (7, "")]);
    }
}
