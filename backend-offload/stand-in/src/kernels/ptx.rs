//! Inline PTX becomes calls of `stand_in/ptx.h`, by mnemonic. An unknown instruction is refused by name.

use std::iter::Peekable;

pub(super) fn replace_assembly(text: &str) -> Result<String, String> {
    let mut replaced = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, statement)) = next_statement(rest) {
        let assembly = Assembly::parse(statement)
            .ok_or_else(|| format!("error: inline PTX of unknown form: {}", first_line(statement)))?;
        replaced.push_str(before);
        replaced.push_str(&assembly.call()?);
        rest = &statement[assembly.length..];
    }
    replaced.push_str(rest);
    Ok(replaced)
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

fn next_statement(text: &str) -> Option<(&str, &str)> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let starts = text.match_indices("asm").find(|(at, _)| {
        let after = &text[at + 3..];
        !text[..*at].ends_with(is_word)
            && ["(", " (", " volatile("].iter().any(|start| after.starts_with(start))
    });
    starts.map(|(at, _)| text.split_at(at))
}

#[derive(Debug)]
struct Assembly {
    template: String,
    operands: Vec<String>,
    length: usize,
}

impl Assembly {
    fn parse(text: &str) -> Option<Self> {
        let mut assembly = Self { template: String::new(), operands: Vec::new(), length: 0 };
        let mut section = 0;
        let mut characters = text.char_indices().peekable();
        characters.by_ref().find(|(_, c)| *c == '(')?;
        while let Some((at, c)) = characters.next() {
            match c {
                '"' if section == 0 => assembly.template.push_str(&string(&mut characters)?),
                '"' => _ = string(&mut characters)?,
                '(' => assembly.operands.push(parenthesised(&text[at..])?),
                ':' => section += 1,
                ')' => {
                    assembly.length = at + 1;
                    return Some(assembly);
                }
                _ => {}
            }
            if c == '(' {
                let end = at + assembly.operands.last()?.len() + 2;
                while characters.next_if(|(next, _)| *next < end).is_some() {}
            }
        }
        None
    }

    fn call(&self) -> Result<String, String> {
        let statements = self.template.split(';').map(|statement| statement.trim_matches([' ', '\n', '\t']));
        let statements =
            statements.map(|statement| statement.strip_prefix("{\n").unwrap_or(statement).trim());
        let is_instruction = |statement: &&str| !statement.is_empty() && !statement.starts_with(['.', '}']);
        let instructions: Vec<&str> = statements.filter(is_instruction).collect();
        let split = |instruction: &&str| {
            let at = instruction.find(char::is_whitespace).unwrap_or(instruction.len());
            let (mnemonic, operands) = instruction.split_at(at);
            (mnemonic.to_owned(), operands.to_owned())
        };
        let instructions: Vec<(String, String)> = instructions.iter().map(split).collect();
        let refused = |mnemonic: &str| format!("error: PTX instruction {mnemonic} is not emulated");
        match &instructions[..] {
            [(mnemonic, operands)] => {
                let function = function(mnemonic).ok_or_else(|| refused(mnemonic))?;
                let mut arguments = self.arguments(operands).ok_or_else(|| refused(mnemonic))?;
                // The address of a row follows the registers of `ldmatrix`.
                if function.starts_with("ldmatrix") {
                    arguments.rotate_right(1);
                }
                Ok(format!("stand_in_ptx::{function}({})", arguments.join(", ")))
            }
            [(elect, _), (select, _)] if elect == "elect.sync" && select == "selp.b32" => {
                Ok(format!("stand_in_ptx::elect({})", self.operands.join(", ")))
            }
            [(first, _), ..] => Err(refused(first)),
            [] => Err(refused("(none)")),
        }
    }

    fn arguments(&self, operands: &str) -> Option<Vec<String>> {
        let plain = operands.replace(['{', '}', '[', ']'], "");
        let argument = |word: &str| match word.trim().strip_prefix('%') {
            Some(number) => self.operands.get(number.parse::<usize>().ok()?).cloned(),
            None => word.trim().parse::<u64>().ok().map(|number| number.to_string()),
        };
        plain.split(',').map(argument).collect()
    }
}

/// Escapes are ends of lines.
fn string(characters: &mut Peekable<impl Iterator<Item = (usize, char)>>) -> Option<String> {
    let mut text = String::new();
    loop {
        match characters.next()?.1 {
            '"' => return Some(text),
            '\\' => {
                characters.next()?;
                text.push('\n');
            }
            c => text.push(c),
        }
    }
}

fn parenthesised(text: &str) -> Option<String> {
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(text[1..at].to_owned());
        }
    }
    None
}

