//! Errors name the value, what was allowed and the fix.

use tensorquery::{Error, ErrorKind, suggestion};

#[test]
fn an_error_shows_context_and_source() {
    let error = Error::new(ErrorKind::Data, "bad row group")
        .with_context("file", "a.parquet")
        .with_source("checksum");
    assert_eq!(error.to_string(), "bad row group (file: a.parquet): checksum");
}

#[test]
fn a_near_name_is_suggested_and_a_far_one_is_not() {
    assert_eq!(suggestion("lable", ["label", "user"]), "; did you mean \"label\"?");
    assert_eq!(suggestion("zzzzzz", ["label", "user"]), "");
}
