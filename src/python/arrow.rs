//! Arrow to Python, by the PyCapsule interface.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, ThreadId};

use arrow::array::{RecordBatchIterator, RecordBatchReader};
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::ffi_stream::FFI_ArrowArrayStream;
use arrow::record_batch::RecordBatch;
use futures::TryStreamExt;
use pyo3::exceptions::{PyKeyboardInterrupt, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use tokio::sync::mpsc::{Receiver, channel};
use tokio::time::error::Elapsed;

use super::error::to_py;
use super::exits::stay_until_exit;
use super::wait::PATIENCE;
use crate::Error;
use crate::panics::{caught_later, of_engine};
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
    /// The Python thread that asked for the rows. Other libraries may fetch them on threads of
    /// their own, which must not wait for the GIL.
    thread: ThreadId,
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
            // A panic would only close the channel, which looks like the end of the rows.
            if let Err(error) = caught_later(forward, of_engine).await {
                // Nobody listens when the reader was dropped.
                let _ = sender.send(Err(ArrowError::ExternalError(Box::new(error)))).await;
            }
        });
        Ok(Self { schema, receiver, runtimes, thread: thread::current().id() })
    }

    /// The next batch, or nothing after some time. The library that fetches the rows may hold the
    /// GIL meanwhile, and functions of the query may need it.
    fn wait(&mut self) -> Result<Option<Result<RecordBatch, ArrowError>>, Elapsed> {
        let (receiver, io) = (&mut self.receiver, self.runtimes.io());
        // The clock of the CPU runtime stands still while all its threads compute.
        let mut receive =
            || io.block_on(async { tokio::time::timeout(PATIENCE, receiver.recv()).await });
        match thread::current().id() == self.thread {
            true => {
                stay_until_exit();
                Python::attach(|py| py.detach(receive))
            }
            false => receive(),
        }
    }

    /// Returns true if Ctrl-C was pressed. The Arrow library that fetches the rows knows no Python
    /// exception, so it gets an error of its own, and Python is told again for when that library
    /// has returned.
    fn is_interrupted(&self) -> bool {
        if thread::current().id() != self.thread {
            return false;
        }
        Python::attach(|py| match py.check_signals() {
            Ok(()) => false,
            Err(raised) => {
                if raised.is_instance_of::<PyKeyboardInterrupt>(py) {
                    // SAFETY: it only sets a flag, and may be called with or without the GIL.
                    unsafe { pyo3::ffi::PyErr_SetInterrupt() };
                }
                true
            }
        })
    }
}

impl Iterator for QueryReader {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Ok(item) = self.receiver.try_recv() {
                return Some(item);
            }
            match self.wait() {
                Ok(item) => return item,
                Err(_elapsed) if self.is_interrupted() => {
                    return Some(Err(ArrowError::ComputeError("interrupted".into())));
                }
                Err(_elapsed) => {}
            }
        }
    }
}

impl RecordBatchReader for QueryReader {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}
