//! Promises 1, 3 and 4 (docs/promises.md): for any tables, query, world size, worker count, batch size and split
//! size, the shards together deliver each row of DataFusion's own result once, in exact batches, in an order that
//! does not depend on the number of threads. A worker's plan equals the training process's.

mod batches;
mod memory;

use std::fmt::Write;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, Float64Array, Int32Array, Int64Array, ListArray, RecordBatch, StringArray,
};
use arrow::datatypes::Int64Type;
use proptest::prelude::*;
use tempfile::TempDir;
use tensorquery::ErrorKind;
use tensorquery::session::{Plan, PlanOptions, Session, WorkerPlan};
use tensorquery::sharding::{
    Builtin, Layout, Mixing, OrderKey, Remainder, Shard, ShardInput, resume, weight,
};

use super::epochs::is_exact;
use super::support::{
    all_splits, block_on, execute, plan_with, query, register, rows, run, session, sorted, stream,
    tries, write_parquet,
};

/// One row of `t`: a key, a float and a text that may be null, and the length of a list.
pub type Row = (Option<i32>, Option<i16>, Option<u8>, Option<usize>);

#[derive(Clone, Debug)]
pub struct Tables {
    /// Rows of each file and the rows of its row groups.
    files: Vec<(Vec<Row>, usize)>,
    /// Keys of the table `u`, which is joined.
    keys: Vec<Option<i32>>,
}

fn row() -> impl Strategy<Value = Row> {
    let null = |percent: u32| prop::option::weighted(f64::from(100 - percent) / 100.0, any::<u8>());
    (null(20), null(10), null(30), null(15)).prop_map(|(k, f, s, l)| {
        let k = k.map(|k| i32::from(k % 7));
        (k, f.map(|f| i16::from(f) - 100), s, l.map(|l| usize::from(l % 4)))
    })
}

pub fn tables() -> impl Strategy<Value = Tables> {
    let file = (prop::collection::vec(row(), 0..60), 1_usize..25);
    let keys = prop::collection::vec(prop::option::weighted(0.8, 0..7_i32), 0..8);
    (prop::collection::vec(file, 1..5), keys).prop_map(|(files, keys)| Tables { files, keys })
}

fn batch(rows: &[Row], first_id: i64) -> RecordBatch {
    let ids = (first_id..).take(rows.len());
    let floats = rows.iter().map(|row| row.1.map(|f| f64::from(f) / 4.0));
    let texts =
        rows.iter().map(|row| row.2.map(|s| format!("{}{s}", ["a", "b", ""][s as usize % 3])));
    let lists = rows.iter().map(|row| row.3.map(|length| (0..length as i64).map(Some)));
    let columns: [(&str, ArrayRef); 5] = [
        ("id", Arc::new(Int64Array::from_iter_values(ids))),
        ("k", Arc::new(Int32Array::from_iter(rows.iter().map(|row| row.0)))),
        ("f", Arc::new(Float64Array::from_iter(floats))),
        ("s", Arc::new(StringArray::from_iter(texts))),
        ("l", Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(lists))),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.map(|(name, array)| (name, array, true)))
        .unwrap()
}

/// `t` in Parquet, `m` with the same rows in memory, and `u`.
pub fn register_all(tables: &Tables) -> (TempDir, Arc<Session>) {
    let directory = tempfile::tempdir().unwrap();
    let session = session();
    let mut batches = Vec::new();
    let mut first_id = 0;
    for (number, (rows, group)) in tables.files.iter().enumerate() {
        let batch = batch(rows, first_id);
        first_id += rows.len() as i64;
        let path = directory.path().join(format!("t/{number}.parquet"));
        write_parquet(&path, &batch.schema(), std::slice::from_ref(&batch), *group);
        batches.push(batch);
    }
    let names = tables.keys.iter().enumerate().map(|(at, _)| format!("name {at}"));
    let columns: [(&str, ArrayRef); 2] = [
        ("k", Arc::new(Int32Array::from_iter(tables.keys.iter().copied()))),
        ("name", Arc::new(StringArray::from_iter_values(names))),
    ];
    let u =
        RecordBatch::try_from_iter_with_nullable(columns.map(|(name, array)| (name, array, true)))
            .unwrap();
    write_parquet(&directory.path().join("u.parquet"), &u.schema(), &[u], 3);
    register(&session, "t", &directory.path().join("t")).unwrap();
    register(&session, "u", &directory.path().join("u.parquet")).unwrap();
    session.register_batches("m", batches[0].schema(), batches).unwrap();
    (directory, session)
}

