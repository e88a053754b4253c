//! Functions of the time (`now()`, `current_date`, `current_time`): their values are fixed when a
//! query is made.

use std::sync::Arc;

use chrono::{DateTime, NaiveDate, SecondsFormat, Utc};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::config::ConfigOptions;
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::{Expr, LogicalPlan, Volatility};
use serde::{Deserialize, Serialize};

use super::check::each_function;
use super::with_names;
use crate::{Error, Result};

/// The one function of the time that a day suffices for.
const OF_THE_DAY: &str = "current_date";

/// The instant that a query's functions of the time stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moment {
    at: DateTime<Utc>,
    /// Whether the query depends on the day alone: then two instants of a day are the same to it.
    day: bool,
}

impl Moment {
    /// The instant.
    pub fn at(self) -> DateTime<Utc> {
        self.at
    }

    /// As much of it as the query depends on, in ISO 8601: equal texts give equal rows.
    pub fn text(self) -> String {
        match self.day {
            true => self.at.format("%Y-%m-%d").to_string(),
            false => self.at.to_rfc3339_opts(SecondsFormat::Nanos, true),
        }
    }

    /// The moment of a text that [`text`](Self::text) gave.
    ///
    /// # Errors
    /// `Config` where it is none.
    pub fn parse(text: &str) -> Result<Self> {
        if let Ok(instant) = DateTime::parse_from_rfc3339(text) {
            return Ok(Self { at: instant.to_utc(), day: false });
        }
        let midnight = NaiveDate::parse_from_str(text, "%Y-%m-%d")
            .ok()
            .and_then(|day| day.and_hms_opt(0, 0, 0))
            .ok_or_else(|| {
                Error::config(format!(
                    "{text:?} must be a day (2026-01-31) or an instant (2026-01-31T12:00:00Z)"
                ))
            })?;
        Ok(Self { at: midnight.and_utc(), day: true })
    }
}

/// The plan with the values of its functions of the time as literals, and the moment that they are
/// of; None where it has no function that is stable.
///
/// Before, for `SELECT id FROM t WHERE ts > now()`, and after:
/// ```text
/// Filter: t.ts > now()
/// Filter: t.ts > TimestampNanosecond(1767225600000000000, None)
/// ```
/// A stable user function stays: its result is unknown here. It has a moment all the same, so that
/// another planning is another query.
///
/// # Errors
/// None that a plan which was analysed has.
pub fn fix_moment(
    plan: LogicalPlan,
    at: DateTime<Utc>,
    options: &Arc<ConfigOptions>,
) -> Result<(LogicalPlan, Option<Moment>)> {
    let mut found: Option<bool> = None;
    each_function(&plan, |function| {
        if function.signature().volatility == Volatility::Stable {
            found = Some(found.unwrap_or(true) && function.name() == OF_THE_DAY);
        }
    })?;
    let Some(day) = found else { return Ok((plan, None)) };
    let context = SimplifyContext::default()
        .with_config_options(Arc::clone(options))
        .with_query_execution_start_time(Some(at));
    let fixed = plan.transform_up_with_subqueries(|node| {
        // A column is called after its expression: `now()` goes on being called so.
        with_names(node, |expr| expr.transform_up(|expr| value_of(expr, &context)))
    })?;
    Ok((fixed.data, Some(Moment { at, day })))
}

/// The literal for which a function of the time stands; any other expression unchanged.
fn value_of(expr: Expr, context: &SimplifyContext) -> DfResult<Transformed<Expr>> {
    match expr {
        Expr::ScalarFunction(function)
            if function.func.signature().volatility == Volatility::Stable =>
        {
            Ok(match function.func.simplify(function.args.clone(), context)? {
                ExprSimplifyResult::Simplified(value) => Transformed::yes(value),
                ExprSimplifyResult::Original(_) => Transformed::no(Expr::ScalarFunction(function)),
            })
        }
        other => Ok(Transformed::no(other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_says_as_much_as_the_query_depends_on() {
        let instant = Moment::parse("2026-01-31T12:34:56.000000789Z").unwrap();
        assert_eq!(instant.text(), "2026-01-31T12:34:56.000000789Z");
        let day = Moment { day: true, ..instant };
        assert_eq!(day.text(), "2026-01-31");
        assert_eq!(Moment::parse(&day.text()).unwrap().text(), day.text());
        assert!(Moment::parse("yesterday").is_err());
    }
}
