//! Published families' formats of conversations.
//!
//! Their templates are programs with assignments and filters, and never run here. Control tokens reveal the format, in
//! which a conversation is rendered, without tools and images.

use super::message::Role;

/// Llama's date without a clock.
const LLAMA_DATES: &str = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n";
/// How Qwen3 writes no reasoning.
const NO_THOUGHTS: &str = "<think>\n\n</think>\n\n";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    /// Qwen, `SmolLM2` and others.
    ChatMl,
    /// 3 to 3.3.
    Llama3,
    /// 1 to 3.
    Gemma,
    /// Nemo and later.
    Mistral,
    Llama2,
}

/// A format and its template's settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PublishedFormat {
    family: Family,
    /// Whether texts open with the first control token.
    opens: bool,
    /// For conversations without a system message.
    default_system: Option<String>,
    /// Whether the last answer begins with an empty thought.
    thinks: bool,
    /// Whether the system message begins with dates.
    is_dated: bool,
}

impl PublishedFormat {
    /// The format that the template `source` writes.
    pub(crate) fn recognised(source: &str) -> Option<Self> {
        let has = |marks: &[&str]| marks.iter().all(|mark| source.contains(mark));
        let family = if has(&["<|im_start|>", "<|im_end|>"]) && is_plain_chatml(source) {
            Family::ChatMl
        } else if has(&["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]) {
            Family::Llama3
        } else if has(&["<start_of_turn>", "<end_of_turn>", "model"]) {
            Family::Gemma
        } else if has(&["[INST]\" +", "+ \"[/INST]\"", "eos_token"]) {
            Family::Mistral
        } else if has(&["[INST] ", " [/INST]", "<<SYS>>"]) {
            Family::Llama2
        } else {
            return None;
        };

        Some(Self {
            family,
            opens: family != Family::ChatMl || has(&["bos_token"]),
            default_system: (family == Family::ChatMl).then(|| default_system(source)).flatten(),
            thinks: family == Family::ChatMl && has(&["<think>", "enable_thinking"]),
            is_dated: has(&["Cutting Knowledge Date: December 2023"]),
        })
    }

    /// Whether the template removes blanks around messages of `role`.
    pub(crate) fn trims(&self, role: Role) -> bool {
        match self.family {
            Family::ChatMl | Family::Mistral => false,
            Family::Llama3 | Family::Llama2 => true,
            Family::Gemma => role != Role::System,
        }
    }

    /// Control token that ends an answer, if another than a text's.
    pub(crate) fn ends_answers(&self) -> Option<&'static str> {
        match self.family {
            Family::ChatMl => Some("<|im_end|>"),
            Family::Llama3 => Some("<|eot_id|>"),
            Family::Gemma => Some("<end_of_turn>"),
            Family::Mistral | Family::Llama2 => None,
        }
    }

    /// `messages`: an optional system message, then user and assistant in turn.
    pub(crate) fn render(&self, messages: &[(Role, String)], bos: &str, eos: &str, prompt: bool) -> String {
        let mut out = if self.opens { bos.to_owned() } else { String::new() };
        let (system, turns) = match messages {
            [(Role::System, text), turns @ ..] => (Some(text.as_str()), turns),
            turns => (None, turns),
        };
        out += &self.system_turn(system.or(self.default_system.as_deref()));

        let last_question = turns.iter().rposition(|(role, _)| *role == Role::User);
        for (at, (role, text)) in turns.iter().enumerate() {
            let is_last = at + 1 == turns.len();
            let before = self.system_within(system, at == 0, Some(at) == last_question);
            let turn = match (self.family, role) {
                (Family::ChatMl, Role::Assistant) if self.thinks && is_last => {
                    format!("<|im_start|>assistant\n{NO_THOUGHTS}{text}<|im_end|>\n")
                }
                (Family::ChatMl, _) => format!("<|im_start|>{role}\n{text}<|im_end|>\n"),
                (Family::Llama3, _) => {
                    format!("<|start_header_id|>{role}<|end_header_id|>\n\n{text}<|eot_id|>")
                }
                (Family::Gemma, Role::Assistant) => format!("<start_of_turn>model\n{text}<end_of_turn>\n"),
                (Family::Gemma, _) => format!("<start_of_turn>user\n{before}{text}<end_of_turn>\n"),
                (Family::Mistral, Role::Assistant) => format!("{text}{eos}"),
                (Family::Mistral, _) => format!("[INST]{before}{text}[/INST]"),
                (Family::Llama2, Role::Assistant) => format!(" {text} {eos}"),
                (Family::Llama2, _) => {
                    let opening = if at == 0 { "" } else { bos };
                    format!("{opening}[INST] {before}{text} [/INST]")
                }
            };
            out.push_str(&turn);
        }
        if prompt {
            out += &self.answer_opening();
        }
        out
    }

