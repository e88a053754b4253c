//! A deletion vector that is damaged: decoded, and read as a part of a table.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(init: tensorquery_fuzz::begin(), |bytes: &[u8]| tensorquery_fuzz::read_vector(bytes));
