//! Lanes of a warp in lockstep, for kernels of tensor cores.
//!
//! Their writers exchange tiles between lanes through shared memory, without `__syncwarp`. So a turn of the warp precedes
//! each change between stores and loads.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    Load,
    Store,
}

struct Lines {
    text: String,
    statement: usize,
    /// Unknown at the begin of a block.
    last: Option<Access>,
    names: Vec<String>,
    turns: u32,
}

pub(super) fn in_lockstep(text: &str) -> String {
    if !["stand_in_ptx::mma", "wmma::"].iter().any(|name| text.contains(name)) {
        return text.to_owned();
    }
    let mut lines = Lines { text: String::new(), statement: 0, last: None, names: Vec::new(), turns: 0 };
    text.lines().for_each(|line| lines.line(line));
    lines.text
}

impl Lines {
    fn line(&mut self, line: &str) {
        let code = line.trim();
        if let Some(name) = declared(code).filter(|_| self.is_shared(code)) {
            self.names.push(name.to_owned());
        } else if let Some(access) = self.access(code) {
            if self.last != Some(access) {
                self.turns += 1;
                self.text.insert_str(self.statement, &format!("stand_in_turn({});\n", self.turns));
            }
            self.last = Some(access);
        }
        self.text.push_str(line);
        self.text.push('\n');

        let begins_block = code.ends_with(") {") || code.ends_with("else {") || code == "{";
        if begins_block || code.starts_with('}') {
            self.last = None;
        }
        let is_comment = code.is_empty() || code.starts_with("//");
        if begins_block || is_comment || code.ends_with([';', '}', ':']) {
            self.statement = self.text.len();
        }
    }

    fn is_shared(&self, code: &str) -> bool {
        code.contains("dynamic_shared_mem")
            || self.names.iter().any(|name| names(code, name).next().is_some())
    }

    fn access(&self, code: &str) -> Option<Access> {
        let mut found = None;
        for name in &self.names {
            for at in names(code, name) {
                found = found.or(Some(Access::Load));
                let assigned = code[at..].split_once("] = ").is_some_and(|(place, _)| !place.contains(';'));
                if at == 0 && assigned {
                    found = Some(Access::Store);
                }
            }
        }
        found
    }
}

fn declared(code: &str) -> Option<&str> {
    let (left, _) = code.split_once(" = ")?;
    let at = left.rfind(['*', '&'])?;
    let name = left[at + 1..].trim();
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_');
    is_name.then_some(name)
}

fn names<'a>(code: &'a str, name: &'a str) -> impl Iterator<Item = usize> + 'a {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let all = code.match_indices(name).map(|(at, _)| at);
    all.filter(move |at| !code[..*at].ends_with(is_word) && !code[at + name.len()..].starts_with(is_word))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KERNEL: &str = "void f() { stand_in_ptx::mma<8>(); }
float_4 *shared_memory_1 = reinterpret_cast<float_4*>(&dynamic_shared_mem[0]);
shared_memory_1[l_1] = l_2;
for (uint32 i = 0; i < 4; ++i) {
 float_2 *_tmp_1 = reinterpret_cast< float_2*>(shared_memory_1);
_tmp_1[l_3] = float_2{
l_4,};
_tmp_1[l_5] = l_6;
const float_4 l_7 = float_4{
shared_memory_1[l_8],
};
buffer_0[l_9] = l_7;
}
";

    #[test]
    fn a_turn_precedes_each_change_between_stores_and_loads() {
        let turns = in_lockstep(KERNEL);
        let mut without = turns.clone();
        for (turn, statement) in [(1, "shared_memory_1[l_1]"), (2, "_tmp_1[l_3]"), (3, "const float_4 l_7")] {
            let turn = format!("stand_in_turn({turn});\n");
            assert!(turns.contains(&format!("{turn}{statement}")), "{statement}: {turns}");
            without = without.replace(&turn, "");
        }
        assert_eq!(without, KERNEL);
    }

    #[test]
    fn kernels_without_tensor_cores_stay_as_they_are() {
        let plain = KERNEL.replace("mma", "none");
        assert_eq!(in_lockstep(&plain), plain);
    }
}