    /// The system message as a turn.
    fn system_turn(&self, system: Option<&str>) -> String {
        match (self.family, system) {
            (Family::ChatMl, Some(text)) => format!("<|im_start|>system\n{text}<|im_end|>\n"),
            (Family::Llama3, text) if text.is_some() || self.is_dated => {
                let dates = if self.is_dated { LLAMA_DATES } else { "" };
                let text = text.unwrap_or_default();
                format!("<|start_header_id|>system<|end_header_id|>\n\n{dates}{text}<|eot_id|>")
            }
            _ => String::new(),
        }
    }

    /// The system message within a question.
    fn system_within(&self, system: Option<&str>, is_first: bool, is_last: bool) -> String {
        match (self.family, system) {
            (Family::Gemma, Some(text)) if is_first => format!("{text}\n\n"),
            (Family::Mistral, Some(text)) if is_last => format!("{text}\n\n"),
            (Family::Llama2, Some(text)) if is_first => format!("<<SYS>>\n{text}\n<</SYS>>\n\n"),
            _ => String::new(),
        }
    }

    fn answer_opening(&self) -> String {
        match self.family {
            Family::ChatMl if self.thinks => format!("<|im_start|>assistant\n{NO_THOUGHTS}"),
            Family::ChatMl => "<|im_start|>assistant\n".to_owned(),
            Family::Llama3 => "<|start_header_id|>assistant<|end_header_id|>\n\n".to_owned(),
            Family::Gemma => "<start_of_turn>model\n".to_owned(),
            Family::Mistral | Family::Llama2 => String::new(),
        }
    }
}

/// Phi-4 adds `<|im_sep|>`, and `SmolLM3` more.
fn is_plain_chatml(source: &str) -> bool {
    let mut marks = source.split("<|im_").skip(1);
    marks.all(|mark| mark.starts_with("start|>") || mark.starts_with("end|>"))
        && !source.contains("## Metadata")
}

