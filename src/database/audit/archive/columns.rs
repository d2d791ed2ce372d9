//! Rows as columns: what a Parquet file of the archive holds, how it is written and read, and a checksum over
//! both.
//!
//! Every column is a number or a text, so that any tool reads them; `at` is microseconds since 1970 in UTC.
//! The checksum is taken over what the database gave and again over what the file gives back.

use std::fs::File;
use std::sync::Arc;

use parquet::basic::{Compression, LogicalType, Repetition, TimeUnit, Type as Physical, ZstdLevel};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{ByteArray, ByteArrayType, DataType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::Type;
use ring::digest::{Context, SHA256};

/// Rows of one row group.
pub(super) const GROUP_ROWS: usize = 65_536;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Never missing: microseconds since 1970.
    Moment,
    Number,
    Text,
}

/// The columns, in the order in which the database is asked for them.
pub(super) const COLUMNS: [(&str, Kind); 20] = [
    ("at", Kind::Moment),
    ("region", Kind::Text),
    ("node", Kind::Text),
    ("domain", Kind::Text),
    ("rule", Kind::Text),
    ("user_id", Kind::Text),
    ("key_id", Kind::Text),
    ("address", Kind::Text),
    ("path", Kind::Text),
    ("method", Kind::Text),
    ("outcome", Kind::Text),
    ("cost", Kind::Number),
    ("count", Kind::Number),
    ("permits", Kind::Number),
    ("status", Kind::Number),
    ("retry_after_ms", Kind::Number),
    ("latency_us", Kind::Number),
    ("weight", Kind::Number),
    ("cause", Kind::Text),
    ("request_id", Kind::Text),
];

/// The values of one column in one row group.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Cells {
    Numbers { levels: Vec<i16>, values: Vec<i64> },
    Texts { levels: Vec<i16>, values: Vec<ByteArray> },
}

impl Cells {
    fn new(kind: Kind) -> Self {
        match kind {
            Kind::Moment | Kind::Number => Self::Numbers { levels: Vec::new(), values: Vec::new() },
            Kind::Text => Self::Texts { levels: Vec::new(), values: Vec::new() },
        }
    }

    pub(super) fn push_number(&mut self, number: Option<i64>) {
        if let Self::Numbers { levels, values } = self {
            levels.push(i16::from(number.is_some()));
            values.extend(number);
        }
    }

    pub(super) fn push_text(&mut self, text: Option<&str>) {
        if let Self::Texts { levels, values } = self {
            levels.push(i16::from(text.is_some()));
            values.extend(text.map(|text| ByteArray::from(text.as_bytes().to_vec())));
        }
    }

    fn digest(&self, into: &mut Context) {
        let put_levels = |levels: &[i16], into: &mut Context| {
            into.update(&u64::try_from(levels.len()).unwrap_or(u64::MAX).to_le_bytes());
            levels.iter().for_each(|level| into.update(&level.to_le_bytes()));
        };
        match self {
            Self::Numbers { levels, values } => {
                put_levels(levels, into);
                values.iter().for_each(|value| into.update(&value.to_le_bytes()));
            }
            Self::Texts { levels, values } => {
                put_levels(levels, into);
                for value in values {
                    into.update(&u64::try_from(value.len()).unwrap_or(u64::MAX).to_le_bytes());
                    into.update(value.data());
                }
            }
        }
    }
}

/// Empty columns.
pub(super) fn empty() -> Vec<Cells> {
    COLUMNS.iter().map(|(_, kind)| Cells::new(*kind)).collect()
}

/// The amount that was written or read, and what it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sum {
    pub(super) rows: u64,
    pub(super) checksum: String,
}

struct Summing {
    rows: u64,
    digest: Context,
}

impl Summing {
    fn new() -> Self {
        Self { rows: 0, digest: Context::new(&SHA256) }
    }

    fn add(&mut self, rows: usize, columns: &[Cells]) {
        self.rows += u64::try_from(rows).unwrap_or(u64::MAX);
        columns.iter().for_each(|cells| cells.digest(&mut self.digest));
    }

    fn finish(self) -> Sum {
        let digest = self.digest.finish();
        let checksum = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        Sum { rows: self.rows, checksum }
    }
}

/// Writes a file, one row group after the other.
pub(super) struct ColumnsWriter {
    file: SerializedFileWriter<File>,
    sum: Summing,
}

impl ColumnsWriter {
    pub(super) fn new(file: File) -> Result<Self, ParquetError> {
        let mut fields = Vec::new();
        for (name, kind) in COLUMNS {
            fields.push(Arc::new(field(name, kind)?));
        }
        let schema = Type::group_type_builder("audit_log").with_fields(fields).build()?;
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::try_new(3)?))
            .set_max_row_group_row_count(Some(GROUP_ROWS))
            .build();
        let file = SerializedFileWriter::new(file, Arc::new(schema), Arc::new(properties))?;
        Ok(Self { file, sum: Summing::new() })
    }

    /// Writes one row group of so many rows.
    pub(super) fn group(&mut self, rows: usize, columns: &[Cells]) -> Result<(), ParquetError> {
        let mut group = self.file.next_row_group()?;
        for (cells, (_, kind)) in columns.iter().zip(COLUMNS) {
            let Some(mut column) = group.next_column()? else { break };
            match cells {
                Cells::Numbers { levels, values } => {
                    let levels = (kind != Kind::Moment).then_some(levels.as_slice());
                    column.typed::<Int64Type>().write_batch(values, levels, None)?;
                }
                Cells::Texts { levels, values } => {
                    column.typed::<ByteArrayType>().write_batch(values, Some(levels), None)?;
                }
            }
            column.close()?;
        }
        group.close()?;
        self.sum.add(rows, columns);
        Ok(())
    }

    /// Finishes the file.
    pub(super) fn finish(self) -> Result<Sum, ParquetError> {
        self.file.close()?;
        Ok(self.sum.finish())
    }
}

