//! Faults of DataFusion 53: one file for each, with the fault, the wrong answer, and the
//! replacement. `Upstream` names the issues that ask for the same; where a file names none, none
//! was found on 2026-11-27.
//!
//! Three kinds. Statements are changed before they are planned (`distinct_precedence`,
//! `row_comparisons`, `number_digits`), or refused where no right answer is possible (`refused`,
//! `volatile_ctes`). Plans are changed before they are analysed: `plan_fixes` lists these changes
//! in their order. Rules among the optimiser's keep it from wrong rewrites (`kept_from_optimizer`,
//! `signed_zeros`, `sliding_frames`, `functional_dependencies`, `overflow`). Functions under the
//! engine's names answer rightly (`functions/`, `totals`, `lead_lag`, `ntile`). `walk` has the
//! walks and the rules that several share.

pub(super) mod common_expressions;
pub(super) mod distinct_precedence;
mod equal_grouping_sets;
pub(super) mod functional_dependencies;
pub(super) mod functions;
mod grand_total;
mod interval_lengths;
pub(super) mod kept_from_optimizer;
pub(super) mod lead_lag;
pub(super) mod narrow_decimals;
pub(super) mod nested_order;
pub(super) mod ntile;
pub(super) mod null_keys;
pub(super) mod number_digits;
mod numbers_as_text;
pub(super) mod overflow;
pub(super) mod plan_fixes;
pub(super) mod refused;
mod regexes;
pub(super) mod row_comparisons;
mod rule_around;
pub(super) mod signed_zeros;
mod single_value;
pub(super) mod sliding_frames;
mod standard_meanings;
mod subqueries;
mod time_constants;
pub(super) mod time_texts;
mod timestamp_casts;
mod timestamp_units;
pub(super) mod totals;
pub(super) mod volatile_calls;
pub(super) mod volatile_ctes;
pub(super) mod walk;
pub(super) mod wide_star;