fn default_system(source: &str) -> Option<String> {
    let quoted = |opening: &str| {
        source.split(opening).skip(1).find_map(|rest| {
            let text = &rest[..rest.find("<|im_end|>")?];
            let is_text = !text.is_empty() && !text.contains(['\'', '"', '{', '}', '+']);
            is_text.then(|| text.to_owned())
        })
    };
    quoted("<|im_start|>system\\n").or_else(|| quoted("<|im_start|>system\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHATML: &str = "{% set x = 1 %}<|im_start|>system\\n' + m + '<|im_end|>";

    fn rendered(source: &str, prompt: bool) -> String {
        let format = PublishedFormat::recognised(source).expect("a known format");
        let message = |role: Role, text: &str| {
            (role, if format.trims(role) { text.trim().to_owned() } else { text.to_owned() })
        };
        let system = message(Role::System, " Be brief. ");
        let turns = [
            message(Role::User, "Hi "),
            message(Role::Assistant, " Hello."),
            message(Role::User, " And? "),
            message(Role::Assistant, "No."),
        ];
        if prompt {
            format.render(&[&[system], &turns[..3]].concat(), "<s>", "</s>", true)
        } else {
            format.render(&turns, "<s>", "</s>", false)
        }
    }

    // The published templates' texts, rendered by Hugging Face's library.

    #[test]
    fn qwens_conversations_have_its_default_system_message() {
        let source = format!("{CHATML} '<|im_start|>system\\nYou are Qwen.<|im_end|>\\n'");
        assert_eq!(
            rendered(&source, true),
            "<|im_start|>system\n Be brief. <|im_end|>\n<|im_start|>user\nHi <|im_end|>\n<|im_start|>assistant\n \
             Hello.<|im_end|>\n<|im_start|>user\n And? <|im_end|>\n<|im_start|>assistant\n"
        );
        assert_eq!(
            rendered(&source, false),
            "<|im_start|>system\nYou are Qwen.<|im_end|>\n<|im_start|>user\nHi <|im_end|>\n<|im_start|>assistant\n \
             Hello.<|im_end|>\n<|im_start|>user\n And? <|im_end|>\n<|im_start|>assistant\nNo.<|im_end|>\n"
        );
    }

    #[test]
    fn only_the_last_answer_of_qwen3_begins_with_an_empty_thought() {
        let source = format!("{CHATML} <think> enable_thinking");
        assert!(rendered(&source, true).ends_with("<|im_start|>assistant\n<think>\n\n</think>\n\n"));
        assert_eq!(
            rendered(&source, false),
            "<|im_start|>user\nHi <|im_end|>\n<|im_start|>assistant\n Hello.<|im_end|>\n<|im_start|>user\n And? \
             <|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nNo.<|im_end|>\n"
        );
    }

    #[test]
    fn llamas_messages_lose_their_blanks_and_newer_ones_open_with_dates() {
        let source = "<|start_header_id|><|end_header_id|><|eot_id|>";
        assert_eq!(
            rendered(source, false),
            "<s><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant\
             <|end_header_id|>\n\nHello.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nAnd?<|eot_id|>\
             <|start_header_id|>assistant<|end_header_id|>\n\nNo.<|eot_id|>"
        );
        let dated = format!("{source} Cutting Knowledge Date: December 2023");
        let opening = "<s><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December \
                       2023\nToday Date: 26 Jul 2024\n\n";
        assert!(rendered(&dated, true).starts_with(&format!("{opening}Be brief.<|eot_id|>")));
        assert!(rendered(&dated, true).ends_with("<|start_header_id|>assistant<|end_header_id|>\n\n"));
        assert!(rendered(&dated, false).starts_with(&format!("{opening}<|eot_id|><|start_header_id|>user")));
    }

    #[test]
    fn gemmas_first_question_begins_with_the_system_message() {
        let source = "<start_of_turn> model <end_of_turn>";
        assert_eq!(
            rendered(source, true),
            "<s><start_of_turn>user\n Be brief. \n\nHi<end_of_turn>\n<start_of_turn>model\nHello.<end_of_turn>\n\
             <start_of_turn>user\nAnd?<end_of_turn>\n<start_of_turn>model\n"
        );
    }

    #[test]
    fn mistrals_last_question_begins_with_the_system_message() {
        let source = "\"[INST]\" + content + \"[/INST]\" eos_token";
        assert_eq!(
            rendered(source, true),
            "<s>[INST]Hi [/INST] Hello.</s>[INST] Be brief. \n\n And? [/INST]"
        );
        assert_eq!(rendered(source, false), "<s>[INST]Hi [/INST] Hello.</s>[INST] And? [/INST]No.</s>");
    }

    #[test]
    fn llama_2_opens_each_question_anew() {
        let source = "'[INST] ' + content + ' [/INST]' <<SYS>>";
        assert_eq!(
            rendered(source, true),
            "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST] Hello. </s><s>[INST] And? [/INST]"
        );
    }

    #[test]
    fn other_templates_are_not_recognised() {
        for source in [
            "{% set x = 1 %}",
            "<|user|> <|assistant|>",
            "<|im_start|> <|im_end|> ## Metadata",
            "<|im_start|><|im_sep|><|im_end|>",
        ] {
            assert_eq!(PublishedFormat::recognised(source), None, "{source}");
        }
    }
}
