//! A table in memory as a DataFusion table.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::Expr;
use datafusion::physical_plan::ExecutionPlan;

use super::split_scan::{ScanSource, SplitScanExec};
use crate::basics::table_basics;
use crate::formats::{RowRange, Split, SplitUnit};

/// Batches under a name.
///
/// DataFusion's own `MemTable` estimates sizes by allocated buffers, which differ between a table
/// and its copy in a worker process, so that both could choose other build sides for the same join.
/// Here sizes depend on the content alone.
#[derive(Debug)]
pub struct MemoryTable {
    schema: SchemaRef,
    batches: Arc<Vec<RecordBatch>>,
    bytes: u64,
    content: Option<Arc<str>>,
    stands_for: Option<Arc<str>>,
}

impl MemoryTable {
    /// A table of these batches, which take `bytes` when they are written as Arrow IPC.
    pub fn new(schema: SchemaRef, batches: Arc<Vec<RecordBatch>>, bytes: u64) -> Self {
        Self { schema, batches, bytes, content: None, stands_for: None }
    }

    /// Names the table or stage that plans show in place of this one.
    #[must_use]
    pub fn standing_for(self, what: String) -> Self {
        Self { stands_for: Some(Arc::from(what)), ..self }
    }

    /// Sets the digest of the rows.
    #[must_use]
    pub fn with_digest(self, digest: &str) -> Self {
        Self { content: Some(Arc::from(digest)), ..self }
    }

    /// Bytes of its rows as Arrow IPC.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[async_trait]
impl TableProvider for MemoryTable {
    table_basics!(this => Arc::clone(&this.schema));

    async fn scan(
        &self,
        _: &dyn Session,
        projection: Option<&Vec<usize>>,
        _: &[Expr],
        _: Option<usize>,
    ) -> DfResult<Arc<dyn ExecutionPlan>> {
        let schema = match projection {
            Some(indices) => Arc::new(self.schema.project(indices)?),
            None => Arc::clone(&self.schema),
        };
        let end = self.batches.iter().map(|batch| batch.num_rows() as u64).sum();
        let whole = Split {
            scan: 0,
            file: 0,
            unit: SplitUnit::Rows(RowRange { start: 0, end }),
            rows: Some(end),
            deleted: 0,
            first_row: 0,
            bytes: self.bytes,
        };
        let source = ScanSource::Memory {
            schema: Arc::clone(&self.schema),
            batches: Arc::clone(&self.batches),
            bytes: self.bytes,
            projection: projection.cloned(),
            content: self.content.clone(),
            stands_for: self.stands_for.clone(),
        };
        Ok(Arc::new(SplitScanExec::new(source, Arc::from([whole]), schema)))
    }
}
