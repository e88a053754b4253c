//! ORC splits: stripes, merged towards a target, each addressed exactly; the reader below them; and real files.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, TimeUnit};
use futures::TryStreamExt;
use object_store::local::LocalFileSystem;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};
use orc_rust::ArrowWriterBuilder;
use tensorquery::ErrorKind;
use tensorquery::formats::orc::{FIELD_ID, OrcFooter, OrcRead, open, read_orc_footer, with_units};
use tensorquery::formats::{FooterCache, SplitUnit, UnitKind};
use tensorquery::session::{Plan, PlanOptions};

use super::super::support::{
    all_splits, assert_same_rows, block_on, execute, finest, plan_with, register, rows, session,
};

const STRIPE_ROWS: usize = 100;

fn batch(ids: std::ops::Range<i64>) -> RecordBatch {
    let texts = ids.clone().map(|id| (id % 3 > 0).then(|| format!("{id} ").repeat(20)));
    let columns: [(&str, ArrayRef); 2] = [
        ("id", Arc::new(Int64Array::from_iter_values(ids.clone()))),
        ("t", Arc::new(StringArray::from_iter(texts))),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.map(|(name, array)| (name, array, true)))
        .unwrap()
}

/// Writes ids `0..rows` in stripes of [`STRIPE_ROWS`].
fn write(path: &Path, rows: i64) {
    let schema = batch(0..1).schema();
    let mut writer = ArrowWriterBuilder::new(File::create(path).unwrap(), schema)
        .with_batch_size(STRIPE_ROWS)
        .with_stripe_byte_size(1)
        .try_build()
        .unwrap();
    writer.write(&batch(0..rows)).unwrap();
    writer.close().unwrap();
}

fn by_rows(rows: u64) -> PlanOptions {
    PlanOptions { split_rows: Some(rows), explicit: true, ..PlanOptions::default() }
}

/// Asserts that each split alone yields exactly the ids of its rows.
#[track_caller]
fn assert_addressed(plan: &Plan) {
    for id in all_splits(plan) {
        let split = plan.splits()[id as usize];
        let range = split.row_range().unwrap();
        let wanted: Vec<String> = (range.start..range.end).map(|row| row.to_string()).collect();
        assert_eq!(rows(&execute(plan, &[id]).unwrap()), wanted, "{split:?}");
    }
}

#[test]
fn each_split_reads_its_stripes_and_no_other() {
    let directory = tempfile::tempdir().unwrap();
    write(&directory.path().join("t.orc"), 1050);
    let session = session();
    register(&session, "t", directory.path()).unwrap();
    for (target, splits) in [(1, 11), (100, 11), (200, 6), (350, 4), (2000, 1)] {
        let plan = plan_with(&session, "SELECT id FROM t", &by_rows(target)).unwrap();
        assert_eq!(plan.splits().len(), splits, "by {target}");
        assert_addressed(&plan);
    }
    let plan = plan_with(&session, "SELECT id FROM t", &finest()).unwrap();
    let unit = plan.splits()[10].unit;
    assert!(
        matches!(unit, SplitUnit::Units { kind: UnitKind::Stripes, first: 10, count: 1, .. }),
        "{unit:?}"
    );
    assert_eq!(unit.to_string(), "stripe 10");
    assert_same_rows(&session, "SELECT id, t FROM t WHERE id % 7 = 3 AND t IS NOT NULL");
    assert_same_rows(&session, "SELECT 1 AS one FROM t");
}

#[test]
fn weights_are_the_bytes_of_the_projected_columns() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.orc");
    write(&path, 1000);
    let session = session();
    register(&session, "t", directory.path()).unwrap();
    let bytes = |sql: &str| -> u64 {
        let plan = plan_with(&session, sql, &finest()).unwrap();
        plan.splits().iter().map(|split| split.bytes).sum()
    };
    let (id, t, both) =
        (bytes("SELECT id FROM t"), bytes("SELECT t FROM t"), bytes("SELECT t, id FROM t"));
    assert!(0 < id && id * 5 < t && t < both && both < path.metadata().unwrap().len());
    assert_eq!(bytes("SELECT 1 AS one FROM t"), 0);
}

