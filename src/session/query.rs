//! A lazy query: a definition bound to the tables it read when it was made.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use arrow::datatypes::{Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::logical_expr::{LogicalPlan, LogicalPlanBuilder};
use datafusion::physical_plan::{ExecutionPlan, displayable};
use futures::{FutureExt, TryStreamExt};

use super::discovery::count_scans;
use super::lake::LakeChange;
use super::plan::{Plan, PlanOptions};
use super::plan_fingerprint::Classified;
use super::registered::{Registered, TableKey};
use super::registry::Session;
use super::serialised_plan;
use super::staged::{STAGE_SCHEMA, StageMode, StagedPart};
use crate::panics::caught_later;
use crate::query::{Definition, PATH_SCHEMA, check_repeatable};
use crate::{Error, ErrorKind, Result};

/// One read-only SQL statement bound to a session.
#[derive(Clone, Debug)]
pub struct Query {
    session: Arc<Session>,
    definition: Arc<Definition>,
    /// The plan before it is analysed, for queries over this one.
    bound: LogicalPlan,
    plan: LogicalPlan,
    tables: Vec<(TableKey, Registered)>,
    /// Where parts of it are staged: `plan` is the rest.
    parts: Arc<[StagedPart]>,
    /// Results of an earlier search for parts to stage; the next planning takes them.
    classified: Arc<Mutex<Option<Classified>>>,
}

impl Query {
    pub(super) fn new(
        session: Arc<Session>,
        definition: Arc<Definition>,
        bound: LogicalPlan,
        plan: LogicalPlan,
        tables: Vec<(TableKey, Registered)>,
    ) -> Self {
        let (parts, classified) = (Arc::from([]), Arc::default());
        Self { session, definition, bound, plan, tables, parts, classified }
    }

    /// The session it is bound to.
    pub fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// How it was asked for.
    pub fn definition(&self) -> &Arc<Definition> {
        &self.definition
    }

    /// Its SQL, as people read it and fingerprints digest it.
    pub fn sql(&self) -> &str {
        self.definition.text()
    }

    /// The plan before it is analysed.
    pub(super) fn bound(&self) -> &LogicalPlan {
        &self.bound
    }

    /// The plan before it is optimised.
    pub(super) fn logical(&self) -> &LogicalPlan {
        &self.plan
    }

    /// The parts of it that are staged.
    pub fn parts(&self) -> &[StagedPart] {
        &self.parts
    }

    /// The query with another plan.
    pub(super) fn with_plan(&self, plan: LogicalPlan) -> Self {
        Self { plan, classified: Arc::default(), ..self.clone() }
    }

    /// The query, reading these stages as well.
    pub(super) fn with_parts(
        mut self,
        stages: Vec<(TableKey, Registered)>,
        parts: Vec<StagedPart>,
    ) -> Self {
        self.tables.extend(stages);
        self.parts = Arc::from(parts);
        self.classified = Arc::default();
        self
    }

    /// Keeps planning results for the next planning.
    pub(super) fn leave_classified(&self, found: Classified) {
        *self.classified.lock().unwrap_or_else(PoisonError::into_inner) = Some(found);
    }

