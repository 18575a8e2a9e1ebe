//! Reads a Parquet file's rows as records, and only their columns.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use parquet::{
    errors::ParquetError,
    file::{reader::FileReader, serialized_reader::SerializedFileReader},
    record::{Field, Row, reader::RowIter},
    schema::types::Type,
};
use serde_json::Value;

use super::{FilePart, ReadParts, record};
use crate::{error::Error, regular};

pub(super) struct ParquetRows {
    path: PathBuf,
    bytes: u64,
    rows: RowIter<'static>,
    count: u64,
    row: u64,
}

impl ParquetRows {
    pub(super) fn open(path: &Path, bytes: u64) -> Result<Self, Error> {
        let refused =
            |error: ParquetError| Error::Parquet { path: path.to_owned(), reason: error.to_string() };
        let file = SerializedFileReader::new(regular::open(path)?).map_err(refused)?;
        let metadata = file.metadata().file_metadata();
        let count = metadata.num_rows().max(1) as u64;
        let schema = metadata.schema_descr().root_schema();
        let (read, other): (Vec<_>, Vec<_>) =
            schema.get_fields().iter().cloned().partition(|field| record::FIELDS.contains(&field.name()));
        if !read.iter().any(|field| record::KEYS.contains(&field.name())) {
            let names = |fields: &[Arc<Type>]| {
                fields.iter().map(|field| field.name().to_owned()).collect::<Vec<_>>().join(", ")
            };
            let reason = format!(
                "has none of the columns {}; its columns are {}",
                record::KEYS.join(", "),
                names(&other)
            );
            return Err(Error::Parquet { path: path.to_owned(), reason });
        }
        let wanted = Type::group_type_builder(schema.name()).with_fields(read).build().map_err(refused)?;
        let rows = RowIter::from_file_into(Box::new(file)).project(Some(wanted)).map_err(refused)?;
        Ok(Self { path: path.to_owned(), bytes, rows, count, row: 0 })
    }
}

impl ReadParts for ParquetRows {
    fn read_part(&mut self) -> Result<Option<FilePart>, Error> {
        loop {
            let Some(row) = self.rows.next() else { return Ok(None) };
            let row =
                row.map_err(|error| Error::Parquet { path: self.path.clone(), reason: error.to_string() })?;
            self.row += 1;
            if row.get_column_iter().all(|(_, field)| matches!(field, Field::Null)) {
                continue;
            }
            // Estimated: compressed rows have no positions.
            let share = (self.row - 1).min(self.count) as f64 / self.count as f64;
            let position = (self.bytes as f64 * share) as u64;
            let refused = |reason| Error::Row { path: self.path.clone(), row: self.row, reason };
            let body = record::from_value(object(row)).map_err(refused)?;
            return Ok(Some(FilePart { document: self.row, begins: true, position, body }));
        }
    }
}

fn object(row: Row) -> Value {
    Value::Object(row.into_columns().into_iter().map(|(name, field)| (name, value(field))).collect())
}

/// Numbers, dates and maps become null.
fn value(field: Field) -> Value {
    match field {
        Field::Str(text) => Value::String(text),
        Field::Bool(flag) => Value::Bool(flag),
        Field::Bytes(bytes) => match std::str::from_utf8(bytes.data()) {
            Ok(text) => Value::String(text.to_owned()),
            Err(_) => Value::Null,
        },
        Field::Group(row) => object(row),
        Field::ListInternal(list) => Value::Array(list.elements().iter().cloned().map(value).collect()),
        _ => Value::Null,
    }
}
