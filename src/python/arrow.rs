//! Arrow to Python, by the PyCapsule interface.

use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::{RecordBatchIterator, RecordBatchReader};
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::ffi_stream::FFI_ArrowArrayStream;
use arrow::record_batch::RecordBatch;
use futures::TryStreamExt;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use tokio::sync::mpsc::{Receiver, channel};

use super::error::to_py;
use crate::Error;
use crate::runtime::Runtimes;
use crate::session::Query;

/// Batches that wait between the engine and the consumer.
const BUFFERED_BATCHES: usize = 4;

/// A stream of record batches that any Arrow library consumes through `__arrow_c_stream__`.
#[pyclass(frozen, module = "tensorquery._core")]
pub struct ArrowStream {
    reader: Mutex<Option<Box<dyn RecordBatchReader + Send>>>,
    schema: SchemaRef,
}

impl ArrowStream {
    /// A stream over a reader; it can be consumed once.
    pub fn new(reader: Box<dyn RecordBatchReader + Send>) -> Self {
        Self { schema: reader.schema(), reader: Mutex::new(Some(reader)) }
    }

    /// A stream over batches.
    pub fn of(schema: SchemaRef, batches: Vec<RecordBatch>) -> Self {
        Self::new(Box::new(RecordBatchIterator::new(batches.into_iter().map(Ok), schema)))
    }
}

#[pymethods]
impl ArrowStream {
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        // The interface lets a producer ignore the requested schema.
        drop(requested_schema);
        let reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner).take();
        let reader =
            reader.ok_or_else(|| PyValueError::new_err("this stream was already consumed"))?;
        PyCapsule::new(
            py,
            FFI_ArrowArrayStream::new(reader),
            Some(c"arrow_array_stream".to_owned()),
        )
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        schema_capsule(py, &self.schema)
    }

    fn __repr__(&self) -> String {
        format!("ArrowStream({} columns)", self.schema.fields().len())
    }
}

/// A schema as a PyCapsule.
pub fn schema_capsule<'py>(py: Python<'py>, schema: &SchemaRef) -> PyResult<Bound<'py, PyCapsule>> {
    let exported = arrow::ffi::FFI_ArrowSchema::try_from(schema.as_ref())
        .map_err(|error| to_py(error.into()))?;
    PyCapsule::new(py, exported, Some(c"arrow_schema".to_owned()))
}

/// The rows of a query while it runs in the background.
pub struct QueryReader {
    schema: SchemaRef,
    receiver: Receiver<Result<RecordBatch, ArrowError>>,
    runtimes: Arc<Runtimes>,
}

impl QueryReader {
    /// Starts the query; dropping the reader stops it.
    pub fn start(query: Query) -> crate::Result<Self> {
        let runtimes = Runtimes::current()?;
        let (sender, receiver) = channel(BUFFERED_BATCHES);
        let schema = query.schema();
        runtimes.cpu().spawn(async move {
            let forward = async {
                let mut stream = query.stream().await?;
                while let Some(batch) = stream.try_next().await? {
                    if sender.send(Ok(batch)).await.is_err() {
                        break;
                    }
                }
                Ok::<(), Error>(())
            };
            if let Err(error) = forward.await {
                // Nobody listens when the reader was dropped.
                let _ = sender.send(Err(ArrowError::ExternalError(Box::new(error)))).await;
            }
        });
        Ok(Self { schema, receiver, runtimes })
    }
}

impl Iterator for QueryReader {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.runtimes.cpu().block_on(self.receiver.recv())
    }
}

impl RecordBatchReader for QueryReader {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}
