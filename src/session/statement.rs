//! Statements over the registered names: planned, and bound to all that they read.

use std::collections::BTreeSet;
use std::sync::Arc;

use datafusion::common::TableReference;
use datafusion::datasource::ViewTable;
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::{LogicalPlan, Volatility};
use datafusion::prelude::SQLOptions;
use futures::FutureExt;

use super::moment::MOMENT_SCHEMA;
use super::query::{Query, not_planned};
use super::registered::{Registered, TableKey, same_content};
use super::registry::{FUNCTION_SCHEMA, Names, Session, TABLE_SCHEMA};
use super::samples::read_table;
use super::staged::STAGE_SCHEMA;
use crate::exec::{functions_of, two_functions};
use crate::panics::{caught, caught_later};
use crate::query::{
    Definition, Inputs, LAKE_SCHEMA, Moment, PATH_SCHEMA, ParsedQuery, SAMPLE_SCHEMA,
    below_constant, check_ctes_drawn_once, check_plan, distinct_names, is_about_names, is_input,
    mended, with_names_apart, without_star,
};
use crate::{Error, Result};

impl Session {
    /// Parses one read-only statement.
    ///
    /// # Errors
    /// `Query` where the SQL is not one valid SELECT statement.
    pub fn parse(&self, sql: &str) -> Result<Arc<Definition>> {
        let parse = || Definition::statement(sql, |name| self.is_catalog(name));
        Ok(Arc::new(caught(parse, not_planned)?))
    }

    /// Registers a query under a name.
    ///
    /// # Errors
    /// As for [`query`](Self::query).
    pub async fn register_view(&self, name: &str, sql: &str) -> Result<()> {
        self.register_view_over(name, self.parse(sql)?, &[]).await
    }

    /// Registers a view with paths that another process has listed: see
    /// [`view_memos`](Self::view_memos).
    ///
    /// # Errors
    /// As for [`register_view`](Self::register_view); `Config` where a memo is damaged.
    pub async fn register_view_over(
        &self,
        name: &str,
        definition: Arc<Definition>,
        paths: &[(String, Vec<u8>)],
    ) -> Result<()> {
        self.check_name(name)?;
        let outside = self.outside(&definition, false, paths).await?;
        let (plan, tables) = self.plan_of(&definition, outside)?;
        let key = (TABLE_SCHEMA.to_owned(), name.to_owned());
        let plan = self.analysed(plan)?;
        let provider = Arc::new(ViewTable::new(plan, Some(definition.text().to_owned())));
        let view = Registered::View { definition, tables };
        self.bind_provider(&mut self.names_mut(), key, view, provider)
    }

    /// A lazy query.
    ///
    /// # Errors
    /// `Query` for SQL that is not one valid SELECT statement; `TableNotFound` for unknown tables
    /// and paths.
    pub async fn query(self: &Arc<Self>, sql: &str) -> Result<Query> {
        self.query_over(self.parse(sql)?, false, &[]).await
    }

    /// A lazy query with options. With `skip_bad`, files of path literals that cannot be read are
    /// left out. The files of `paths` were listed by another process, see [`Query::path_memos`].
    ///
    /// # Errors
    /// As for [`query`](Self::query); `Config` where a memo is damaged.
    pub async fn query_over(
        self: &Arc<Self>,
        definition: Arc<Definition>,
        skip_bad: bool,
        paths: &[(String, Vec<u8>)],
    ) -> Result<Query> {
        let planned = async {
            let outside = self.outside(&definition, skip_bad, paths).await?;
            let (plan, tables) = self.plan_of(&definition, outside)?;
            self.query_of_plan(definition, plan, tables, None)
        };
        caught_later(planned, not_planned).await
    }

    /// The query of a plan that is not analysed yet, at a moment (None: that of this session).
    fn query_of_plan(
        self: &Arc<Self>,
        definition: Arc<Definition>,
        bound: LogicalPlan,
        mut tables: Vec<(TableKey, Registered)>,
        moment: Option<Moment>,
    ) -> Result<Query> {
        let (plan, moment) = self.at_its_moment(self.analysed(bound.clone())?, moment)?;
        tables.extend(moment);
        Ok(Query::new(Arc::clone(self), definition, bound, plan, tables))
    }

