//! A table of runs as a file for other programs: CSV, or Parquet.

use outcome::{RunColumn, RunTable};
use parquet::{
    basic::{Compression, ConvertedType, Repetition, Type as PhysicalType, ZstdLevel},
    data_type::{BoolType, ByteArray, ByteArrayType, DoubleType, Int64Type},
    errors::ParquetError,
    file::{properties::WriterProperties, writer::SerializedFileWriter},
    schema::types::Type,
};
use std::sync::Arc;

/// The table as CSV (RFC 4180) with the names of the columns in the first line. Numbers have all of
/// their digits; what an outcome lacks is empty.
pub fn run_csv(table: &RunTable) -> String {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let written = "memory takes what is written";
    writer.write_record(table.columns.iter().map(|(name, _)| name)).expect(written);
    for row in 0..table.rows {
        writer.write_record(table.columns.iter().map(|(_, column)| cell(column, row))).expect(written);
    }
    String::from_utf8(writer.into_inner().expect(written)).expect("names and numbers are UTF-8")
}

fn cell(column: &RunColumn, row: usize) -> String {
    match column {
        RunColumn::Numbers(numbers) => numbers[row].map(|number| number.to_string()).unwrap_or_default(),
        RunColumn::Integers(integers) => integers[row].to_string(),
        RunColumn::Truths(truths) => truths[row].to_string(),
        RunColumn::Texts(texts) => texts[row].clone().unwrap_or_default(),
    }
}

/// The table as a Parquet file, compressed with zstd, in one row group. What an outcome lacks is
/// null.
pub fn run_parquet(table: &RunTable) -> Vec<u8> {
    parquet(table).expect("memory takes what is written, and each column has its type")
}

fn parquet(table: &RunTable) -> Result<Vec<u8>, ParquetError> {
    let fields = table.columns.iter().map(|(name, column)| field(name, column).map(Arc::new)).collect::<Result<Vec<_>, _>>()?;
    let schema = Arc::new(Type::group_type_builder("runs").with_fields(fields).build()?);
    let properties = WriterProperties::builder().set_compression(Compression::ZSTD(ZstdLevel::default())).build();
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, Arc::new(properties))?;
    let mut group = writer.next_row_group()?;
    for (_, column) in &table.columns {
        let Some(mut out) = group.next_column()? else { break };
        match column {
            RunColumn::Numbers(numbers) => {
                let (levels, present) = optional(numbers);
                out.typed::<DoubleType>().write_batch(&present, Some(&levels), None)?
            }
            RunColumn::Integers(integers) => {
                let integers: Vec<i64> = integers.iter().map(|number| number.cast_signed()).collect();
                out.typed::<Int64Type>().write_batch(&integers, None, None)?
            }
            RunColumn::Truths(truths) => out.typed::<BoolType>().write_batch(truths, None, None)?,
            RunColumn::Texts(texts) => {
                let (levels, present) = optional(texts);
                let present: Vec<ByteArray> = present.iter().map(|text| ByteArray::from(text.as_str())).collect();
                out.typed::<ByteArrayType>().write_batch(&present, Some(&levels), None)?
            }
        };
        out.close()?;
    }
    group.close()?;
    writer.into_inner()
}

/// The definition levels of optional values, and those that are there.
fn optional<T: Clone>(values: &[Option<T>]) -> (Vec<i16>, Vec<T>) {
    (values.iter().map(|value| i16::from(value.is_some())).collect(), values.iter().flatten().cloned().collect())
}

fn field(name: &str, column: &RunColumn) -> Result<Type, ParquetError> {
    let (physical, repetition, converted) = match column {
        RunColumn::Numbers(_) => (PhysicalType::DOUBLE, Repetition::OPTIONAL, ConvertedType::NONE),
        RunColumn::Integers(_) => (PhysicalType::INT64, Repetition::REQUIRED, ConvertedType::UINT_64),
        RunColumn::Truths(_) => (PhysicalType::BOOLEAN, Repetition::REQUIRED, ConvertedType::NONE),
        RunColumn::Texts(_) => (PhysicalType::BYTE_ARRAY, Repetition::OPTIONAL, ConvertedType::UTF8),
    };
    Type::primitive_type_builder(name, physical).with_repetition(repetition).with_converted_type(converted).build()
}

#[cfg(test)]
mod tests {
    use super::*;
    use parquet::{
        file::reader::{FileReader as _, SerializedFileReader},
        record::Field,
    };

    fn table() -> RunTable {
        RunTable {
            columns: vec![
                ("case".into(), RunColumn::Texts(vec![Some("a, \"b\"".into()), None])),
                ("seed".into(), RunColumn::Integers(vec![1, u64::MAX])),
                ("valid".into(), RunColumn::Truths(vec![true, false])),
                ("jain".into(), RunColumn::Numbers(vec![None, Some(0.1)])),
            ],
            rows: 2,
        }
    }

    #[test]
    fn csv_quotes_names_and_leaves_out_what_is_missing() {
        assert_eq!(run_csv(&table()), "case,seed,valid,jain\n\"a, \"\"b\"\"\",1,true,\n,18446744073709551615,false,0.1\n");
    }

    #[test]
    fn a_parquet_file_reads_back() {
        let reader = SerializedFileReader::new(bytes::Bytes::from(run_parquet(&table()))).unwrap();
        let rows: Vec<Vec<Field>> = reader
            .get_row_iter(None)
            .unwrap()
            .map(|row| row.unwrap().into_columns().into_iter().map(|(_, field)| field).collect())
            .collect();
        assert_eq!(rows[0], [Field::Str("a, \"b\"".into()), Field::ULong(1), Field::Bool(true), Field::Null]);
        assert_eq!(rows[1], [Field::Null, Field::ULong(u64::MAX), Field::Bool(false), Field::Double(0.1)]);
    }
}
