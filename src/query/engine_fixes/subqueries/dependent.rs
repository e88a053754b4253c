//! A subquery's plan for all values at a time of the columns that it refers to. The list of these
//! values, the domain, is joined to the nodes that refer to them, and every node above keeps them
//! apart: groups and windows are made for each, joins compare them.

use std::sync::Arc;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Column, JoinType};
use datafusion::error::Result as DfResult;
use datafusion::functions_window::expr_fn::row_number;
use datafusion::logical_expr::expr::{Sort as SortExpr, WindowFunction};
use datafusion::logical_expr::utils::enumerate_grouping_sets;
use datafusion::logical_expr::{
    Aggregate, Distinct, Expr, ExprFunctionExt, FetchType, GroupingSet, Join, Limit, LogicalPlan,
    LogicalPlanBuilder, Projection, SkipType, lit,
};

use super::Unnest;
use super::names::{
    columns_of, keep_columns, key_conditions, one_zero, refers, same_values, substituted,
    with_columns,
};
use super::rows::depends;
use crate::Error;
use crate::query::engine_fixes::grand_total::only_where;

/// The values of the columns of `input` that a subquery refers to.
pub(super) struct Domain {
    input: LogicalPlan,
    outer: Vec<Column>,
}

/// A plan for each value of a domain.
pub(super) struct Pushed {
    /// Has the columns of the plan that it was made of, and others.
    pub plan: LogicalPlan,
    /// The columns with the domain's values.
    pub keys: Vec<Column>,
}

impl Domain {
    /// The values, as expressions over the columns of the query around the subquery.
    pub(super) fn values(&self, input: &LogicalPlan) -> DfResult<Vec<Expr>> {
        let column = |column: &Column| one_zero(Expr::Column(column.clone()), input.schema());
        self.outer.iter().map(column).collect()
    }

    fn substitute(&self, expr: Expr, keys: &[Column]) -> DfResult<Expr> {
        let by: Vec<Expr> = keys.iter().cloned().map(Expr::Column).collect();
        substituted(expr, &self.outer, &by)
    }
}

impl Pushed {
    /// The keys, then the columns of `plan` alone.
    fn keeping(self, plan: &LogicalPlan) -> DfResult<Self> {
        let columns = self.keys.iter().cloned().chain(columns_of(plan.schema())).collect();
        Ok(Self { plan: keep_columns(self.plan, columns)?, keys: self.keys })
    }

    fn key_exprs(&self) -> Vec<Expr> {
        self.keys.iter().cloned().map(Expr::Column).collect()
    }
}

impl Unnest {
    /// # Errors
    /// `Query` where the rows of `input` are others each time they are read.
    pub(super) fn domain(&mut self, input: &LogicalPlan, outer: &[Column]) -> DfResult<Domain> {
        if is_volatile(input)? {
            return Err(Error::query(
                "a subquery that refers to a query around it which draws values (random(), uuid()) is not supported in this \
                 form; join a subquery that computes it by key (GROUP BY, PARTITION BY) instead",
            )
            .into());
        }
        Ok(Domain { input: input.clone(), outer: outer.to_vec() })
    }

    /// The domain's values, each once, under names of their own.
    fn values_of(&mut self, domain: &Domain) -> DfResult<Pushed> {
        let mut exprs = Vec::new();
        let mut keys = Vec::new();
        for value in domain.values(&domain.input)? {
            let name = self.names.next("o");
            exprs.push(value.alias(&name));
            keys.push(Column::from_name(name));
        }
        let plan = Projection::try_new(exprs, Arc::new(domain.input.clone()))?;
        let plan = LogicalPlanBuilder::from(LogicalPlan::Projection(plan)).distinct()?.build()?;
        Ok(Pushed { plan, keys })
    }

