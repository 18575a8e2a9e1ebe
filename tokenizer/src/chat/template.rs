//! Renders chat templates, with placeholders for contents.

use std::io;

use minijinja::{Environment, Value, context, syntax::SyntaxConfig};

use super::{
    message::{Message, Role},
    problem::ChatProblem,
    published::{Ending, PublishedFormat},
};

/// Private-use characters around a message's number.
const OPEN: char = '\u{F0000}';
const CLOSE: char = '\u{F0001}';
/// Steps of a template per message, plus once; this crate's needs about 30.
const FUEL: u64 = 200;
/// Most bytes that a placeholder adds to the template's text.
const MARK_BYTES: usize = 256;
/// Without assignments, macros and repetition, intermediate values stay as short as the template.
const STATEMENTS: [&str; 6] = ["for", "endfor", "if", "elif", "else", "endif"];

#[derive(Clone, Debug)]
pub(crate) struct ChatTemplate {
    source: String,
    bos: String,
    eos: String,
    format: Option<PublishedFormat>,
    runs: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Part<'r> {
    Template(&'r str),
    Content(usize),
}

impl ChatTemplate {
    pub(crate) fn new(source: String, bos: String, eos: String) -> Self {
        let format = PublishedFormat::recognised(&source);
        let mut template = Self { source, bos, eos, format, runs: true };
        let probe = [Message::new(Role::User, ""), Message::new(Role::Assistant, "")];
        template.runs = template.render(&probe, true).is_ok();
        template
    }

    pub(crate) fn format(&self) -> Option<&PublishedFormat> {
        self.format.as_ref()
    }

    pub(crate) fn published(&self) -> Option<&PublishedFormat> {
        self.format.as_ref().filter(|_| !self.runs)
    }

    /// Checks the source text, where quotes hide no statement. It also refuses quoted `{%` or `*`.
    fn check(&self) -> Result<(), ChatProblem> {
        if self.source.contains([OPEN, CLOSE]) {
            return Err(ChatProblem::Marks);
        }
        if self.source.contains('*') {
            return Err(ChatProblem::Program("*".to_owned()));
        }
        for statement in self.source.split("{%").skip(1) {
            let statement = statement.trim_start_matches(['-', '+']).trim_start();
            let end = statement.find(|c: char| !c.is_alphanumeric()).unwrap_or(statement.len());
            let (keyword, rest) = statement.split_at(end);
            if !STATEMENTS.contains(&keyword) {
                return Err(ChatProblem::Program(keyword.to_owned()));
            }
            // `for b in [a + a]` would assign, and double a text at no cost in steps.
            if keyword == "for" && !is_over_messages(rest) {
                return Err(ChatProblem::Program("for".to_owned()));
            }
        }
        Ok(())
    }

    pub(super) fn render(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
    ) -> Result<String, ChatProblem> {
        let placed = |at: usize| format!("{OPEN}{at}{CLOSE}");
        if let Some(format) = self.published() {
            let numbered: Vec<_> =
                messages.iter().enumerate().map(|(at, message)| (message.role, placed(at))).collect();
            let ending = if add_generation_prompt { Ending::Prompt } else { format.ending(messages.last()) };
            return Ok(format.render(&numbered, &self.bos, &self.eos, ending));
        }
        self.check()?;
        let mut environment = Environment::empty();
        // As in Hugging Face's renderer.
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?;
        environment.set_syntax(syntax);
        environment.set_fuel(Some(FUEL * (messages.len() as u64 + 1)));

        let placeholders: Vec<Value> = messages
            .iter()
            .enumerate()
            .map(|(at, message)| context! { role => message.role.name(), content => placed(at) })
            .collect();
        let (bos_token, eos_token) = (&self.bos, &self.eos);
        let context = context! { messages => placeholders, bos_token, eos_token, add_generation_prompt };
        let limit = (messages.len() + 1) * (self.source.len() + MARK_BYTES);
        let mut out = Rendered { text: Vec::new(), limit, is_full: false };
        match environment.template_from_str(&self.source)?.render_captured_to(context, &mut out) {
            Err(_) if out.is_full => Err(ChatProblem::TooLong { limit }),
            Err(error) => Err(error.into()),
            Ok(_) => String::from_utf8(out.text).map_err(|_| ChatProblem::Marks),
        }
    }
}

/// Rendered text. Fails at its limit: each message may repeat the template once.
struct Rendered {
    text: Vec<u8>,
    limit: usize,
    is_full: bool,
}

impl io::Write for Rendered {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.text.len() + bytes.len() > self.limit {
            self.is_full = true;
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn is_over_messages(statement: &str) -> bool {
    let statement = statement.split("%}").next().unwrap_or_default().trim_end_matches(['-', '+']);
    let mut words = statement.split_whitespace();
    let name = words.next().unwrap_or_default();
    name.chars().all(|c| c.is_alphanumeric() || c == '_') && words.eq(["in", "messages"])
}

pub(super) fn parts(rendered: &str, messages: usize) -> Result<Vec<Part<'_>>, ChatProblem> {
    let mut parts = Vec::new();
    let mut seen = vec![false; messages];
    let mut rest = rendered;
    while let Some((before, after)) = rest.split_once(OPEN) {
        parts.push(Part::Template(before));
        let (number, behind) = after.split_once(CLOSE).ok_or(ChatProblem::Marks)?;
        let at: usize = number.parse().map_err(|_| ChatProblem::Marks)?;
        *seen.get_mut(at).ok_or(ChatProblem::Marks)? = true;
        parts.push(Part::Content(at));
        rest = behind;
    }
    parts.push(Part::Template(rest));
    match seen.iter().position(|seen| !seen) {
        Some(at) => Err(ChatProblem::LeftOut { at: at + 1 }),
        None => Ok(parts),
    }
}
