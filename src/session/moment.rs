//! The moment of a query: pinned when it is made, as its files are, and kept wherever its SQL is
//! planned again.

use std::sync::Arc;

use chrono::Utc;
use datafusion::logical_expr::LogicalPlan;

use super::query::Query;
use super::registered::{Registered, TableKey};
use super::registry::Session;
use crate::Result;
use crate::query::{Moment, fix_moment};

/// The schema under which a moment is kept, apart from tables.
pub(super) const MOMENT_SCHEMA: &str = "moment";

fn moment_key() -> TableKey {
    (MOMENT_SCHEMA.to_owned(), "now".to_owned())
}

impl Session {
    /// The plan at a moment, else at the one that this session is pinned to, else now; and the
    /// moment, where the plan depends on it.
    ///
    /// # Errors
    /// None that a plan which was analysed has.
    pub(super) fn at_its_moment(
        &self,
        plan: LogicalPlan,
        moment: Option<Moment>,
    ) -> Result<(LogicalPlan, Option<(TableKey, Registered)>)> {
        let at = match (moment, self.registered(&moment_key())) {
            (Some(moment), _) | (None, Some(Registered::Moment(moment))) => moment.at(),
            _ => Utc::now(),
        };
        let state = self.context().state();
        let (plan, moment) = fix_moment(plan, at, state.config_options())?;
        Ok((plan, moment.map(|moment| (moment_key(), Registered::Moment(moment)))))
    }
}

impl Query {
    /// The moment for which the query's time functions stand; None if it has none.
    pub fn moment(&self) -> Option<Moment> {
        self.tables().iter().find_map(|(_, registered)| match registered {
            Registered::Moment(moment) => Some(*moment),
            _ => None,
        })
    }

    /// The query at another moment.
    ///
    /// # Errors
    /// As for [`Session::query`].
    pub async fn at_moment(&self, moment: Moment) -> Result<Self> {
        let mut tables = self.tables().to_vec();
        tables.retain(|(key, _)| *key != moment_key());
        tables.push((moment_key(), Registered::Moment(moment)));
        let session: Arc<Session> = self.session().of_tables(&tables).await?;
        session.query_over(Arc::clone(self.definition()), false, &[]).await
    }
}
