//! The ranges of a text file cover it without gaps, and DataFusion reads from them, one by one, the
//! records that it reads from the whole file.

use std::cell::Cell;
use std::ops::Range;
use std::path::Path as LocalPath;
use std::sync::Arc;

use arrow::array::{Array, AsArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::config::CsvOptions;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{
    CsvSource, FileScanConfigBuilder, FileSource, JsonSource,
};
use datafusion::datasource::source::DataSourceExec;
use datafusion::error::DataFusionError;
use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::physical_plan::collect;
use datafusion::prelude::SessionContext;
use object_store::ObjectStore;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use tensorquery::storage::{FilePin, PinnedStore, TextDialect, list_files, record_boundaries};
use tensorquery::{Error, ErrorKind};
use tokio::runtime::Runtime;

use super::super::support::tries;
use super::{local, location, runtime, write};

/// Rows as text, null apart from empty.
type Rows = Vec<Vec<Option<String>>>;

/// More columns than any generated line has, so that every line is a valid record.
const COLUMNS: usize = 48;

fn schema() -> SchemaRef {
    let fields: Vec<Field> =
        (0..COLUMNS).map(|at| Field::new(format!("c{at}"), DataType::Utf8, true)).collect();
    Arc::new(Schema::new(fields))
}

fn csv_source(dialect: TextDialect) -> Arc<dyn FileSource> {
    let options = CsvOptions {
        has_header: Some(dialect.header),
        delimiter: dialect.delimiter,
        quote: dialect.quote.unwrap(),
        terminator: dialect.terminator,
        escape: dialect.escape,
        comment: dialect.comment,
        truncated_rows: Some(true),
        newlines_in_values: Some(true),
        ..CsvOptions::default()
    };
    Arc::new(CsvSource::new(schema()).with_csv_options(options))
}

fn json_source() -> Arc<dyn FileSource> {
    Arc::new(JsonSource::new(Arc::new(Schema::new(vec![Field::new("a", DataType::Utf8, true)]))))
}

/// Reads the file, or one range of it, with DataFusion.
async fn read(
    store: &Arc<dyn ObjectStore>,
    source: &Arc<dyn FileSource>,
    pin: &FilePin,
    range: Option<&Range<u64>>,
) -> Result<Rows, DataFusionError> {
    let context = SessionContext::new();
    let url = ObjectStoreUrl::local_filesystem();
    context.register_object_store(url.as_ref(), Arc::clone(store));
    let mut file = PartitionedFile::from(object_store::ObjectMeta::from(pin.clone()));
    if let Some(range) = range {
        file = file.with_range(range.start as i64, range.end as i64);
    }
    let config = FileScanConfigBuilder::new(url, Arc::clone(source)).with_file(file).build();
    let plan = DataSourceExec::from_data_source(config);
    let mut rows = Rows::new();
    for batch in collect(plan, context.task_ctx()).await? {
        for row in 0..batch.num_rows() {
            let value = |column: &Arc<dyn Array>| {
                let column = column.as_string::<i32>();
                column.is_valid(row).then(|| column.value(row).to_owned())
            };
            rows.push(batch.columns().iter().map(value).collect());
        }
    }
    Ok(rows)
}

struct Bench {
    runtime: Runtime,
    directory: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        Self { runtime: runtime(), directory: tempfile::tempdir().unwrap() }
    }

    /// Cuts the text and reads it by ranges, through the pinned store and the plain one. Returns
    /// the number of ranges and of rows; None where even the whole file cannot be read.
    fn check(
        &self,
        text: &[u8],
        target: u64,
        dialect: TextDialect,
        source: &Arc<dyn FileSource>,
    ) -> Option<(usize, usize)> {
        self.runtime.block_on(async {
            let (pin, pinned) = pin(self.directory.path(), text).await;
            let ranges = record_boundaries(&pinned, &pin, target, dialect).await.unwrap();
            let mut start = 0;
            for range in &ranges {
                assert!(range.start == start && range.end > start, "{ranges:?} of {text:?}");
                start = range.end;
            }
            assert_eq!(start, text.len() as u64);
            let mut rows = 0;
            for store in [pinned, local()] {
                let whole = read(&store, source, &pin, None).await.ok()?;
                let mut parts = Rows::new();
                for range in &ranges {
                    match read(&store, source, &pin, Some(range)).await {
                        Ok(part) => parts.extend(part),
                        Err(error) => panic!(
                            "{error} at {range:?} of {ranges:?} of {:?}",
                            String::from_utf8_lossy(text)
                        ),
                    }
                }
                assert_eq!(parts, whole, "{ranges:?} of {:?}", String::from_utf8_lossy(text));
                rows = whole.len();
            }
            Some((ranges.len(), rows))
        })
    }
}

