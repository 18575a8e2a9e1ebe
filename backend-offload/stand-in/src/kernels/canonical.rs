//! The canonical text of a kernel, equal in all processes.
//!
//! CubeCL declares types, variables and shared memory in the order of a hash set. Here runs of declarations are sorted,
//! and shared memory's offsets leave the text. Statements never move.

use std::collections::BTreeMap;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Canonical {
    pub(super) text: String,
    pub(super) places: Vec<u32>,
}

#[derive(Default)]
struct Sorter {
    text: String,
    places: Vec<u32>,
    open_type: Option<String>,
    types: Vec<String>,
    variables: Vec<String>,
    /// Offsets in shared memory, by declaration without offset.
    shared: BTreeMap<String, u32>,
}

pub(super) fn canonical(source: &str) -> Canonical {
    let mut sorter = Sorter::default();
    source.lines().for_each(|line| sorter.line(line));
    sorter.flush();
    Canonical { text: sorter.text, places: sorter.places }
}

impl Sorter {
    fn line(&mut self, line: &str) {
        if let Some(mut open_type) = self.open_type.take() {
            open_type = format!("{open_type}\n{line}");
            if line == "};" {
                self.types.push(open_type);
            } else {
                self.open_type = Some(open_type);
            }
        } else if line.starts_with("struct __align__(") {
            self.open_type = Some(line.to_owned());
        } else if let Some((declaration, place)) = in_shared_memory(line) {
            self.shared.insert(declaration.to_owned(), place);
        } else if is_variable(line) {
            self.variables.push(line.to_owned());
        } else if line.starts_with("// Shared ") || (line.is_empty() && !self.types.is_empty()) {
            // Skips sizes in hash order, and the line between two types.
        } else {
            self.flush();
            self.emit(line);
        }
    }

    fn flush(&mut self) {
        for mut run in [std::mem::take(&mut self.types), std::mem::take(&mut self.variables)] {
            run.sort_unstable();
            for declaration in run {
                self.emit(&declaration);
            }
        }
        for (declaration, place) in std::mem::take(&mut self.shared) {
            self.emit(&format!("{declaration}[stand_in_places[{}]]);", self.places.len()));
            self.places.push(place);
        }
        if let Some(open_type) = self.open_type.take() {
            self.emit(&open_type);
        }
    }

    fn emit(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }
}

/// Splits `T *shared_memory_1 = reinterpret_cast<T*>(&dynamic_shared_mem[64]);`, also with references.
fn in_shared_memory(line: &str) -> Option<(&str, u32)> {
    let (declaration, rest) = line.split_once("dynamic_shared_mem[")?;
    let place = rest.strip_suffix("]);")?.parse().ok()?;
    let length = line.len() - rest.len() - 1;
    (declaration.contains("shared_memory_") && declaration.contains("reinterpret_cast<"))
        .then(|| (&line[..length], place))
}

/// Matches lines such as `float l_mut_7;`.
fn is_variable(line: &str) -> bool {
    let number = line.split_once(' ').and_then(|(_, rest)| rest.strip_prefix("l_mut_")?.strip_suffix(';'));
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "typedef int int32;\n\
        \nstruct __align__(8) float_2 {\n    float i_0;\n    float i_1;\n};\
        \nstruct __align__(16) float_4 {\n    float i_0;\n};\n\
        \nextern \"C\" __global__ void k(float* x) {\n\
        // Shared array size: 4, 16 bytes\nfloat *shared_memory_1 = reinterpret_cast<float*>(&dynamic_shared_mem[0]);\n\
        // Shared value size: 4 bytes\nint32 &shared_memory_2 = reinterpret_cast<int32&>(dynamic_shared_mem[16]);\n\
        float l_mut_3;\nint32 l_mut_12;\nl_mut_3 = x[0];\nx[1] = l_mut_3;\n}\n";
    const B: &str = "typedef int int32;\n\
        \nstruct __align__(16) float_4 {\n    float i_0;\n};\
        \nstruct __align__(8) float_2 {\n    float i_0;\n    float i_1;\n};\n\
        \nextern \"C\" __global__ void k(float* x) {\n\
        // Shared value size: 4 bytes\nint32 &shared_memory_2 = reinterpret_cast<int32&>(dynamic_shared_mem[0]);\n\
        // Shared array size: 4, 16 bytes\nfloat *shared_memory_1 = reinterpret_cast<float*>(&dynamic_shared_mem[16]);\n\
        int32 l_mut_12;\nfloat l_mut_3;\nl_mut_3 = x[0];\nx[1] = l_mut_3;\n}\n";

    #[test]
    fn the_order_of_a_hash_set_does_not_change_the_text() {
        let (a, b) = (canonical(A), canonical(B));
        assert_eq!(a.text, b.text);
        assert_eq!((a.places, b.places), (vec![0, 16], vec![16, 0]));
    }

    #[test]
    fn offsets_become_data_of_their_declarations() {
        let canonical = canonical(A);
        let line =
            "float *shared_memory_1 = reinterpret_cast<float*>(&dynamic_shared_mem[stand_in_places[0]]);";
        assert!(canonical.text.lines().any(|found| found == line), "{}", canonical.text);
    }

    #[test]
    fn statements_keep_their_order_and_nothing_is_lost() {
        let source =
            "a = 1;\nfloat l_mut_2;\nl_mut_2 = a;\nfloat l_mut_1;\nx[l_mut_2] = dynamic_shared_mem[3];\n}\n";
        assert_eq!(canonical(source).text, source);
        let sorted = canonical(A).text;
        let statements: Vec<_> = sorted.lines().filter(|line| line.contains("x[")).collect();
        assert_eq!(statements, ["l_mut_3 = x[0];", "x[1] = l_mut_3;"]);
        assert!(sorted.contains("struct __align__(16) float_4 {\n    float i_0;\n};"));
    }

    #[test]
    fn a_canonical_text_is_its_own_canonical_text() {
        let once = canonical(A);
        assert_eq!(canonical(&once.text).text, once.text);
    }
}