pub const QUERIES: &[&str] = &[
    "SELECT id, k, f, s FROM t",
    "SELECT * FROM t WHERE k > {c}",
    "SELECT id, s FROM t WHERE f < {c} OR s IS NULL",
    "SELECT id, f / 2 AS half FROM t WHERE s LIKE 'a%' AND id % 3 = {c} % 3",
    "SELECT id FROM t WHERE k IS NULL AND f IS NOT NULL",
    "SELECT id FROM t WHERE id BETWEEN {c} * 10 AND {c} * 20",
    "SELECT 1 AS one FROM t WHERE k <> {c}",
    "SELECT 'x' AS x FROM t",
    "SELECT upper(s) AS s, coalesce(k, -1) AS k FROM t WHERE id >= {c}",
    "SELECT t.id, u.name FROM t JOIN u ON t.k = u.k",
    "SELECT t.id, u.name FROM u JOIN t ON t.k = u.k AND t.f > {c}",
    "SELECT t.id, u.name FROM t LEFT JOIN u ON t.k = u.k WHERE t.id > {c}",
    "SELECT t.id, u.name FROM u LEFT JOIN t ON t.k = u.k",
    "SELECT t.id, u.name FROM u RIGHT JOIN t ON t.k = u.k",
    "SELECT id FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.k = t.k)",
    "SELECT id FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE u.k = t.k AND t.id > {c})",
    "SELECT id FROM t WHERE f > {c} OR k IN (SELECT k FROM u)",
    "SELECT t.id, u.k FROM t CROSS JOIN u",
    "SELECT t.id, u.k FROM t LEFT JOIN u ON t.k < u.k",
    "SELECT t.id, x.n FROM t JOIN (SELECT k, count(*) AS n FROM u GROUP BY k) AS x ON t.k = x.k",
    "SELECT id, k FROM t WHERE k < {c} UNION ALL SELECT id, k FROM t WHERE f > {c}",
    "SELECT id, k FROM t UNION ALL SELECT id, k FROM m UNION ALL SELECT k AS id, k + 1 AS k FROM u",
    "SELECT a.id, b.name FROM (SELECT id, k FROM t UNION ALL SELECT id, k FROM m) AS a \
     JOIN (SELECT k, name FROM u UNION ALL SELECT k, s FROM m) AS b ON a.k = b.k",
    "SELECT id, unnest(l) AS item FROM t WHERE id > {c}",
    "SELECT a.id, b.f FROM t AS a JOIN t AS b ON a.id = b.id WHERE b.k = {c}",
    "SELECT m.id, u.name FROM m LEFT JOIN u ON m.k = u.k",
    "SELECT t.id, m.s FROM m JOIN t ON m.id = t.id",
    "WITH few AS (SELECT id, k FROM t WHERE k > {c}) SELECT id + k AS both FROM few",
    "SELECT id FROM t WHERE k > 100",
];

/// All shards of an epoch.
fn deal(plan: &Plan, layout: &Layout) -> tensorquery::Result<Vec<Shard>> {
    let weights = plan.splits().iter().map(weight).collect();
    let rows = |split: u32| -> u64 {
        execute(plan, &[split]).unwrap().iter().map(|batch| batch.num_rows() as u64).sum()
    };
    let counts = layout.counted.then(|| all_splits(plan).into_iter().map(rows).collect());
    let input = ShardInput { weights, counts, ..ShardInput::default() };
    let key = OrderKey { seed: 42, epoch: 1, fingerprint: plan.fingerprint().as_bytes() };
    resume(&input, None, layout, None, key)
}

/// The batches of every shard, as rows.
fn deliver(plan: &Plan, shards: &[Shard], threads: usize) -> Vec<Vec<Vec<String>>> {
    let deliver_one = |shard: &Shard| {
        let batches = stream(plan, shard, threads).unwrap();
        batches.iter().map(|batch| rows(std::slice::from_ref(batch))).collect()
    };
    shards.iter().map(deliver_one).collect()
}

/// Each list but its last batch is full. With equal steps the lists are ranks, which take the same number of
/// batches; one without an additional row may divide its last full batch in two.
fn check_batches(
    lists: &[Vec<Vec<String>>],
    batch_size: usize,
    equal: bool,
) -> Result<(), TestCaseError> {
    for batches in lists {
        let sizes: Vec<usize> = batches.iter().map(Vec::len).collect();
        prop_assert!(!equal || sizes.len() == lists[0].len());
        let mut full = &sizes[..sizes.len().saturating_sub(1)];
        if equal && sizes.ends_with(&[batch_size.div_ceil(2), batch_size / 2]) {
            full = &full[..full.len() - 1];
        }
        prop_assert!(full.iter().all(|rows| *rows == batch_size), "{:?}", sizes);
        prop_assert!(sizes.iter().all(|rows| (1..=batch_size).contains(rows)), "{:?}", sizes);
    }
    Ok(())
}