    /// Takes the results of the earlier search, once: plans hold the state of one execution.
    pub(super) fn take_classified(&self) -> Option<Classified> {
        self.classified.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(super) fn tables(&self) -> &[(TableKey, Registered)] {
        &self.tables
    }

    /// The query over its Iceberg and Delta tables as they are now, or at these snapshots and schemas by
    /// table name; with the changes. Other tables stay as they were pinned.
    ///
    /// # Errors
    /// Errors of loading a table; `Query` if a column that the query names is gone.
    pub async fn refreshed(
        &self,
        at: &BTreeMap<String, (i64, i32)>,
    ) -> Result<(Self, Vec<LakeChange>)> {
        let (tables, changes) = self.session.reload(&self.tables, at).await?;
        let session = self.session.of_tables(&tables).await?;
        let definition = Arc::clone(&self.definition);
        Ok((session.query_over(definition, false, &[]).await?, changes))
    }

    /// The pinned snapshots of its Iceberg tables and the schemas they are read with, and the
    /// versions of its Delta tables, by the tables' names.
    pub fn snapshots(&self) -> BTreeMap<String, (i64, i32)> {
        let pinned = self.tables.iter().filter_map(|((_, name), registered)| match registered {
            Registered::Lake(lake) => {
                let pinned = lake.pinned()?;
                Some((name.clone(), (pinned.version?, pinned.schema)))
            }
            _ => None,
        });
        pinned.collect()
    }

    /// Name of every pinned file that the query can read, with its size in bytes, a space and a
    /// name for its content, which follows from size, entity tag and the time of the last write; of
    /// a table in memory, the digest of its rows.
    ///
    /// # Errors
    /// `Config` where the schema of an Iceberg table cannot be written.
    pub fn files(&self) -> Result<Vec<(String, String)>> {
        let mut files = Vec::new();
        for ((schema, name), registered) in &self.tables {
            if schema == STAGE_SCHEMA {
                // Its files may lie anywhere: what counts is their content.
                let part = self.parts.iter().find(|part| part.table == *name);
                let why = part.map_or("", |part| part.why.as_str());
                files.push((format!("stage ({why})"), name.clone()));
                continue;
            }
            match registered {
                Registered::Files { table, spec } => {
                    files.extend(spec.files.iter().enumerate().map(|(index, (pin, _))| {
                        let identity = format!("{} {}", pin.size, pin.content_name());
                        (table.display_path(index), identity)
                    }));
                }
                Registered::Lake(lake) => files.push((name.clone(), lake.identity()?)),
                Registered::Memory { digest, .. } => files.push((name.clone(), digest.clone())),
                // What a state says of the moment, it says apart from files.
                Registered::View { .. } | Registered::Function(_) | Registered::Moment(_) => {}
            }
        }
        Ok(files)
    }

    /// Every file that its tables have as they are pinned, also those that no split is planned for:
    /// the path, as splits name it, and an identity as in [`files`](Self::files). Files of Iceberg
    /// and Delta tables are never rewritten and have an empty one. A table in memory is there under
    /// the path "memory" of its splits, with the digest of its rows; stages are left out.
    pub fn table_files(&self) -> Vec<(String, String)> {
        let mut files = Vec::new();
        for ((schema, _), registered) in &self.tables {
            match registered {
                _ if schema == STAGE_SCHEMA => {}
                Registered::Files { table, spec } => {
                    files.extend(spec.files.iter().enumerate().map(|(index, (pin, _))| {
                        let identity = format!("{} {}", pin.size, pin.content_name());
                        (table.display_path(index), identity)
                    }));
                }
                Registered::Lake(lake) => {
                    let count = lake.table.files.len();
                    files.extend((0..count).map(|at| (lake.table.display_path(at), String::new())));
                }
                Registered::Memory { digest, .. } => {
                    files.push(("memory".to_owned(), digest.clone()));
                }
                Registered::View { .. } | Registered::Function(_) | Registered::Moment(_) => {}
            }
        }
        files
    }

    /// Memos of the tables of its path literals, by path.
    ///
    /// # Errors
    /// Where a schema cannot be written.
    pub fn path_memos(&self) -> Result<Vec<(String, Vec<u8>)>> {
        path_memos(&self.tables)
    }

    /// The plan whose splits another process found: see [`Plan::memo`].
    ///
    /// # Errors
    /// `Data` where this process plans the query differently; `Config` where the memo is damaged.
    pub async fn plan_of_memo(&self, memo: &[u8], options: &PlanOptions) -> Result<Plan> {
        Plan::resume(self.clone(), serialised_plan::open_plan(memo)?, options.clone()).await
    }

    /// The files of its tables that were left out when they were registered, with the reason.
    pub fn quarantined(&self) -> Vec<(String, String)> {
        let mut found: Vec<(String, String)> = Vec::new();
        for (_, registered) in &self.tables {
            if let Registered::Files { spec, .. } = registered {
                found.extend(spec.quarantined.iter().cloned());
            }
        }
        found.sort();
        found.dedup();
        found
    }

    /// The driving scans that the query has as an input of [`union_all`](Self::union_all): none
    /// where the planner proves that it has no row.
    ///
    /// # Errors
    /// `NotShardable` naming the operator that is not row-local.
    pub async fn count_scans(&self, mode: StageMode) -> Result<usize> {
        let cuts = self.cuts(mode).await?;
        match cuts.is_empty() {
            true => {
                self.check()?;
                count_scans(self).await
            }
            false => count_scans(&self.without_rows(&cuts, &[])?).await,
        }
    }

    /// Returns true if the optimizer proves that it has no row, and so takes it out of a UNION ALL.
    pub(super) fn is_proven_empty(&self) -> Result<bool> {
        let plan = self.session.context().state().optimize(self.logical())?;
        Ok(matches!(plan, LogicalPlan::EmptyRelation(empty) if !empty.produce_one_row))
    }

    /// The output columns.
    pub fn schema(&self) -> SchemaRef {
        Arc::new(Schema::new_with_metadata(
            self.plan.schema().fields().clone(),
            self.plan.schema().metadata().clone(),
        ))
    }

    /// The optimised physical plan, with one partition.
    pub(super) async fn physical_plan(&self) -> Result<Arc<dyn ExecutionPlan>> {
        self.physical_plan_of(&self.plan).await
    }

    /// The physical plan of a logical plan that is optimised already.
    pub(super) async fn physical_plan_of_optimized(
        &self,
        plan: &LogicalPlan,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let state = self.session.context().state();
        let planned = async { Ok(state.query_planner().create_physical_plan(plan, &state).await?) };
        caught_later(planned, not_planned).await
    }

    /// The planner has `unwrap`s that SQL may reach.
    pub(super) async fn physical_plan_of(
        &self,
        plan: &LogicalPlan,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let state = self.session.context().state();
        caught_later(async { Ok(state.create_physical_plan(plan).await?) }, not_planned).await
    }

    /// The physical plan of as many rows without the query's columns: joins, filters and unnesting
    /// stay, and leaves read the columns for these.
    pub(super) async fn physical_plan_of_rows(&self) -> Result<Arc<dyn ExecutionPlan>> {
        use datafusion::logical_expr::lit;
        let plan = LogicalPlanBuilder::from(self.plan.clone()).project([lit(true)])?.build()?;
        self.physical_plan_of(&plan).await
    }

    /// The physical plan of the same rows with these output columns alone.
    ///
    /// # Errors
    /// `Config` for a column that the query does not have.
    pub(super) async fn physical_plan_of_columns(
        &self,
        names: &[&str],
    ) -> Result<Arc<dyn ExecutionPlan>> {
        use datafusion::common::Column;
        use datafusion::logical_expr::Expr;
        let schema = self.plan.schema();
        let column = |name: &&str| {
            let place = schema.fields().iter().position(|field| field.name() == name);
            let place = place.ok_or_else(|| Error::config(format!("no column {name:?}")))?;
            Ok(Expr::Column(Column::from(schema.qualified_field(place))))
        };
        let columns: Vec<Expr> = names.iter().map(column).collect::<Result<_>>()?;
        let plan = LogicalPlanBuilder::from(self.plan.clone()).project(columns)?.build()?;
        self.physical_plan_of(&plan).await
    }

    /// Runs the query in this process and streams its rows.
    ///
    /// # Errors
    /// Errors of planning, or of opening the first file.
    pub async fn stream(&self) -> Result<SendableRecordBatchStream> {
        self.run_whole(self.plan.clone()).await
    }

    /// All rows.
    ///
    /// # Errors
    /// Errors of planning or reading; damage in a file is named with the file and the part of it.
    pub async fn collect(&self) -> Result<Vec<RecordBatch>> {
        self.gather(self.plan.clone()).await
    }

    /// Waits for a task that reads.
    pub(super) async fn finish<T: 'static>(&self, task: SpawnedTask<Result<T>>) -> Result<T> {
        let stopped = |error| Error::data("the process is ending").with_source(error);
        match task.join_unwind().await.map_err(stopped)? {
            Err(error) if error.may_be_of_content() => Err(self.locate(error).await),
            other => other,
        }
    }