/// A file without its pin, as Iceberg's reader has it.
fn footer_of(path: &Path) -> (Arc<dyn ObjectStore>, ObjectMeta, Arc<OrcFooter>) {
    let store: Arc<dyn ObjectStore> = Arc::new(LocalFileSystem::new());
    let location = object_store::path::Path::from_absolute_path(path).unwrap();
    let meta = block_on(store.head(&location)).unwrap();
    let footer = block_on(read_orc_footer(&store, &meta, &FooterCache::default())).unwrap();
    (store, meta, footer)
}

#[test]
fn stripes_are_opened_by_number_with_columns_in_any_order() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.orc");
    write(&path, 550);
    let (store, meta, footer) = footer_of(&path);
    let stripes = footer.stripes();
    assert_eq!((stripes.len(), footer.rows()), (6, 550));
    assert_eq!((stripes[5].first_row, stripes[5].rows), (500, 50));
    let read = |stripes, columns: &[usize]| {
        let read =
            OrcRead { stripes, columns: columns.to_vec(), schema: footer.schema(), batch_rows: 30 };
        let batches = open(Arc::clone(&store), &meta, Arc::clone(&footer), read)?;
        block_on(batches.try_collect::<Vec<_>>())
    };
    let found = read(4..6, &[1, 0]).unwrap();
    assert_eq!(
        found.iter().map(RecordBatch::num_rows).collect::<Vec<_>>(),
        [30, 30, 30, 10, 30, 20]
    );
    assert_eq!(found[0].schema().field(0).name(), "t");
    assert_eq!(rows(&found), rows(&[batch(400..550).project(&[1, 0]).unwrap()]));
    assert_eq!(rows(&read(0..1, &[0, 0]).unwrap())[7], "7 | 7");
    let counted: usize = read(0..6, &[]).unwrap().iter().map(RecordBatch::num_rows).sum();
    assert_eq!(counted, 550);
    assert!(read(2..2, &[0]).unwrap().is_empty());
    assert_eq!(read(0..7, &[0]).err().map(|error| error.kind()), Some(ErrorKind::Config));
    assert_eq!(read(0..1, &[2]).err().map(|error| error.kind()), Some(ErrorKind::Config));
}

/// The fixture that PyIceberg's and Iceberg's own writers leave: made by `tests/fixtures/orc/make.py`.
fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/orc").join(name)
}

#[test]
fn icebergs_ids_are_metadata_of_every_field() {
    let (_, _, footer) = footer_of(&fixture("iceberg.orc"));
    let schema = footer.schema();
    let id = |field: &arrow::datatypes::Field| field.metadata().get(FIELD_ID).cloned();
    assert!(schema.fields().iter().all(|field| id(field).is_some()), "{schema:?}");
    let DataType::List(item) = schema.field_with_name("tags").unwrap().data_type() else {
        panic!("{schema:?}")
    };
    assert!(id(item).is_some());
    let binary = schema.field_with_name("uuid").unwrap();
    assert_eq!(binary.metadata()["iceberg.binary-type"], "UUID");
    assert_eq!(schema.field_with_name("clock").unwrap().metadata()["iceberg.long-type"], "TIME");
    assert_eq!(schema.field_with_name("id").unwrap().metadata()["iceberg.required"], "true");
    assert_eq!(
        schema.field_with_name("zoned").unwrap().data_type(),
        &DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into()))
    );
    let micro = with_units(&schema, |_| TimeUnit::Microsecond);
    assert_eq!(
        micro.field_with_name("zoned").unwrap().data_type(),
        &DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()))
    );
    assert!(footer.plain_schema().fields().iter().all(|field| field.metadata().is_empty()));
}