    /// The rows of `plan` for each value of the domain.
    pub(super) fn push(&mut self, plan: &LogicalPlan, domain: &Domain) -> DfResult<Pushed> {
        if !depends(plan, &domain.outer) {
            let Pushed { plan: values, keys } = self.values_of(domain)?;
            let plan = LogicalPlanBuilder::from(values).cross_join(plan.clone())?.build()?;
            return Ok(Pushed { plan, keys });
        }
        match plan {
            LogicalPlan::Filter(filter) => {
                let Pushed { plan: input, keys } = self.push(&filter.input, domain)?;
                let condition = domain.substitute(filter.predicate.clone(), &keys)?;
                let plan = LogicalPlanBuilder::from(input).filter(condition)?.build()?;
                Ok(Pushed { plan, keys })
            }
            LogicalPlan::Projection(projection) => {
                let pushed = self.push(&projection.input, domain)?;
                let mut exprs = pushed.key_exprs();
                exprs
                    .extend(named(&projection.expr, |expr| domain.substitute(expr, &pushed.keys))?);
                let plan = Projection::try_new(exprs, Arc::new(pushed.plan))?;
                Ok(Pushed { plan: LogicalPlan::Projection(plan), keys: pushed.keys })
            }
            LogicalPlan::SubqueryAlias(alias) => {
                let pushed = self.push(&alias.input, domain)?.keeping(&alias.input)?;
                let plan =
                    LogicalPlanBuilder::from(pushed.plan).alias(alias.alias.clone())?.build()?;
                let of = |key: &Column| Column::new(Some(alias.alias.clone()), key.name.clone());
                Ok(Pushed { plan, keys: pushed.keys.iter().map(of).collect() })
            }
            LogicalPlan::Aggregate(aggregate) => self.aggregate(aggregate, domain),
            LogicalPlan::Window(window) => {
                let pushed = self.push(&window.input, domain)?;
                let exprs = named(&window.window_expr, |expr| {
                    let expr = domain.substitute(expr, &pushed.keys)?;
                    partitioned(expr, &pushed.key_exprs())
                })?;
                let plan = LogicalPlanBuilder::from(pushed.plan).window(exprs)?.build()?;
                Ok(Pushed { plan, keys: pushed.keys })
            }
            LogicalPlan::Distinct(Distinct::All(input)) => {
                let Pushed { plan, keys } = self.push(input, domain)?.keeping(input)?;
                Ok(Pushed { plan: LogicalPlanBuilder::from(plan).distinct()?.build()?, keys })
            }
            LogicalPlan::Distinct(Distinct::On(on)) => {
                let pushed = self.push(&on.input, domain)?;
                let keys = pushed.key_exprs();
                let of =
                    |exprs: &[Expr]| named(exprs, |expr| domain.substitute(expr, &pushed.keys));
                let select = keys.iter().cloned().chain(of(&on.select_expr)?).collect();
                let by = keys.iter().cloned().chain(of(&on.on_expr)?).collect();
                let order = match &on.sort_expr {
                    Some(order) => {
                        let mut all: Vec<SortExpr> =
                            keys.iter().map(|key| key.clone().sort(true, true)).collect();
                        all.extend(self.order_of(order, domain, &pushed.keys)?);
                        Some(all)
                    }
                    None => None,
                };
                let plan = LogicalPlanBuilder::from(pushed.plan).distinct_on(by, select, order)?;
                Ok(Pushed { plan: plan.build()?, keys: pushed.keys })
            }
            // The order of a subquery's rows says nothing without a limit, and with one is that of
            // a row number.
            LogicalPlan::Sort(sort) if sort.fetch.is_none() => self.push(&sort.input, domain),
            LogicalPlan::Limit(limit) => self.limit(limit, domain),
            LogicalPlan::Join(join) => self.dependent_join(plan, join, domain),
            LogicalPlan::Union(union) => self.union(plan, &union.inputs, domain),
            LogicalPlan::Unnest(unnest) => {
                let pushed = self.push(&unnest.input, domain)?;
                let plan = LogicalPlanBuilder::from(pushed.plan)
                    .unnest_columns_with_options(
                        unnest.exec_columns.clone(),
                        unnest.options.clone(),
                    )?
                    .build()?;
                Ok(Pushed { plan, keys: pushed.keys })
            }
            other => Err(unsupported(match other {
                LogicalPlan::RecursiveQuery(_) => "a recursive CTE",
                LogicalPlan::Values(_) => "VALUES",
                _ => "this clause",
            })),
        }
    }