    /// Adds the place to an error, if reading split by split finds it: DataFusion's own scan does
    /// not name the file.
    async fn locate(&self, error: Error) -> Error {
        // Boxed: with all that planning awaits, the future would be nested more deeply than the
        // compiler follows.
        self.damage().boxed().await.unwrap_or(error)
    }

    /// Adds the place to an error of a part of a plan; each table that it reads is searched by
    /// itself.
    pub(super) async fn locate_below(&self, part: &LogicalPlan, error: Error) -> Error {
        if !error.may_be_of_content() {
            return error;
        }
        let mut scans = Vec::new();
        let walked = part.apply_with_subqueries(|node| {
            if matches!(node, LogicalPlan::TableScan(_)) {
                scans.push(node.clone());
            }
            Ok(TreeNodeRecursion::Continue)
        });
        if walked.is_err() {
            return error;
        }
        for scan in scans {
            if let Some(located) = self.with_plan(scan).damage().await {
                return located;
            }
        }
        error
    }

    /// The first damage that reading split by split meets.
    async fn damage(&self) -> Option<Error> {
        let find = async {
            let plan = self.plan_splits(&PlanOptions::default()).await?;
            let epoch = plan.epoch()?;
            for id in 0..plan.splits().len() {
                let mut rows = epoch.execute(u32::try_from(id).unwrap_or(u32::MAX))?;
                while rows.try_next().await?.is_some() {}
            }
            Ok::<(), Error>(())
        };
        match find.await {
            Err(located) if located.kind() == ErrorKind::Data => Some(located),
            _ => None,
        }
    }