fn field(name: &str, kind: Kind) -> Result<Type, ParquetError> {
    let builder =
        |physical| Type::primitive_type_builder(name, physical).with_repetition(Repetition::OPTIONAL);
    match kind {
        Kind::Moment => {
            let moment = LogicalType::timestamp(true, TimeUnit::MICROS);
            builder(Physical::INT64)
                .with_repetition(Repetition::REQUIRED)
                .with_logical_type(Some(moment))
                .build()
        }
        Kind::Number => builder(Physical::INT64).build(),
        Kind::Text => builder(Physical::BYTE_ARRAY).with_logical_type(Some(LogicalType::String)).build(),
    }
}

/// Reads a file from its beginning to its end and adds up what is in it.
pub(super) fn read(file: File) -> Result<Sum, ParquetError> {
    let reader = SerializedFileReader::new(file)?;
    let mut sum = Summing::new();
    for index in 0..reader.num_row_groups() {
        let group = reader.get_row_group(index)?;
        let rows = usize::try_from(group.metadata().num_rows()).unwrap_or(0);
        if group.num_columns() != COLUMNS.len() {
            return Err(ParquetError::General(format!("it has {} columns", group.num_columns())));
        }
        let mut columns = Vec::with_capacity(COLUMNS.len());
        for (place, (_, kind)) in COLUMNS.iter().enumerate() {
            columns.push(cells(group.get_column_reader(place)?, *kind, rows)?);
        }
        sum.add(rows, &columns);
    }
    Ok(sum.finish())
}

fn cells(reader: ColumnReader, kind: Kind, rows: usize) -> Result<Cells, ParquetError> {
    match (reader, kind) {
        (ColumnReader::Int64ColumnReader(mut reader), Kind::Moment) => {
            let mut values = Vec::with_capacity(rows);
            records::<Int64Type>(&mut reader, rows, None, &mut values)?;
            Ok(Cells::Numbers { levels: vec![1; values.len()], values })
        }
        (ColumnReader::Int64ColumnReader(mut reader), Kind::Number) => {
            let (mut levels, mut values) = (Vec::with_capacity(rows), Vec::with_capacity(rows));
            records::<Int64Type>(&mut reader, rows, Some(&mut levels), &mut values)?;
            Ok(Cells::Numbers { levels, values })
        }
        (ColumnReader::ByteArrayColumnReader(mut reader), Kind::Text) => {
            let (mut levels, mut values) = (Vec::with_capacity(rows), Vec::with_capacity(rows));
            records::<ByteArrayType>(&mut reader, rows, Some(&mut levels), &mut values)?;
            Ok(Cells::Texts { levels, values })
        }
        _ => Err(ParquetError::General("a column is of another type".to_owned())),
    }
}

fn records<T: DataType>(
    reader: &mut ColumnReaderImpl<T>,
    rows: usize,
    mut levels: Option<&mut Vec<i16>>,
    values: &mut Vec<T::T>,
) -> Result<(), ParquetError> {
    let mut read = 0;
    while read < rows {
        let (records, ..) = reader.read_records(rows - read, levels.as_deref_mut(), None, values)?;
        if records == 0 {
            return Err(ParquetError::EOF("a column ends before its time".to_owned()));
        }
        read += records;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Seek, SeekFrom, Write};

    fn filled(rows: usize, seed: i64) -> Vec<Cells> {
        let mut columns = empty();
        for row in 0..rows {
            for (cells, (_, kind)) in columns.iter_mut().zip(COLUMNS) {
                let number = i64::try_from(row).unwrap() + seed;
                let there = kind == Kind::Moment || row % 3 != 0;
                match kind {
                    Kind::Moment | Kind::Number => cells.push_number(there.then_some(number)),
                    Kind::Text => cells.push_text(there.then_some(&format!("ä{number}"))),
                }
            }
        }
        columns
    }

    #[test]
    fn what_is_read_back_has_the_checksum_of_what_was_written() {
        let mut file = tempfile::tempfile().unwrap();
        let mut writer = ColumnsWriter::new(file.try_clone().unwrap()).unwrap();
        for (rows, seed) in [(1_000, 0), (1, 5), (20, -7)] {
            writer.group(rows, &filled(rows, seed)).unwrap();
        }
        let written = writer.finish().unwrap();
        assert_eq!(written.rows, 1_021);
        assert_eq!(read(file.try_clone().unwrap()).unwrap(), written);
        // Any change is seen, or the file cannot be read.
        let len = file.seek(SeekFrom::End(0)).unwrap();
        for at in (4..len.min(4_000)).step_by(97) {
            let mut byte = [0];
            use std::os::unix::fs::FileExt as _;
            file.read_exact_at(&mut byte, at).unwrap();
            file.seek(SeekFrom::Start(at)).unwrap();
            file.write_all(&[byte[0] ^ 0x40]).unwrap();
            let changed = std::panic::catch_unwind(|| read(file.try_clone().unwrap()));
            // Statistics and unused bits carry no rows.
            if let Ok(Ok(sum)) = changed {
                assert!(sum.rows == written.rows || sum != written, "byte {at}");
            }
            file.seek(SeekFrom::Start(at)).unwrap();
            file.write_all(&byte).unwrap();
        }
        assert_eq!(read(file).unwrap(), written);
    }

    #[test]
    fn an_empty_file_has_no_rows() {
        let file = tempfile::tempfile().unwrap();
        let written = ColumnsWriter::new(file.try_clone().unwrap()).unwrap().finish().unwrap();
        assert_eq!((read(file).unwrap().rows, written.rows), (0, 0));
    }
}
