//! Tests of `stream`.