    fn order_of(
        &self,
        order: &[SortExpr],
        domain: &Domain,
        keys: &[Column],
    ) -> DfResult<Vec<SortExpr>> {
        let of = |sort: &SortExpr| {
            Ok(SortExpr::new(
                domain.substitute(sort.expr.clone(), keys)?,
                sort.asc,
                sort.nulls_first,
            ))
        };
        order.iter().map(of).collect()
    }

    fn aggregate(&mut self, aggregate: &Aggregate, domain: &Domain) -> DfResult<Pushed> {
        let Pushed { plan: rows, keys } = self.push(&aggregate.input, domain)?;
        let groups = named(&aggregate.group_expr, |expr| domain.substitute(expr, &keys))?;
        let aggregates =
            |keys: &[Column]| named(&aggregate.aggr_expr, |expr| domain.substitute(expr, keys));
        let by: Vec<Expr> = keys.iter().cloned().map(Expr::Column).collect();
        if !groups.is_empty() {
            let groups = match &groups[..] {
                [Expr::GroupingSet(_)] => in_each_set(groups, &by)?,
                _ => by.into_iter().chain(groups).collect(),
            };
            let plan = LogicalPlanBuilder::from(rows).aggregate(groups, aggregates(&keys)?)?;
            return Ok(Pushed { plan: plan.build()?, keys });
        }
        // An aggregate of all rows has a row where there are none, too: so each value has a row,
        // which is counted only where the subquery has one.
        let there = self.names.next("t");
        let rows = with_columns(rows, vec![lit(true).alias(&there)])?;
        let Pushed { plan: values, keys: all } = self.values_of(domain)?;
        let all_exprs: Vec<Expr> = all.iter().cloned().map(Expr::Column).collect();
        let plan = LogicalPlanBuilder::from(values)
            .join_on(rows, JoinType::Left, same_values(&all_exprs, &keys))?
            .build()?;
        let there = Expr::Column(Column::from_name(there)).is_true();
        let counted: Vec<Expr> =
            aggregates(&keys)?.into_iter().map(|expr| only_where(expr, &there)).collect();
        let plan = LogicalPlanBuilder::from(plan).aggregate(all_exprs, counted)?.build()?;
        Ok(Pushed { plan, keys: all })
    }

    /// The first rows for each value are the rows with the first numbers.
    fn limit(&mut self, limit: &Limit, domain: &Domain) -> DfResult<Pushed> {
        let (skip, fetch) = match (limit.get_skip_type()?, limit.get_fetch_type()?) {
            (SkipType::Literal(skip), FetchType::Literal(fetch)) => (skip, fetch),
            _ => return Err(unsupported("LIMIT or OFFSET that is no number")),
        };
        let within = |input: &Arc<LogicalPlan>| {
            Arc::new(LogicalPlan::Limit(Limit { input: Arc::clone(input), ..limit.clone() }))
        };
        let (input, order) = match &*limit.input {
            // Rows keep their order.
            LogicalPlan::Projection(projection) => {
                let input = within(&projection.input);
                let below = Projection::try_new(projection.expr.clone(), input)?;
                return self.push(&LogicalPlan::Projection(below), domain);
            }
            LogicalPlan::SubqueryAlias(alias) => {
                let input = LogicalPlanBuilder::from(Arc::unwrap_or_clone(within(&alias.input)));
                return self.push(&input.alias(alias.alias.clone())?.build()?, domain);
            }
            LogicalPlan::Sort(sort) if sort.fetch.is_none() => (&sort.input, &sort.expr[..]),
            _ => (&limit.input, &[][..]),
        };
        let pushed = self.push(input, domain)?;
        let order = self.order_of(order, domain, &pushed.keys)?;
        let name = self.names.next("n");
        let number = row_number().partition_by(pushed.key_exprs());
        let number = match order.is_empty() {
            true => number.build()?,
            false => number.order_by(order).build()?,
        };
        let keys = pushed.keys;
        let plan = LogicalPlanBuilder::from(pushed.plan).window([number.alias(&name)])?;
        let number = Expr::Column(Column::from_name(name));
        let mut wanted = number.clone().gt(lit(skip as u64));
        if let Some(fetch) = fetch {
            wanted = wanted.and(number.lt_eq(lit(skip.saturating_add(fetch) as u64)));
        }
        let plan = plan.filter(wanted)?.build()?;
        Pushed { plan, keys }.keeping(&limit.input)
    }

