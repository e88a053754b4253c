//! Definitions of queries: a statement, or a SELECT over other definitions.
//!
//! Each text of a definition is parsed once in a process, and stays a syntax tree. A SELECT over
//! others names them as relations, for which [`Inputs`] gives the planner their plans:
//!
//! ```text
//! SELECT "a" FROM <input 0> AS query WHERE (b > 1)
//! ```

use std::sync::Arc;

use datafusion::error::Result as DfResult;
use datafusion::logical_expr::planner::{
    PlannedRelation, RelationPlanner, RelationPlannerContext, RelationPlanning,
};
use datafusion::logical_expr::{LogicalPlan, LogicalPlanBuilder};
use datafusion::sql::TableReference;
use datafusion::sql::sqlparser::ast::{
    Expr, Ident, ObjectName, ObjectNamePart, Query, SelectItem, SetExpr, SetOperator,
    SetQuantifier, TableAlias, TableFactor, TableWithJoins,
};
use serde::{Deserialize, Serialize};

use super::depth::{TABLE_EXPRESSION, check_depth, check_relations};
use super::engine_fixes::functional_dependencies::relation_without_keys;
use super::parse::{ParsedQuery, parse_predicate, parse_select, quote_identifier};
use super::statement::{query_of, select_from, table};
use crate::{Error, Result};

/// Begins the names of a definition's inputs; no identifier holds its first character.
const INPUT: &str = "\u{2}input";

/// A step that makes a definition: of nothing, or of those that the steps before it have made.
///
/// Text is the form in which filters cross from Python, and in which queries go to worker processes:
/// a state digests it, people read it, and no version of the parser is bound to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Layer {
    /// A statement as a user wrote it.
    Statement(String),
    /// Columns (None: all) of those rows of the last definition that a predicate keeps.
    Rows {
        /// Names of columns.
        columns: Option<Vec<String>>,
        /// One boolean expression.
        predicate: Option<String>,
    },
    /// Expressions over the rows of the last definition, as they stand behind SELECT.
    Expressions(String),
    /// The rows of the last definition, in ascending order of columns.
    Sorted(Vec<String>),
    /// The rows of the last so many definitions, one after the other.
    UnionAll(usize),
}

/// A query as it was asked for.
#[derive(Clone, Debug)]
pub struct Definition {
    layer: Layer,
    inputs: Vec<Arc<Self>>,
    /// The statement of this layer alone.
    parsed: ParsedQuery,
    text: String,
    /// Whether a statement ends with an ORDER BY, which a relation keeps only above a LIMIT.
    is_ordered: bool,
    /// Relations of all layers, for [`check_relations`].
    relations: usize,
}

impl Definition {
    /// One read-only statement.
    ///
    /// # Arguments
    /// `is_catalog` returns true for the name of a registered catalog.
    ///
    /// # Errors
    /// `Query` for a syntax error, several statements, or anything but SELECT, VALUES or WITH.
    pub fn statement(sql: &str, is_catalog: impl Fn(&str) -> bool) -> Result<Self> {
        let relations = check_depth(sql)?;
        let query = parse_select(sql)?;
        let is_ordered =
            query.order_by.is_some() && query.limit_clause.is_none() && query.fetch.is_none();
        Ok(Self {
            layer: Layer::Statement(sql.to_owned()),
            inputs: Vec::new(),
            parsed: ParsedQuery::try_new(query, is_catalog)?,
            text: sql.to_owned(),
            is_ordered,
            relations,
        })
    }

    /// Some columns (None: all) of the rows of a definition that a predicate keeps.
    ///
    /// # Errors
    /// `Query` where the predicate is not one boolean expression, and where there are too many
    /// layers.
    pub fn rows(
        of: Arc<Self>,
        columns: Option<Vec<String>>,
        predicate: Option<String>,
        is_catalog: impl Fn(&str) -> bool,
    ) -> Result<Self> {
        let selection = predicate.as_deref().map(parse_predicate).transpose()?;
        let mut body = select_from(input(0, "query"));
        if let SetExpr::Select(select) = &mut body {
            if let Some(names) = &columns {
                select.projection = names.iter().map(|name| column(name)).collect();
            }
            select.selection = selection.map(|predicate| Expr::Nested(Box::new(predicate)));
        }
        let listed = match &columns {
            Some(names) => {
                names.iter().map(|name| quote_identifier(name)).collect::<Vec<_>>().join(", ")
            }
            None => "*".to_owned(),
        };
        let filter =
            predicate.as_ref().map_or_else(String::new, |text| format!("\nWHERE (\n{text}\n)"));
        let text = format!("SELECT {listed} FROM (\n{}\n) AS query{filter}", of.as_relation());
        let relations = predicate.as_deref().map_or(Ok(0), check_depth)?;
        let layer = Layer::Rows { columns, predicate };
        Self::over(layer, vec![of], query_of(body), relations, text, is_catalog)
    }

