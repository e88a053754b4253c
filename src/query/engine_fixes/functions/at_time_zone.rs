//! `time AT TIME ZONE 'zone'`, as in the standard and PostgreSQL: a time without a zone becomes the
//! instant at which clocks of that zone show it, and an instant becomes their reading. DataFusion
//! 53 keeps the second one an instant.
//!
//! Upstream: apache/datafusion#10368.

use std::sync::Arc;

use arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::exec_err;
use datafusion::error::Result;
use datafusion::functions::expr_fn::to_local_time;
use datafusion::logical_expr::{
    Cast, ColumnarValue, Expr as PlanExpr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};
use datafusion::sql::sqlparser::ast::{Expr, Query};

use super::call;
use crate::basics::function_basics;
use crate::query::engine_fixes::walk::each_of_statement;

/// The function that stands for the operator until types are known. Plans have it no longer.
pub(super) const NAME: &str = "at_time_zone";

/// Writes the operator as a call of the function.
pub(in crate::query) fn zones_as_calls(query: &mut Query) {
    each_of_statement(query, |expr| {
        if let Expr::AtTimeZone { timestamp, time_zone } = expr
            && matches!(&**time_zone, Expr::Value(_))
        {
            *expr = call(NAME, vec![(**timestamp).clone(), (**time_zone).clone()]);
        }
    });
}

/// The cast, or clock reading, for which a call stands.
pub(super) fn written_out(time: PlanExpr, zone: &str, of: &DataType) -> PlanExpr {
    let zone = Some(Arc::from(zone));
    match of {
        DataType::Timestamp(unit, Some(_)) => {
            let there = DataType::Timestamp(*unit, zone);
            to_local_time(vec![PlanExpr::Cast(Cast::new(Box::new(time), there))])
        }
        DataType::Timestamp(unit, None) => {
            PlanExpr::Cast(Cast::new(Box::new(time), DataType::Timestamp(*unit, zone)))
        }
        // As DataFusion has it.
        _ => PlanExpr::Cast(Cast::new(
            Box::new(time),
            DataType::Timestamp(TimeUnit::Nanosecond, zone),
        )),
    }
}

pub(super) fn function() -> ScalarUDF {
    ScalarUDF::from(AtTimeZone { signature: Signature::any(2, Volatility::Immutable) })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct AtTimeZone {
    signature: Signature,
}

impl ScalarUDFImpl for AtTimeZone {
    function_basics!(_this => NAME);

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        Ok(match &types[0] {
            DataType::Timestamp(unit, Some(_)) => DataType::Timestamp(*unit, None),
            DataType::Timestamp(unit, None) => DataType::Timestamp(*unit, Some(Arc::from("UTC"))),
            _ => DataType::Timestamp(TimeUnit::Nanosecond, Some(Arc::from("UTC"))),
        })
    }

    fn invoke_with_args(&self, _: ScalarFunctionArgs) -> Result<ColumnarValue> {
        exec_err!("AT TIME ZONE takes a zone in quotes, as in ts AT TIME ZONE 'Europe/Berlin'")
    }
}
