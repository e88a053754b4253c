//! The plan rewrite: what runs split by split is rewritten as drawn here, with the result of
//! DataFusion's own plan; everything else is refused by the name of its operator.

mod plans;
mod refusals;

use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, ListArray, RecordBatch, StringArray};
use arrow::datatypes::Int64Type;
use tempfile::TempDir;
use tensorquery::session::Session;

use super::support::{register, session, write_parquet};

/// `big` (2 files of 40 rows, row groups of 10), `other` of the same columns, and `small` (4 rows).
fn tables() -> (TempDir, Arc<Session>) {
    let directory = tempfile::tempdir().unwrap();
    let session = session();
    write_big(&directory.path().join("big/a.parquet"), 0);
    write_big(&directory.path().join("big/b.parquet"), 40);
    write_big(&directory.path().join("other/c.parquet"), 80);
    let columns: [(&str, ArrayRef); 2] = [
        ("k", Arc::new(Int64Array::from(vec![Some(0), Some(1), Some(1), None]))),
        ("name", Arc::new(StringArray::from(vec!["zero", "one", "uno", "none"]))),
    ];
    let small = RecordBatch::try_from_iter(columns).unwrap();
    write_parquet(&directory.path().join("small.parquet"), &small.schema(), &[small], 10);
    for (name, path) in [("big", "big"), ("other", "other"), ("small", "small.parquet")] {
        register(&session, name, &directory.path().join(path)).unwrap();
    }
    (directory, session)
}

/// 40 rows: `id` ascending, `k` of 0, 1, 2 and null, `t` text, `l` lists.
fn write_big(path: &Path, first: i64) {
    let ids: Vec<i64> = (first..first + 40).collect();
    let k = ids.iter().map(|id| (id % 4 < 3).then_some(id % 4));
    let t = ids.iter().map(|id| format!("text {id}"));
    let l = ids.iter().map(|id| Some((0..id % 3).map(Some).collect::<Vec<_>>()));
    let columns: [(&str, ArrayRef); 4] = [
        ("id", Arc::new(Int64Array::from(ids.clone()))),
        ("k", Arc::new(Int64Array::from_iter(k))),
        ("t", Arc::new(StringArray::from_iter_values(t))),
        ("l", Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(l))),
    ];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    write_parquet(path, &batch.schema(), &[batch], 10);
}
