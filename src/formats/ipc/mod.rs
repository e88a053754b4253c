//! Arrow IPC: files whose record batches are splits, and streams, which are read from their
//! beginning.
//!
//! Local files are mapped and their arrays lie in the mapping
//! ([`MappedFile`](crate::storage::MappedFile)); of others only the buffers of the wanted columns
//! are fetched. Structure is checked before the decoder of `arrow-ipc` sees a message, and values
//! (offsets, UTF-8, dictionary keys) by that decoder, so that a damaged file is an error and
//! nothing else. The files of stages carry checksums, which are compared as they are read.

mod compressed;
mod discover;
mod head;
mod message;
mod read;
mod stream;
mod sums;

use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use async_trait::async_trait;
use futures::stream::BoxStream;
use object_store::{ObjectMeta, ObjectStore};

pub(super) use discover::discover;
pub use head::{IpcHead, MessageIndex, read_ipc_head};
pub use read::SUSPECT;
pub use sums::{SumsWriter, is_intact};

use super::footers::FooterCache;
use super::source::{ColumnRead, RowSource, UnitFormat};
use crate::Result;

/// How Arrow IPC files and streams are read.
#[derive(Clone, Debug, Default)]
pub struct Ipc {
    /// Local files are read instead of mapped.
    pub unmapped: bool,
}

/// Reads Arrow IPC files and streams as a table.
pub type IpcSource = RowSource<Ipc>;

#[async_trait]
impl UnitFormat for Ipc {
    type Footer = IpcHead;

    const NAME: &'static str = "arrow";

    async fn footer(
        &self,
        store: &Arc<dyn ObjectStore>,
        meta: &ObjectMeta,
        cache: &FooterCache,
    ) -> Result<Arc<IpcHead>> {
        read_ipc_head(store, meta, cache).await
    }

    fn schema(&self, head: &IpcHead, _: &Schema) -> SchemaRef {
        Arc::clone(head.schema())
    }

    async fn open(
        &self,
        store: Arc<dyn ObjectStore>,
        meta: ObjectMeta,
        head: Arc<IpcHead>,
        read: ColumnRead,
    ) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        match head.layout() {
            MessageIndex::File { .. } => read::open(self, store, meta, head, read).await,
            MessageIndex::Stream { .. } => stream::open(self, store, meta, head, read).await,
        }
    }
}
