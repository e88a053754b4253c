//! GROUP BY as other dialects write it.

use datafusion::sql::sqlparser::ast::{
    BinaryOperator, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArgumentList,
    FunctionArguments, GroupByExpr, GroupByWithModifier, Ident, ObjectName, Select, SelectItem,
    Value,
};

use super::calls::is_aggregate;
use super::equal::number;
use super::orders::calls_outside_subqueries;
use super::refused;
use crate::Result;

/// Rewrites `GROUP BY ()`, `GROUP BY (a, b)`, `GROUP BY … WITH ROLLUP`, `GROUP BY a, b GROUPING
/// SETS (…)`, `GROUP BY ALL`, and places of columns below them.
///
/// # Errors
/// `Query` for a modifier that has no equal clause.
pub(super) fn rewrite(select: &mut Select) -> Result<()> {
    without_empty(select);
    without_brackets(select);
    let Select { group_by, projection, .. } = select;
    let rewritten = match &*group_by {
        GroupByExpr::All(modifiers) if modifiers.is_empty() => all(projection),
        GroupByExpr::All(_) => None,
        GroupByExpr::Expressions(exprs, modifiers) => {
            modified(exprs, modifiers)?.map(|sets| vec![sets])
        }
    };
    if let Some(exprs) = rewritten {
        *group_by = GroupByExpr::Expressions(exprs, Vec::new());
    }
    if let GroupByExpr::Expressions(exprs, _) = group_by {
        for expr in exprs {
            if let Expr::Rollup(sets) | Expr::Cube(sets) | Expr::GroupingSets(sets) = expr {
                sets.iter_mut().flatten().try_for_each(|key| place(key, projection))?;
            }
            if let Expr::GroupingSets(sets) = expr {
                sets.iter().flatten().try_for_each(check_nested)?;
            }
            written_out(expr)?;
        }
    }
    Ok(())
}

/// `GROUP BY a, ()` as `GROUP BY a`; and `GROUP BY ()`, the one group of all rows, as HAVING with
/// an aggregate. HAVING alone makes that group, too, and the planner wants an aggregate in it.
fn without_empty(select: &mut Select) {
    let GroupByExpr::Expressions(keys, modifiers) = &mut select.group_by else { return };
    let is_empty = |key: &Expr| match key {
        Expr::Tuple(parts) => parts.is_empty(),
        Expr::GroupingSets(sets) => matches!(&sets[..], [set] if set.is_empty()),
        _ => false,
    };
    let before = keys.len();
    keys.retain(|key| !is_empty(key));
    let is_one_group = keys.len() < before || select.having.is_some();
    if !is_one_group || !keys.is_empty() || !modifiers.is_empty() {
        return;
    }
    // Rows are counted as zero or more.
    let all = Expr::BinaryOp {
        left: Box::new(count_rows()),
        op: BinaryOperator::GtEq,
        right: Box::new(number(0)),
    };
    select.having = Some(match select.having.take() {
        None => all,
        Some(own) => Expr::BinaryOp {
            left: Box::new(Expr::Nested(Box::new(own))),
            op: BinaryOperator::And,
            right: Box::new(all),
        },
    });
}

/// `GROUP BY (a, b)` as `GROUP BY a, b`: the standard reads brackets as one set of keys, and the
/// planner as a struct.
fn without_brackets(select: &mut Select) {
    let GroupByExpr::Expressions(keys, _) = &mut select.group_by else { return };
    let flat = |key| match key {
        Expr::Tuple(parts) => parts,
        key => vec![key],
    };
    *keys = std::mem::take(keys).into_iter().flat_map(flat).collect();
}

/// `count(*)`.
fn count_rows() -> Expr {
    let all = FunctionArg::Unnamed(FunctionArgExpr::Wildcard);
    Expr::Function(Function {
        name: ObjectName::from(vec![Ident::new("count")]),
        uses_odbc_syntax: false,
        parameters: FunctionArguments::None,
        args: FunctionArguments::List(FunctionArgumentList {
            duplicate_treatment: None,
            args: vec![all],
            clauses: Vec::new(),
        }),
        filter: None,
        null_treatment: None,
        over: None,
        within_group: Vec::new(),
    })
}

fn check_nested(key: &Expr) -> Result<()> {
    let Expr::Function(function) = key else { return Ok(()) };
    match function.name.to_string().to_uppercase() {
        name if name == "ROLLUP" || name == "CUBE" => Err(refused(
            &format!("{name} in GROUPING SETS"),
            "write its sets out: GROUPING SETS ((a, b), (a), ()) for ROLLUP (a, b)",
        )),
        _ => Ok(()),
    }
}

