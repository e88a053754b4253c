//! `* REPLACE (x AS c)` needs a column `c`. DataFusion 53 leaves the replacement out where there is
//! none.

use std::convert::Infallible;
use std::mem;
use std::ops::ControlFlow;

use arrow::datatypes::{DataType, FieldRef};
use datafusion::common::exec_err;
use datafusion::error::Result;
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};
use datafusion::sql::sqlparser::ast::{
    Expr, Ident, ObjectNamePart, Query, SelectItem, SelectItemQualifiedWildcardKind, SetExpr,
    Value, VisitMut, VisitorMut, WildcardAdditionalOptions,
};

use super::call;
use crate::basics::function_basics;

/// The function of a replacement and of the column that it replaces, whose name is looked up with
/// it. Plans have it no longer.
pub(super) const NAME: &str = "replaces";

/// Names the columns that replacements replace, so that the planner looks for them.
pub(in crate::query) fn name_replaced(query: &mut Query) {
    let ControlFlow::Continue(()) = VisitMut::visit(query, &mut Replacements);
}

struct Replacements;

impl VisitorMut for Replacements {
    type Break = Infallible;

    fn post_visit_query(&mut self, query: &mut Query) -> ControlFlow<Infallible> {
        name_in_body(&mut query.body);
        ControlFlow::Continue(())
    }
}

/// The queries of a body in parentheses are visited themselves.
fn name_in_body(body: &mut SetExpr) {
    match body {
        SetExpr::Select(select) => select.projection.iter_mut().for_each(name_in_item),
        SetExpr::SetOperation { left, right, .. } => {
            name_in_body(left);
            name_in_body(right);
        }
        _ => {}
    }
}

fn name_in_item(item: &mut SelectItem) {
    match item {
        SelectItem::Wildcard(options) => name_in(options, &[]),
        SelectItem::QualifiedWildcard(
            SelectItemQualifiedWildcardKind::ObjectName(table),
            options,
        ) => {
            let names = table.0.iter().filter_map(ObjectNamePart::as_ident);
            name_in(options, &names.cloned().collect::<Vec<_>>());
        }
        _ => {}
    }
}

fn name_in(options: &mut WildcardAdditionalOptions, table: &[Ident]) {
    let Some(replace) = &mut options.opt_replace else { return };
    for item in &mut replace.items {
        if item.column_name.quote_style.is_none() {
            // The planner compares the name as it is written.
            let name = item.column_name.value.to_lowercase();
            item.column_name = Ident::with_quote('"', name);
        }
        let mut path = table.to_vec();
        path.push(item.column_name.clone());
        let column = match path.len() {
            1 => Expr::Identifier(item.column_name.clone()),
            _ => Expr::CompoundIdentifier(path),
        };
        let value = mem::replace(&mut item.expr, Expr::Value(Value::Null.into()));
        item.expr = call(NAME, vec![value, column]);
    }
}

/// `replaces(x, c)`.
pub(super) fn function() -> ScalarUDF {
    ScalarUDF::from(Replaces { signature: Signature::any(2, Volatility::Immutable) })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Replaces {
    signature: Signature,
}

impl ScalarUDFImpl for Replaces {
    function_basics!(_this => NAME);

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        Ok(types[0].clone())
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        Ok(args.arg_fields[0].clone())
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let mut args = args.args;
        match args.len() {
            2 => Ok(args.swap_remove(0)),
            other => exec_err!("{NAME}() takes two arguments, not {other}"),
        }
    }
}
