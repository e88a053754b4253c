//! A file or stream of Arrow IPC whose metadata lie: opened, planned and read to tensors.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(init: tensorquery_fuzz::begin(), |bytes: &[u8]| tensorquery_fuzz::read_file("arrow", &tensorquery_fuzz::ipc_file(bytes)));
