//! User functions as DataFusion's scalar functions; their arguments and results are checked around
//! each call.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::{Array, new_empty_array};
use arrow::compute::can_cast_types;
use arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::{
    ColumnarValue, Expr, LogicalPlan, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
};

use crate::basics::function_basics;
use crate::error::pass_through::check_in;
use crate::storage::ForeignFunction;
use crate::{Error, Result};

/// A [`ForeignFunction`] in SQL.
#[derive(Debug)]
pub struct ForeignUdf {
    function: Arc<dyn ForeignFunction>,
    signature: Signature,
}

impl ForeignUdf {
    /// The function for DataFusion.
    pub fn udf(function: Arc<dyn ForeignFunction>) -> ScalarUDF {
        let signature = Signature::user_defined(function.volatility());
        ScalarUDF::new_from_impl(Self { function, signature })
    }

    /// The user's function behind one of DataFusion's.
    pub fn of(udf: &ScalarUDF) -> Option<&Arc<dyn ForeignFunction>> {
        udf.inner().as_any().downcast_ref::<Self>().map(|found| &found.function)
    }

    fn takes(&self) -> String {
        let types: Vec<String> =
            self.function.input_types().iter().map(|t| t.to_string()).collect();
        format!("{}({})", self.function.name(), types.join(", "))
    }
}

impl PartialEq for ForeignUdf {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.function, &other.function)
    }
}

impl Eq for ForeignUdf {}

impl Hash for ForeignUdf {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.function.name().hash(state);
    }
}

impl ScalarUDFImpl for ForeignUdf {
    function_basics!(this => this.function.name());

    fn return_type(&self, _arguments: &[DataType]) -> DfResult<DataType> {
        Ok(self.function.return_type().clone())
    }