    /// The query of a definition over one whose plan is known. It names no tables of its own.
    ///
    /// # Errors
    /// As for [`query`](Self::query).
    pub(super) async fn query_above(
        self: &Arc<Self>,
        definition: Arc<Definition>,
        below: &Query,
    ) -> Result<Query> {
        let planned = async {
            let input = below.definition().relation(below.bound().clone())?;
            let plan = self.plan_layer(&self.names(), &definition, vec![input])?;
            let mut tables = functions_read(&plan)?;
            // Functions are those of the plan; it is the plan before anything was staged.
            let apart = [FUNCTION_SCHEMA, MOMENT_SCHEMA, STAGE_SCHEMA];
            let read = below.tables().iter().filter(|(key, _)| !apart.contains(&key.0.as_str()));
            tables.extend(read.cloned());
            self.query_of_plan(definition, plan, tables, below.moment())
        };
        caught_later(planned, not_planned).await
    }

    /// Returns true if the last layer of a definition means the same in this session as it would
    /// with the names of its inputs: it names no table, and functions have not changed.
    ///
    /// # Errors
    /// `Query` for a name of too many parts.
    pub(super) fn is_at_home(&self, definition: &Definition, below: &Query) -> Result<bool> {
        let mut functions = below.tables().iter().filter(|(key, _)| key.0 == FUNCTION_SCHEMA);
        let is_kept = |(key, known): &(TableKey, Registered)| {
            self.registered(key).is_some_and(|now| same_content(known, &now))
        };
        Ok(self.references(definition)?.is_empty() && functions.all(is_kept))
    }

    /// The tables that the last layer of a definition names.
    fn references(&self, definition: &Definition) -> Result<Vec<TableReference>> {
        let statement = &definition.parsed().statement;
        let mut references = self.context().state().resolve_table_references(statement)?;
        references.retain(|table| !is_input(table));
        Ok(references)
    }

    /// The objects that the last layer of a definition names and `own` does not hold: tables, views
    /// with all that they read, paths, and tables of catalogs. Paths are listed here, except those
    /// of `known`, see [`Query::path_memos`]. Every function is included, since its name may stand
    /// anywhere.
    ///
    /// # Errors
    /// As for [`query`](Self::query); `Query` where a view reads another table of a name that `own`
    /// holds.
    pub(super) async fn beside(
        &self,
        definition: &Definition,
        own: &[(TableKey, Registered)],
        skip_bad: bool,
        known: &[(String, Vec<u8>)],
    ) -> Result<Vec<(TableKey, Registered)>> {
        let mut found = own.to_vec();
        self.add_outside(definition.parsed(), &mut found, skip_bad, known).await?;
        let names = self.names();
        for table in self.references(definition)? {
            let key = read_table(table.schema().unwrap_or(TABLE_SCHEMA), table.table());
            if found.iter().any(|(other, _)| *other == key) {
                continue;
            }
            if !names.contains_key(&key) {
                return Err(self.not_found_among(&names, &written(&table)));
            }
            add_table(&names, &mut found, key)?;
        }
        for (key, registered) in names.iter() {
            if key.0 == FUNCTION_SCHEMA && !found.iter().any(|(other, _)| other == key) {
                found.push((key.clone(), registered.clone()));
            }
        }
        Ok(found.split_off(own.len()))
    }

    /// The plan with the types that its rows will have, which the planner finds out later, for
    /// example for a UNION ALL of an integer and a fraction.
    fn analysed(&self, plan: LogicalPlan) -> Result<LogicalPlan> {
        let state = self.context().state();
        let options = state.config_options();
        Ok(state.analyzer().execute_and_check(mended(plan)?, options, |_, _| {})?)
    }

    /// The paths and the tables of catalogs that a definition names, listed and pinned anew for
    /// every statement.
    async fn outside(
        &self,
        definition: &Definition,
        skip_bad: bool,
        known: &[(String, Vec<u8>)],
    ) -> Result<Vec<(TableKey, Registered)>> {
        let mut found = Vec::new();
        for layer in definition.walk() {
            self.add_outside(layer.parsed(), &mut found, skip_bad, known).await?;
        }
        Ok(found)
    }