    /// The side whose rows are all kept has the values; the other one has them where it refers to
    /// them, too.
    fn dependent_join(
        &mut self,
        plan: &LogicalPlan,
        join: &Join,
        domain: &Domain,
    ) -> DfResult<Pushed> {
        let (of_left, of_right) =
            (depends(&join.left, &domain.outer), depends(&join.right, &domain.outer));
        let (push_left, push_right) = match join.join_type {
            JoinType::Inner => (of_left || !of_right, of_right),
            JoinType::Left | JoinType::LeftSemi | JoinType::LeftAnti | JoinType::LeftMark => {
                (true, of_right)
            }
            JoinType::Right | JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark => {
                (of_left, true)
            }
            JoinType::Full => (true, true),
        };
        let mut side = |side: &LogicalPlan, push: bool| match push {
            true => self.push(side, domain)?.keeping(side),
            false => Ok(Pushed { plan: side.clone(), keys: Vec::new() }),
        };
        let (left, right) = (side(&join.left, push_left)?, side(&join.right, push_right)?);
        let keeps_right = matches!(
            join.join_type,
            JoinType::Right | JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark
        ) || !push_left;
        let keys = if keeps_right { right.keys.clone() } else { left.keys.clone() };
        let mut conditions = Vec::new();
        if push_left && push_right {
            conditions.extend(same_values(&left.key_exprs(), &right.keys));
        }
        for condition in key_conditions(join.on.clone(), join.null_equality)
            .into_iter()
            .chain(join.filter.clone())
        {
            conditions.push(domain.substitute(condition, &keys)?);
        }
        let full =
            (join.join_type == JoinType::Full).then(|| (left.keys.clone(), right.keys.clone()));
        let joined = LogicalPlanBuilder::from(left.plan)
            .join_on(right.plan, join.join_type, conditions)?
            .build()?;
        let Some((of_left, of_right)) = full else {
            return Pushed { plan: joined, keys }.keeping(plan);
        };
        if join.filter.iter().any(|filter| refers(filter, &domain.outer)) {
            return Err(unsupported("the condition of a FULL JOIN"));
        }
        let (mut either, mut keys) = (Vec::new(), Vec::new());
        for (left, right) in of_left.into_iter().zip(of_right) {
            let name = self.names.next("o");
            let both = vec![Expr::Column(left), Expr::Column(right)];
            either.push(datafusion::functions::expr_fn::coalesce(both).alias(&name));
            keys.push(Column::from_name(name));
        }
        Pushed { plan: with_columns(joined, either)?, keys }.keeping(plan)
    }

