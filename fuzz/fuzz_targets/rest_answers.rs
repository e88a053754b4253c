//! A REST catalog whose answers are damaged: listed, and one of its tables read.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(init: tensorquery_fuzz::begin(), |bytes: &[u8]| tensorquery_fuzz::ask_rest_catalog(bytes));
