//! `sum` and `avg` of integers, decimals and durations, exactly: a result that does not fit its
//! type is an error.
//!
//! DataFusion 53 wraps around, in silence. Here the total has twice the width of its values, so
//! that only the result can be too large, in any order of the rows. The sum of booleans is how many
//! are true. Of 32 and 64 bits of decimals the result has 128. Floats are summed by the engine.
//!
//! Upstream: apache/datafusion#17539.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::{
    DataType, Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type,
    DurationMicrosecondType, DurationMillisecondType, DurationNanosecondType, DurationSecondType,
    Field, FieldRef, Int64Type, TimeUnit, UInt64Type,
};
use datafusion::common::internal_err;
use datafusion::error::Result;
use datafusion::functions_aggregate::average::Avg;
use datafusion::functions_aggregate::sum::Sum;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::type_coercion::functions::fields_with_udf;
use datafusion::logical_expr::utils::{AggregateOrderSensitivity, format_state_name};
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, GroupsAccumulator, ReversedUDAF, SetMonotonicity,
    Signature, Volatility,
};

use crate::Error;
use crate::basics::function_basics;

/// Evaluates `$made` with the types of the values and of their total, or `$other` where there is no
/// exact total.
macro_rules! with_types {
    ($of:expr, $made:ident, $other:expr) => {
        match $of {
            DataType::Int64 => $made!(Int64Type, Decimal128Type),
            DataType::UInt64 => $made!(UInt64Type, Decimal128Type),
            DataType::Decimal32(..) => $made!(Decimal32Type, Decimal128Type),
            DataType::Decimal64(..) => $made!(Decimal64Type, Decimal128Type),
            DataType::Decimal128(..) => $made!(Decimal128Type, Decimal256Type),
            DataType::Decimal256(..) => $made!(Decimal256Type, Decimal256Type),
            DataType::Duration(TimeUnit::Second) => $made!(DurationSecondType, Decimal128Type),
            DataType::Duration(TimeUnit::Millisecond) => {
                $made!(DurationMillisecondType, Decimal128Type)
            }
            DataType::Duration(TimeUnit::Microsecond) => {
                $made!(DurationMicrosecondType, Decimal128Type)
            }
            DataType::Duration(TimeUnit::Nanosecond) => {
                $made!(DurationNanosecondType, Decimal128Type)
            }
            _ => $other,
        }
    };
}

mod distinct;
mod groups;
mod outcome;
mod rows;
mod wide;

use distinct::Distinct;
use groups::Groups;
use outcome::Outcome;
use rows::One;
use wide::wide_type;

/// Both functions under their own names.
pub fn exact_totals() -> [AggregateUDF; 2] {
    let (sum, avg) = (AggregateUDF::from(Sum::new()), AggregateUDF::from(Avg::new()));
    [(sum, Rule::Sum), (avg, Rule::Mean)].map(|(inner, rule)| {
        let signature = Signature::user_defined(Volatility::Immutable);
        AggregateUDF::from(Total { inner: Arc::new(inner), rule, signature })
    })
}

/// The kind of a total.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Rule {
    Sum,
    Mean,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Total {
    /// The engine's function: its signature, and all of it for floats.
    inner: Arc<AggregateUDF>,
    rule: Rule,
    signature: Signature,
}