    /// Expressions over the rows of a definition.
    ///
    /// # Errors
    /// `Query` where they do not parse, and where there are too many layers.
    pub fn expressions(
        of: Arc<Self>,
        list: &str,
        is_catalog: impl Fn(&str) -> bool,
    ) -> Result<Self> {
        let sql = format!("SELECT {list}");
        let relations = check_depth(&sql)?;
        let mut query = parse_select(&sql)?;
        let SetExpr::Select(select) = &mut *query.body else {
            return Err(Error::query(format!("{list:?} must be expressions behind SELECT")));
        };
        if !select.from.is_empty() {
            return Err(Error::query(format!("{list:?} must be expressions without a FROM")));
        }
        select.from.push(TableWithJoins { relation: input(0, "given"), joins: Vec::new() });
        let text = format!("{sql} FROM (\n{}\n) AS given", of.as_relation());
        let layer = Layer::Expressions(list.to_owned());
        Self::over(layer, vec![of], query, relations, text, is_catalog)
    }

    /// The rows of a definition in ascending order of columns.
    ///
    /// # Errors
    /// `Query` where there are too many layers.
    pub fn sorted(of: Arc<Self>, columns: Vec<String>) -> Result<Self> {
        let list: Vec<String> = columns.iter().map(|name| quote_identifier(name)).collect();
        let order = format!("ORDER BY {}", list.join(", "));
        let mut query = parse_select(&format!("SELECT * {order}"))?;
        if let SetExpr::Select(select) = &mut *query.body {
            select.from.push(TableWithJoins { relation: input(0, "given"), joins: Vec::new() });
        }
        let text = format!("SELECT * FROM (\n{}\n) AS given\n{order}", of.as_relation());
        let made = Self::over(Layer::Sorted(columns), vec![of], query, 0, text, |_| false)?;
        Ok(Self { is_ordered: true, ..made })
    }

    /// The rows of several definitions, one after the other.
    ///
    /// # Errors
    /// `Query` where there are too many.
    pub fn union_all(inputs: Vec<Arc<Self>>) -> Result<Self> {
        let name = |number: usize| format!("source_{number}");
        let selects = (0..inputs.len()).map(|number| select_from(input(number, &name(number))));
        let body = selects.reduce(|left, right| SetExpr::SetOperation {
            op: SetOperator::Union,
            set_quantifier: SetQuantifier::All,
            left: Box::new(left),
            right: Box::new(right),
        });
        let body = body.ok_or_else(|| Error::config("a mixture needs at least one query"))?;
        let texts = inputs.iter().enumerate().map(|(number, source)| {
            format!("SELECT * FROM (\n{}\n) AS {}", source.as_relation(), name(number))
        });
        let text = texts.collect::<Vec<_>>().join("\nUNION ALL\n");
        let layer = Layer::UnionAll(inputs.len());
        Self::over(layer, inputs, query_of(body), 0, text, |_| false)
    }

    fn over(
        layer: Layer,
        inputs: Vec<Arc<Self>>,
        query: Query,
        own: usize,
        text: String,
        is_catalog: impl Fn(&str) -> bool,
    ) -> Result<Self> {
        let below: usize = inputs.iter().map(|input| input.relations + TABLE_EXPRESSION).sum();
        let relations = own + below;
        check_relations(relations)?;
        let parsed = ParsedQuery::try_new(query, is_catalog)?;
        Ok(Self { layer, inputs, parsed, text, is_ordered: false, relations })
    }

    /// The layers of it, each after the ones that it is made of.
    pub fn layers(&self) -> Vec<Layer> {
        self.walk().into_iter().map(|definition| definition.layer.clone()).collect()
    }

