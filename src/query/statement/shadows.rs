//! Parts of WITH that have the name of one around them: the inner one stands where it can be seen.
//!
//! The planner refuses such a name. So the inner part gets a name of its own, and so does every
//! table that means it:
//!
//! ```text
//! WITH a AS (…) SELECT * FROM (WITH a AS (SELECT … FROM a) SELECT a.x FROM a)
//! WITH a AS (…) SELECT * FROM (WITH a1 AS (SELECT … FROM a) SELECT a.x FROM a1 AS a)
//! ```

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Ident, ObjectName, ObjectNamePart, Query, TableAlias, TableFactor, VisitMut, VisitorMut, With,
};

use super::MARK;
use super::joins::folded;
use crate::Error;

/// Gives such parts other names.
pub(super) fn rename(query: &mut Query) {
    let _ = VisitMut::visit(query, &mut Scopes::default());
}

/// A part's name as a user wrote it.
pub(in crate::query) fn written(name: &str) -> &str {
    name.rsplit(MARK).next().unwrap_or(name)
}

/// A part of WITH that can be seen.
struct VisibleCte {
    name: String,
    /// The name that it got.
    other: Option<String>,
}

#[derive(Default)]
struct Scopes {
    /// The parts that can be seen, the inner ones last.
    seen: Vec<VisibleCte>,
    /// For each query around: how many parts can be seen outside of it, and its WITH, which is
    /// walked through already.
    outside: Vec<(usize, Option<With>)>,
    made: usize,
}

impl Scopes {
    /// A part is seen from here on.
    fn bind(&mut self, name: &mut Ident, own: usize) {
        let known = folded(name);
        // Two parts of one WITH that have one name are an error, which the planner says.
        let is_known = |part: &VisibleCte| part.name == known;
        let shadows =
            self.seen[..own].iter().any(is_known) && !self.seen[own..].iter().any(is_known);
        let other = shadows.then(|| {
            self.made += 1;
            format!("{MARK}with{}{MARK}{known}", self.made)
        });
        if let Some(other) = &other {
            *name = Ident::with_quote('"', other);
        }
        self.seen.push(VisibleCte { name: known, other });
    }
}

impl VisitorMut for Scopes {
    type Break = Error;

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<Error> {
        let own = self.seen.len();
        let mut with = query.with.take();
        if let Some(With { recursive, cte_tables, .. }) = &mut with {
            for part in cte_tables {
                // Only one of WITH RECURSIVE sees itself.
                if *recursive {
                    self.bind(&mut part.alias.name, own);
                }
                VisitMut::visit(&mut part.query, self)?;
                if !*recursive {
                    self.bind(&mut part.alias.name, own);
                }
            }
        }
        self.outside.push((own, with));
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, query: &mut Query) -> ControlFlow<Error> {
        if let Some((outside, with)) = self.outside.pop() {
            self.seen.truncate(outside);
            query.with = with;
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<Error> {
        let TableFactor::Table { name, alias, .. } = factor else {
            return ControlFlow::Continue(());
        };
        let [ObjectNamePart::Identifier(table)] = &name.0[..] else {
            return ControlFlow::Continue(());
        };
        let known = folded(table);
        let part = self.seen.iter().rfind(|part| part.name == known);
        if let Some(VisibleCte { other: Some(other), .. }) = part {
            alias.get_or_insert_with(|| TableAlias {
                explicit: true,
                name: table.clone(),
                columns: Vec::new(),
            });
            *name = ObjectName::from(vec![Ident::with_quote('"', other)]);
        }
        ControlFlow::Continue(())
    }
}
