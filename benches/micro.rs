//! The hot functions of the core, one at a time: `cargo bench --bench micro` by the clock, with criterion;
//! `make bench-micro` by instructions, which no other process on the machine changes.
//!
//! `micro --once NAME` prepares the work NAME and does it once inside [`measured`], for callgrind, which counts between
//! that function's begin and end; `micro --names` lists the works.

use std::fs::File;
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{ArrayRef, Float32Array, Float64Array, Int64Array, RecordBatch};
use criterion::{BatchSize, Criterion};
use parquet::arrow::ArrowWriter;
use tempfile::TempDir;
use tensorquery::catalog::TableOptions;
use tensorquery::session::{PlanOptions, Session, SessionOptions};
use tensorquery::sharding::{
    Builtin, Layout, Mixing, OrderKey, Remainder, Rng, ShardInput, lpt, resume,
};
use tensorquery::stream::{RowQueue, ShuffleWindow};
use tensorquery::tensor::{Converter, TensorOptions};

/// Prepares a work outside the clock, and gives back what is measured.
type Work = fn() -> Box<dyn FnMut()>;

const WORKS: [(&str, Work); 9] = [
    ("lpt, 100,000 splits to 8 bins", balance),
    ("dealing, 10,000 splits to 64 ranks of 8 workers", deal),
    ("conversion, 8 columns of 65,536 rows", convert),
    ("conversion, 64 columns stacked, 16,384 rows", stack),
    ("rebatching, 8,192 rows to 1,024", rebatch),
    ("rebatching, 64 rows to 1,024", rebatch_tiny),
    ("shuffling, a window of 65,536 rows", shuffle),
    ("shuffling into tensors, a window of 65,536 rows", shuffle_tensors),
    ("planning, 100 files", plan),
];

fn balance() -> Box<dyn FnMut()> {
    let mut dice = Rng::new(1);
    let weights: Vec<u64> = (0..100_000).map(|_| 1 + dice.below(1 << 24)).collect();
    Box::new(move || {
        black_box(lpt(black_box(&weights), 8));
    })
}

fn deal() -> Box<dyn FnMut()> {
    let mut dice = Rng::new(2);
    let rows: Vec<u64> = (0..10_000).map(|_| 1_000 + dice.below(1 << 16)).collect();
    let input = ShardInput { weights: rows.clone(), counts: Some(rows), ..ShardInput::default() };
    let layout = Layout {
        world_size: 64,
        num_workers: 8,
        batch_size: 1024,
        remainder: Remainder::Even,
        dynamic: false,
        counted: true,
        partitions: None,
        strategy: Some(Builtin::Lpt),
        shuffle: true,
        permuted: None,
        refills: false,
        mixing: Mixing::NONE,
    };
    Box::new(move || {
        let key = OrderKey { seed: 42, epoch: 0, fingerprint: b"micro" };
        black_box(resume(&input, None, &layout, None, key).expect("even shares are possible"));
    })
}

fn convert() -> Box<dyn FnMut()> {
    let batches: Vec<_> = (0..8).map(|first| lineitem(first * 8192, 8192)).collect();
    conversion(batches, TensorOptions::default())
}

fn stack() -> Box<dyn FnMut()> {
    let names: Vec<String> = (0..64).map(|number| format!("f{number}")).collect();
    let columns = names.iter().map(|name| {
        let values = Float32Array::from_iter_values((0..16_384).map(|row| row as f32));
        (name.as_str(), Arc::new(values) as ArrayRef)
    });
    let batch = RecordBatch::try_from_iter(columns).expect("columns of one length");
    let options =
        TensorOptions { stack: vec![("x".to_owned(), names.clone())], ..TensorOptions::default() };
    conversion(vec![batch], options)
}

fn conversion(batches: Vec<RecordBatch>, options: TensorOptions) -> Box<dyn FnMut()> {
    let converter = Converter::try_new(&batches[0].schema(), &options).expect("numbers convert");
    Box::new(move || {
        black_box(converter.convert(black_box(&batches)).expect("there are no nulls"));
    })
}

fn rebatch() -> Box<dyn FnMut()> {
    rebatching(8192)
}

fn rebatch_tiny() -> Box<dyn FnMut()> {
    rebatching(64)
}

/// 65,536 rows, as a scan gives them or as a selective filter leaves them, into batches of 1,024.
fn rebatching(rows: usize) -> Box<dyn FnMut()> {
    let batches: Vec<_> = (0..65_536 / rows).map(|number| lineitem(number * rows, rows)).collect();
    Box::new(move || {
        let mut queue = RowQueue::new(256);
        for batch in &batches {
            queue.push(batch.clone()).expect("one schema");
            while queue.rows() >= 1024 {
                black_box(queue.take(1024).expect("rows are there"));
            }
        }
    })
}