impl AggregateUDFImpl for Total {
    function_basics!(inner);

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        if self.of_engine(types).is_err() {
            return Err(self.unsupported(types).into());
        }
        let (digits, scales) = match self.rule {
            Rule::Sum => (10, 0),
            Rule::Mean => (4, 4),
        };
        match types {
            [DataType::Decimal32(precision, scale) | DataType::Decimal64(precision, scale)] => {
                Ok(DataType::Decimal128((precision + digits).min(38), (scale + scales).min(38)))
            }
            _ => self.inner.inner().return_type(types),
        }
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        Ok(match (self.rule, types) {
            // The sum of a condition is how often it is true.
            (Rule::Sum, [DataType::Boolean | DataType::Null]) => vec![DataType::Int64],
            (Rule::Mean, [DataType::Null]) => vec![DataType::Float64],
            // What the engine does not take is refused by the type of the result: an error here
            // would be wrapped.
            _ => self.of_engine(types).unwrap_or_else(|_| types.to_vec()),
        })
    }

    fn accumulator(&self, args: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        if !is_exact(&args) {
            return self.inner.accumulator(args);
        }
        self.one(args)
    }

    fn create_sliding_accumulator(
        &self,
        args: AccumulatorArgs<'_>,
    ) -> Result<Box<dyn Accumulator>> {
        if !is_exact(&args) {
            return self.inner.create_sliding_accumulator(args);
        }
        self.one(args)
    }

    fn state_fields(&self, args: StateFieldsArgs<'_>) -> Result<Vec<FieldRef>> {
        let of = args.input_fields.first().map(|field| field.data_type().clone());
        let Some(wide) = of.as_ref().and_then(total_type) else {
            return self.inner.inner().state_fields(args);
        };
        let name = |what: &str| format_state_name(args.name, what);
        Ok(match args.is_distinct {
            true => {
                let values = Field::new_list_field(DataType::Decimal256(76, 0), true);
                vec![Arc::new(Field::new_list(name("distinct values"), values, true))]
            }
            false => vec![
                Arc::new(Field::new(name("total"), wide, true)),
                Arc::new(Field::new(name("count"), DataType::UInt64, true)),
            ],
        })
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs<'_>) -> bool {
        match is_exact(&args) {
            true => !args.is_distinct,
            false => self.inner.groups_accumulator_supported(args),
        }
    }

    fn create_groups_accumulator(
        &self,
        args: AccumulatorArgs<'_>,
    ) -> Result<Box<dyn GroupsAccumulator>> {
        let result = self.result(&args);
        macro_rules! made {
            ($values:ty, $totals:ty) => {
                Ok(Box::new(Groups::<$values, $totals>::new(result)))
            };
        }
        with_types!(
            args.expr_fields[0].data_type(),
            made,
            self.inner.create_groups_accumulator(args)
        )
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        ReversedUDAF::Identical
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        AggregateOrderSensitivity::Insensitive
    }

    fn set_monotonicity(&self, of: &DataType) -> SetMonotonicity {
        self.inner.inner().set_monotonicity(of)
    }
}

impl Total {
    /// The types to which the engine casts arguments of these.
    fn of_engine(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        let field = |of: &DataType| Arc::new(Field::new("value", of.clone(), true));
        let fields: Vec<FieldRef> = types.iter().map(field).collect();
        let cast = fields_with_udf(&fields, &*self.inner)?;
        Ok(cast.iter().map(|field| field.data_type().clone()).collect())
    }

    fn unsupported(&self, types: &[DataType]) -> Error {
        let name = self.name();
        let [of] = types else {
            return Error::query(format!(
                "{name}() takes one value, and {} were given",
                types.len()
            ));
        };
        Error::query(match of {
            DataType::Boolean => format!(
                "{name}() takes numbers, and its argument is of the type BOOLEAN; for the share of the rows in which it is true \
                 write {name}(CAST(x AS INT))"
            ),
            _ => format!(
                "{name}() takes numbers and durations, and its argument is of the type {of}; write {name}(CAST(x AS DOUBLE)), or \
                 a number of it, for example extract(epoch FROM x)"
            ),
        })
    }

    fn one(&self, args: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        let result = self.result(&args);
        let of = args.expr_fields[0].data_type();
        if args.is_distinct {
            return Ok(Box::new(Distinct { result, counts: HashMap::new() }));
        }
        macro_rules! made {
            ($values:ty, $totals:ty) => {
                Ok(Box::new(One::<$values, $totals>::new(result)))
            };
        }
        with_types!(of, made, internal_err!("{} of {of} has no exact total", self.name()))
    }

    fn result(&self, args: &AccumulatorArgs<'_>) -> Outcome {
        Outcome {
            rule: self.rule,
            name: args.name.to_owned(),
            of: args.expr_fields[0].data_type().clone(),
            data_type: args.return_field.data_type().clone(),
        }
    }
}

fn is_exact(args: &AccumulatorArgs<'_>) -> bool {
    args.expr_fields.first().is_some_and(|field| total_type(field.data_type()).is_some())
}

/// The type in which totals are kept; None where the engine keeps them.
fn total_type(of: &DataType) -> Option<DataType> {
    macro_rules! made {
        ($values:ty, $totals:ty) => {
            Some(wide_type::<$totals>())
        };
    }
    with_types!(of, made, None)
}