fn function(mnemonic: &str) -> Option<String> {
    let parts: Vec<&str> = mnemonic.split('.').collect();
    match &parts[..] {
        ["mma", "sync", "aligned", shape, "row", "col", sum, a, b, again] if sum == again => {
            let depth: u32 = shape.strip_prefix("m16n8k")?.parse().ok()?;
            let bytes = match (*a, *b, *sum) {
                ("f16", "f16", "f32") | ("bf16", "bf16", "f32") => 2,
                ("tf32", "tf32", "f32") => 4,
                ("s8" | "u8", "s8" | "u8", "s32") | ("e4m3" | "e5m2", "e4m3" | "e5m2", "f32") => 1,
                _ => return None,
            };
            [16, 32]
                .contains(&(depth * bytes))
                .then(|| format!("mma<{depth}, stand_in_ptx::{a}, stand_in_ptx::{b}>"))
        }
        [name @ ("ldmatrix" | "stmatrix"), "sync", "aligned", "m8n8", "x1" | "x2" | "x4", rest @ ..] => {
            match rest {
                ["shared::cta", "b16"] => Some(format!("{name}<false>")),
                ["trans", "shared::cta", "b16"] => Some(format!("{name}<true>")),
                _ => None,
            }
        }
        ["cp", "async", "ca" | "cg", "shared::cta", "global"] => Some("cp_async".to_owned()),
        ["cp", "async", "mbarrier", "arrive", "shared::cta", "b64"] => Some("cp_async_arrive".to_owned()),
        ["cp", "async", "bulk", "tensor", rank, "shared::cluster", "global", "im2col", rest @ ..]
            if rest == ["mbarrier::complete_tx::bytes"] =>
        {
            let rank: u32 = rank.strip_suffix('d')?.parse().ok()?;
            (3..=5).contains(&rank).then(|| format!("load_im2col<{rank}>"))
        }
        ["add", "sat", "s32"] => Some("add_saturating".to_owned()),
        ["sub", "sat", "s32"] => Some("sub_saturating".to_owned()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_stand_where_the_template_numbers_them() {
        let text = "void f() {\n  asm volatile(\"mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32\"\n\
                    \" {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};\"\n\
                    : \"=f\"(d0), \"=f\"(d1), \"=f\"(d2), \"=f\"(d3)\n\
                    : \"r\"(a0), \"r\"(a1), \"r\"(a2), \"r\"(a3), \"r\"(b0), \"r\"(b1), \"f\"(c0), \"f\"(c1), \"f\"(c2), \"f\"(c3));\n}";
        let call = "stand_in_ptx::mma<8, stand_in_ptx::tf32, stand_in_ptx::tf32>\
                    (d0, d1, d2, d3, a0, a1, a2, a3, b0, b1, c0, c1, c2, c3)";
        assert_eq!(replace_assembly(text).unwrap(), format!("void f() {{\n  {call};\n}}"));
    }

    #[test]
    fn every_form_that_cubecl_generates_becomes_a_call() {
        for (statement, call) in [
            (
                r#"asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared::cta.b16" " {%0, %1}, [%2];" : "=r"(x), "=r"(y) : "r"(f(z)))"#,
                "ldmatrix<true>(f(z), x, y)",
            ),
            (
                r#"asm volatile("stmatrix.sync.aligned.m8n8.x1.shared::cta.b16" " [%0], {%1};" :: "r"(to), "r"(x))"#,
                "stmatrix<false>(to, x)",
            ),
            (
                r#"asm volatile("cp.async.cg.shared::cta.global [%0], [%1], %2, %2;\n" :: "r"(to), "l"(from), "n"(16) : "memory")"#,
                "cp_async(to, from, 16, 16)",
            ),
            (
                r#"asm volatile("cp.async.mbarrier.arrive.shared::cta.b64 [%0];\n" :: "r"(bar))"#,
                "cp_async_arrive(bar)",
            ),
            (
                r#"asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.im2col.mbarrier:" ":complete_tx::bytes" " [%0], [%1, {%3, %4, %5}], [%2], {%6};" : : "r"(to), "l"(map), "r"(bar), "r"(c), "r"(w), "r"(n), "h"(o) : "memory")"#,
                "load_im2col<3>(to, map, c, w, n, bar, o)",
            ),
            (
                r#"asm("add.sat.s32 %0, %1, %2;" : "=r"(result) : "r"(a[(1)]), "r"(b))"#,
                "add_saturating(result, a[(1)], b)",
            ),
            (
                r#"asm volatile("{\n" " .reg .pred %%px;\n" " elect.sync _|%%px, 0xffffffff;\n" " selp.b32 %0, 1, 0, %%px;\n" "}\n" : "+r"(pred))"#,
                "elect(pred)",
            ),
        ] {
            assert_eq!(replace_assembly(statement).unwrap(), format!("stand_in_ptx::{call}"), "{statement}");
        }
    }

    #[test]
    fn an_unknown_instruction_is_refused_by_name() {
        for mnemonic in [
            "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16",
            "mma.sync.aligned.m16n8k64.row.col.kind::f8f6f4.f32.e2m1.e2m1.f32",
            "ldmatrix.sync.aligned.m8n16.x1.shared::cta.b8",
            "cp.async.wait_all",
        ] {
            let refusal = replace_assembly(&format!("asm volatile(\"{mnemonic} %0;\" :: \"r\"(x));"));
            assert_eq!(refusal, Err(format!("error: PTX instruction {mnemonic} is not emulated")));
        }
        assert_eq!(
            replace_assembly("int plasma(int x); x = asmx(1);").as_deref(),
            Ok("int plasma(int x); x = asmx(1);")
        );
    }
}
