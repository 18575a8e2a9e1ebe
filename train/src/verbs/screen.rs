//! Standard output for a model's words: a terminal shows control characters as U+FFFD.
//!
//! A stranger's model could write escape sequences, which set titles or the clipboard.

use std::io::{self, IsTerminal, Stdout, Write};

pub(super) struct Screen<W> {
    out: W,
    is_terminal: bool,
}

impl Screen<Stdout> {
    pub(super) fn new() -> Self {
        let out = io::stdout();
        Self { is_terminal: out.is_terminal(), out }
    }
}

impl<W: Write> Write for Screen<W> {
    /// Takes whole characters, as `write!` gives them.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match std::str::from_utf8(bytes) {
            Ok(text) if self.is_terminal => self.out.write_all(shown(text).as_bytes())?,
            _ => self.out.write_all(bytes)?,
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

fn shown(text: &str) -> String {
    let controls = |letter: char| letter.is_control() && !matches!(letter, '\n' | '\t');
    text.chars().map(|letter| if controls(letter) { char::REPLACEMENT_CHARACTER } else { letter }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_gets_no_control_characters_of_a_model_and_a_pipe_gets_all_bytes() {
        let said = "a\u{1b}]52;c;x\u{7}b\u{9b}é\t🌊\n";
        for (is_terminal, expected) in [(true, "a\u{fffd}]52;c;x\u{fffd}b\u{fffd}é\t🌊\n"), (false, said)]
        {
            let mut screen = Screen { out: Vec::new(), is_terminal };
            write!(screen, "{said}").expect("memory takes everything");
            assert_eq!(String::from_utf8(screen.out).expect("text"), expected);
        }
    }
}
