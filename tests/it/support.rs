//! Helpers for tests of whole queries: files, sessions, and rows as comparable text.

use std::fs::File;
use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use futures::TryStreamExt;
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;
use proptest::test_runner::Config as ProptestConfig;
use tensorquery::catalog::TableOptions;
use tensorquery::session::{Plan, PlanOptions, Query, Session, SessionOptions};
use tensorquery::sharding::Shard;
use tensorquery::stream::{Finished, Next, Output, RowSource, ShardStream};
use tensorquery::{Error, Result};
use tokio::runtime::{Builder, Runtime};

/// Runs a future to its end.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
        Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
    });
    RUNTIME.block_on(future)
}

pub fn session() -> Arc<Session> {
    Session::try_new(SessionOptions::default()).unwrap()
}

/// A third of so many cases of a property, or all of them in `make test-long`.
pub fn tries(cases: u32) -> ProptestConfig {
    let all = std::env::var_os("TENSORQUERY_LONG").is_some();
    ProptestConfig::with_cases(if all { cases } else { cases.div_ceil(3) })
}

/// Parquet properties with `rows` rows per row group and pages of at most 16 rows.
pub fn properties(rows: usize) -> WriterProperties {
    WriterProperties::builder()
        .set_max_row_group_row_count(Some(rows))
        .set_data_page_row_count_limit(16)
        .set_write_batch_size(16)
        .build()
}

/// Writes batches of one schema to one Parquet file, and the directories above it.
pub fn write_parquet(path: &Path, schema: &SchemaRef, batches: &[RecordBatch], rows: usize) {
    write_parquet_with(path, schema, batches, properties(rows));
}

pub fn write_parquet_with(
    path: &Path,
    schema: &SchemaRef,
    batches: &[RecordBatch],
    properties: WriterProperties,
) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let file = File::create(path).unwrap();
    let mut writer = ArrowWriter::try_new(file, Arc::clone(schema), Some(properties)).unwrap();
    for batch in batches {
        writer.write(batch).unwrap();
    }
    writer.close().unwrap();
}

/// Registers the files at `path`.
pub fn register(session: &Session, name: &str, path: &Path) -> Result<()> {
    register_with(session, name, path, TableOptions::default())
}

pub fn register_with(
    session: &Session,
    name: &str,
    path: &Path,
    options: TableOptions,
) -> Result<()> {
    block_on(session.register_files(name, &[path.display().to_string()], options))
}

pub fn query(session: &Arc<Session>, sql: &str) -> Result<Query> {
    block_on(session.query(sql))
}

/// The plan by splits, with default options.
pub fn plan(session: &Arc<Session>, sql: &str) -> Result<Plan> {
    plan_with(session, sql, &PlanOptions::default())
}

pub fn plan_with(session: &Arc<Session>, sql: &str, options: &PlanOptions) -> Result<Plan> {
    block_on(async { session.query(sql).await?.plan_splits(options).await })
}

/// One split per row group, or per record of a text file.
pub fn finest() -> PlanOptions {
    PlanOptions { split_bytes: 1, split_rows: Some(1), explicit: true, ..PlanOptions::default() }
}

pub fn plan_error(session: &Arc<Session>, sql: &str) -> Error {
    match plan(session, sql) {
        Ok(plan) => panic!("{sql} was planned:\n{}", plan.shape()),
        Err(error) => error,
    }
}

/// DataFusion's own result.
pub fn run(query: &Query) -> Vec<RecordBatch> {
    block_on(async { query.stream().await.unwrap().try_collect().await.unwrap() })
}

/// The rows of some splits, one after the other, without read-ahead or batching.
pub fn execute(plan: &Plan, splits: &[u32]) -> Result<Vec<RecordBatch>> {
    let epoch = plan.epoch()?;
    block_on(async {
        let mut batches = Vec::new();
        for split in splits {
            batches.extend(epoch.execute(*split)?.try_collect::<Vec<_>>().await?);
        }
        Ok(batches)
    })
}

pub fn all_splits(plan: &Plan) -> Vec<u32> {
    (0..plan.splits().len() as u32).collect()
}

/// The batches of one shard through the whole stream.
pub fn stream(plan: &Plan, shard: &Shard, threads: usize) -> Result<Vec<RecordBatch>> {
    let output = Arc::new(Output::Arrow(plan.schema()));
    let source = RowSource::Plan(plan.epoch()?);
    let mut stream = ShardStream::start(source, shard, &shard.start(), threads, output)?;
    let mut batches = Vec::new();
    for _ in 0..10_000 {
        match stream.next(Duration::from_secs(60))? {
            Next::Batches(group) => {
                batches.extend(group.into_iter().map(|delivered| match delivered.batch {
                    Finished::Arrow(batch) => batch,
                    Finished::Tensors(_) => panic!("tensors were not asked for"),
                }))
            }
            Next::End => return Ok(batches),
            Next::Pending => panic!("the stream hangs"),
        }
    }
    panic!("the stream does not end");
}

/// Each row as text; a null shows as NULL, which no text column of these tests holds.
pub fn rows(batches: &[RecordBatch]) -> Vec<String> {
    let options = FormatOptions::default().with_null("NULL");
    let mut rows = Vec::new();
    for batch in batches {
        let columns: Vec<ArrayFormatter> = batch
            .columns()
            .iter()
            .map(|column| ArrayFormatter::try_new(column.as_ref(), &options).unwrap())
            .collect();
        rows.extend((0..batch.num_rows()).map(|row| {
            let values: Vec<String> =
                columns.iter().map(|column| column.value(row).to_string()).collect();
            values.join(" | ")
        }));
    }
    rows
}

/// The rows as a multiset.
pub fn sorted(batches: &[RecordBatch]) -> Vec<String> {
    let mut rows = rows(batches);
    rows.sort_unstable();
    rows
}

/// Asserts that the splits hold each row of the query's result once, however fine they are.
#[track_caller]
pub fn assert_same_rows(session: &Arc<Session>, sql: &str) -> Vec<String> {
    let wanted = sorted(&run(&query(session, sql).unwrap()));
    for options in [finest(), PlanOptions::default()] {
        let plan = plan_with(session, sql, &options).unwrap();
        let found = sorted(&execute(&plan, &all_splits(&plan)).unwrap());
        assert_eq!(found, wanted, "{sql}\n{}", plan.shape());
    }
    wanted
}
