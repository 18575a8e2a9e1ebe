//! Stop strings. Text that may begin one is held back (`text_ends_before_the_first_stop_string_however_it_is_split`).

#[derive(Debug)]
pub(crate) struct StopStrings {
    strings: Vec<String>,
    held: String,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Shown {
    pub(crate) text: String,
    pub(crate) stopped: bool,
}

impl StopStrings {
    pub(crate) fn new(strings: Vec<String>) -> Self {
        debug_assert!(
            strings.iter().all(|string| !string.is_empty()),
            "requests with empty ones are refused"
        );
        Self { strings, held: String::new() }
    }

    pub(crate) fn push(&mut self, text: &str) -> Shown {
        self.held.push_str(text);
        let found = self.strings.iter().filter_map(|string| self.held.find(string.as_str())).min();
        if let Some(at) = found {
            self.held.truncate(at);
            return Shown { text: std::mem::take(&mut self.held), stopped: true };
        }
        let open = self.strings.iter().map(|string| begun(&self.held, string)).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - open);
        Shown { text: std::mem::replace(&mut self.held, rest), stopped: false }
    }

    pub(crate) fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

fn begun(text: &str, string: &str) -> usize {
    let mut prefixes = string.char_indices().map(|(at, _)| at).filter(|at| *at > 0);
    prefixes.rfind(|at| text.ends_with(&string[..*at])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn streamed(pieces: &[String], strings: &[String]) -> (String, bool) {
        let mut stop = StopStrings::new(strings.to_vec());
        let mut all = String::new();
        for piece in pieces {
            let shown = stop.push(piece);
            all += &shown.text;
            if shown.stopped {
                return (all, true);
            }
        }
        (all + &stop.finish(), false)
    }

    #[test]
    fn a_partial_stop_string_is_held_back_until_it_cannot_match() {
        let mut stop = StopStrings::new(vec!["END".into()]);
        assert_eq!(stop.push("on E"), Shown { text: "on ".into(), stopped: false });
        assert_eq!(stop.push("N"), Shown { text: String::new(), stopped: false });
        assert_eq!(stop.push("E"), Shown { text: "EN".into(), stopped: false });
        assert_eq!(stop.push("ND!"), Shown { text: String::new(), stopped: true });
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(suite::cases(256)))]

        #[test]
        fn text_ends_before_the_first_stop_string_however_it_is_split(
            pieces in proptest::collection::vec("[abä]{0,3}", 0..12),
            strings in proptest::collection::vec("[abä]{1,3}", 0..4),
        ) {
            let whole = pieces.concat();
            let mut shown = String::new();
            let mut expected = (whole.clone(), false);
            // The first complete stop string wins, even over a longer one begun earlier.
            for piece in &pieces {
                shown += piece;
                if let Some(at) = strings.iter().filter_map(|string| shown.find(string.as_str())).min() {
                    expected = (shown[..at].to_owned(), true);
                    break;
                }
            }
            prop_assert_eq!(streamed(&pieces, &strings), expected);
        }
    }
}
