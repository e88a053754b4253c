//! Pruning by statistics, page index and hive values is never wrong, for any predicate: the rows of
//! the result all lie in the splits that are left, and reading these gives the result.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, Float64Array, Int32Array, Int64Array, RecordBatch, StringArray, StructArray,
};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, Field, Fields};
use proptest::prelude::*;

use super::super::support::{
    all_splits, execute, finest, plan_with, query, register, rows, run, session, sorted, tries,
    write_parquet,
};

/// Where the files lie, and the hive value that it says.
pub const DIRECTORIES: [(&str, Option<i64>); 3] =
    [("day=1", Some(1)), ("day=2", Some(2)), ("day=__HIVE_DEFAULT_PARTITION__", None)];

pub const PREDICATES: &[&str] = &[
    "v = {c}",
    "v <> {c}",
    "v > {c}",
    "v <= {c} AND s IS NOT NULL",
    "NOT (v > {c})",
    "v IN ({c}, 3, 17)",
    "v NOT IN ({c}, 3, 17)",
    "v NOT IN ({c}, NULL)",
    "v BETWEEN {c} AND {c} + 5",
    "v IS NULL",
    "v IS NOT NULL",
    "v IS DISTINCT FROM {c}",
    "v IS NOT DISTINCT FROM NULL",
    "v + 1 > {c}",
    "-v > {c}",
    "CAST(v AS VARCHAR) = '{c}'",
    "CAST(v AS VARCHAR) > '{c}'",
    "CAST(v AS DOUBLE) < {c}",
    "TRY_CAST(f AS BIGINT) = {c}",
    "coalesce(v, 0) = 0",
    "CASE WHEN v > {c} THEN true ELSE false END",
    "(v > {c}) IS NOT TRUE",
    "v > {c} OR s = 'b3'",
    "v = {c} AND v <> {c}",
    "f > {c}",
    "f <= {c} OR isnan(f)",
    "f = 'NaN'",
    "f <> {c}",
    "f >= 0.0",
    "s LIKE 'a%'",
    "s NOT LIKE 'b%'",
    "s LIKE '%{c}'",
    "s > 'b'",
    "s IN ('a1', 'b2', 'c0')",
    "upper(s) = 'A1'",
    "s IS NULL AND v > {c}",
    "day = 1",
    "day <> 1",
    "day IS NULL",
    "day IS DISTINCT FROM 1",
    "day IN (2, 7)",
    "day NOT IN (1, NULL)",
    "day = 1 OR v > {c}",
    "day = v",
    "day + v > {c}",
    "coalesce(day, 2) = 2 AND v > {c}",
    "CAST(day AS VARCHAR) LIKE '1%'",
    "day > 1 AND s = 'b3'",
    "st['x'] > {c}",
    "st['x'] IS NULL",
    "st IS NULL",
    "st['x'] = v",
    "st IS NOT NULL AND st['x'] IS NULL",
    "w = {c}",
    "w IS NULL",
    "w IS NOT NULL OR v = {c}",
    "coalesce(w, {c}) = {c}",
    "w > v",
];

pub type Value = (Option<i8>, Option<i8>, Option<u8>, Option<Option<i8>>);

pub fn values() -> impl Strategy<Value = Vec<(Vec<Value>, usize, bool)>> {
    let small = || prop::option::weighted(0.8, -5_i8..25);
    let value = (
        small(),
        small(),
        prop::option::weighted(0.8, 0_u8..15),
        prop::option::weighted(0.7, small()),
    );
    let file = (prop::collection::vec(value, 0..60), 1_usize..25, any::<bool>());
    prop::collection::vec(file, 3..5)
}

