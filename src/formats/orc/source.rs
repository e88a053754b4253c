//! ORC files as a format with units: stripes.

use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use async_trait::async_trait;
use futures::stream::BoxStream;
use object_store::{ObjectMeta, ObjectStore};

use super::footer::{OrcFooter, read_orc_footer};
use super::stripe::{OrcRead, open};
use super::types::with_units_of;
use crate::Result;
use crate::formats::footers::FooterCache;
use crate::formats::source::{ColumnRead, RowSource, UnitFormat};
use crate::formats::units::units_in;

/// How ORC files are read.
#[derive(Clone, Debug, Default)]
pub struct Orc;

/// Reads ORC files as a table.
pub type OrcSource = RowSource<Orc>;

#[async_trait]
impl UnitFormat for Orc {
    type Footer = OrcFooter;

    const NAME: &'static str = "orc";

    async fn footer(
        &self,
        store: &Arc<dyn ObjectStore>,
        meta: &ObjectMeta,
        cache: &FooterCache,
    ) -> Result<Arc<OrcFooter>> {
        read_orc_footer(store, meta, cache).await
    }

    fn schema(&self, footer: &OrcFooter, table: &Schema) -> SchemaRef {
        with_units_of(&footer.plain_schema(), table)
    }

    async fn open(
        &self,
        store: Arc<dyn ObjectStore>,
        meta: ObjectMeta,
        footer: Arc<OrcFooter>,
        read: ColumnRead,
    ) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        let stripes = units_in(footer.stripes(), read.range.as_ref());
        let ColumnRead { columns, schema, batch_rows, .. } = read;
        open(store, &meta, footer, OrcRead { stripes, columns, schema, batch_rows })
    }
}
