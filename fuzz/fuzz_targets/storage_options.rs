//! A URL and the options of its store as JSON: read and opened, without a request.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(init: tensorquery_fuzz::begin(), |bytes: &[u8]| tensorquery_fuzz::open_store(bytes));