/// The batches of each rank, in the order in which its workers take turns.
fn by_rank(shards: &[Vec<Vec<String>>], workers: usize) -> Vec<Vec<Vec<String>>> {
    let in_turn = |own: &[Vec<Vec<String>>]| {
        let all: usize = own.iter().map(Vec::len).sum();
        (0..all).map(|step| own[step % workers][step / workers].clone()).collect()
    };
    shards.chunks(workers).map(in_turn).collect()
}

fn describe(shards: &[Vec<Vec<String>>]) -> String {
    let mut text = String::new();
    for (shard, batches) in shards.iter().enumerate() {
        let _ = write!(text, "{shard}: {} rows; ", batches.iter().map(Vec::len).sum::<usize>());
    }
    text
}

proptest! {
    #![proptest_config(tries(48))]

    #[test]
    fn shards_deliver_each_row_once(
        tables in tables(),
        template in prop::sample::select(QUERIES),
        constant in -2_i32..8,
        world_size in 1_u32..=9,
        num_workers in 0_u32..=4,
        batch_size in 1_u64..50,
        split_rows in prop::option::of(1_u64..40),
        shuffle in prop::option::of(1_u64..80),
        even: bool,
        (width, chunk) in (1_u32..4, 1_u64..20),
    ) {
        let (_directory, session) = register_all(&tables);
        let sql = template.replace("{c}", &constant.to_string());
        let options = PlanOptions {
            split_rows,
            explicit: split_rows.is_some(),
            ..PlanOptions::default()
        };
        let plan = plan_with(&session, &sql, &options).unwrap();
        let mixing = Mixing { width, chunk, window: shuffle };
        let mut layout = Layout {
            world_size,
            num_workers,
            batch_size,
            remainder: if even { Remainder::Even } else { Remainder::Uneven },
            dynamic: false,
            counted: even,
            partitions: None,
            strategy: Some(Builtin::Lpt),
            shuffle: shuffle.is_some(),
            permuted: None,
            refills: false,
            mixing: if shuffle.is_some() { mixing } else { Mixing::NONE },
        };
        let shards = deal(&plan, &layout).or_else(|error| {
            // Too few rows for equal steps.
            assert_eq!(error.kind(), ErrorKind::Config, "{error}");
            (layout.remainder, layout.counted) = (Remainder::Uneven, false);
            deal(&plan, &layout)
        });
        let shards = shards.unwrap();
        let workers = num_workers.max(1) as usize;
        prop_assert_eq!(shards.len(), world_size as usize * workers);
        let delivered = deliver(&plan, &shards, 1);
        if is_exact(&layout) {
            check_batches(&by_rank(&delivered, workers), batch_size as usize, true)?;
        } else {
            check_batches(&delivered, batch_size as usize, false)?;
        }

        let mut found: Vec<String> = delivered.iter().flatten().flatten().cloned().collect();
        found.sort_unstable();
        let wanted = sorted(&run(&query(&session, &sql).unwrap()));
        prop_assert_eq!(found, wanted, "{}\n{}", describe(&delivered), plan.shape());

        prop_assert_eq!(deliver(&plan, &shards, 4), delivered);
    }

    #[test]
    fn a_recipe_plans_the_same(
        tables in tables(),
        template in prop::sample::select(QUERIES),
        constant in -2_i32..8,
        split_rows in 1_u64..40,
        keep in any::<u64>(),
    ) {
        let (_directory, session) = register_all(&tables);
        let sql = template.replace("{c}", &constant.to_string());
        let options = PlanOptions { split_rows: Some(split_rows), explicit: true, ..PlanOptions::default() };
        let plan = plan_with(&session, &sql, &options).unwrap();
        let ids: Vec<u32> =
            (0..plan.splits().len() as u32).filter(|id| keep >> (id % 64) & 1 == 1).collect();
        let part = block_on(WorkerPlan::of(&plan, Some(&ids)).unwrap().open()).unwrap();
        prop_assert_eq!(part.fingerprint(), plan.fingerprint());
        prop_assert_eq!(part.splits().len(), ids.len());
        prop_assert_eq!(part.totals(), plan.totals());
        let (found, wanted) = (execute(&part, &ids).unwrap(), execute(&plan, &ids).unwrap());
        prop_assert_eq!(rows(&found), rows(&wanted), "{}", plan.shape());
        let whole = block_on(WorkerPlan::of(&plan, None).unwrap().open()).unwrap();
        prop_assert_eq!(whole.splits(), plan.splits());
    }
}
