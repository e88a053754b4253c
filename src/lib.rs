//! tensorquery: a SQL query over files becomes exact, sharded batches of tensors.
//!
//! The flow goes one way: SQL → [`session`] → physical plan → [`exec`] (classify and rewrite) →
//! splits of [`formats`] → [`sharding`] (balance and deal) → [`stream`] (read ahead, shuffle, cut)
//! → [`tensor`]s.
//!
//! A room imports only rooms below it in this list (`tests/python/project/test_rooms.py` asserts it):
//!
//! - `python`: feature `python`, the only code that knows pyo3
//! - `stream`: read-ahead, shuffle windows, exact batches, hand-over to the consumer
//! - `row_store`: a plan's rows on local disk, read at random
//! - `session`: registered tables, lazy queries, plans by splits, worker plans
//! - `ballista`: feature `ballista`, parts of queries computed by a cluster
//! - `engine`: DataFusion's rules and options, each by name, on or off
//! - `exec`: the plan rewrite, the split scan, build sides
//! - `materialize`: parts of queries that run once
//! - `catalog`: tables over pinned files
//! - `query`: parse, check, classify; `engine_fixes` has one file per fault of the engine
//! - `delta`: Delta's log, files of a version, deletion vectors
//! - `iceberg`: snapshots, manifests, deletes, catalogs
//! - `sharding`: LPT, equal shares, cursors, resume: pure functions over split metadata
//! - `formats`: Parquet, ORC, Avro, Arrow IPC and text: splits found, weighed, pruned, read
//! - `prune`: the proof of pruning
//! - `storage`: URL → object store; options, credentials, retries, caches
//! - `tensor`: Arrow batches → dtype, shape, strides
//! - `matrix`: columns of one type written side by side
//! - `fingerprint`: the hashed values, in an explicit versioned form
//! - `varint`: numbers in few bytes
//! - `panics`: panics of other crates as errors
//! - `runtime`: tokio runtimes, rebuilt after a fork
//! - `request_limiter`: a process's limit on concurrent requests
//! - `pool`: blocks of memory used again
//! - `floats`: how floats compare
//! - `basics`: methods that functions and plan nodes of ours write alike
//! - `bounds`: the most that data of unknown origin may take
//! - `error`: the one error type

#[cfg(feature = "ballista")]
mod ballista;
mod basics;
pub mod bounds;
pub mod catalog;
pub mod delta;
mod engine;
mod error;
pub mod exec;
mod fingerprint;
mod floats;
pub mod formats;
pub mod iceberg;
pub mod materialize;
pub mod matrix;
mod panics;
mod pool;
mod prune;
#[cfg(feature = "python")]
mod python;
pub mod query;
pub mod request_limiter;
pub mod row_store;
pub mod runtime;
pub mod session;
pub mod sharding;
pub mod storage;
pub mod stream;
pub mod tensor;
mod varint;

pub use error::{Error, ErrorKind, Result, list_names, nearest, suggestion};
