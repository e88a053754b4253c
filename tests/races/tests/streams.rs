//! The crate's own tests of streams: any shards, several threads, from every cursor on.

extern crate tensorquery_races as tensorquery;

#[path = "../../it/cursors.rs"]
mod cursors;
#[path = "../../it/epochs.rs"]
mod epochs;
#[path = "../../it/stream.rs"]
mod stream;
