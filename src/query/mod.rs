//! SQL: parsed, checked to be one read-only statement, and its names and functions judged.

mod check;
mod cut;
mod definition;
mod depth;
mod engine_fixes;
mod functions;
mod moment;
mod parse;
mod sample;
mod statement;
mod travel;

pub use check::{check_plan, check_repeatable, evaluated_once, volatile_function};
pub use cut::{Cut, Sizes, StageTable, find_cuts, provider_of, replace, share_of_columns};
pub use definition::{Definition, Inputs, Layer, is_input};
pub use engine_fixes::common_expressions::common_once;
pub use engine_fixes::functional_dependencies::{blind_to_keys, group_distinct};
#[cfg(feature = "ballista")]
pub use engine_fixes::functions::is_answered_otherwise;
pub use engine_fixes::functions::{TimesOfDay, own_functions};
pub use engine_fixes::kept_from_optimizer::KEEP_EXACT;
pub use engine_fixes::lead_lag::exact_shifts;
pub use engine_fixes::narrow_decimals::NarrowDecimals;
pub use engine_fixes::nested_order::ORDER_NESTED;
pub use engine_fixes::ntile::first_groups_larger;
pub use engine_fixes::null_keys::null_keys_apart;
pub use engine_fixes::overflow::CHECK_ARITHMETIC;
pub use engine_fixes::plan_fixes::mended;
pub use engine_fixes::signed_zeros::EQUAL_ZEROS;
pub use engine_fixes::sliding_frames::SLIDE_ANEW;
pub use engine_fixes::time_texts::SPELL_TIMES;
pub use engine_fixes::totals::exact_totals;
pub use engine_fixes::volatile_calls::Drawn;
pub use engine_fixes::volatile_ctes::check_ctes_drawn_once;
pub use engine_fixes::walk::{inputs_of, with_names};
pub use engine_fixes::wide_star::{below_constant, without_star};
pub use functions::{feature_functions, has_hash_of_rows, hash_of_rows};
pub use moment::{Moment, fix_moment};
pub use parse::{
    LAKE_SCHEMA, LakeName, PATH_SCHEMA, ParsedQuery, parse_predicate, quote_identifier,
};
pub use sample::{SAMPLE_SCHEMA, SampleName, view_is_no_table};
pub use statement::{SoundRelations, distinct_names, is_about_names, with_names_apart};