async fn pin(directory: &LocalPath, text: &[u8]) -> (FilePin, Arc<dyn ObjectStore>) {
    write(directory, "text", text);
    let mut pins = list_files(&local(), &location(directory, "text")).await.unwrap();
    let pinned = PinnedStore::new(local(), "file://", pins.clone());
    (pins.remove(0), Arc::new(pinned))
}

/// Quotes, separators, marks and comments in any order.
fn soup() -> impl Strategy<Value = String> {
    let unit = prop::sample::select(vec![
        "\"", "\"", "\"", "\n", "\n", "\n", "\r\n", "\r", ",", ",", "\\", "#", ";", "\u{feff}",
        "a", "bc", " ", "\"x\ny\"", "\n\"",
    ]);
    prop::collection::vec(unit, 0..COLUMNS - 1).prop_map(|units| units.concat())
}

fn dialects() -> impl Strategy<Value = TextDialect> {
    (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>(), 0..3).prop_map(
        |(header, escape, comment, terminator, quote)| TextDialect {
            header,
            escape: escape.then_some(if quote == 2 { b'"' } else { b'\\' }),
            comment: comment.then_some(b'#'),
            terminator: terminator.then_some(if comment { b'\n' } else { b';' }),
            quote: Some(if quote == 0 { b'a' } else { b'"' }),
            ..TextDialect::csv()
        },
    )
}

#[test]
fn any_csv_read_by_ranges_gives_the_rows_of_the_file() {
    let bench = Bench::new();
    let (cut, filled) = (Cell::new(0), Cell::new(0));
    let config = ProptestConfig { failure_persistence: None, ..tries(600) };
    TestRunner::new(config)
        .run(&(soup(), 1..30_u64, dialects()), |(text, target, dialect)| {
            let outcome = bench.check(text.as_bytes(), target, dialect, &csv_source(dialect));
            if let Some((ranges, rows)) = outcome {
                cut.set(cut.get() + usize::from(ranges > 1));
                filled.set(filled.get() + usize::from(rows > 1));
            }
            Ok(())
        })
        .unwrap();
    let (cut, filled) = (cut.get(), filled.get());
    assert!(cut > 66 && filled > 66, "only {cut} files were cut and {filled} had rows");
}

#[test]
fn a_written_csv_is_cut_near_the_target() {
    let bench = Bench::new();
    for newline in ["\n", "\r\n"] {
        let mut text = format!("\u{feff}id,\"the\nname\",x{newline}");
        for at in 0..20_000 {
            text.push_str(&format!("{at},\"name, \"\"{at}\"\"\n of {at}\",{}{newline}", at % 7));
        }
        let dialect = TextDialect::csv();
        let source = csv_source(dialect);
        let target = 64 * 1024;
        let (ranges, rows) = bench.check(text.as_bytes(), target, dialect, &source).unwrap();
        assert_eq!(rows, 20_000);
        assert_eq!(ranges as u64, (text.len() as u64).div_ceil(target));
        // Without a line feed at the end, the last record counts all the same.
        let text = text.trim_end();
        assert_eq!(bench.check(text.as_bytes(), target, dialect, &source).unwrap(), (ranges, rows));
    }
}

#[test]
fn a_file_larger_than_one_read_is_followed_through() {
    let bench = Bench::new();
    // A quote opens in the first read of 4 MiB and closes in the third.
    let long = "line\n".repeat(1_800_000);
    let text = format!("h\n{}1,\"{long}\"\n{}", "0\n".repeat(1000), "2\n".repeat(1_000_000));
    bench.runtime.block_on(async {
        let (pin, store) = pin(bench.directory.path(), text.as_bytes()).await;
        let ranges =
            record_boundaries(&store, &pin, 1024 * 1024, TextDialect::csv()).await.unwrap();
        let close = text.find("\"\n2").unwrap() as u64 + 2;
        assert!(ranges.iter().any(|range| range.end == close), "{ranges:?} {close}");
        assert!(ranges.iter().all(|range| text.as_bytes()[range.end as usize - 1] == b'\n'));
        assert_eq!(ranges.len(), 3);
    });
}

