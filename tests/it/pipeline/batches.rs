//! How many rows are decoded at once: as many as the processor's cache holds of the widest column.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BinaryArray, FixedSizeListArray, Float32Array, Int64Array, RecordBatch, StructArray,
};
use arrow::datatypes::{DataType, Field};
use parquet::file::properties::WriterProperties;
use tempfile::TempDir;

use super::super::support::{
    all_splits, execute, plan, query, register, rows, run, session, write_parquet_with,
};

fn numbers(rows: usize) -> ArrayRef {
    Arc::new(Int64Array::from_iter_values(0..rows as i64))
}

fn vectors(rows: usize, width: usize) -> ArrayRef {
    let values = Float32Array::from_iter_values((0..rows * width).map(|at| at as f32));
    let item = Arc::new(Field::new("item", DataType::Float32, false));
    Arc::new(FixedSizeListArray::new(item, width as i32, Arc::new(values), None))
}

/// Bytes of one length that no codec makes shorter than they are.
fn images(rows: usize, bytes: usize) -> ArrayRef {
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    let images: Vec<Vec<u8>> = (0..rows).map(|_| (0..bytes).map(|_| next()).collect()).collect();
    Arc::new(BinaryArray::from_iter_values(images))
}

/// The most rows of a batch of `SELECT {columns} FROM t WHERE {filter}`, whose rows are those of DataFusion's own result.
fn most_rows(columns: Vec<(&str, ArrayRef)>, select: &str, filter: &str) -> usize {
    let (folder, session) = (TempDir::new().unwrap(), session());
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let path = folder.path().join("t.parquet");
    write_parquet_with(&path, &batch.schema(), &[batch], WriterProperties::new());
    register(&session, "t", &path).unwrap();
    let sql = format!("SELECT {select} FROM t WHERE {filter}");
    let plan = plan(&session, &sql).unwrap();
    let batches = execute(&plan, &all_splits(&plan)).unwrap();
    assert_eq!(rows(&batches), rows(&run(&query(&session, &sql).unwrap())), "{sql}");
    batches.iter().map(RecordBatch::num_rows).max().unwrap()
}

#[test]
fn batches_are_shorter_where_rows_are_wide() {
    let count = 3000;
    let item = |array: &ArrayRef| Arc::new(Field::new("x", array.data_type().clone(), false));
    let wide = vectors(count, 256);
    let nested: ArrayRef = Arc::new(StructArray::from(vec![(item(&wide), Arc::clone(&wide))]));
    for (column, expected) in [
        (numbers(count), count),
        (vectors(count, 32), count),
        (Arc::clone(&wide), 1024),
        (vectors(count, 300), 512),
        (nested, 1024),
        // Their stored bytes say how wide they are, with what is around them.
        (images(count, 1000), 1024),
        (images(count, 5000), 128),
    ] {
        let named = format!("{}", column.data_type());
        let columns = vec![("id", numbers(count)), ("x", column)];
        for filter in ["true", "id % 64 < 60"] {
            let found = most_rows(columns.clone(), "id, x", filter);
            // Rows are left out of a batch, or never decoded.
            let kept = (0..count).filter(|id| filter == "true" || id % 64 < 60).count();
            let expected = expected.min(kept);
            assert!(found <= expected, "{named} with {filter}: {found} of {expected} rows");
            assert!(2 * found > expected, "{named} with {filter}: {found} of {expected} rows");
        }
        // Of a column that is not asked for nothing is decoded.
        assert_eq!(most_rows(columns, "id", "true"), count, "{named}");
    }
}

#[test]
fn batches_of_the_widest_rows_have_some() {
    let columns = vec![("x", images(200, 40_000))];
    assert_eq!(most_rows(columns, "x", "true"), 64);
}
