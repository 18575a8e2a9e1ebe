//! Published families' formats of conversations.
//!
//! Their templates are programs with assignments and filters, and never run here. Control tokens reveal the format, in
//! which a conversation is rendered, without tools and images.

use std::borrow::Cow;

use super::{
    chatml::PlainChatMl,
    format::ChatFormat,
    message::{Message, Role},
};

/// Llama's date without a clock.
const LLAMA_DATES: &str = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n";
/// How Qwen3 writes no reasoning.
const NO_THOUGHTS: &str = "<think>\n\n</think>\n\n";
const THOUGHT_END: &str = "</think>";

/// How `SmolLM3` writes none.
const NO_THOUGHT: &str = "<think>\n\n</think>\n";
/// Without a clock: the day of its release.
const SMOLLM3_HEAD: &str = "## Metadata\n\nKnowledge Cutoff Date: June 2025\nToday Date: 08 July 2025\nReasoning Mode: \
                            /no_think\n\n## Custom Instructions\n\n";

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
    /// 7B 0.1 and 0.2.
    MistralV1,
    /// 7B 0.3.
    MistralV3,
    Llama2,
    SmolLm3,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PublishedFormat {
    family: Family,
    opens: bool,
    /// For conversations without a system message.
    default_system: Option<String>,
    /// Whether the last answer begins with a thought, if only an empty one.
    thinks: bool,
    is_dated: bool,
}

/// How a conversation ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The opening of an answer follows.
    Prompt,
    Answer,
    /// The last answer holds its own thought.
    ThoughtfulAnswer,
}

impl PublishedFormat {
    /// The format that the template `source` writes.
    pub(crate) fn recognised(source: &str) -> Option<Self> {
        let quoted = source.replace('\'', "\"");
        let has = |marks: &[&str]| marks.iter().all(|mark| quoted.contains(mark));
        let chatml = has(&["<|im_start|>", "<|im_end|>"]).then(|| PlainChatMl::recognised(source)).flatten();
        let family = if chatml.is_some() {
            Family::ChatMl
        } else if has(&["<|im_start|>", "<|im_end|>", "## Metadata", "Reasoning Mode: "]) {
            Family::SmolLm3
        } else if has(&["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]) {
            Family::Llama3
        } else if has(&["<start_of_turn>", "<end_of_turn>", "model"]) {
            Family::Gemma
        } else if has(&["[INST]\" +", "+ \"[/INST]\"", "eos_token"]) {
            Family::Mistral
        } else if has(&["\" [INST] \" +", "+ \" [/INST]\"", "eos_token"]) {
            Family::MistralV1
        } else if has(&["\"[INST] \" +", "+ \"[/INST]\"", "eos_token"]) {
            Family::MistralV3
        } else if has(&["[INST] ", " [/INST]", "<<SYS>>"]) {
            Family::Llama2
        } else {
            return None;
        };

        Some(Self {
            family,
            opens: !matches!(family, Family::ChatMl | Family::SmolLm3) || has(&["bos_token"]),
            default_system: chatml.and_then(|chatml| chatml.default_system),
            thinks: family == Family::ChatMl && has(&["<think>", "enable_thinking"]),
            is_dated: has(&["Cutting Knowledge Date: December 2023"]),
        })
    }

    pub(crate) fn name(&self) -> &'static str {
        match self.family {
            Family::ChatMl => "ChatML",
            Family::Llama3 => "Llama 3",
            Family::Gemma => "Gemma",
            Family::Mistral => "Mistral since Nemo",
            Family::MistralV1 => "Mistral 7B 0.1 and 0.2",
            Family::MistralV3 => "Mistral 7B 0.3",
            Family::Llama2 => "Llama 2",
            Family::SmolLm3 => "SmolLM3",
        }
    }