    /// The definition that [`layers`](Self::layers) gave.
    ///
    /// # Errors
    /// `Config` where they make none; errors of their texts.
    pub fn of_layers(layers: Vec<Layer>, is_catalog: impl Fn(&str) -> bool) -> Result<Self> {
        let malformed = || Error::config("the layers of a query are incomplete");
        let mut made: Vec<Arc<Self>> = Vec::new();
        for layer in layers {
            let definition = match layer {
                Layer::Statement(sql) => Self::statement(&sql, &is_catalog)?,
                Layer::Rows { columns, predicate } => {
                    let of = made.pop().ok_or_else(malformed)?;
                    Self::rows(of, columns, predicate, &is_catalog)?
                }
                Layer::Expressions(list) => {
                    Self::expressions(made.pop().ok_or_else(malformed)?, &list, &is_catalog)?
                }
                Layer::Sorted(columns) => Self::sorted(made.pop().ok_or_else(malformed)?, columns)?,
                Layer::UnionAll(count) => {
                    let first = made.len().checked_sub(count).ok_or_else(malformed)?;
                    Self::union_all(made.split_off(first))?
                }
            };
            made.push(Arc::new(definition));
        }
        match (made.pop(), made.is_empty()) {
            (Some(definition), true) => Ok(Arc::unwrap_or_clone(definition)),
            _ => Err(malformed()),
        }
    }

    /// It and all that it is made of, each after its own inputs.
    pub fn walk(&self) -> Vec<&Self> {
        let mut found = vec![self];
        let mut at = 0;
        // From the last to the first, so that a definition stands before its inputs.
        while let Some(definition) = found.get(at).copied() {
            let inputs = definition.inputs.iter().rev().map(AsRef::as_ref);
            found.splice(at + 1..at + 1, inputs);
            at += 1;
        }
        found.reverse();
        found
    }

    /// The definitions that it is over.
    pub fn inputs(&self) -> &[Arc<Self>] {
        &self.inputs
    }

    /// The statement of its last layer.
    pub fn parsed(&self) -> &ParsedQuery {
        &self.parsed
    }

    /// SQL of all layers, as people read it and fingerprints digest it. It is never parsed: where a
    /// comment follows the semicolon of a statement, that semicolon stands in the middle.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Its text for the FROM clause of another one.
    fn as_relation(&self) -> String {
        let sql = self.text.trim_end().trim_end_matches(';');
        match self.is_ordered {
            true => format!("{sql}\nOFFSET 0"),
            false => sql.to_owned(),
        }
    }

    /// The plan of this definition as a relation of another one.
    ///
    /// # Errors
    /// An internal error where it cannot be rebuilt.
    pub fn relation(&self, plan: LogicalPlan) -> DfResult<LogicalPlan> {
        match self.is_ordered {
            // The planner leaves out the order of a relation that has no limit.
            true => LogicalPlanBuilder::from(plan).limit(0, None)?.build(),
            false => Ok(plan),
        }
    }
}

/// An input as a relation.
fn input(number: usize, alias: &str) -> TableFactor {
    let mut relation = table(&format!("{INPUT}{number}"));
    if let TableFactor::Table { alias: given, .. } = &mut relation {
        let name = Ident::new(alias);
        *given = Some(TableAlias { explicit: true, name, columns: Vec::new() });
    }
    relation
}

fn column(name: &str) -> SelectItem {
    SelectItem::UnnamedExpr(Expr::Identifier(Ident::with_quote('"', name)))
}

/// Returns true for the name of an input.
pub fn is_input(table: &TableReference) -> bool {
    table.table().starts_with(INPUT)
}

/// Gives the planner the plans of a definition's inputs.
#[derive(Debug)]
pub struct Inputs(Vec<LogicalPlan>);

impl Inputs {
    /// The plans of the inputs, in their order.
    pub fn new(plans: Vec<LogicalPlan>) -> Self {
        Self(plans)
    }

    fn named(&self, name: &ObjectName) -> Option<&LogicalPlan> {
        let [ObjectNamePart::Identifier(name)] = name.0.as_slice() else { return None };
        self.0.get(name.value.strip_prefix(INPUT)?.parse::<usize>().ok()?)
    }
}

impl RelationPlanner for Inputs {
    fn plan_relation(
        &self,
        relation: TableFactor,
        _: &mut dyn RelationPlannerContext,
    ) -> DfResult<RelationPlanning> {
        if let TableFactor::Table { name, alias, .. } = &relation
            && let Some(plan) = self.named(name)
        {
            let plan = relation_without_keys(plan.clone())?;
            let planned = PlannedRelation::new(plan, alias.clone());
            return Ok(RelationPlanning::Planned(Box::new(planned)));
        }
        Ok(RelationPlanning::Original(Box::new(relation)))
    }
}
