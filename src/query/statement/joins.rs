//! `JOIN … USING` and `NATURAL JOIN`: one column of the two that are equal.
//!
//! The planner takes the left one for the name alone, which a RIGHT or FULL JOIN makes NULL, and
//! for `*` the one whose table comes first in the alphabet, which a LEFT JOIN makes NULL; of `a
//! SEMI JOIN b USING (k)` it loses `k`; and `k` is ambiguous for a third table. So each such join,
//! with all to the left of it, becomes a relation of its own that [`planner`](super::planner)
//! plans:
//!
//! ```text
//! a JOIN b ON … LEFT JOIN c USING (k) JOIN d ON …     (a JOIN b ON … LEFT JOIN c USING (k)) JOIN d ON …
//! ```
//!
//! Its columns are the left side's, then the right side's without the keys. The key is the left
//! one's (INNER, LEFT), the right one's (RIGHT) or the first that is not NULL (FULL). A key of the
//! other side that the SELECT names (`c.k IS NULL`) is kept beside under a name of its own, which
//! `*` leaves out.

use std::collections::{BTreeSet, HashSet};
use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    ExcludeSelectItem, Expr, Ident, Join, JoinConstraint, JoinOperator, ObjectName, ObjectNamePart,
    OrderBy, Query, Select, SelectItem, SelectItemQualifiedWildcardKind, SetExpr, TableAlias,
    TableAliasColumnDef, TableFactor, TableWithJoins, Visit, VisitMut, Visitor, VisitorMut,
    WildcardAdditionalOptions,
};

use super::{MARK, refused};
use crate::{Error, Result};

/// The name of the relation that such a join becomes.
pub(super) fn mark() -> String {
    format!("{MARK}using")
}

/// A table's name and a key of it.
type Key = (String, String);

/// The name under which a key is kept beside.
pub(super) fn hidden(table: &str, key: &str) -> String {
    format!("{MARK}{table}{MARK}{key}")
}

/// The name under which a NATURAL JOIN is told that a column may not be one of its keys.
fn no_key(table: &str, column: &str) -> String {
    format!("{MARK}{}", hidden(table, column))
}

/// The request that a column of the marked relation encodes.
pub(super) enum Asked<'a> {
    Keep { table: &'a str, key: &'a str },
    NoKey { table: &'a str, column: &'a str },
}

impl<'a> Asked<'a> {
    pub(super) fn read(name: &'a str) -> Option<Self> {
        let name = name.strip_prefix(MARK)?;
        match name.strip_prefix(MARK) {
            None => name.split_once(MARK).map(|(table, key)| Self::Keep { table, key }),
            Some(name) => {
                name.split_once(MARK).map(|(table, column)| Self::NoKey { table, column })
            }
        }
    }
}

/// Makes a relation of each such join of a query's own SELECTs.
///
/// # Errors
/// `Query` for columns that a NATURAL JOIN leaves open.
pub(super) fn wrap(query: &mut Query) -> Result<()> {
    let Query { body, order_by, .. } = query;
    match &mut **body {
        SetExpr::Select(select) => wrap_select(select, order_by.as_mut()),
        body => super::each_select(body, &mut |select| wrap_select(select, None)),
    }
}

fn wrap_select(select: &mut Select, order_by: Option<&mut OrderBy>) -> Result<()> {
    if !select.from.iter().any(has_named) {
        return Ok(());
    }
    let mut named = Named::default();
    let _ = Visit::visit(&*select, &mut named);
    if let Some(order) = &order_by {
        let _ = Visit::visit(&**order, &mut named);
    }
    for item in &select.projection {
        if let SelectItem::QualifiedWildcard(
            SelectItemQualifiedWildcardKind::ObjectName(table),
            _,
        ) = item
        {
            named.tables.extend(last(table));
        }
    }
    let mut wrapper = Wrapper { named, kept: BTreeSet::new() };
    let mut from = std::mem::take(&mut select.from);
    for tables in &mut from {
        wrapper.tree(tables)?;
    }
    let kept = wrapper.kept;
    if !kept.is_empty() {
        rename_items(&mut select.projection, &kept)?;
        rename(select, &kept);
        if let Some(order) = order_by {
            rename(order, &kept);
        }
    }
    select.from = from;
    Ok(())
}

