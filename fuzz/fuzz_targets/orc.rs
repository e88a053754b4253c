//! Bytes of a file in ORC: opened, planned and read to tensors.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(init: tensorquery_fuzz::begin(), |bytes: &[u8]| tensorquery_fuzz::read_file("orc", bytes));
