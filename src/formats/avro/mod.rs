//! Apache Avro object container files: blocks are found by walking from one to the next, and
//! decoded row by row.
//!
//! `arrow-avro` decodes. Its assumptions are checked before it sees a block: that a compressed
//! block does not become huge, that its rows fill it exactly, that lengths and branches are
//! possible. So a damaged file is an error and nothing else. Columns are those of the top-level
//! record; the file's own schema is the reader's.

mod codec;
mod discover;
mod head;
mod normal;
mod read;
mod schema;
mod walk;
mod whole;
mod wire;

use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use async_trait::async_trait;
use futures::stream::BoxStream;
use object_store::{ObjectMeta, ObjectStore};

pub(super) use discover::discover;
pub use head::{AvroHead, read_avro_head};
pub use whole::vetted;

use super::footers::FooterCache;
use super::source::{ColumnRead, RowSource, UnitFormat};
use crate::Result;

/// How Avro files are read.
#[derive(Clone, Debug, Default)]
pub struct Avro;

/// Reads Avro files as a table.
pub type AvroSource = RowSource<Avro>;

#[async_trait]
impl UnitFormat for Avro {
    type Footer = AvroHead;

    const NAME: &'static str = "avro";

    async fn footer(
        &self,
        store: &Arc<dyn ObjectStore>,
        meta: &ObjectMeta,
        cache: &FooterCache,
    ) -> Result<Arc<AvroHead>> {
        read_avro_head(store, meta, cache).await
    }

    fn schema(&self, head: &AvroHead, _: &Schema) -> SchemaRef {
        Arc::clone(head.schema())
    }

    async fn open(
        &self,
        store: Arc<dyn ObjectStore>,
        meta: ObjectMeta,
        head: Arc<AvroHead>,
        read: ColumnRead,
    ) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        read::open(store, meta, head, read).await
    }
}
