//! A filter as text: judged and, where it is one predicate, planned and run over a small table.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(init: tensorquery_fuzz::begin(), |bytes: &[u8]| tensorquery_fuzz::run_filter(bytes));