/// ROLLUP and CUBE over lists of keys, or over a key twice, as GROUPING SETS: the planner refuses
/// them, or makes a column of each.
fn written_out(expr: &mut Expr) -> Result<()> {
    let (Expr::Rollup(lists) | Expr::Cube(lists)) = &*expr else { return Ok(()) };
    let keys: Vec<&Expr> = lists.iter().flatten().collect();
    let repeats = (1..keys.len()).any(|at| keys[..at].contains(&keys[at]));
    if !repeats && lists.iter().all(|list| list.len() == 1) {
        return Ok(());
    }
    let set = |takes: &dyn Fn(usize) -> bool| {
        let mut set: Vec<Expr> = Vec::new();
        for key in (0..lists.len()).filter(|at| takes(*at)).flat_map(|at| &lists[at]) {
            if !set.contains(key) {
                set.push(key.clone());
            }
        }
        set
    };
    let sets = match expr {
        Expr::Rollup(_) => (0..=lists.len()).rev().map(|length| set(&|at| at < length)).collect(),
        _ if lists.len() > MOST_LISTS => {
            return Err(refused(
                &format!("CUBE over {} lists of keys", lists.len()),
                "name the sets that you need: GROUPING SETS ((…), …)",
            ));
        }
        _ => (0..1_usize << lists.len()).rev().map(|of| set(&|at| of >> at & 1 == 1)).collect(),
    };
    *expr = Expr::GroupingSets(sets);
    Ok(())
}

/// The most lists of a CUBE that is written out: 1,024 sets.
const MOST_LISTS: usize = 10;

/// The keys with the modifiers after WITH, as one expression; None without.
fn modified(exprs: &[Expr], modifiers: &[GroupByWithModifier]) -> Result<Option<Expr>> {
    let each = || exprs.iter().map(|expr| vec![expr.clone()]).collect();
    match modifiers {
        [] => Ok(None),
        [GroupByWithModifier::Rollup] => Ok(Some(Expr::Rollup(each()))),
        [GroupByWithModifier::Cube] => Ok(Some(Expr::Cube(each()))),
        // Hive and Spark name the keys first, and then the sets of them.
        [GroupByWithModifier::GroupingSets(sets @ Expr::GroupingSets(_))] => Ok(Some(sets.clone())),
        [GroupByWithModifier::Totals] => {
            Err(refused("GROUP BY … WITH TOTALS", "write GROUP BY GROUPING SETS ((a, b), ())"))
        }
        _ => Err(refused(
            "GROUP BY with several of ROLLUP, CUBE and TOTALS",
            "write GROUPING SETS ((…), …)",
        )),
    }
}

/// `GROUP BY ALL` as the places of the columns without an aggregate, where none is `*`: the planner
/// takes every column that is not an aggregate itself, `sum(x) + 1` among them.
fn all(projection: &[SelectItem]) -> Option<Vec<Expr>> {
    let mut places = Vec::new();
    for (at, item) in projection.iter().enumerate() {
        match item {
            SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } => {
                // What a subquery gives depends on the other columns alone.
                if !has_aggregate(expr) && !matches!(expr, Expr::Subquery(_)) {
                    places.push(number(at + 1));
                }
            }
            SelectItem::Wildcard(_) | SelectItem::QualifiedWildcard(..) => return None,
        }
    }
    Some(places)
}

/// Returns true if an expression has an aggregate or a window function outside its subqueries.
fn has_aggregate(expr: &Expr) -> bool {
    let is_wanted = |function: &Function| function.over.is_some() || is_aggregate(function);
    !calls_outside_subqueries(expr, is_wanted).is_empty()
}

/// The column at a place: below ROLLUP, CUBE and GROUPING SETS the planner takes its number for a
/// constant.
fn place(key: &mut Expr, projection: &[SelectItem]) -> Result<()> {
    let Expr::Value(value) = &*key else { return Ok(()) };
    let Value::Number(text, _) = &value.value else { return Ok(()) };
    let at = text.parse::<usize>().ok().and_then(|place| place.checked_sub(1));
    let before = at.and_then(|at| projection.get(..=at)).unwrap_or_default();
    let named = before.iter().map(|item| match item {
        SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } => Some(expr),
        SelectItem::Wildcard(_) | SelectItem::QualifiedWildcard(..) => None,
    });
    match named.collect::<Option<Vec<_>>>().and_then(|exprs| exprs.last().copied().cloned()) {
        Some(expr) => {
            *key = expr;
            Ok(())
        }
        None => Err(refused(
            &format!("the column number {text} below ROLLUP, CUBE or GROUPING SETS"),
            "write the column's name",
        )),
    }
}