    /// The message's text as the template writes it.
    pub(crate) fn written<'m>(&self, message: &'m Message, is_last: bool) -> Cow<'m, str> {
        let text = message.content.as_str();
        match (self.family, message.role) {
            (Family::ChatMl, Role::Assistant) if self.thinks => written_with_thought(text, is_last),
            (Family::Llama3 | Family::Llama2, _)
            | (Family::MistralV3, Role::Assistant)
            | (Family::Gemma, Role::User | Role::Assistant) => text.trim().into(),
            (Family::SmolLm3, Role::System) => text.trim_end().into(),
            (Family::SmolLm3, Role::Assistant) => text.trim_start_matches('\n').into(),
            _ => text.into(),
        }
    }

    /// How a conversation without a prompt ends.
    pub(crate) fn ending(&self, last: Option<&Message>) -> Ending {
        let thinks = |last: &Message| last.role == Role::Assistant && !parted(&last.content).0.is_empty();
        if self.thinks && last.is_some_and(thinks) { Ending::ThoughtfulAnswer } else { Ending::Answer }
    }

    /// The control tokens that it writes, besides those that open and end a text.
    pub(crate) fn controls(&self) -> &'static [&'static str] {
        match self.family {
            Family::ChatMl | Family::SmolLm3 => ChatFormat::ChatMl,
            Family::Llama3 => ChatFormat::Llama3,
            Family::Gemma => ChatFormat::Gemma,
            Family::Mistral => ChatFormat::Mistral,
            Family::MistralV1 => ChatFormat::MistralV1,
            Family::MistralV3 => ChatFormat::MistralV3,
            Family::Llama2 => ChatFormat::Llama2,
        }
        .controls()
    }

    /// The answers' control token, if it differs from a text's.
    pub(crate) fn ends_answers(&self) -> Option<&'static str> {
        match self.family {
            Family::ChatMl | Family::SmolLm3 => Some("<|im_end|>"),
            Family::Llama3 => Some("<|eot_id|>"),
            Family::Gemma => Some("<end_of_turn>"),
            Family::Mistral | Family::MistralV1 | Family::MistralV3 | Family::Llama2 => None,
        }
    }

    /// `messages`: an optional system message, then user and assistant in turn.
    pub(crate) fn render(&self, messages: &[(Role, String)], bos: &str, eos: &str, ending: Ending) -> String {
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
                (Family::ChatMl, Role::Assistant)
                    if self.thinks && is_last && ending != Ending::ThoughtfulAnswer =>
                {
                    format!("<|im_start|>assistant\n{NO_THOUGHTS}{text}<|im_end|>\n")
                }
                (Family::SmolLm3, Role::Assistant) => {
                    format!("<|im_start|>assistant\n{NO_THOUGHT}{text}<|im_end|>\n")
                }
                (Family::ChatMl | Family::SmolLm3, _) => format!("<|im_start|>{role}\n{text}<|im_end|>\n"),
                (Family::Llama3, _) => {
                    format!("<|start_header_id|>{role}<|end_header_id|>\n\n{text}<|eot_id|>")
                }
                (Family::Gemma, Role::Assistant) => format!("<start_of_turn>model\n{text}<end_of_turn>\n"),
                (Family::Gemma, _) => format!("<start_of_turn>user\n{before}{text}<end_of_turn>\n"),
                (Family::Mistral, Role::Assistant) => format!("{text}{eos}"),
                (Family::Mistral, _) => format!("[INST]{before}{text}[/INST]"),
                (Family::MistralV1 | Family::MistralV3, Role::Assistant) => format!(" {text}{eos}"),
                (Family::MistralV1, _) => format!(" [INST] {before}{text} [/INST]"),
                (Family::MistralV3, _) => format!("[INST] {before}{text}[/INST]"),
                (Family::Llama2, Role::Assistant) => format!(" {text} {eos}"),
                (Family::Llama2, _) => {
                    let opening = if at == 0 { "" } else { bos };
                    format!("{opening}[INST] {before}{text} [/INST]")
                }
            };
            out.push_str(&turn);
        }
        if ending == Ending::Prompt {
            out += &self.answer_opening();
        }
        out
    }

    fn system_turn(&self, system: Option<&str>) -> String {
        match (self.family, system) {
            (Family::ChatMl, Some(text)) => format!("<|im_start|>system\n{text}<|im_end|>\n"),
            (Family::Llama3, text) if text.is_some() || self.is_dated => {
                let dates = if self.is_dated { LLAMA_DATES } else { "" };
                let text = text.unwrap_or_default();
                format!("<|start_header_id|>system<|end_header_id|>\n\n{dates}{text}<|eot_id|>")
            }
            (Family::SmolLm3, text) => {
                let text =
                    text.unwrap_or("You are a helpful AI assistant named SmolLM, trained by Hugging Face.");
                // Only tools follow before the template ends this turn.
                format!("<|im_start|>system\n{SMOLLM3_HEAD}{text}\n\n")
            }
            _ => String::new(),
        }
    }

    fn system_within(&self, system: Option<&str>, is_first: bool, is_last: bool) -> String {
        match (self.family, system) {
            (Family::Gemma, Some(text)) if is_first => format!("{text}\n\n"),
            (Family::MistralV1, Some(text)) if is_first => format!("{text}\n\n"),
            (Family::Mistral | Family::MistralV3, Some(text)) if is_last => format!("{text}\n\n"),
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
            Family::SmolLm3 => format!("<|im_start|>assistant\n{NO_THOUGHT}"),
            Family::Mistral | Family::MistralV1 | Family::MistralV3 | Family::Llama2 => String::new(),
        }
    }
}

