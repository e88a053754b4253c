//! SQL: parsed, checked to be one read-only statement, and its names and functions judged.

mod arithmetic;
mod check;
mod common_once;
mod cut;
mod depth;
mod drawn;
mod equal_sets;
mod exact;
mod functions;
mod grand_total;
mod instants;
mod keys;
mod lengths;
mod meanings;
mod mended;
mod moment;
mod narrow_decimals;
mod ntile;
mod null_keys;
mod numerals;
mod one_value;
mod parse;
mod precedence;
mod redrawn;
mod regexes;
mod row_values;
mod sample;
mod shift;
mod sliding;
mod spelled;
mod star;
mod statement;
mod subquery;
mod to_instant;
mod totals;
mod travel;
mod units;
mod unsound;
mod zeros;

pub use arithmetic::CheckArithmetic;
pub use check::{check_plan, check_repeatable, evaluated_once, volatile_function};
pub use common_once::CommonOnce;
pub use cut::{Cut, Sizes, StageTable, find_cuts, provider_of, replace, share_of_columns};
pub use drawn::Drawn;
pub use exact::KeepExact;
#[cfg(feature = "ballista")]
pub use functions::is_answered_otherwise;
pub use functions::{TimesOfDay, own_functions};
pub use keys::{GroupDistinct, WithoutKeys};
pub use mended::mended;
pub use moment::{Moment, fix_moment};
pub use narrow_decimals::NarrowDecimals;
pub use ntile::first_groups_larger;
pub use null_keys::NullKeys;
pub use parse::{
    LAKE_SCHEMA, LakeName, PATH_SCHEMA, ParsedQuery, as_relation, check_predicate, narrow,
    parse_query, quote_identifier,
};
pub use redrawn::check_ctes_drawn_once;
pub use sample::{SAMPLE_SCHEMA, SampleName, view_is_no_table};
pub use shift::exact_shifts;
pub use sliding::SlideAnew;
pub use star::{below_constant, without_star};
pub use statement::{SoundRelations, distinct_names, is_about_names, with_names_apart};
pub use totals::exact_totals;
pub use zeros::EqualZeros;