#[test]
fn lines_ended_by_carriage_returns_are_one_range() {
    let bench = Bench::new();
    let dialect = TextDialect::csv();
    let outcome = bench.check(b"h\ra\rb\rc\r", 2, dialect, &csv_source(dialect));
    assert_eq!(outcome, Some((1, 3)));
}

#[test]
fn comments_with_a_terminator_of_its_own_are_refused() {
    let dialect = TextDialect { comment: Some(b'#'), terminator: Some(b';'), ..TextDialect::csv() };
    runtime().block_on(async {
        let directory = tempfile::tempdir().unwrap();
        let (pin, store) = pin(directory.path(), b"h;#;1;2;").await;
        let error = record_boundaries(&store, &pin, 2, dialect).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().contains("the terminator ';'"), "{error}");
    });
}

#[test]
fn small_and_empty_files_are_one_range_or_none() {
    let bench = Bench::new();
    let dialect = TextDialect::csv();
    assert_eq!(bench.check(b"h\n1\n", 4, dialect, &csv_source(dialect)), Some((1, 1)));
    assert_eq!(bench.check(b"h\n1\n", 0, dialect, &csv_source(dialect)), Some((2, 1)));
    assert_eq!(bench.check(b"", 4, dialect, &csv_source(dialect)), Some((0, 0)));
}

proptest! {
    #![proptest_config(tries(200))]

    #[test]
    fn any_json_lines_read_by_ranges_give_the_rows_of_the_file(
        records in prop::collection::vec(("\\PC{0,6}|(\n|\"|\\\\){0,4}", 0..3_usize), 0..30),
        target in 1..60_u64,
        is_open: bool,
    ) {
        let bench = Bench::new();
        let mut text = String::new();
        for (value, newline) in &records {
            text.push_str(&serde_json::json!({ "a": value }).to_string());
            text.push_str(["\n", "\r\n", "\n \n\n"][*newline]);
        }
        if is_open {
            text.truncate(text.trim_end().len());
        }
        let outcome =
            bench.check(text.as_bytes(), target, TextDialect::json_lines(), &json_source());
        prop_assert_eq!(outcome.unwrap().1, records.len());
    }
}

#[test]
fn json_lines_are_cut_without_reading_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let text = format!("{{\"a\": \"{}\"}}\n", "x".repeat(30_000)).repeat(400);
    runtime().block_on(async {
        write(directory.path(), "text", &text);
        let pins = list_files(&local(), &location(directory.path(), "text")).await.unwrap();
        let pinned = PinnedStore::new(local(), "file://", pins.clone());
        let counters = pinned.counters();
        let store: Arc<dyn ObjectStore> = Arc::new(pinned);
        let dialect = TextDialect::json_lines();
        let ranges = record_boundaries(&store, &pins[0], 3_000_000, dialect).await.unwrap();
        assert_eq!(ranges.len(), 5);
        assert!(counters.bytes() < 4 * 64 * 1024, "{} bytes", counters.bytes());
    });
}

#[test]
fn a_file_that_changed_is_named() {
    let directory = tempfile::tempdir().unwrap();
    runtime().block_on(async {
        let (pin, store) = pin(directory.path(), b"h\n1\n2\n3\n").await;
        write(directory.path(), "text", "h\n1\n");
        for dialect in [TextDialect::csv(), TextDialect::json_lines()] {
            let error = record_boundaries(&store, &pin, 2, dialect).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Data);
            assert!(error.to_string().contains("changed after the query was planned"), "{error}");
        }
        // A plain store does not check, but a file cut short is noticed.
        assert!(record_boundaries(&local(), &pin, 2, TextDialect::csv()).await.is_err());
        // DataFusion hands the error through.
        let source = csv_source(TextDialect::csv());
        let error = Error::from(read(&store, &source, &pin, Some(&(2..4))).await.unwrap_err());
        assert_eq!(error.kind(), ErrorKind::Data);
        assert!(error.to_string().contains("(size 8 -> 4)"), "{error}");
    });
}
