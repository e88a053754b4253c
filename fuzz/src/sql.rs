//! SQL and filters, over a small table of many types.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, Date32Array, Decimal128Array, Float64Array, Int8Array, Int64Array,
    ListArray, RecordBatch, StringArray, StructArray, TimestampMicrosecondArray, UInt64Array,
};
use arrow::datatypes::{DataType, Field, Float32Type};
use futures::TryStreamExt;
use tensorquery::Result;
use tensorquery::session::{PlanOptions, Query, Session, SessionOptions, StageMode};

use crate::panics::answer;

/// Longer texts are not tried: this is long enough for any depth of a parser.
const MOST_BYTES: usize = 16 << 10;

/// Bytes that a query may hold.
const MEMORY: u64 = 64 << 20;

/// Runs SQL that names no path and may read the table `t`.
pub fn run_sql(bytes: &[u8]) {
    let Some(sql) = text(bytes) else { return };
    answer(async {
        let session = session()?;
        // What a path literal names is read when it is found: no input shall look at this machine or beyond.
        if !session.parse(sql)?.parsed().paths.is_empty() {
            return Ok(());
        }
        run(&session.query(sql).await?).await
    });
}

/// Runs a filter over the table `t`, as `Query.select` does.
pub fn run_filter(bytes: &[u8]) {
    let Some(filter) = text(bytes) else { return };
    answer(async {
        let session = session()?;
        let query = session.query("SELECT * FROM t").await?;
        let narrowed = query.narrowed(&session, None, Some(filter.to_owned()))?;
        if !narrowed.parsed().paths.is_empty() {
            return Ok(());
        }
        run(&query.select(&session, narrowed, false, &[]).await?).await
    });
}

fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok().filter(|text| text.len() <= MOST_BYTES)
}

/// Plans a query by splits and by stages, and looks at some of its rows.
async fn run(query: &Query) -> Result<()> {
    let planned = query.plan_splits(&PlanOptions::default()).await;
    if planned.is_err() {
        query.cuts(StageMode::Auto).await?;
    }
    let mut rows = query.stream().await?;
    let mut seen = 0;
    while let Some(batch) = rows.try_next().await? {
        seen += batch.num_rows();
        // A query may have as many rows as its text asks for.
        if seen > 10_000 {
            break;
        }
    }
    Ok(())
}

fn session() -> Result<Arc<Session>> {
    let options = SessionOptions { memory_limit: Some(MEMORY), ..SessionOptions::default() };
    let session = Session::try_new(options)?;
    let rows = table();
    session.register_batches("t", rows.schema(), vec![rows])?;
    Ok(session)
}

/// Four rows, one of them null in all columns but the first.
fn table() -> RecordBatch {
    let lists = [Some(vec![Some(1.0), None]), Some(vec![]), None, Some(vec![Some(2.5)])];
    let names: ArrayRef = Arc::new(StringArray::from(vec![Some("a"), Some("b"), None, Some("")]));
    let field = Arc::new(Field::new("name", DataType::Utf8, true));
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("id", Arc::new(Int64Array::from(vec![i64::MIN, -1, 0, i64::MAX]))),
        ("small", Arc::new(Int8Array::from(vec![Some(-128), Some(0), None, Some(127)]))),
        ("big", Arc::new(UInt64Array::from(vec![Some(u64::MAX), Some(0), None, Some(7)]))),
        (
            "ratio",
            Arc::new(Float64Array::from(vec![Some(f64::NAN), Some(-0.0), None, Some(1e308)])),
        ),
        ("flag", Arc::new(BooleanArray::from(vec![Some(true), Some(false), None, Some(true)]))),
        ("text", Arc::new(StringArray::from(vec![Some("%_\\"), Some("ß€"), None, Some("")]))),
        ("day", Arc::new(Date32Array::from(vec![Some(i32::MIN), Some(0), None, Some(19_000)]))),
        (
            "at",
            Arc::new(TimestampMicrosecondArray::from(vec![
                Some(i64::MAX),
                Some(-1),
                None,
                Some(0),
            ])),
        ),
        ("price", Arc::new(Decimal128Array::from(vec![Some(-1), Some(12_345), None, Some(0)]))),
        ("list", Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>(lists))),
        ("record", Arc::new(StructArray::from(vec![(field, names)]))),
    ];
    let columns = columns.into_iter().map(|(name, array)| (name, array, true));
    RecordBatch::try_from_iter_with_nullable(columns).expect("columns of four rows")
}