fn has_named(tables: &TableWithJoins) -> bool {
    let in_factor = |factor: &TableFactor| match factor {
        TableFactor::NestedJoin { table_with_joins, .. } => has_named(table_with_joins),
        _ => false,
    };
    in_factor(&tables.relation)
        || tables.joins.iter().any(|join| keys(join).is_some() || in_factor(&join.relation))
}

/// The keys of a join; None for the keys of a NATURAL join; None for a join by a condition.
fn keys(join: &Join) -> Option<Option<Vec<String>>> {
    match constraint(&join.join_operator)? {
        JoinConstraint::Using(names) => Some(Some(names.iter().filter_map(last).collect())),
        JoinConstraint::Natural => Some(None),
        JoinConstraint::On(_) | JoinConstraint::None => None,
    }
}

pub(super) fn constraint(operator: &JoinOperator) -> Option<&JoinConstraint> {
    match operator {
        JoinOperator::Join(constraint)
        | JoinOperator::Inner(constraint)
        | JoinOperator::Left(constraint)
        | JoinOperator::LeftOuter(constraint)
        | JoinOperator::Right(constraint)
        | JoinOperator::RightOuter(constraint)
        | JoinOperator::FullOuter(constraint)
        | JoinOperator::LeftSemi(constraint)
        | JoinOperator::RightSemi(constraint)
        | JoinOperator::LeftAnti(constraint)
        | JoinOperator::RightAnti(constraint) => Some(constraint),
        _ => None,
    }
}

/// Columns that a SELECT names with their tables, and tables whose columns it takes all.
#[derive(Default)]
struct Named {
    columns: HashSet<Key>,
    tables: HashSet<String>,
}

impl Visitor for Named {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        if let Expr::CompoundIdentifier(parts) = expr {
            let pairs = parts.windows(2).map(|pair| (folded(&pair[0]), folded(&pair[1])));
            self.columns.extend(pairs);
        }
        ControlFlow::Continue(())
    }
}

struct Wrapper {
    named: Named,
    /// Keys that are kept beside, so far.
    kept: BTreeSet<Key>,
}

impl Wrapper {
    /// Makes relations of the joins of one tree, and returns the names of its tables.
    fn tree(&mut self, tables: &mut TableWithJoins) -> Result<BTreeSet<String>> {
        let mut left = self.factor(&mut tables.relation)?;
        let mut before = Vec::new();
        for mut join in std::mem::take(&mut tables.joins) {
            let right = self.factor(&mut join.relation)?;
            rename(&mut join, &self.kept);
            let Some(keys) = keys(&join) else {
                before.push(join);
                left.extend(right);
                continue;
            };
            let columns = self.asked(&join.join_operator, keys.as_deref(), &left, &right)?;
            let alias = TableAlias {
                explicit: true,
                name: Ident::with_quote('"', mark()),
                columns: columns
                    .into_iter()
                    .map(|name| TableAliasColumnDef {
                        name: Ident::with_quote('"', name),
                        data_type: None,
                    })
                    .collect(),
            };
            before.push(join);
            let relation = std::mem::replace(&mut tables.relation, nothing());
            let inner = TableWithJoins { relation, joins: std::mem::take(&mut before) };
            let table_with_joins = Box::new(inner);
            tables.relation = TableFactor::NestedJoin { table_with_joins, alias: Some(alias) };
            left.extend(right);
        }
        tables.joins = before;
        Ok(left)
    }

    /// The names of a factor's tables.
    fn factor(&mut self, factor: &mut TableFactor) -> Result<BTreeSet<String>> {
        let alias = match factor {
            TableFactor::NestedJoin { table_with_joins, alias: None } => {
                return self.tree(table_with_joins);
            }
            TableFactor::NestedJoin { table_with_joins, alias: Some(alias) } => {
                // Names of its tables end there.
                let mut inner = Self { named: Named::default(), kept: BTreeSet::new() };
                inner.tree(table_with_joins)?;
                Some(&alias.name)
            }
            _ => None,
        };
        Ok(alias.map(folded).or_else(|| name_of(factor)).into_iter().collect())
    }

