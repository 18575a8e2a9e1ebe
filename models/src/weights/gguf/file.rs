//! The container: a header of fields and tensors, then aligned bytes.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use super::Numbers;

const VERSION: u32 = 3;
const ALIGNMENT: usize = 32;

/// A field's value.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "types of the format")]
pub enum Value {
    U32(u32),
    F32(f32),
    Bool(bool),
    Text(String),
    Texts(Vec<String>),
    I32s(Vec<i32>),
    F32s(Vec<f32>),
}

impl Value {
    fn kind(&self) -> u32 {
        match self {
            Self::U32(_) => 4,
            Self::F32(_) => 6,
            Self::Bool(_) => 7,
            Self::Text(_) => 8,
            Self::Texts(_) | Self::I32s(_) | Self::F32s(_) => 9,
        }
    }

    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        match self {
            Self::U32(value) => out.write_all(&value.to_le_bytes()),
            Self::F32(value) => out.write_all(&value.to_le_bytes()),
            Self::Bool(value) => out.write_all(&[u8::from(*value)]),
            Self::Text(value) => text(out, value),
            Self::Texts(list) => array(out, 8, list, |out, value| text(out, value)),
            Self::I32s(list) => array(out, 5, list, |out, value| out.write_all(&value.to_le_bytes())),
            Self::F32s(list) => array(out, 6, list, |out, value| out.write_all(&value.to_le_bytes())),
        }
    }
}

fn text(out: &mut impl Write, value: &str) -> io::Result<()> {
    count(out, value.len())?;
    out.write_all(value.as_bytes())
}

fn count(out: &mut impl Write, value: usize) -> io::Result<()> {
    out.write_all(&(value as u64).to_le_bytes())
}

fn array<W: Write, T>(
    out: &mut W,
    kind: u32,
    list: &[T],
    each: impl Fn(&mut W, &T) -> io::Result<()>,
) -> io::Result<()> {
    out.write_all(&kind.to_le_bytes())?;
    count(out, list.len())?;
    list.iter().try_for_each(|value| each(out, value))
}

#[derive(Debug)]
pub(super) struct Entry {
    name: String,
    shape: Vec<usize>,
    numbers: Numbers,
}

impl Entry {
    pub(super) fn new(name: String, shape: Vec<usize>, numbers: Numbers) -> Self {
        Self { name, shape, numbers }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn numbers(&self) -> Numbers {
        self.numbers
    }

    fn size(&self) -> usize {
        self.numbers.size(self.shape.iter().product())
    }
}

pub(super) struct Header<'f> {
    pub(super) fields: &'f [(String, Value)],
    pub(super) entries: Vec<&'f Entry>,
}

impl Header<'_> {
    pub(super) fn write(&self, path: &Path) -> io::Result<Tensors> {
        let mut header = Vec::new();
        header.extend(b"GGUF");
        header.extend(VERSION.to_le_bytes());
        count(&mut header, self.entries.len())?;
        count(&mut header, self.fields.len())?;
        for (key, value) in self.fields {
            text(&mut header, key)?;
            header.extend(value.kind().to_le_bytes());
            value.write(&mut header)?;
        }

        let mut offset = 0;
        for entry in &self.entries {
            text(&mut header, &entry.name)?;
            header.extend((entry.shape.len() as u32).to_le_bytes());
            // The fastest dimension comes first.
            entry.shape.iter().rev().try_for_each(|side| count(&mut header, *side))?;
            header.extend(entry.numbers.tensor_type().to_le_bytes());
            count(&mut header, offset)?;
            offset += entry.size().next_multiple_of(ALIGNMENT);
        }

        let mut tensors = Tensors { file: BufWriter::new(File::create(path)?) };
        tensors.tensor(&header)?;
        Ok(tensors)
    }
}

/// The tensors' bytes, in header order.
pub(super) struct Tensors {
    file: BufWriter<File>,
}

impl Tensors {
    pub(super) fn tensor(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        let padding = bytes.len().next_multiple_of(ALIGNMENT) - bytes.len();
        self.file.write_all(&[0; ALIGNMENT][..padding])
    }

    pub(super) fn finish(mut self) -> io::Result<()> {
        self.file.flush()
    }
}