/// A file's rows; without `w` where it is one that lacks the column.
pub fn batch(
    values: &[Value],
    first_id: i64,
    day: Option<Option<i64>>,
    has_w: bool,
) -> RecordBatch {
    // No NaN: Parquet statistics leave it out, so DataFusion prunes NaN rows that `f > 10` would keep.
    let text = |s: u8| format!("{}{}", ["a", "b", "c"][usize::from(s % 3)], s / 3);
    let x: ArrayRef =
        Arc::new(Int32Array::from_iter(values.iter().map(|v| v.3.flatten().map(i32::from))));
    let valid = NullBuffer::from_iter(values.iter().map(|v| v.3.is_some()));
    let fields = Fields::from(vec![Field::new("x", DataType::Int32, true)]);
    let st = StructArray::try_new(fields, vec![x], Some(valid)).unwrap();
    let w: Int64Array =
        values.iter().map(|v| v.0.zip(v.1).map(|(a, b)| i64::from(a + b))).collect();
    let mut columns: Vec<(&str, ArrayRef)> = vec![
        ("id", Arc::new(Int64Array::from_iter_values((first_id..).take(values.len())))),
        ("v", Arc::new(Int32Array::from_iter(values.iter().map(|v| v.0.map(i32::from))))),
        ("f", Arc::new(Float64Array::from_iter(values.iter().map(|v| v.1.map(f64::from))))),
        ("s", Arc::new(StringArray::from_iter(values.iter().map(|v| v.2.map(text))))),
        ("st", Arc::new(st)),
    ];
    match (has_w, day) {
        (true, _) => columns.push(("w", Arc::new(w))),
        (false, None) => {}
        (false, Some(_)) => columns.push(("w", Arc::new(Int64Array::new_null(values.len())))),
    }
    if let Some(day) = day {
        columns.push(("day", Arc::new(Int64Array::from(vec![day; values.len()]))));
    }
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, array)| (n, array, true)))
        .unwrap()
}

proptest! {
    #![proptest_config(tries(24))]

    #[test]
    fn pruning_keeps_every_row_of_the_result(
        mut files in values(),
        constant in -6_i32..26,
        sort in any::<bool>(),
    ) {
        let directory = tempfile::tempdir().unwrap();
        let session = session();
        let mut copies = Vec::new();
        let mut first_id = 0;
        for (number, (values, group, has_w)) in files.iter_mut().enumerate() {
            // Sorted values make row groups and pages that statistics can tell apart.
            if sort {
                values.sort_by_key(|value| value.0);
            }
            let (name, day) = DIRECTORIES[number % DIRECTORIES.len()];
            let file = batch(values, first_id, None, *has_w || number == 0);
            let path = directory.path().join(format!("{name}/{number}.parquet"));
            write_parquet(&path, &file.schema(), &[file], *group);
            copies.push((path, batch(values, first_id, Some(day), *has_w || number == 0)));
            first_id += values.len() as i64;
        }
        copies.sort_by(|a, b| a.0.cmp(&b.0));
        let copies: Vec<RecordBatch> = copies.into_iter().map(|(_, batch)| batch).collect();
        register(&session, "t", directory.path()).unwrap();
        session.register_batches("copy", copies[0].schema(), copies).unwrap();
        // First row id of each file, in the order of the table's files.
        let of_file = |path: &str| -> i64 {
            let number: usize = path.rsplit('/').next().unwrap().split('.').next().unwrap().parse().unwrap();
            files[..number].iter().map(|file| file.0.len() as i64).sum()
        };
        let mut pruned = 0;
        for predicate in PREDICATES {
            let predicate = predicate.replace("{c}", &format!("({constant})"))
                .replace(&format!("'({constant})'"), &format!("'{constant}'"));
            let sql = |table| format!("SELECT id, v, f, s, day FROM {table} WHERE {predicate}");
            let wanted = sorted(&run(&query(&session, &sql("copy")).unwrap()));
            let plan = plan_with(&session, &sql("t"), &finest()).unwrap();
            let found = sorted(&execute(&plan, &all_splits(&plan)).unwrap());
            prop_assert_eq!(&found, &wanted, "{}\n{}", predicate, plan.shape());
            let kept: Vec<std::ops::Range<i64>> = plan.splits().iter().map(|split| {
                let (first, range) = (of_file(&plan.describe(split).path), split.row_range().unwrap());
                first + range.start as i64..first + range.end as i64
            }).collect();
            let ids = rows(&run(&query(&session, &format!("SELECT id FROM copy WHERE {predicate}")).unwrap()));
            for id in ids {
                let id: i64 = id.parse().unwrap();
                prop_assert!(kept.iter().any(|range| range.contains(&id)), "{id} by {predicate}");
            }
            pruned += plan.reports().iter().map(|report| report.units_pruned + report.files_pruned).sum::<usize>();
        }
        prop_assert!(pruned > 0, "nothing was ever pruned");
    }
}
