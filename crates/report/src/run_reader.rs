//! Reads a table of runs back from Parquet.

use outcome::{RunColumn, RunTable};
use parquet::{
    column::reader::{ColumnReader, ColumnReaderImpl},
    data_type::{ByteArray, DataType},
    errors::ParquetError,
    file::reader::{FileReader as _, RowGroupReader, SerializedFileReader},
};

/// The table in a Parquet file that [`run_parquet`](crate::run_parquet) has written.
///
/// # Errors
/// The file is damaged, or of other types.
pub fn read_run_parquet(file: Vec<u8>) -> Result<RunTable, ParquetError> {
    let reader = SerializedFileReader::new(bytes::Bytes::from(file))?;
    let schema = reader.metadata().file_metadata().schema_descr_ptr();
    let groups = (0..reader.num_row_groups()).map(|index| reader.get_row_group(index)).collect::<Result<Vec<_>, _>>()?;
    let column = |index: usize| {
        let columns = groups.iter().map(|group| read_column(group.as_ref(), index)).collect::<Result<Vec<_>, _>>()?;
        Ok((schema.column(index).name().to_owned(), joined(columns)?))
    };
    let columns = (0..schema.num_columns()).map(column).collect::<Result<Vec<_>, ParquetError>>()?;
    let rows = groups.iter().map(|group| group.metadata().num_rows() as usize).sum();
    Ok(RunTable { columns, rows })
}

fn read_column(group: &dyn RowGroupReader, index: usize) -> Result<RunColumn, ParquetError> {
    let rows = group.metadata().num_rows() as usize;
    let text = |bytes: ByteArray| bytes.as_utf8().map(str::to_owned);
    Ok(match group.get_column_reader(index)? {
        ColumnReader::DoubleColumnReader(reader) => RunColumn::Numbers(optional(reader, rows)?),
        ColumnReader::Int64ColumnReader(reader) => {
            RunColumn::Integers(optional(reader, rows)?.into_iter().map(|number| number.unwrap_or(0).cast_unsigned()).collect())
        }
        ColumnReader::BoolColumnReader(reader) => {
            RunColumn::Truths(optional(reader, rows)?.into_iter().map(|truth| truth == Some(true)).collect())
        }
        ColumnReader::ByteArrayColumnReader(reader) => {
            RunColumn::Texts(optional(reader, rows)?.into_iter().map(|bytes| bytes.map(text).transpose()).collect::<Result<_, _>>()?)
        }
        _ => return Err(ParquetError::General("a table of runs has numbers, whole numbers, truths and texts only".into())),
    })
}

/// The values of a column chunk; none where it has a null.
fn optional<T: DataType>(mut reader: ColumnReaderImpl<T>, rows: usize) -> Result<Vec<Option<T::T>>, ParquetError> {
    let (mut levels, mut values) = (Vec::new(), Vec::new());
    let mut read = 0;
    while read < rows {
        let (records, ..) = reader.read_records(rows - read, Some(&mut levels), None, &mut values)?;
        if records == 0 {
            return Err(ParquetError::General(format!("a column has {read} of {rows} rows")));
        }
        read += records;
    }
    // A required column has no levels.
    let mut values = values.into_iter();
    Ok(if levels.is_empty() {
        values.map(Some).collect()
    } else {
        levels.iter().map(|level| if *level > 0 { values.next() } else { None }).collect()
    })
}

/// The column of all row groups.
fn joined(columns: Vec<RunColumn>) -> Result<RunColumn, ParquetError> {
    let mut columns = columns.into_iter();
    let mut all = columns.next().ok_or_else(|| ParquetError::General("a table of runs has one row group at least".into()))?;
    for column in columns {
        match (&mut all, column) {
            (RunColumn::Numbers(all), RunColumn::Numbers(more)) => all.extend(more),
            (RunColumn::Integers(all), RunColumn::Integers(more)) => all.extend(more),
            (RunColumn::Truths(all), RunColumn::Truths(more)) => all.extend(more),
            (RunColumn::Texts(all), RunColumn::Texts(more)) => all.extend(more),
            _ => return Err(ParquetError::General("row groups differ in the types of their columns".into())),
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_written_table_reads_back() {
        let table = RunTable {
            columns: vec![
                ("case".into(), RunColumn::Texts(vec![Some("ä, \"b\"".into()), None, Some(String::new())])),
                ("seed".into(), RunColumn::Integers(vec![1, u64::MAX, 0])),
                ("valid".into(), RunColumn::Truths(vec![true, false, true])),
                ("jain".into(), RunColumn::Numbers(vec![None, Some(0.1 + 0.2), Some(f64::MIN_POSITIVE)])),
                ("absent".into(), RunColumn::Numbers(vec![None; 3])),
            ],
            rows: 3,
        };
        assert_eq!(read_run_parquet(crate::run_parquet(&table)).unwrap(), table);
    }

    #[test]
    fn a_file_that_was_cut_is_refused() {
        let table = RunTable { columns: vec![("seed".into(), RunColumn::Integers(vec![1, 2]))], rows: 2 };
        let mut file = crate::run_parquet(&table);
        file.truncate(file.len() - 5);
        assert!(read_run_parquet(file).is_err());
    }
}
