//! Queries over queries: narrowed ones, expressions over rows, and mixtures.

use std::sync::Arc;

use arrow::datatypes::Schema;

use super::moment::MOMENT_SCHEMA;
use super::query::{Query, not_planned};
use super::registered::{has_moved_on, same_content};
use super::registry::{FUNCTION_SCHEMA, Session};
use crate::panics::caught;
use crate::query::Definition;
use crate::{Error, Result};

impl Query {
    /// Expressions over its rows, as they stand behind SELECT.
    ///
    /// # Errors
    /// `Query` where they do not parse, or name unknown columns.
    pub async fn expressions(&self, list: &str) -> Result<Self> {
        let of = Arc::clone(self.definition());
        let made = Definition::expressions(of, list, |name| self.session().is_catalog(name))?;
        self.session().query_above(Arc::new(made), self).await
    }

    /// Its rows in ascending order of columns.
    ///
    /// # Errors
    /// `Query` for an unknown column, or one of a type without an order.
    pub async fn sorted(&self, columns: Vec<String>) -> Result<Self> {
        let made = Definition::sorted(Arc::clone(self.definition()), columns)?;
        self.session().query_above(Arc::new(made), self).await
    }

    /// The definition of some columns (None: all) of its rows that a predicate keeps. Nothing is
    /// bound: see [`select`](Self::select).
    ///
    /// # Errors
    /// `Query` where the predicate is not one boolean expression.
    pub fn narrowed(
        &self,
        session: &Session,
        columns: Option<Vec<String>>,
        predicate: Option<String>,
    ) -> Result<Arc<Definition>> {
        let of = Arc::clone(self.definition());
        let made = || Definition::rows(of, columns, predicate, |name| session.is_catalog(name));
        Ok(Arc::new(caught(made, not_planned)?))
    }

    /// The query of a definition that [`narrowed`](Self::narrowed) made. It reads the tables that
    /// this query read when it was made, even if their names have changed their meaning; other
    /// tables and functions that its predicate names come from `session`. Paths of `known` another
    /// process has listed, see [`path_memos`](Self::path_memos); with `skip_bad`, files that cannot
    /// be read are left out.
    ///
    /// # Errors
    /// As for [`Session::query`].
    pub async fn select(
        &self,
        session: &Arc<Session>,
        definition: Arc<Definition>,
        skip_bad: bool,
        known: &[(String, Vec<u8>)],
    ) -> Result<Self> {
        if !matches!(definition.inputs(), [below] if Arc::ptr_eq(below, self.definition())) {
            return Err(Error::query("a definition is over another query than this one"));
        }
        if Arc::ptr_eq(session, self.session()) && session.is_at_home(&definition, self)? {
            return self.session().query_above(definition, self).await;
        }
        let mut tables = self.tables().to_vec();
        tables.extend(session.beside(&definition, self.tables(), skip_bad, known).await?);
        self.session().of_tables(&tables).await?.query_over(definition, false, &[]).await
    }

    /// The rows of several queries, one query after the other.
    ///
    /// # Errors
    /// `Query` where their columns differ; `Config` where a name stands for another table in each,
    /// or for one at two times.
    pub async fn union_all(queries: &[Self]) -> Result<Self> {
        let Some((first, others)) = queries.split_first() else {
            return Err(Error::config("a mixture needs at least one query"));
        };
        let mut tables = first.tables().to_vec();
        for other in others {
            check_same_columns(&first.schema(), &other.schema())?;
            for (key, table) in other.tables() {
                match tables.iter().find(|(known, _)| known == key) {
                    None => tables.push((key.clone(), table.clone())),
                    Some((_, known)) if same_content(known, table) => {}
                    // One moment for all of them: that of the first.
                    Some(_) if key.0 == MOMENT_SCHEMA => {}
                    Some(_) if key.0 == FUNCTION_SCHEMA => {
                        return Err(Error::config(format!(
                            "the queries of a mixture call different functions of the name {:?}; register them \
                             under names of their own",
                            key.1
                        )));
                    }
                    Some((_, known)) if has_moved_on(key, known, table) => {
                        return Err(Error::config(format!(
                            "{:?} has changed between the queries of a mixture, which would read it as it was at two times; \
                             make them once more, or, over Iceberg tables, call refresh() of each of them or name one \
                             snapshot in all of them: FOR VERSION AS OF",
                            key.1
                        )));
                    }
                    Some(_) => {
                        return Err(Error::config(format!(
                            "the queries of a mixture read different tables of the name {:?}; register them \
                             under names of their own",
                            key.1
                        )));
                    }
                }
            }
        }
        let session = first.session().of_tables(&tables).await?;
        let inputs = queries.iter().map(|query| Arc::clone(query.definition())).collect();
        session.query_over(Arc::new(Definition::union_all(inputs)?), false, &[]).await
    }
}

fn check_same_columns(first: &Schema, other: &Schema) -> Result<()> {
    let sketch = |schema: &Schema| -> Vec<String> {
        let fields = schema.fields().iter();
        fields.map(|field| format!("{} {}", field.name(), field.data_type())).collect()
    };
    let (first, other) = (sketch(first), sketch(other));
    if first == other {
        return Ok(());
    }
    Err(Error::query(format!(
        "the queries of a mixture must have the same columns, of the same types, in the same order: one has \
         ({}), another ({}); name and cast them alike",
        first.join(", "),
        other.join(", ")
    )))
}
