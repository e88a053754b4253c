//! Tests of `tensor`.