    fn union(
        &mut self,
        plan: &LogicalPlan,
        inputs: &[Arc<LogicalPlan>],
        domain: &Domain,
    ) -> DfResult<Pushed> {
        let mut whole: Option<LogicalPlanBuilder> = None;
        let mut names: Vec<String> = Vec::new();
        for input in inputs {
            let pushed = self.push(input, domain)?;
            if names.is_empty() {
                names = pushed.keys.iter().map(|_| self.names.next("o")).collect();
            }
            let keys = pushed.keys.iter().zip(&names);
            let mut exprs: Vec<Expr> =
                keys.map(|(key, name)| Expr::Column(key.clone()).alias(name)).collect();
            let own = input.schema().columns().into_iter();
            exprs.extend(own.enumerate().map(|(number, column)| {
                Expr::Column(column).alias(format!("{}_{number}", names[0]))
            }));
            let part = LogicalPlan::Projection(Projection::try_new(exprs, Arc::new(pushed.plan))?);
            whole = Some(match whole {
                Some(above) => above.union(part)?,
                None => LogicalPlanBuilder::from(part),
            });
        }
        let Some(whole) = whole else { return Err(unsupported("UNION of nothing")) };
        let whole = whole.build()?;
        let keys: Vec<Column> = names.iter().map(Column::from_name).collect();
        let mut exprs: Vec<Expr> = keys.iter().cloned().map(Expr::Column).collect();
        for (number, (qualifier, field)) in plan.schema().iter().enumerate() {
            let column = Expr::Column(Column::from_name(format!("{}_{number}", names[0])));
            exprs.push(column.alias_qualified(qualifier.cloned(), field.name()));
        }
        let plan = LogicalPlan::Projection(Projection::try_new(exprs, Arc::new(whole))?);
        Ok(Pushed { plan, keys })
    }
}

/// Expressions that were changed, under the names that they had.
fn named(exprs: &[Expr], change: impl Fn(Expr) -> DfResult<Expr>) -> DfResult<Vec<Expr>> {
    let each = |expr: &Expr| {
        let before = expr.qualified_name();
        let changed = change(expr.clone())?;
        Ok(match changed.qualified_name() == before || matches!(changed, Expr::GroupingSet(_)) {
            true => changed,
            false => changed.alias_qualified(before.0, before.1),
        })
    };
    exprs.iter().map(each).collect()
}

/// A window function within each value of the domain.
fn partitioned(expr: Expr, keys: &[Expr]) -> DfResult<Expr> {
    match expr {
        Expr::Alias(mut alias) => {
            alias.expr = Box::new(partitioned(*alias.expr, keys)?);
            Ok(Expr::Alias(alias))
        }
        Expr::WindowFunction(function) => {
            let WindowFunction { fun, mut params } = *function;
            params.partition_by = keys.iter().cloned().chain(params.partition_by).collect();
            Ok(Expr::WindowFunction(Box::new(WindowFunction { fun, params })))
        }
        _ => Err(unsupported("a window function in an expression")),
    }
}

/// Adds the keys to each grouping set.
fn in_each_set(groups: Vec<Expr>, keys: &[Expr]) -> DfResult<Vec<Expr>> {
    let sets = enumerate_grouping_sets(groups)?;
    let [Expr::GroupingSet(GroupingSet::GroupingSets(sets))] = &sets[..] else {
        return Err(unsupported("GROUPING SETS"));
    };
    if sets.iter().any(Vec::is_empty) {
        return Err(unsupported(
            "a grouping set of all rows (ROLLUP, CUBE or GROUPING SETS with ())",
        ));
    }
    let with_keys = |set: &Vec<Expr>| keys.iter().cloned().chain(set.iter().cloned()).collect();
    let sets = sets.iter().map(with_keys).collect();
    Ok(vec![Expr::GroupingSet(GroupingSet::GroupingSets(sets))])
}

/// Returns true if a plan draws other values each time it is read.
pub(super) fn is_volatile(plan: &LogicalPlan) -> DfResult<bool> {
    use datafusion::common::tree_node::TreeNode;
    plan.exists(|node| {
        let mut found = false;
        node.apply_expressions(|expr| {
            found |= expr.is_volatile();
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(found)
    })
}

fn unsupported(what: &str) -> datafusion::error::DataFusionError {
    Error::query(format!(
        "a subquery that refers to the query around it is not supported where that is in or below {what}; join a subquery that \
         computes it by key (GROUP BY, PARTITION BY) instead"
    ))
    .into()
}
