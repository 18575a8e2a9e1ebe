//! Reads a Parquet file's column `text`, a document per row; skips rows without text.

use std::{
    fs::File,
    path::{Path, PathBuf},
    sync::Arc,
};

use parquet::{
    basic::Type,
    column::reader::{ColumnReader, ColumnReaderImpl},
    data_type::{ByteArray, ByteArrayType},
    errors::ParquetError,
    file::{
        metadata::ParquetMetaData,
        reader::{FileReader, SerializedFileReader},
    },
};

use super::{Body, FilePart, ReadParts};
use crate::{error::Error, regular};

const ROWS: usize = 256;

pub(super) struct ParquetText {
    path: PathBuf,
    bytes: u64,
    file: SerializedFileReader<File>,
    metadata: Arc<ParquetMetaData>,
    column: usize,
    next_group: usize,
    group: Option<ColumnReaderImpl<ByteArrayType>>,
    rows: std::vec::IntoIter<ByteArray>,
    document: u64,
}

impl ParquetText {
    pub(super) fn open(path: &Path, bytes: u64) -> Result<Self, Error> {
        let refused = |reason: String| Error::Parquet { path: path.to_owned(), reason };
        let file = regular::open(path)?;
        let file = SerializedFileReader::new(file).map_err(|error| refused(error.to_string()))?;
        let metadata = Arc::new(file.metadata().clone());
        let columns = metadata.file_metadata().schema_descr().columns();
        let column = columns.iter().position(|column| column.path().string() == "text").ok_or_else(|| {
            let names: Vec<_> = columns.iter().map(|column| column.path().string()).collect();
            refused(format!("has no column `text`; its columns are {}", names.join(", ")))
        })?;
        if columns[column].physical_type() != Type::BYTE_ARRAY || columns[column].max_rep_level() != 0 {
            return Err(refused("its column `text` holds no text but another type".to_owned()));
        }
        let (path, rows) = (path.to_owned(), Vec::new().into_iter());
        Ok(Self { path, bytes, file, metadata, column, next_group: 0, group: None, rows, document: 0 })
    }

    fn read_rows(&mut self) -> Result<bool, ParquetError> {
        if let Some(group) = &mut self.group {
            let (mut values, mut present) = (Vec::new(), Vec::new());
            let (rows, _, _) = group.read_records(ROWS, Some(&mut present), None, &mut values)?;
            self.rows = values.into_iter();
            if rows > 0 {
                return Ok(true);
            }
            self.group = None;
        }
        if self.next_group == self.metadata.num_row_groups() {
            return Ok(false);
        }
        let reader = self.file.get_row_group(self.next_group)?.get_column_reader(self.column)?;
        self.next_group += 1;
        match reader {
            ColumnReader::ByteArrayColumnReader(reader) => self.group = Some(reader),
            _ => return Err(ParquetError::General("column `text` changes its type".to_owned())),
        }
        Ok(true)
    }

    /// Estimated: compressed rows have no positions.
    fn bytes_read(&self) -> u64 {
        let rows = self.metadata.file_metadata().num_rows().max(1) as u64;
        let share = (self.document - 1).min(rows) as f64 / rows as f64;
        (self.bytes as f64 * share) as u64
    }

    fn refused(&self, reason: String) -> Error {
        Error::Parquet { path: self.path.clone(), reason }
    }
}

impl ReadParts for ParquetText {
    fn read_part(&mut self) -> Result<Option<FilePart>, Error> {
        loop {
            if let Some(row) = self.rows.next() {
                self.document += 1;
                let text = String::from_utf8(row.data().to_vec())
                    .map_err(|_| self.refused(format!("row {} is not UTF-8", self.document)))?;
                let (document, position) = (self.document, self.bytes_read());
                return Ok(Some(FilePart { document, begins: true, position, body: Body::Text(text) }));
            }
            let more = self.read_rows().map_err(|error| self.refused(error.to_string()))?;
            if !more {
                return Ok(None);
            }
        }
    }
}