fn shuffle() -> Box<dyn FnMut()> {
    let batches: Vec<_> = (0..8).map(|first| lineitem(first * 8192, 8192)).collect();
    Box::new(move || {
        let mut window = ShuffleWindow::try_new(65_536, 7).expect("a possible size");
        for batch in &batches {
            window.push(batch.clone()).expect("one schema");
        }
        let mut full = window.next_window().expect("rows gather").expect("the window is full");
        while let Some(batch) = full.next_batch(1024).expect("rows gather") {
            black_box(batch);
        }
    })
}

/// As [`shuffle`], and each batch becomes a block, for which rows are picked from the window.
fn shuffle_tensors() -> Box<dyn FnMut()> {
    let batches: Vec<_> = (0..8).map(|first| lineitem(first * 8192, 8192)).collect();
    let options = TensorOptions::default();
    let converter = Converter::try_new(&batches[0].schema(), &options).expect("numbers convert");
    Box::new(move || {
        let mut window = ShuffleWindow::try_new(65_536, 7).expect("a possible size");
        for batch in &batches {
            window.push(batch.clone()).expect("one schema");
        }
        let mut full = window.next_window().expect("rows join").expect("the window is full");
        while let Some(portion) = full.next_portion(1024).expect("narrow rows are picked") {
            black_box(converter.convert_portions(&[portion]).expect("there are no nulls"));
        }
    })
}

/// From a new session to the splits of a table of 100 small files: listing, footers, the plan.
fn plan() -> Box<dyn FnMut()> {
    let folder = TempDir::new().expect("a temporary folder");
    for number in 0..100 {
        write(&folder.path().join(format!("{number}.parquet")), &lineitem(number * 100, 100));
    }
    // Of one thread, since callgrind counts in the one that called `measured`.
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("threads start");
    Box::new(move || {
        let splits = runtime.block_on(async {
            let session = Session::try_new(SessionOptions::default())?;
            let paths = [folder.path().display().to_string()];
            session.register_files("t", &paths, TableOptions::default()).await?;
            let query = session.query("SELECT * FROM t WHERE l_orderkey >= 0").await?;
            query.plan_splits(&PlanOptions::default()).await
        });
        black_box(splits.expect("files that were just written"));
    })
}

/// Rows like those of lineitem: four columns of integers and four of floats.
fn lineitem(first: usize, rows: usize) -> RecordBatch {
    let columns = ["l_orderkey", "l_partkey", "l_suppkey", "l_linenumber"].map(|name| {
        let values = (first..first + rows).map(|row| row as i64);
        (name, Arc::new(Int64Array::from_iter_values(values)) as ArrayRef)
    });
    let floats = ["l_quantity", "l_extendedprice", "l_discount", "l_tax"].map(|name| {
        let values = (first..first + rows).map(|row| row as f64);
        (name, Arc::new(Float64Array::from_iter_values(values)) as ArrayRef)
    });
    RecordBatch::try_from_iter(columns.into_iter().chain(floats)).expect("columns of one length")
}

fn write(path: &Path, batch: &RecordBatch) {
    let file = File::create(path).expect("a file in a new folder");
    let mut writer = ArrowWriter::try_new(file, batch.schema(), None).expect("a known schema");
    writer.write(batch).and_then(|()| writer.close()).expect("room for a small file");
}

/// The function that callgrind counts. It has a symbol of its own, and does nothing but the work.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn measured(work: &mut Box<dyn FnMut()>) {
    work();
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--names"] => WORKS.iter().for_each(|(name, _)| println!("{name}")),
        ["--once", wanted] => {
            let (_, work) = WORKS.iter().find(|(name, _)| *name == wanted).expect("a known name");
            let mut work = work();
            work(); // what is done once per process is no part of it
            measured(&mut work);
        }
        _ => {
            let mut criterion = Criterion::default()
                .without_plots()
                .warm_up_time(Duration::from_secs(1))
                .measurement_time(Duration::from_secs(3))
                .configure_from_args();
            for (name, work) in WORKS {
                criterion.bench_function(name, |bencher| {
                    let mut work = work();
                    bencher.iter_batched(|| (), |()| work(), BatchSize::PerIteration);
                });
            }
            criterion.final_summary();
        }
    }
}