    /// Adds those of one layer that are not found yet.
    async fn add_outside(
        &self,
        parsed: &ParsedQuery,
        found: &mut Vec<(TableKey, Registered)>,
        skip_bad: bool,
        known: &[(String, Vec<u8>)],
    ) -> Result<()> {
        if self.frozen {
            return Ok(());
        }
        let is_found = |found: &[(TableKey, Registered)], key: &TableKey| {
            found.iter().any(|(other, _)| other == key)
        };
        for path in &parsed.paths {
            let key = (PATH_SCHEMA.to_owned(), path.clone());
            if is_found(found, &key) {
                continue;
            }
            let (paths, options) = ([path.clone()], self.options_of_path(path, skip_bad));
            let listed = match known.iter().find(|(known, _)| known == path) {
                Some((_, memo)) => self.of_listed(&paths, &options, memo).await?,
                None => self.delta_or_files(&paths, options).await?,
            };
            found.push((key, listed));
        }
        for lake in &parsed.lakes {
            let key = (LAKE_SCHEMA.to_owned(), lake.key.clone());
            if !is_found(found, &key) {
                found.push((key, self.loaded(lake).await?));
            }
        }
        Ok(())
    }

    /// The plan of a definition, and all tables that it reads. Meanwhile no name changes its
    /// meaning, not even by another thread's statement over the same path.
    fn plan_of(
        &self,
        definition: &Definition,
        outside: Vec<(TableKey, Registered)>,
    ) -> Result<(LogicalPlan, Vec<(TableKey, Registered)>)> {
        if outside.is_empty() {
            return self.plan_over(&self.names(), definition);
        }
        let mut names = self.names_mut();
        for (key, registered) in outside {
            self.bind_in(&mut names, key, registered)?;
        }
        self.plan_over(&names, definition)
    }

    fn plan_over(
        &self,
        names: &Names,
        definition: &Definition,
    ) -> Result<(LogicalPlan, Vec<(TableKey, Registered)>)> {
        let mut references = BTreeSet::new();
        let mut plans: Vec<LogicalPlan> = Vec::new();
        for layer in definition.walk() {
            references.extend(self.references(layer)?);
            let inputs = plans.split_off(plans.len() - layer.inputs().len());
            let inputs = layer.inputs().iter().zip(inputs);
            let inputs: Vec<LogicalPlan> =
                inputs.map(|(input, plan)| input.relation(plan)).collect::<DfResult<_>>()?;
            plans.push(self.plan_layer(names, layer, inputs)?);
        }
        let plan = plans.pop().ok_or_else(|| Error::query("a definition without layers"))?;
        let mut tables = functions_read(&plan)?;
        for table in references {
            let key = read_table(table.schema().unwrap_or(TABLE_SCHEMA), table.table());
            add_table(names, &mut tables, key)?;
        }
        Ok((plan, tables))
    }

    /// The plan of the last layer of a definition over the plans of its inputs.
    fn plan_layer(
        &self,
        names: &Names,
        definition: &Definition,
        inputs: Vec<LogicalPlan>,
    ) -> Result<LogicalPlan> {
        let parsed = definition.parsed();
        let mut state = self.context().state();
        if !inputs.is_empty() {
            state.register_relation_planner(Arc::new(Inputs::new(inputs)))?;
        }
        for table in &self.references(definition)? {
            // An unknown schema or catalog is an error there, and no more than an unknown table
            // here.
            if !self.context().table_exist(table.clone()).unwrap_or(false) {
                return Err(self.not_found_among(names, &written(table)));
            }
        }
        let functions = state.scalar_functions();
        check_ctes_drawn_once(&parsed.statement, &|name| {
            let function = functions.get(name);
            function.is_some_and(|known| known.signature().volatility == Volatility::Volatile)
        })?;
        let planned = |statement| {
            // All providers are here: there is nothing to wait for.
            state
                .statement_to_plan(statement)
                .now_or_never()
                .unwrap_or_else(|| Err(Error::query("the planner waits for a table").into()))
        };
        let all_columns = match without_star(&parsed.statement) {
            Some(statement) => planned(statement).map(|plan| below_constant(&plan)),
            None => Ok(None),
        };
        let plan = match all_columns {
            Ok(Some(plan)) => Ok(plan),
            Ok(None) => planned(parsed.statement.clone()),
            Err(error) => Err(error),
        };
        let plan = plan.or_else(|error| match with_names_apart(&parsed.statement) {
            Some(statement) if is_about_names(&error) => planned(statement),
            _ => Err(error),
        });
        let plan = plan.map_err(with_case_hint)?;
        SQLOptions::new()
            .with_allow_ddl(false)
            .with_allow_dml(false)
            .with_allow_statements(false)
            .verify_plan(&plan)?;
        let plan = distinct_names(plan)?;
        check_plan(&plan)?;
        Ok(plan)
    }
}

