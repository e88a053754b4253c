//! Splits of Avro and Arrow IPC files: blocks and record batches, merged towards a target, each addressed exactly, also from
//! a worker plan.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use apache_avro::types::{Record, Value};
use apache_avro::{Codec, DeflateSettings, Schema as AvroSchema, Writer};
use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow::ipc::writer::FileWriter;
use tensorquery::formats::SplitUnit;
use tensorquery::session::{Plan, PlanOptions, WorkerPlan};

use super::super::support::{
    all_splits, assert_same_rows, block_on, execute, finest, plan_with, register, rows, session,
};

const UNIT_ROWS: i64 = 100;

/// Ids and texts as an Avro file of blocks of about [`UNIT_ROWS`], by another library.
fn write_avro(path: &Path, rows: i64, codec: Codec) {
    let schema = AvroSchema::parse_str(
        r#"{"type": "record", "name": "row", "fields": [
            {"name": "id", "type": "long"}, {"name": "t", "type": ["null", "string"]}]}"#,
    )
    .unwrap();
    let mut writer = Writer::with_codec(&schema, File::create(path).unwrap(), codec);
    for id in 0..rows {
        let mut record = Record::new(writer.schema()).unwrap();
        record.put("id", id);
        let text = (id % 3 > 0).then(|| Value::String(format!("{id} ").repeat(20)));
        record.put(
            "t",
            match text {
                Some(text) => Value::Union(1, Box::new(text)),
                None => Value::Union(0, Box::new(Value::Null)),
            },
        );
        writer.append(record).unwrap();
        if id % UNIT_ROWS == UNIT_ROWS - 1 {
            writer.flush().unwrap();
        }
    }
    writer.into_inner().unwrap();
}

/// Writes such rows as record batches of [`UNIT_ROWS`].
fn write_ipc(path: &Path, rows: i64) {
    let batch = |ids: std::ops::Range<i64>| {
        let texts = ids.clone().map(|id| (id % 3 > 0).then(|| format!("{id} ").repeat(20)));
        let columns: [(&str, ArrayRef); 2] = [
            ("id", Arc::new(Int64Array::from_iter_values(ids.clone()))),
            ("t", Arc::new(StringArray::from_iter(texts))),
        ];
        RecordBatch::try_from_iter_with_nullable(columns.map(|(name, array)| (name, array, true)))
            .unwrap()
    };
    let file = File::create(path).unwrap();
    let mut writer = FileWriter::try_new(file, &batch(0..1).schema()).unwrap();
    for start in (0..rows).step_by(UNIT_ROWS as usize) {
        writer.write(&batch(start..rows.min(start + UNIT_ROWS))).unwrap();
    }
    writer.finish().unwrap();
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

#[track_caller]
fn assert_units(directory: &Path, unit: &str) {
    let session = session();
    register(&session, "t", directory).unwrap();
    for (target, splits) in [(1, 11), (100, 11), (200, 6), (350, 4), (2000, 1)] {
        let options =
            PlanOptions { split_rows: Some(target), explicit: true, ..PlanOptions::default() };
        let plan = plan_with(&session, "SELECT id FROM t", &options).unwrap();
        assert_eq!(plan.splits().len(), splits, "by {target}");
        assert_addressed(&plan);
        let recipe = WorkerPlan::of(&plan, Some(&all_splits(&plan))).unwrap();
        assert_addressed(&block_on(recipe.open()).unwrap());
    }
    let plan = plan_with(&session, "SELECT id FROM t", &finest()).unwrap();
    assert_eq!(plan.splits()[10].unit.to_string(), unit);
    assert_eq!(plan.splits()[10].unit.units(), Some(10..11));
    assert!(!matches!(plan.splits()[10].unit, SplitUnit::File));
    assert_same_rows(&session, "SELECT id, t FROM t WHERE id % 7 = 3 AND t IS NOT NULL");
    assert_same_rows(&session, "SELECT 1 AS one FROM t");
}

#[test]
fn each_split_reads_its_blocks_and_no_other() {
    for codec in [Codec::Null, Codec::Deflate(DeflateSettings::default())] {
        let directory = tempfile::tempdir().unwrap();
        write_avro(&directory.path().join("t.avro"), 1050, codec);
        assert_units(directory.path(), "block 10");
    }
}

#[test]
fn each_split_reads_its_record_batches_and_no_other() {
    let directory = tempfile::tempdir().unwrap();
    write_ipc(&directory.path().join("t.arrow"), 1050);
    assert_units(directory.path(), "record batch 10");
}