/// An answer's thought, perhaps none, and what follows.
fn parted(answer: &str) -> (&str, &str) {
    let Some((thought, _)) = answer.split_once(THOUGHT_END) else { return ("", answer) };
    let thought = thought.rsplit("<think>").next().unwrap_or_default();
    let words = answer.rsplit(THOUGHT_END).next().unwrap_or_default();
    (thought.trim_matches('\n'), words.trim_start_matches('\n'))
}

/// As Qwen3's template: answers before the last question lose their thoughts.
fn written_with_thought(answer: &str, is_last: bool) -> Cow<'_, str> {
    match parted(answer) {
        (_, words) if !is_last => words.into(),
        ("", words) => words.trim_start_matches('\n').into(),
        (thought, words) => format!("<think>\n{thought}\n{THOUGHT_END}\n\n{words}").into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHATML: &str = "{% set x = 1 %}{{ '<|im_start|>system\\n' + m + '<|im_end|>' }}";

    fn rendered(source: &str, prompt: bool) -> String {
        let format = PublishedFormat::recognised(source).expect("a known format");
        let message = |role: Role, text: &str| {
            (role, format.written(&Message::new(role, text), text == "No.").into_owned())
        };
        let system = message(Role::System, " Be brief. ");
        let turns = [
            message(Role::User, "Hi "),
            message(Role::Assistant, " Hello."),
            message(Role::User, " And? "),
            message(Role::Assistant, "No."),
        ];
        if prompt {
            format.render(&[&[system], &turns[..3]].concat(), "<s>", "</s>", Ending::Prompt)
        } else {
            format.render(&turns, "<s>", "</s>", Ending::Answer)
        }
    }

    // Rendered by Hugging Face's library.

    #[test]
    fn qwens_conversations_have_its_default_system_message() {
        let source = format!("{CHATML}{{{{ '<|im_start|>system\\nYou are Qwen.<|im_end|>\\n' }}}}");
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
    fn older_mistrals_write_blanks_around_their_marks() {
        let source = "' [INST] ' + system_message + ' [/INST]' eos_token";
        assert_eq!(
            rendered(source, true),
            "<s> [INST]  Be brief. \n\nHi  [/INST]  Hello.</s> [INST]  And?  [/INST]"
        );
        let source = "\"[INST] \" + system_message + \"[/INST]\" message[\"content\"]|trim + eos_token";
        assert_eq!(
            rendered(source, true),
            "<s>[INST] Hi [/INST] Hello.</s>[INST]  Be brief. \n\n And? [/INST]"
        );
    }

    #[test]
    fn smollm3_opens_with_its_head_and_answers_without_a_thought() {
        let source = "<|im_start|> ## Metadata Reasoning Mode: <|im_end|>";
        assert_eq!(
            rendered(source, true),
            format!(
                "<|im_start|>system\n{SMOLLM3_HEAD} Be brief.\n\n<|im_start|>user\nHi <|im_end|>\n\
                 <|im_start|>assistant\n<think>\n\n</think>\n Hello.<|im_end|>\n<|im_start|>user\n And? <|im_end|>\n\
                 <|im_start|>assistant\n<think>\n\n</think>\n"
            )
        );
        assert!(
            rendered(source, false).contains("named SmolLM, trained by Hugging Face.\n\n<|im_start|>user")
        );
    }

    #[test]
    fn other_templates_are_not_recognised() {
        for source in [
            "{% set x = 1 %}",
            "<|user|> <|assistant|>",
            "<|im_start|> <|im_end|> ## Metadata",
            "'[INST] ' + m + ' [/INST]' eos_token",
            "<|im_start|><|im_sep|><|im_end|>",
            "{{ '<|im_end|>\\n<|im_start|>assistant\\n<think>\\n' }}",
        ] {
            assert_eq!(PublishedFormat::recognised(source), None, "{source}");
        }
    }
}
