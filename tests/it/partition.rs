//! Tests of `partition`.
