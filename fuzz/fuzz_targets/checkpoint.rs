//! The runs of a checkpoint as JSON: read, replayed over some splits, and gone on from.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(init: tensorquery_fuzz::begin(), |bytes: &[u8]| tensorquery_fuzz::resume_checkpoint(bytes));