    /// The first `rows` rows.
    ///
    /// # Errors
    /// Errors of planning or reading.
    pub async fn head(&self, rows: usize) -> Result<Vec<RecordBatch>> {
        let plan = LogicalPlanBuilder::from(self.plan.clone()).limit(0, Some(rows))?.build()?;
        self.gather(plan).await
    }

    /// The exact number of rows; from metadata where that suffices.
    ///
    /// # Errors
    /// Errors of planning or reading.
    pub async fn count(&self) -> Result<u64> {
        use datafusion::functions_aggregate::expr_fn::count;
        use datafusion::logical_expr::{Expr, lit};
        let plan = LogicalPlanBuilder::from(self.plan.clone())
            .aggregate(Vec::<Expr>::new(), vec![count(lit(1i64)).alias("rows")])?
            .build()?;
        let batches = self.gather(plan).await?;
        let column = batches.iter().find(|batch| batch.num_rows() > 0).map(|batch| batch.column(0));
        let rows = column
            .and_then(|column| column.as_any().downcast_ref::<arrow::array::Int64Array>())
            .map(|counts| counts.value(0));
        rows.and_then(|rows| u64::try_from(rows).ok())
            .ok_or_else(|| Error::data("the counting query returned no count"))
    }

    /// DataFusion's plan, its staged parts with the reasons, and the plan whose driving scans were
    /// replaced by splits. No stage is built; the sizes of stages in `place` are shown.
    ///
    /// # Errors
    /// Errors of planning; `Config` or `Storage` if a part is staged and the place cannot be
    /// opened.
    pub async fn explain(
        &self,
        options: &PlanOptions,
        mode: StageMode,
        place: &str,
    ) -> Result<String> {
        let physical = self.physical_plan().await?;
        let mut text = String::from("DataFusion's plan:\n");
        text += &displayable(physical.as_ref()).indent(false).to_string();
        let cuts = match self.cuts(mode).await {
            Ok(cuts) => cuts,
            Err(error) => return Ok(format!("{text}\nBy splits:\nnot shardable: {error}\n")),
        };
        for (number, cut) in cuts.iter().enumerate() {
            text += &format!("\nStage {}, which runs once: {}\n", number + 1, cut.why);
            text += &self.describe_part(cut).await?;
        }
        let rest = match cuts.is_empty() {
            true => self.clone(),
            false => self.without_rows(&cuts, &self.known_sizes(&cuts, place).await?)?,
        };
        let planned = match rest.check() {
            // What a stage evaluates once is no longer there.
            Err(error) if cuts.is_empty() => Err(error),
            _ => Plan::discover(rest, options, false).await,
        };
        let after = match planned {
            Ok(plan) => displayable(plan.physical().as_ref()).indent(false).to_string(),
            Err(error) => format!("not shardable: {error}\n"),
        };
        Ok(format!("{text}\nBy splits:\n{after}"))
    }

    /// Finds the driving scans and their splits, which every shard is dealt from.
    ///
    /// # Errors
    /// `NotShardable` naming the operator that is not row-local.
    pub async fn plan_splits(&self, options: &PlanOptions) -> Result<Plan> {
        self.check()?;
        caught_later(Plan::discover(self.clone(), options, false), not_planned).await
    }

    /// Plans tolerantly: a file whose footer or record borders cannot be read is a split that
    /// [`SplitVerifier`](super::SplitVerifier) finds bad.
    ///
    /// # Errors
    /// As for [`plan_splits`](Self::plan_splits), but for damaged files.
    pub async fn plan_splits_tolerantly(&self, options: &PlanOptions) -> Result<Plan> {
        self.check()?;
        caught_later(Plan::discover(self.clone(), options, true), not_planned).await
    }

    /// The checks of [`Self::plan_splits`] that planning in a worker repeats.
    pub(super) fn check(&self) -> Result<()> {
        check_repeatable(&self.plan)
    }
}

/// The error for a panic of the planner.
pub(super) fn not_planned(message: &str) -> Error {
    Error::query(format!(
        "the engine failed while it planned the SQL ({message}); write it in another way, and please report it with the SQL"
    ))
}

/// Memos of path literals among these tables, by path.
pub(super) fn path_memos(tables: &[(TableKey, Registered)]) -> Result<Vec<(String, Vec<u8>)>> {
    let mut memos = Vec::new();
    for ((schema, name), registered) in tables {
        if let (PATH_SCHEMA, Registered::Files { table, spec }) = (schema.as_str(), registered) {
            memos.push((name.clone(), serialised_plan::of_table(table, spec)?));
        }
    }
    Ok(memos)
}
