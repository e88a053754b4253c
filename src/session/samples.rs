//! Sampled tables, found by name: `"sample"."10 7 public.flights"`.

use std::any::Any;
use std::sync::{Arc, Weak};

use async_trait::async_trait;
use datafusion::catalog::{CatalogProvider, SchemaProvider, TableProvider};
use datafusion::datasource::TableType;
use datafusion::error::Result as DfResult;

use super::registered::TableKey;
use crate::exec::{Sample, SampledTable};
use crate::query::{SAMPLE_SCHEMA, SampleName, view_is_no_table};

/// The schema of all samples of the tables of a catalog. It holds none: each is made when it is
/// asked for.
#[derive(Debug)]
pub(super) struct SampleSchema {
    /// The catalog that this schema is in.
    catalog: Weak<dyn CatalogProvider>,
}

impl SampleSchema {
    pub(super) fn of(catalog: &Arc<dyn CatalogProvider>) -> Arc<Self> {
        Arc::new(Self { catalog: Arc::downgrade(catalog) })
    }
}

#[async_trait]
impl SchemaProvider for SampleSchema {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn table_names(&self) -> Vec<String> {
        Vec::new()
    }

    async fn table(&self, name: &str) -> DfResult<Option<Arc<dyn TableProvider>>> {
        let Some(sampled) = SampleName::parse(name) else { return Ok(None) };
        let schema = self.catalog.upgrade().and_then(|catalog| catalog.schema(&sampled.schema));
        let Some(schema) = schema else { return Ok(None) };
        let Some(table) = schema.table(&sampled.table).await? else { return Ok(None) };
        if table.table_type() == TableType::View {
            return Err(view_is_no_table(&sampled.table).into());
        }
        let sample = Sample { percent: sampled.percent, seed: sampled.seed };
        Ok(Some(Arc::new(SampledTable::new(table, sample))))
    }

    fn table_exist(&self, name: &str) -> bool {
        let Some(sampled) = SampleName::parse(name) else { return false };
        let schema = self.catalog.upgrade().and_then(|catalog| catalog.schema(&sampled.schema));
        schema.is_some_and(|schema| schema.table_exist(&sampled.table))
    }
}

/// The table that a name reads: of a sample the one that is sampled.
pub(super) fn read_table(schema: &str, table: &str) -> TableKey {
    match SampleName::parse(table).filter(|_| schema == SAMPLE_SCHEMA) {
        Some(sampled) => (sampled.schema, sampled.table),
        None => (schema.to_owned(), table.to_owned()),
    }
}
