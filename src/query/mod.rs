//! SQL: parsed, checked to be one read-only statement, and its names and functions judged.

mod check;
mod parse;
mod travel;

pub use check::{check_output_names, check_repeatable};
pub use parse::{
    LAKE_SCHEMA, LakeName, PATH_SCHEMA, ParsedQuery, check_predicate, parse_query, quote_identifier,
};