    fn coerce_types(&self, given: &[DataType]) -> DfResult<Vec<DataType>> {
        let wanted = self.function.input_types();
        if given.len() != wanted.len() {
            return Err(check_in(Error::query(format!(
                "the function {} takes {} argument{}, got {}",
                self.takes(),
                wanted.len(),
                if wanted.len() == 1 { "" } else { "s" },
                given.len(),
            )))
            .into());
        }
        for (number, (given, wanted)) in given.iter().zip(wanted).enumerate() {
            if !is_taken_for(given, wanted) {
                return Err(check_in(Error::query(format!(
                    "argument {} of the function {} is {given}, which does not become {wanted} by itself; write \
                     CAST(… AS …), or register the function with other input_types",
                    number + 1,
                    self.takes(),
                )))
                .into());
            }
        }
        Ok(wanted.to_vec())
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> DfResult<ColumnarValue> {
        let (rows, wanted) = (args.number_rows, self.function.return_type());
        if rows == 0 {
            return Ok(ColumnarValue::Array(new_empty_array(wanted)));
        }
        let mut arrays = Vec::with_capacity(args.args.len());
        for (value, wanted) in args.args.into_iter().zip(self.function.input_types()) {
            let array = value.into_array(rows)?;
            // A planner may ask with what it makes up; the user's code gets what it was declared
            // with, or nothing.
            if array.data_type() != wanted || array.len() != rows {
                return Err(Error::query(format!(
                    "the engine calls {} with {} rows of {} instead of {rows} of {wanted}",
                    self.takes(),
                    array.len(),
                    array.data_type(),
                ))
                .into());
            }
            arrays.push(array);
        }
        let called = || {
            let array = self.function.call(arrays, rows)?;
            let name = self.function.name();
            if array.data_type() != wanted {
                return Err(Error::data(format!(
                    "the function {name} returned {}, but was registered with return_type {wanted}; cast its \
                     result, or register it with the type that it returns",
                    array.data_type(),
                )));
            }
            if array.len() != rows {
                return Err(Error::data(format!(
                    "the function {name} returned {} values for {rows} rows; it must return one for each row, in the \
                     rows' order",
                    array.len(),
                )));
            }
            Ok(array)
        };
        match called() {
            Ok(array) => Ok(ColumnarValue::Array(array)),
            Err(error) => Err(check_in(error.of_user_code()).into()),
        }
    }
}

/// Returns true if an argument becomes a declared type by itself: where no value loses anything, or
/// else the cast of a value is an error.
fn is_taken_for(given: &DataType, wanted: &DataType) -> bool {
    use DataType::{
        BinaryView, Date32, Date64, Dictionary, Duration, FixedSizeList, LargeList, List, Null,
        Struct, Time32, Time64, Timestamp,
    };
    if given == wanted || *given == Null {
        return true;
    }
    let is_text =
        |t: &DataType| matches!(t, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View);
    let is_binary =
        |t: &DataType| matches!(t, DataType::Binary | DataType::LargeBinary | BinaryView);
    let taken = match (given, wanted) {
        (Dictionary(_, values), _) => is_taken_for(values, wanted),
        (_, Dictionary(_, values)) => is_taken_for(given, values),
        (
            List(one) | LargeList(one) | FixedSizeList(one, _),
            List(other) | LargeList(other) | FixedSizeList(other, _),
        ) => is_taken_for(one.data_type(), other.data_type()),
        (Struct(ours), Struct(theirs)) => {
            ours.len() == theirs.len()
                && ours.iter().zip(theirs).all(|(one, other)| {
                    one.name() == other.name() && is_taken_for(one.data_type(), other.data_type())
                })
        }
        (Timestamp(one, zone), Timestamp(other, other_zone)) => {
            zone.is_some() == other_zone.is_some() && fineness(one) <= fineness(other)
        }
        (Duration(one), Duration(other))
        | (Time32(one) | Time64(one), Time32(other) | Time64(other)) => {
            fineness(one) <= fineness(other)
        }
        (Date32 | Date64, Date32 | Date64 | Timestamp(_, None)) => true,
        (one, other) if one.is_integer() => {
            other.is_integer() || other.is_floating() || other.is_decimal()
        }
        (one, other) if one.is_floating() => other.is_floating(),
        (one, other) if one.is_decimal() => other.is_decimal() || other.is_floating(),
        (one, other) => (is_text(one) && is_text(other)) || (is_binary(one) && is_binary(other)),
    };
    taken && can_cast_types(given, wanted)
}

fn fineness(unit: &TimeUnit) -> u8 {
    match unit {
        TimeUnit::Second => 0,
        TimeUnit::Millisecond => 1,
        TimeUnit::Microsecond => 2,
        TimeUnit::Nanosecond => 3,
    }
}

/// The user's functions in a plan, each once, in order of appearance.
///
/// # Errors
/// `Query` where one name stands for two functions.
pub fn functions_of(plan: &LogicalPlan) -> Result<Vec<Arc<dyn ForeignFunction>>> {
    let mut found: Vec<Arc<dyn ForeignFunction>> = Vec::new();
    plan.apply_with_subqueries(|node| {
        node.apply_expressions(|expr| {
            expr.apply(|expr| {
                if let Expr::ScalarFunction(function) = expr
                    && let Some(ours) = ForeignUdf::of(&function.func)
                {
                    match found.iter().find(|known| known.name() == ours.name()) {
                        None => found.push(Arc::clone(ours)),
                        Some(known) if known.digest() == ours.digest() => {}
                        Some(_) => return Err(two_functions(ours.name()).into()),
                    }
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })
    })?;
    Ok(found)
}

/// The error for two functions with one name in a query.
pub fn two_functions(name: &str) -> Error {
    Error::query(format!(
        "the name {name:?} means two functions here: it was registered again after a view that calls it; register \
         the view again, too"
    ))
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::Field;

    use super::*;

    #[test]
    fn arguments_lose_nothing_on_their_way() {
        use DataType::{
            Dictionary, Float32, Float64, Int32, Int64, LargeUtf8, List, Timestamp, Utf8,
        };
        let list = |item: DataType| List(Arc::new(Field::new("item", item, true)));
        let dictionary = Dictionary(Box::new(Int32), Box::new(Utf8));
        let at = |unit| Timestamp(unit, None);
        let taken = [
            (Int64, Int32),
            (Int64, Float32),
            (Float64, Float32),
            (DataType::Null, Utf8),
            (Utf8, LargeUtf8),
            (dictionary.clone(), Utf8),
            (Utf8, dictionary),
            (list(Int32), list(Float64)),
            (DataType::Date32, at(TimeUnit::Microsecond)),
            (at(TimeUnit::Second), at(TimeUnit::Nanosecond)),
            (DataType::Decimal128(10, 2), Float64),
        ];
        for (given, wanted) in taken {
            assert!(is_taken_for(&given, &wanted), "{given} should become {wanted}");
        }
        let refused = [
            (Float64, Int64),
            (Utf8, Int64),
            (Int64, Utf8),
            (DataType::Boolean, Int64),
            (list(Utf8), list(Int64)),
            (Int64, list(Int64)),
            (at(TimeUnit::Nanosecond), at(TimeUnit::Second)),
            (DataType::Decimal128(10, 2), Int64),
        ];
        for (given, wanted) in refused {
            assert!(!is_taken_for(&given, &wanted), "{given} should not become {wanted}");
        }
    }
}