    /// Finds the request that a join's relation encodes.
    fn asked(
        &mut self,
        operator: &JoinOperator,
        keys: Option<&[String]>,
        left: &BTreeSet<String>,
        right: &BTreeSet<String>,
    ) -> Result<Vec<String>> {
        let gone: BTreeSet<&String> = match operator {
            JoinOperator::Right(_) | JoinOperator::RightOuter(_) => left.iter().collect(),
            JoinOperator::FullOuter(_) => left.union(right).collect(),
            JoinOperator::Join(_)
            | JoinOperator::Inner(_)
            | JoinOperator::Left(_)
            | JoinOperator::LeftOuter(_) => right.iter().collect(),
            // One side is gone as a whole.
            _ => return Ok(Vec::new()),
        };
        let mut columns = Vec::new();
        for table in gone {
            let all = self.named.tables.contains(table);
            let Some(keys) = keys else {
                if all {
                    return Err(refused(
                        &format!("{table}.* of a NATURAL JOIN"),
                        "write JOIN … USING (…), or name the columns",
                    ));
                }
                let of_table = self.named.columns.iter().filter(|(other, _)| other == table);
                columns.extend(of_table.map(|(table, column)| no_key(table, column)));
                continue;
            };
            for key in keys {
                let pair = (table.clone(), key.clone());
                if (all || self.named.columns.contains(&pair)) && self.kept.insert(pair) {
                    columns.push(hidden(table, key));
                }
            }
        }
        columns.sort();
        Ok(columns)
    }
}

/// The name that qualifies the columns of a factor.
fn name_of(factor: &TableFactor) -> Option<String> {
    match factor {
        TableFactor::Table { alias: Some(alias), .. }
        | TableFactor::Derived { alias: Some(alias), .. }
        | TableFactor::Function { alias: Some(alias), .. }
        | TableFactor::UNNEST { alias: Some(alias), .. } => Some(folded(&alias.name)),
        TableFactor::Table { name, .. } => last(name),
        _ => None,
    }
}

/// Replaces the named columns by the kept keys.
fn rename_items(items: &mut Vec<SelectItem>, kept: &BTreeSet<Key>) -> Result<()> {
    let mut renamed = Vec::with_capacity(items.len());
    for item in items.drain(..) {
        match item {
            SelectItem::UnnamedExpr(mut expr) => {
                let written = expr.clone();
                rename(&mut expr, kept);
                renamed.push(match (&written, expr == written) {
                    (_, true) => SelectItem::UnnamedExpr(expr),
                    (Expr::CompoundIdentifier(parts), false) if parts.len() > 1 => {
                        let alias = parts[parts.len() - 1].clone();
                        SelectItem::ExprWithAlias { expr, alias }
                    }
                    (written, false) => {
                        let alias = Ident::with_quote('"', written.to_string());
                        SelectItem::ExprWithAlias { expr, alias }
                    }
                });
            }
            SelectItem::Wildcard(options) => {
                renamed.push(SelectItem::Wildcard(without(options, kept.iter())));
            }
            SelectItem::QualifiedWildcard(
                SelectItemQualifiedWildcardKind::ObjectName(table),
                options,
            ) => {
                let name = last(&table);
                let own: Vec<&Key> =
                    kept.iter().filter(|(of, _)| Some(of) == name.as_ref()).collect();
                let plain = WildcardAdditionalOptions {
                    wildcard_token: options.wildcard_token.clone(),
                    ..WildcardAdditionalOptions::default()
                };
                if !own.is_empty() && options != plain {
                    return Err(refused(
                        &format!("{table}.* with EXCLUDE or REPLACE above a join with USING"),
                        "name the columns",
                    ));
                }
                for (of, key) in own.iter().copied() {
                    let parts = vec![quoted(of), quoted(&hidden(of, key))];
                    renamed.push(SelectItem::ExprWithAlias {
                        expr: Expr::CompoundIdentifier(parts),
                        alias: quoted(key),
                    });
                }
                let options = without(options, own.into_iter());
                let table = SelectItemQualifiedWildcardKind::ObjectName(table);
                renamed.push(SelectItem::QualifiedWildcard(table, options));
            }
            other => renamed.push(other),
        }
    }
    *items = renamed;
    Ok(())
}

