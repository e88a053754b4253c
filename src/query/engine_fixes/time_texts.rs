//! Timestamps and times as text, as the SQL standard, PostgreSQL, DuckDB and Spark write them:
//! `2024-01-02 03:04:05.5`.
//!
//! DataFusion 53 writes `2024-01-02T03:04:05.500`, so that `CAST(ts AS VARCHAR) = '2024-01-02
//! 03:04:05.5'` found no row. So a cast to text is a function of ours. An offset follows a time
//! with a zone (`+00`, `+05:30`), in the clocks of that zone.

use std::sync::{Arc, LazyLock};

use arrow::array::{AsArray, StringArray};
use arrow::compute::cast;
use arrow::datatypes::DataType;
use datafusion::common::DFSchema;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::error::Result;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{
    Cast, ColumnarValue, Expr, ExprSchemable, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl,
    Signature, TryCast, Volatility,
};

use super::walk::{PlanRule, inputs_of, with_names};
use crate::basics::{computed, function_basics};

/// The rule; before those that compute constants.
pub const SPELL_TIMES: PlanRule = PlanRule::new("spell_times", |plan, _| {
    plan.transform_down_with_subqueries(|node| {
        let schema = inputs_of(&node)?;
        with_names(node, |expr| expr.transform_down(|expr| spelled(expr, &schema)))
    })
});

fn spelled(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let (Expr::Cast(Cast { expr: inner, data_type })
    | Expr::TryCast(TryCast { expr: inner, data_type })) = &expr
    else {
        return Ok(Transformed::no(expr));
    };
    if !data_type.is_string() || !is_time(&inner.get_type(schema)?) {
        return Ok(Transformed::no(expr));
    }
    let text = ScalarFunction::new_udf(Arc::clone(&TIME_TEXT), vec![(**inner).clone()]);
    let text = Expr::ScalarFunction(text);
    Ok(Transformed::yes(match data_type {
        DataType::Utf8 => text,
        other => Expr::Cast(Cast::new(Box::new(text), other.clone())),
    }))
}

fn is_time(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Timestamp(..) | DataType::Time32(_) | DataType::Time64(_))
}

static TIME_TEXT: LazyLock<Arc<ScalarUDF>> = LazyLock::new(|| Arc::new(function()));

/// `time_text(x)`.
pub(super) fn function() -> ScalarUDF {
    ScalarUDF::from(TimeText { signature: Signature::any(1, Volatility::Immutable) })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct TimeText {
    signature: Signature,
}

impl ScalarUDFImpl for TimeText {
    function_basics!("time_text");

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Utf8)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        computed(&args, |values| {
            let texts = cast(&values[0], &DataType::Utf8)?;
            let texts = texts.as_string::<i32>().iter().map(|text| text.map(by_the_standard));
            Ok(Arc::new(texts.collect::<StringArray>()))
        })
    }
}

/// `2024-01-02T03:04:05.500+05:30` as `2024-01-02 03:04:05.5+05:30`.
fn by_the_standard(text: &str) -> String {
    let (day, clock) = match text.split_once('T') {
        Some((day, clock)) => (Some(day), clock),
        None => (None, text),
    };
    let (clock, offset) = match clock.find(['Z', '+', '-']) {
        Some(at) => clock.split_at(at),
        None => (clock, ""),
    };
    let clock = match clock.split_once('.') {
        Some((whole, digits)) => match digits.trim_end_matches('0') {
            "" => whole.to_owned(),
            digits => format!("{whole}.{digits}"),
        },
        None => clock.to_owned(),
    };
    let offset = match offset {
        "Z" => "+00",
        offset => offset.strip_suffix(":00").unwrap_or(offset),
    };
    match day {
        Some(day) => format!("{day} {clock}{offset}"),
        None => format!("{clock}{offset}"),
    }
}
