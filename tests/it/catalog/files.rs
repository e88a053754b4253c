//! Registering files: formats, positions, hive columns and declared schemas that do not fit.

use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Array, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema};
use arrow::ipc::MetadataVersion;
use arrow::ipc::writer::{FileWriter, IpcWriteOptions};
use tempfile::TempDir;
use tensorquery::catalog::TableOptions;
use tensorquery::formats::{CsvFormat, Format};
use tensorquery::{Error, ErrorKind};

use super::super::support::{query, register_with, rows, run, session, write_parquet};

fn directory(files: &[(&str, &str)]) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    for (name, content) in files {
        let path = directory.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
    directory
}

fn read(path: &Path, options: TableOptions, sql: &str) -> Result<Vec<String>, Error> {
    let session = session();
    register_with(&session, "t", path, options)?;
    Ok(rows(&run(&query(&session, sql)?)))
}

#[track_caller]
fn refused(files: &[(&str, &str)], options: TableOptions, kind: ErrorKind, parts: &[&str]) {
    let directory = directory(files);
    let error = read(directory.path(), options, "SELECT * FROM t").unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    for part in parts {
        assert!(error.to_string().contains(part), "{part:?} is missing in: {error}");
    }
}

fn declared(columns: &[(&str, DataType)]) -> TableOptions {
    let fields: Vec<Field> =
        columns.iter().map(|(name, kind)| Field::new(*name, kind.clone(), true)).collect();
    TableOptions { schema: Some(Arc::new(Schema::new(fields))), ..TableOptions::default() }
}

#[test]
fn one_table_has_one_format() {
    let default = TableOptions::default;
    let files = [("a.csv", "x\n1\n"), ("b.json", "{\"x\": 1}\n")];
    refused(&files, default(), ErrorKind::Config, &["a.csv is csv", "b.json is json"]);
    let files = [("a.csv", "x\n1\n"), ("b.csv.gz", "")];
    refused(
        &files,
        default(),
        ErrorKind::Config,
        &["a.csv is csv", "b.csv.gz is csv compressed by gzip"],
    );
    let files = [("a.csv", "x\n1\n"), ("b.tsv", "x\n1\n")];
    refused(&files, default(), ErrorKind::Config, &["a.csv", "b.tsv"]);
    refused(&[("a.bin", "x")], default(), ErrorKind::Config, &["\"a.bin\"", "parquet"]);
    refused(&[("a.parqet", "x")], default(), ErrorKind::Config, &["did you mean \"parquet\""]);
    refused(&[("a.parquet.gz", "x")], default(), ErrorKind::Config, &["decompress it"]);
}

#[test]
fn csv_columns_are_read_by_position() {
    let files = [("a.csv", "x,y\n1,2\n"), ("b.csv", "y,x\n3,4\n")];
    let parts = ["a.csv", "b.csv", "\"y\"", "same order"];
    refused(&files, TableOptions::default(), ErrorKind::Data, &parts);
    let files = [("a.csv", "x,y\n1,2\n"), ("b.csv", "x\n3\n")];
    refused(&files, TableOptions::default(), ErrorKind::Data, &["a.csv", "b.csv", "\"y\""]);
    let files = [("a.csv", "x\n1\n"), ("b.csv", "x,y\n3,4\n")];
    refused(&files, TableOptions::default(), ErrorKind::Data, &["a.csv", "b.csv", "\"y\""]);
    let files = [("a.csv", "x\n1\n"), ("b.csv", "x\nword\n")];
    refused(
        &files,
        TableOptions::default(),
        ErrorKind::Data,
        &["Int64 in", "a.csv", "Utf8 in", "b.csv", "\"x\""],
    );
}

#[test]
fn an_empty_text_file_has_no_rows_and_no_say() {
    let files = [("a.csv", "x,y\n1,2\n"), ("b.csv", ""), ("c.csv", "x,y\n")];
    let directory = directory(&files);
    let found = read(directory.path(), TableOptions::default(), "SELECT x, y FROM t").unwrap();
    assert_eq!(found, ["1 | 2"]);
}

#[test]
fn a_hive_column_must_not_hide_a_file_column() {
    let files = [("day=1/a.csv", "x,day\n1,2\n")];
    let parts = ["column \"day\"", "partitioning=False", "a.csv"];
    refused(&files, TableOptions::default(), ErrorKind::Data, &parts);
}

#[test]
fn declared_columns_must_be_in_the_files() {
    let int = DataType::Int64;
    let csv = [("a.csv", "x,y\n1,2\n")];
    let parts = ["the declared columns are x", "have x, y"];
    refused(&csv, declared(&[("x", int.clone())]), ErrorKind::Data, &parts);
    let options = declared(&[("y", int.clone()), ("x", int.clone())]);
    refused(&csv, options, ErrorKind::Data, &["the declared columns are y, x"]);
    let json = [("a.json", "{\"alpha\": 1}\n")];
    let parts = ["\"alpah\"", "did you mean \"alpha\""];
    refused(&json, declared(&[("alpah", int.clone())]), ErrorKind::Data, &parts);

    let directory = directory(&[("a.csv", "1,2\n"), ("b.csv", "3,word\n")]);
    let options = TableOptions {
        format: Some(Format::Csv(CsvFormat { header: false, ..CsvFormat::default() })),
        ..declared(&[("n", int), ("t", DataType::Utf8)])
    };
    // Without the declaration the second column would be Int64 in one file and Utf8 in the other.
    let error =
        read(directory.path(), TableOptions { schema: None, ..options.clone() }, "SELECT 1");
    assert!(error.is_err());
    let found = read(directory.path(), options, "SELECT n, t FROM t");
    assert_eq!(found.unwrap(), ["1 | 2", "3 | word"]);
}

#[test]
fn declared_types_are_read() {
    let directory = tempfile::tempdir().unwrap();
    let columns: [(&str, ArrayRef); 2] = [
        ("a", Arc::new(Int64Array::from(vec![1, 2]))),
        ("b", Arc::new(Int64Array::from(vec![3, i64::MAX]))),
    ];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    write_parquet(&directory.path().join("a.parquet"), &batch.schema(), &[batch], 10);
    let options = declared(&[("a", DataType::Float32)]);
    assert_eq!(read(directory.path(), options, "SELECT * FROM t").unwrap(), ["1.0", "2.0"]);
    let options = declared(&[("c", DataType::Float32)]);
    let error = read(directory.path(), options, "SELECT * FROM t").unwrap_err().to_string();
    assert!(error.contains("\"c\"") && error.contains("a, b"), "{error}");
}

#[test]
fn arrow_files_widen() {
    let directory = tempfile::tempdir().unwrap();
    let columns: [ArrayRef; 2] =
        [Arc::new(Int32Array::from(vec![1])), Arc::new(Int64Array::from(vec![2]))];
    for (name, column) in ["a.arrow", "b.arrow"].into_iter().zip(columns) {
        let batch = RecordBatch::try_from_iter([("x", column)]).unwrap();
        let file = std::fs::File::create(directory.path().join(name)).unwrap();
        let options = IpcWriteOptions::try_new(8, false, MetadataVersion::V5).unwrap();
        let mut writer = FileWriter::try_new_with_options(file, &batch.schema(), options).unwrap();
        writer.write(&batch).unwrap();
        writer.finish().unwrap();
    }
    let found = read(directory.path(), TableOptions::default(), "SELECT x FROM t");
    assert_eq!(found.unwrap(), ["1", "2"]);
}