/// A wildcard that leaves out the kept keys.
fn without<'a>(
    mut options: WildcardAdditionalOptions,
    kept: impl Iterator<Item = &'a Key>,
) -> WildcardAdditionalOptions {
    let mut names = match options.opt_exclude.take() {
        None => Vec::new(),
        Some(ExcludeSelectItem::Single(name)) => vec![name],
        Some(ExcludeSelectItem::Multiple(names)) => names,
    };
    names.extend(kept.map(|(table, key)| quoted(&hidden(table, key))));
    options.opt_exclude = (!names.is_empty()).then_some(ExcludeSelectItem::Multiple(names));
    options
}

/// Renames the kept keys wherever a part of a statement names them.
fn rename<V: VisitMut>(part: &mut V, kept: &BTreeSet<Key>) {
    if !kept.is_empty() {
        let _ = VisitMut::visit(part, &mut Renamer { kept, scopes: Vec::new() });
    }
}

struct Renamer<'a> {
    kept: &'a BTreeSet<Key>,
    /// The tables of the enclosing subqueries; inner names hide outer ones.
    scopes: Vec<BTreeSet<String>>,
}

impl VisitorMut for Renamer<'_> {
    type Break = Error;

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<Error> {
        let mut scope = BTreeSet::new();
        tables_of(&query.body, &mut scope);
        self.scopes.push(scope);
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &mut Query) -> ControlFlow<Error> {
        self.scopes.pop();
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Error> {
        let Expr::CompoundIdentifier(parts) = expr else { return ControlFlow::Continue(()) };
        for at in 1..parts.len() {
            let key = (folded(&parts[at - 1]), folded(&parts[at]));
            let is_hidden = self.scopes.iter().any(|scope| scope.contains(&key.0));
            if self.kept.contains(&key) && !is_hidden {
                parts[at] = quoted(&hidden(&key.0, &key.1));
                break;
            }
        }
        ControlFlow::Continue(())
    }
}

fn tables_of(body: &SetExpr, found: &mut BTreeSet<String>) {
    fn of_tree(tables: &TableWithJoins, found: &mut BTreeSet<String>) {
        let factors =
            [&tables.relation].into_iter().chain(tables.joins.iter().map(|join| &join.relation));
        for factor in factors {
            match factor {
                TableFactor::NestedJoin { table_with_joins, .. } => {
                    of_tree(table_with_joins, found)
                }
                factor => found.extend(name_of(factor)),
            }
        }
    }
    match body {
        SetExpr::Select(select) => select.from.iter().for_each(|tables| of_tree(tables, found)),
        SetExpr::SetOperation { left, right, .. } => {
            tables_of(left, found);
            tables_of(right, found);
        }
        _ => {}
    }
}

fn nothing() -> TableFactor {
    TableFactor::UNNEST {
        alias: None,
        array_exprs: Vec::new(),
        with_offset: false,
        with_offset_alias: None,
        with_ordinality: false,
    }
}

fn quoted(name: &str) -> Ident {
    Ident::with_quote('"', name)
}

pub(in crate::query) fn last(name: &ObjectName) -> Option<String> {
    match name.0.last()? {
        ObjectNamePart::Identifier(ident) => Some(folded(ident)),
        ObjectNamePart::Function(_) => None,
    }
}

pub(super) fn folded(name: &Ident) -> String {
    match name.quote_style {
        Some(_) => name.value.clone(),
        None => name.value.to_lowercase(),
    }
}
