//! Plain `ChatML`, recognised by the source of a template: turns, and a system message where a conversation has none.

/// Precedes a system message.
const SYSTEM: &str = "<|im_start|>system\n";
/// Begins the answers of models that always think.
const THOUGHT: &str = "<|im_start|>assistant\n<think>";

/// A template that writes nothing else.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PlainChatMl {
    /// For conversations without a system message.
    pub(super) default_system: Option<String>,
}

/// A stretch of a template's source.
enum Piece<'s> {
    /// Written as it is.
    Text(&'s str),
    /// A stretch of code before each string literal, and one after the last.
    Tag { code: Vec<&'s str>, literals: Vec<String> },
}

/// A piece's word on the default system message.
enum System<'p> {
    Nothing,
    Default(&'p str),
    /// It computes one.
    Computed,
}

impl PlainChatMl {
    /// `None` for templates that write more, and for system messages that only their program knows.
    pub(super) fn recognised(source: &str) -> Option<Self> {
        // Phi-4 adds `<|im_sep|>`, and `SmolLM3` a head.
        let mut marks = source.split("<|im_").skip(1);
        let knows_marks = marks.all(|mark| mark.starts_with("start|>") || mark.starts_with("end|>"));
        if !knows_marks || source.contains("## Metadata") {
            return None;
        }

        let pieces = pieces(source)?;
        let texts: Vec<&str> = pieces.iter().flat_map(Piece::texts).collect();
        if texts.concat().contains(THOUGHT) && !source.contains("enable_thinking") {
            return None;
        }

        let mut default_system = texts.iter().copied().find_map(system_turn);
        for piece in &pieces {
            match piece.system() {
                System::Nothing => {}
                System::Default(text) => default_system = default_system.or(Some(text)),
                System::Computed => return None,
            }
        }
        Some(Self { default_system: default_system.map(str::to_owned) })
    }
}

impl Piece<'_> {
    fn texts(&self) -> Vec<&str> {
        match self {
            Self::Text(text) => vec![*text],
            Self::Tag { literals, .. } => literals.iter().map(String::as_str).collect(),
        }
    }

    /// Reads `set system_message = '…'`, also where the literal follows `else`.
    fn system(&self) -> System<'_> {
        let Self::Tag { code, literals } = self else { return System::Nothing };
        let otherwise = (0..literals.len())
            .find(|at| code[*at].trim_end().ends_with("else") && !literals[*at].is_empty());
        let set = code[0].trim_start_matches(['-', '+']).trim_start().strip_prefix("set ");
        let (name, value) = set.map_or(("", ""), |rest| rest.split_once('=').unwrap_or((rest, "")));
        if !name.contains("system") {
            let opens = literals.iter().any(|text| text.ends_with(SYSTEM));
            return if opens && otherwise.is_some() { System::Computed } else { System::Nothing };
        }

        let first = value.trim().is_empty().then_some(0);
        let Some(at) = first.or(otherwise) else { return System::Nothing };
        let ends = |code: &str| code.chars().all(|c| c.is_whitespace() || c == '-');
        match literals.get(at..) {
            Some([text]) if text.is_empty() => System::Nothing,
            Some([text]) if ends(code[at + 1]) && !text.contains("<|") => System::Default(text),
            _ => System::Computed,
        }
    }
}

/// The message of a whole system turn within a text.
fn system_turn(text: &str) -> Option<&str> {
    let (message, _) = text.split_once(SYSTEM)?.1.split_once("<|im_end|>")?;
    (!message.is_empty()).then_some(message)
}

/// `None` for a tag that does not end, or a literal that only Python decodes.
fn pieces(source: &str) -> Option<Vec<Piece<'_>>> {
    let (mut pieces, mut rest) = (Vec::new(), source);
    loop {
        let opens = |at: &usize| rest[at + 1..].starts_with(['{', '%', '#']);
        let Some(at) = rest.match_indices('{').map(|(at, _)| at).find(opens) else {
            pieces.push(Piece::Text(rest));
            return Some(pieces);
        };
        pieces.push(Piece::Text(&rest[..at]));
        let (kind, inside) = rest[at + 1..].split_at(1);
        rest = match kind {
            "#" => inside.split_once("#}")?.1,
            "%" => tag(inside, "%}", &mut pieces)?,
            _ => tag(inside, "}}", &mut pieces)?,
        };
    }
}