/// The functions of the user's that a plan calls. They stand before tables, since views need them;
/// a function of a view is part of the plan, too.
fn functions_read(plan: &LogicalPlan) -> Result<Vec<(TableKey, Registered)>> {
    let mut found = Vec::new();
    for function in functions_of(plan)? {
        let key = (FUNCTION_SCHEMA.to_owned(), function.name().to_owned());
        add(&mut found, key, Registered::Function(function))?;
    }
    Ok(found)
}

/// A table's name as a statement has it.
fn written(table: &TableReference) -> String {
    match table.schema() {
        Some(SAMPLE_SCHEMA) => match read_table(SAMPLE_SCHEMA, table.table()) {
            (schema, table) if schema == TABLE_SCHEMA => table,
            (schema, table) => format!("{schema}.{table}"),
        },
        _ => table.to_string(),
    }
}

/// Adds a table; for a view, after the tables that it reads. A name without an entry is a CTE of
/// the statement itself.
fn add_table(names: &Names, found: &mut Vec<(TableKey, Registered)>, key: TableKey) -> Result<()> {
    let Some(registered) = names.get(&key).cloned() else {
        return Ok(());
    };
    if let Registered::View { tables, .. } = &registered {
        for (key, registered) in tables.iter().cloned() {
            add(found, key, registered)?;
        }
    }
    add(found, key, registered)
}

/// Adds the object of a name, once.
///
/// # Errors
/// `Query` where it stands for something else there already.
fn add(
    found: &mut Vec<(TableKey, Registered)>,
    key: TableKey,
    registered: Registered,
) -> Result<()> {
    match found.iter().find(|(known, _)| *known == key) {
        None => found.push((key, registered)),
        Some((_, known)) if same_content(known, &registered) => {}
        Some(_) if key.0 == FUNCTION_SCHEMA => return Err(two_functions(&key.1)),
        Some(_) => {
            return Err(Error::query(format!(
                "the name {:?} means two tables here: it was registered again after a view \
                 that reads it; register the view again, too",
                key.1
            )));
        }
    }
    Ok(())
}

/// Columns that Iceberg defines beside the table's own:
/// <https://iceberg.apache.org/spec/#reserved-field-ids>.
const METADATA_COLUMNS: &[&str] = &[
    "_row_id",
    "_last_updated_sequence_number",
    "_file",
    "_pos",
    "_deleted",
    "_spec_id",
    "_partition",
];

/// Explains a column that was not found: SQL lower-cases unquoted names, and Iceberg's metadata
/// columns do not exist here.
fn with_case_hint(error: datafusion::error::DataFusionError) -> Error {
    let error = Error::from(error);
    let message = error.message();
    if let Some(column) =
        METADATA_COLUMNS.iter().find(|name| message.contains(&format!("\"{name}\"")))
    {
        return Error::new(
            error.kind(),
            format!(
                "{message}; Iceberg's metadata column {column} is not supported (nor any other of them)"
            ),
        );
    }
    let capital = message
        .split("did you mean \"")
        .nth(1)
        .and_then(|rest| rest.split('"').next())
        .is_some_and(|near| near.chars().any(char::is_uppercase));
    match capital {
        true => Error::new(
            error.kind(),
            format!("{message}; SQL lower-cases names, so quote the ones with capitals"),
        ),
        false => error,
    }
}
