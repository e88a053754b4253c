//! The decode limit: Parquet to Arrow by the `parquet` crate alone, as fast as this machine does it.
//!
//! `decode [--columns a,b] [--batch-size N] [--threads N] FILE…` decodes the row groups of all files in threads that take
//! the next one when they finish one, drops the batches, and prints one line of JSON. The clock starts before the files are
//! opened, so that footers are in it, as they are in a loader's time. No tensor is made, and no order kept.

use std::fs::File;
use std::hint::black_box;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder,
};

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The options of the command line.
struct Options {
    columns: Option<Vec<String>>,
    batch_size: usize,
    threads: usize,
    files: Vec<PathBuf>,
}

impl Options {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Outcome<Self> {
        let mut options = Self { columns: None, batch_size: 8192, threads: 2, files: Vec::new() };
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
            match argument.as_str() {
                "--columns" => {
                    options.columns = Some(value()?.split(',').map(str::to_owned).collect());
                }
                "--batch-size" => options.batch_size = value()?.parse()?,
                "--threads" => options.threads = value()?.parse()?,
                // What `cargo bench` adds.
                "--bench" => {}
                file => options.files.push(PathBuf::from(file)),
            }
        }
        Ok(options)
    }
}

/// A row group of a file whose footer was read.
struct Unit<'a> {
    path: &'a PathBuf,
    metadata: &'a ArrowReaderMetadata,
    row_group: usize,
}

impl Unit<'_> {
    /// Decodes the row group; its rows.
    fn decode(&self, options: &Options) -> Outcome<usize> {
        let builder = ParquetRecordBatchReaderBuilder::new_with_metadata(
            File::open(self.path)?,
            self.metadata.clone(),
        );
        let mask = match &options.columns {
            None => ProjectionMask::all(),
            Some(names) => {
                ProjectionMask::columns(builder.parquet_schema(), names.iter().map(String::as_str))
            }
        };
        let reader = builder
            .with_projection(mask)
            .with_row_groups(vec![self.row_group])
            .with_batch_size(options.batch_size)
            .build()?;
        let mut rows = 0;
        for batch in reader {
            rows += black_box(batch?).num_rows();
        }
        Ok(rows)
    }
}

/// Decodes everything once; its rows.
fn run(options: &Options) -> Outcome<usize> {
    let metadata = options
        .files
        .iter()
        .map(|path| {
            Ok(ArrowReaderMetadata::load(&File::open(path)?, ArrowReaderOptions::default())?)
        })
        .collect::<Outcome<Vec<_>>>()?;
    let units: Vec<Unit> = options
        .files
        .iter()
        .zip(&metadata)
        .flat_map(|(path, metadata)| {
            let groups = 0..metadata.metadata().num_row_groups();
            groups.map(move |row_group| Unit { path, metadata, row_group })
        })
        .collect();
    let next = AtomicUsize::new(0);
    let worker = || -> Outcome<usize> {
        let mut rows = 0;
        while let Some(unit) = units.get(next.fetch_add(1, Ordering::Relaxed)) {
            rows += unit.decode(options)?;
        }
        Ok(rows)
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..options.threads).map(|_| scope.spawn(worker)).collect();
        workers
            .into_iter()
            .map(|worker| worker.join().map_err(|_| "a thread panicked")?)
            .sum::<Outcome<usize>>()
    })
}

fn main() -> ExitCode {
    let found = Options::parse(std::env::args().skip(1)).and_then(|options| {
        let start = Instant::now();
        let rows = run(&options)?;
        Ok((rows, start.elapsed().as_secs_f64()))
    });
    match found {
        Ok((rows, seconds)) => {
            let build = if cfg!(debug_assertions) { "dev" } else { "release" };
            println!(
                r#"{{"rows": {rows}, "seconds": {seconds}, "complete": true, "build": "{build}"}}"#
            );
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("decode: {error}");
            ExitCode::FAILURE
        }
    }
}