/// Adds a tag, and returns what follows it.
fn tag<'s>(mut rest: &'s str, end: &str, pieces: &mut Vec<Piece<'s>>) -> Option<&'s str> {
    let (mut code, mut literals) = (Vec::new(), Vec::new());
    loop {
        let at = rest.find(end)?;
        let Some(quote) = rest[..at].find(['\'', '"']) else {
            code.push(&rest[..at]);
            pieces.push(Piece::Tag { code, literals });
            return Some(&rest[at + end.len()..]);
        };
        code.push(&rest[..quote]);
        let (text, behind) = literal(&rest[quote..])?;
        literals.push(text);
        rest = behind;
    }
}

/// The decoded literal that `code` begins with, and what follows it.
fn literal(code: &str) -> Option<(String, &str)> {
    let mut letters = code.char_indices();
    let (_, quote) = letters.next()?;
    let mut text = String::new();
    loop {
        let (at, letter) = letters.next()?;
        if letter == quote {
            return Some((text, &code[at + 1..]));
        }
        if letter != '\\' {
            text.push(letter);
            continue;
        }
        match letters.next()?.1 {
            'n' => text.push('\n'),
            'r' => text.push('\r'),
            't' => text.push('\t'),
            escaped @ ('\\' | '\'' | '"') => text.push(escaped),
            // Python names more characters by letters and numbers.
            escaped if escaped.is_ascii_alphanumeric() || escaped == '\n' => return None,
            escaped => text.extend(['\\', escaped]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TURNS: &str = "\
        {%- for m in messages %}\
        {{- '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}\
        {%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}";
    const QWEN_MATH: &str = "\
        {%- if messages[0]['role'] == 'system' %}\
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}\
        {%- else %}\
        {{- '<|im_start|>system\\nPut your final answer within \\\\boxed{}.<|im_end|>\\n' }}\
        {%- endif %}";
    const LLAMA_FACTORY: &str = "\
        {% set system_message = 'You\\'re a \"helpful\" assistant + friend.' %}\
        {% if messages[0]['role'] == 'system' %}{% set system_message = messages[0]['content'] %}{% endif %}\
        {% if system_message is defined %}\
        {{ '<|im_start|>system\\n' + system_message + '<|im_end|>\\n' }}{% endif %}";
    const QWEN_VL: &str = "\
        {% if loop.first %}<|im_start|>system\nYou are {very} helpful.<|im_end|>\n{% endif %}{# ' #}";
    const ONE_LINE: &str = "\
        {% set system_message = messages[0]['content'] if messages[0]['role'] == 'system' else 'Be brief.' %}";

    fn recognised(system: &str) -> Option<PlainChatMl> {
        PlainChatMl::recognised(&format!("{system}{TURNS}"))
    }

    fn with_default(text: &str) -> PlainChatMl {
        PlainChatMl { default_system: (!text.is_empty()).then(|| text.to_owned()) }
    }

    #[test]
    fn default_system_messages_are_decoded_wherever_a_template_keeps_them() {
        for (system, text) in [
            (QWEN_MATH, r"Put your final answer within \boxed{}."),
            (LLAMA_FACTORY, r#"You're a "helpful" assistant + friend."#),
            (QWEN_VL, "You are {very} helpful."),
            (ONE_LINE, "Be brief."),
            ("{%- set system_message = \"\" -%}", ""),
            ("{% set is_system = messages[0]['role'] == 'system' %}", ""),
            ("", ""),
        ] {
            assert_eq!(recognised(system), Some(with_default(text)), "{system}");
        }
    }

    #[test]
    fn computed_system_messages_are_not_recognised() {
        for system in [
            "{% set system_message = 'You are ' + name %}",
            "{% set system_message = 'caf\\xe9' %}",
            "{% set system_message %}You are kind.{% endset %}",
            "{{ '<|im_start|>system\\n' + (given if given else 'Be brief.') + '<|im_end|>\\n' }}",
            "{{ 'never closed }}",
        ] {
            assert_eq!(recognised(system), None, "{system}");
        }
    }

    #[test]
    fn templates_of_models_that_always_think_are_not_recognised() {
        let whole = r"{{- '<|im_start|>assistant\n<think>\n' }}";
        let apart = r"{{- '<|im_start|>assistant\n' }}{{- '<think>\n' }}";
        for prompt in [whole, apart] {
            assert_eq!(recognised(prompt), None, "{prompt}");
            let chosen = format!("{{%- if enable_thinking %}}{prompt}{{%- endif %}}");
            assert_eq!(recognised(&chosen), Some(with_default("")), "{chosen}");
        }
    }
}
