//! Functions of SQL that ranking models need and the engine does not have: stable hashes, buckets,
//! lists as vectors, weights that decay with time, and cyclic times. `docs/recommenders.md` has
//! their formulas.
//!
//! All are immutable and compute whole arrays, so they run in splits, workers and ranks alike. An
//! argument that says how to compute (a seed, a modulus, boundaries) is a constant. It is checked
//! when the query is planned if it is written out there, and read once for each batch.

mod arguments;
mod bucketize;
mod hash;
mod lists;
mod times;

use std::hash::{Hash, Hasher};
use std::ops::RangeInclusive;
use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::ScalarValue;
use datafusion::error::{DataFusionError, Result as DfResult};
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};

use self::arguments::Call;
pub use self::hash::{has_hash_of_rows, hash_of_rows};
use crate::basics::function_basics;
use crate::error::pass_through::check_in;
use crate::{Error, Result};

static ALL: [&Spec; 7] = [
    &hash::HASH64,
    &bucketize::BUCKETIZE,
    &lists::MULTI_HOT,
    &lists::TOP_K,
    &times::TIME_DECAY,
    &times::CYCLIC_SIN,
    &times::CYCLIC_COS,
];

/// The functions, as a session registers them.
pub fn feature_functions() -> impl Iterator<Item = Arc<ScalarUDF>> {
    ALL.iter().map(|spec| {
        let signature = Signature::user_defined(Volatility::Immutable);
        Arc::new(ScalarUDF::from(Feature { spec, signature }))
    })
}

/// A function: its name, its arguments, and how it computes.
struct Spec {
    name: &'static str,
    /// The call with its arguments, for messages.
    usage: &'static str,
    arguments: RangeInclusive<usize>,
    /// Returns the types that it takes its arguments in, or refuses them.
    coerce: fn(&[DataType]) -> Result<Vec<DataType>>,
    /// Returns the type of its values, and refuses constants that are written out.
    output: fn(&[DataType], &[Option<&ScalarValue>]) -> Result<DataType>,
    compute: fn(&Call<'_>) -> Result<ArrayRef>,
}

struct Feature {
    spec: &'static Spec,
    signature: Signature,
}

impl std::fmt::Debug for Feature {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Feature").field("name", &self.spec.name).finish_non_exhaustive()
    }
}

impl PartialEq for Feature {
    fn eq(&self, other: &Self) -> bool {
        self.spec.name == other.spec.name
    }
}

impl Eq for Feature {}

impl Hash for Feature {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.spec.name.hash(state);
    }
}

impl ScalarUDFImpl for Feature {
    function_basics!(this => this.spec.name);

    fn return_type(&self, types: &[DataType]) -> DfResult<DataType> {
        (self.spec.output)(types, &vec![None; types.len()]).map_err(kept)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> DfResult<FieldRef> {
        let types: Vec<_> = args.arg_fields.iter().map(|field| field.data_type().clone()).collect();
        let output = (self.spec.output)(&types, args.scalar_arguments).map_err(kept)?;
        let is_nullable = args.arg_fields.iter().any(|field| field.is_nullable());
        Ok(Arc::new(Field::new(self.name(), output, is_nullable)))
    }

    fn coerce_types(&self, types: &[DataType]) -> DfResult<Vec<DataType>> {
        if !self.spec.arguments.contains(&types.len()) {
            return Err(kept(Error::query(format!(
                "{}() got {} arguments; write {}",
                self.spec.name,
                types.len(),
                self.spec.usage
            ))));
        }
        (self.spec.coerce)(types).map_err(kept)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> DfResult<ColumnarValue> {
        let is_one = args.args.iter().all(|arg| matches!(arg, ColumnarValue::Scalar(_)));
        let rows = if is_one { 1 } else { args.number_rows };
        let output = args.return_field.data_type();
        let found = (self.spec.compute)(&Call { args: &args.args, rows, output }).map_err(kept)?;
        Ok(match is_one {
            true => ColumnarValue::Scalar(ScalarValue::try_from_array(&found, 0)?),
            false => ColumnarValue::Array(found),
        })
    }
}

/// The error for the engine, some of whose layers pass on no more than text.
fn kept(error: Error) -> DataFusionError {
    check_in(error.of_user_code()).into()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use datafusion::functions::all_default_functions;
    use datafusion::functions_aggregate::all_default_aggregate_functions;
    use datafusion::functions_nested::all_default_nested_functions;
    use datafusion::functions_window::all_default_window_functions;

    use super::*;

    #[test]
    fn no_name_is_one_of_the_engines_own() {
        let mut known: HashSet<String> = HashSet::new();
        for function in all_default_functions().iter().chain(&all_default_nested_functions()) {
            known.insert(function.name().to_owned());
            known.extend(function.aliases().iter().cloned());
        }
        for function in all_default_aggregate_functions() {
            known.insert(function.name().to_owned());
            known.extend(function.aliases().iter().cloned());
        }
        known.extend(all_default_window_functions().iter().map(|found| found.name().to_owned()));
        assert!(known.len() > 250, "{}", known.len());
        for function in feature_functions() {
            assert!(!known.contains(function.name()), "{}", function.name());
        }
    }
}
