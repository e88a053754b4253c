//! Finished batches for Python: the block as a writable buffer, strings and categories as lists.

use std::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::buffer::Buffer;
use arrow::compute::concat_batches;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString, PyTuple};
use pyo3::{ffi, intern};
use pyo3_arrow::{PyRecordBatch, PySchema};

use crate::python::error::to_py;
use crate::python::import::Arrays;
use crate::python::wait::{at_once, compute};
use crate::tensor::{
    ALIGNMENT, Block, Converter, Lent, TensorBatch, TensorOptions, TextColumn, TextRef, Value,
};
use crate::{Error, Result};

/// Adds this file's classes and functions to the extension module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyBlock>()?;
    module.add_class::<PyLooseBlock>()?;
    module.add_class::<TensorConverter>()?;
    module.add_function(wrap_pyfunction!(read_arrow, module)?)?;
    module.add_function(wrap_pyfunction!(merge_batches, module)?)?;
    module.add_function(wrap_pyfunction!(slice_rows, module)?)?;
    Ok(())
}

/// The memory of one batch, or of one column of it. Each tensor over it keeps it alive.
#[pyclass(name = "Block", module = "tensorquery._core", frozen)]
pub struct PyBlock {
    /// Where the block begins, and how long it is, in bytes. Python may write there at any time, so
    /// that no Rust reference to these bytes may exist from here on.
    address: *mut u8,
    len: usize,
    owner: Owner,
}

/// The owner of a [`PyBlock`]'s memory.
enum Owner {
    /// An allocation, taken apart.
    Own { allocation: *mut u8, length: usize, capacity: usize },
    /// A decoded buffer. Others may hold the same allocation for other rows.
    Lent { _memory: Buffer },
}

// SAFETY: the pointer is owned and never dereferenced by this code; what Python does with the bytes
// from several threads is, as for any writable buffer, the caller's to order.
unsafe impl Send for PyBlock {}
// SAFETY: as above.
unsafe impl Sync for PyBlock {}

impl From<Block> for PyBlock {
    fn from(block: Block) -> Self {
        let (bytes, start, len) = block.into_parts();
        let mut bytes = ManuallyDrop::new(bytes);
        let (length, capacity) = (bytes.len(), bytes.capacity());
        let allocation = bytes.as_mut_ptr();
        // SAFETY: the block lies in its allocation.
        let address = unsafe { allocation.add(start) };
        Self { address, len, owner: Owner::Own { allocation, length, capacity } }
    }
}

impl From<Lent> for PyBlock {
    fn from(lent: Lent) -> Self {
        // A lent buffer was allocated by Rust, and nobody else looks at these rows of it: see
        // `Lent::address`.
        let address = lent.address();
        let memory = lent.into_buffer();
        Self { address, len: memory.len(), owner: Owner::Lent { _memory: memory } }
    }
}

impl Drop for PyBlock {
    fn drop(&mut self) {
        if let Owner::Own { allocation, length, capacity } = self.owner {
            // SAFETY: pointer, length and capacity come from the vector taken apart in `from`, and
            // Python has released every view: each of them holds a reference to this object.
            let bytes = unsafe { Vec::from_raw_parts(allocation, length, capacity) };
            Block::recycle(bytes);
        }
    }
}

#[pymethods]
impl PyBlock {
    fn __len__(&self) -> usize {
        self.len
    }

    /// # Safety
    ///
    /// Called by Python only, with a view to be filled.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let block = slf.get();
        // SAFETY: the bytes are writable and live as long as `slf`.
        unsafe { fill_view(&slf, view, block.address.cast::<c_void>(), block.len, flags) }
    }
}

/// The memory of one batch in the parts in which it was decoded, for whom copies it: they are put
/// together where they are written to.
#[pyclass(name = "LooseBlock", module = "tensorquery._core", frozen)]
pub struct PyLooseBlock {
    /// By their offsets in the whole.
    parts: Vec<(usize, Memory)>,
    len: usize,
}

enum Memory {
    Block(Block),
    Lent(Lent),
}

impl Memory {
    fn as_slice(&self) -> &[u8] {
        match self {
            Self::Block(block) => block.as_slice(),
            Self::Lent(lent) => lent.as_slice(),
        }
    }
}

#[pymethods]
impl PyLooseBlock {
    fn __len__(&self) -> usize {
        self.len
    }

    /// Writes all of it to `memory` from byte `at` on.
    #[expect(clippy::needless_pass_by_value, reason = "an argument that Python gives")]
    fn write_to(&self, memory: PyBuffer<u8>, at: usize) -> PyResult<()> {
        let fits = at.checked_add(self.len).is_some_and(|end| end <= memory.len_bytes());
        if memory.readonly() || !memory.is_c_contiguous() || !fits {
            return Err(PyValueError::new_err(format!(
                "{} bytes from byte {at} of {} on need writable, contiguous memory that is large enough",
                self.len,
                memory.len_bytes()
            )));
        }
        for (offset, part) in &self.parts {
            let part = part.as_slice();
            // SAFETY: the parts lie within `len`, which fits the buffer from `at` on; the buffer is
            // held, and no part of this batch, which nobody else can write to.
            unsafe {
                let target = memory.buf_ptr().cast::<u8>().add(at + offset);
                target.copy_from_nonoverlapping(part.as_ptr(), part.len());
            }
        }
        Ok(())
    }
}

/// Fills the view that Python asks `owner` for with `len` writable bytes.
///
/// # Safety
///
/// `view` is one that Python wants filled; the bytes are writable and live as long as `owner`. The
/// filled view takes a reference to `owner`.
pub unsafe fn fill_view<T>(
    owner: &Bound<'_, T>,
    view: *mut ffi::Py_buffer,
    bytes: *mut c_void,
    len: usize,
    flags: c_int,
) -> PyResult<()> {
    const WRITABLE: c_int = 0;
    // No memory is longer than isize::MAX bytes.
    let len = len as ffi::Py_ssize_t;
    // SAFETY: by this function's own contract.
    let status =
        unsafe { ffi::PyBuffer_FillInfo(view, owner.as_ptr(), bytes, len, WRITABLE, flags) };
    if status == 0 { Ok(()) } else { Err(PyErr::fetch(owner.py())) }
}

/// Converts Arrow batches of one schema.
#[pyclass(module = "tensorquery._core", frozen)]
pub struct TensorConverter {
    converter: Arc<Converter>,
}

impl TensorConverter {
    /// The converter itself, for threads that work without Python.
    pub fn converter(&self) -> Arc<Converter> {
        self.converter.clone()
    }
}

#[pymethods]
impl TensorConverter {
    #[new]
    fn new(schema: PySchema, options: &str) -> PyResult<Self> {
        let options: TensorOptions = serde_json::from_str(options)
            .map_err(|error| to_py(Error::config(format!("malformed tensor options: {error}"))))?;
        let converter = at_once(|| Converter::try_new(&schema.into_inner(), &options))?;
        Ok(Self { converter: Arc::new(converter) })
    }

    /// The outputs as JSON: a list of {name, kind, ...}.
    fn outputs(&self) -> PyResult<String> {
        serde_json::to_string(self.converter.outputs())
            .map_err(|error| to_py(Error::config(format!("outputs: {error}"))))
    }

    /// Gathers batches into one: (rows, block, [(offset, count)], [strings], [categories]).
    fn convert<'py>(
        &self,
        py: Python<'py>,
        pieces: Vec<PyRecordBatch>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let pieces: Vec<RecordBatch> = pieces.into_iter().map(PyRecordBatch::into_inner).collect();
        let batch = compute(py, || self.converter.convert(&pieces))?;
        to_python(py, batch)
    }
}

/// A finished batch for `tensors.BatchBuilder`: (rows, block, [(offset, count)], [strings],
/// [categories]), where the slot of a lent column is its own block. No number is copied.
pub fn to_python(py: Python<'_>, batch: TensorBatch) -> PyResult<Bound<'_, PyTuple>> {
    let slots = slots_of(&batch);
    let (texts, categories) = objects_of(py, &batch)?;
    let rows = batch.rows();
    let (block, lent) = batch.into_memory();
    let block = Bound::new(py, PyBlock::from(block))?;
    if lent.is_empty() {
        return (rows, block, slots, texts, categories).into_pyobject(py);
    }
    let slots = slots.into_iter().zip(lent).map(|((offset, count), lent)| match lent {
        None => Ok((offset, count).into_pyobject(py)?.into_any()),
        Some(lent) => Ok(Bound::new(py, PyBlock::from(lent))?.into_any()),
    });
    let slots = slots.collect::<PyResult<Vec<_>>>()?;
    (rows, block, slots, texts, categories).into_pyobject(py)
}

/// Converts a batch with all its slots in one [`PyLooseBlock`].
pub fn to_loose(py: Python<'_>, batch: TensorBatch) -> PyResult<Bound<'_, PyTuple>> {
    let mut slots = slots_of(&batch);
    let (texts, categories) = objects_of(py, &batch)?;
    let rows = batch.rows();
    let (block, lent) = batch.into_memory();
    let mut len = block.as_slice().len();
    let mut parts = vec![(0, Memory::Block(block))];
    for (slot, lent) in slots.iter_mut().zip(lent) {
        let Some(lent) = lent else { continue };
        slot.0 = len.next_multiple_of(ALIGNMENT);
        len = slot.0 + lent.as_slice().len();
        parts.push((slot.0, Memory::Lent(lent)));
    }
    let block = Bound::new(py, PyLooseBlock { parts, len })?;
    (rows, block, slots, texts, categories).into_pyobject(py)
}

/// Offset and count of each slot.
fn slots_of(batch: &TensorBatch) -> Vec<(usize, usize)> {
    batch.slots().iter().map(|slot| (slot.offset, slot.count)).collect()
}

/// Strings and categories.
fn objects_of<'py>(
    py: Python<'py>,
    batch: &TensorBatch,
) -> PyResult<(Bound<'py, PyList>, Bound<'py, PyList>)> {
    let texts = PyList::empty(py);
    for column in batch.texts() {
        texts.append(strings(py, column)?)?;
    }
    let categories = PyList::empty(py);
    for values in batch.categories() {
        let values: PyResult<Vec<_>> = values.iter().map(|value| to_object(py, value)).collect();
        categories.append(PyList::new(py, values?)?)?;
    }
    Ok((texts, categories))
}

fn strings<'py>(py: Python<'py>, column: &TextColumn) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    for text in column.iter() {
        match text {
            TextRef::Str(text) => list.append(PyString::new(py, text))?,
            TextRef::Bytes(bytes) => list.append(PyBytes::new(py, bytes))?,
        }
    }
    Ok(list)
}

fn to_object<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        Value::Bool(value) => value.into_pyobject(py)?.to_owned().into_any(),
        // Categories are elements of a tensor type, so that 64 bits hold them.
        Value::Int(value) => match i64::try_from(*value) {
            Ok(value) => value.into_pyobject(py)?.into_any(),
            Err(_) => (*value as u64).into_pyobject(py)?.into_any(),
        },
        Value::Float(value) => value.into_pyobject(py)?.into_any(),
        Value::Text(value) => PyString::new(py, value).into_any(),
        Value::Bytes(value) => PyBytes::new(py, value).into_any(),
    })
}

/// Reads an Arrow object of any library into (schema, [batches]).
#[pyfunction]
fn read_arrow(py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<(PySchema, Vec<PyRecordBatch>)> {
    let exports = data.hasattr(intern!(py, "__arrow_c_array__"))?
        || data.hasattr(intern!(py, "__arrow_c_stream__"))?;
    if !exports {
        return Err(PyTypeError::new_err(format!(
            "expected an Arrow table, batch or reader (an object with __arrow_c_array__ or \
             __arrow_c_stream__), got {}",
            data.get_type().name()?
        )));
    }
    let arrays = data.extract::<Arrays>()?;
    let (schema, batches) = compute(py, || Ok((arrays.schema()?, arrays.batches()?)))?;
    Ok((PySchema::new(schema), batches.into_iter().map(PyRecordBatch::new).collect()))
}

/// `rows` rows of a batch from row `start` on, without a copy.
#[pyfunction]
fn slice_rows(batch: PyRecordBatch, start: usize, rows: usize) -> PyResult<PyRecordBatch> {
    let batch = batch.into_inner();
    if start.checked_add(rows).is_none_or(|end| end > batch.num_rows()) {
        return Err(PyValueError::new_err(format!(
            "{rows} rows from row {start} on do not lie in a batch of {}",
            batch.num_rows()
        )));
    }
    Ok(PyRecordBatch::new(batch.slice(start, rows)))
}

/// One batch of the rows of all `pieces`, for output_format="arrow" and "dict".
#[pyfunction]
fn merge_batches(py: Python<'_>, schema: PySchema, pieces: Vec<Arrays>) -> PyResult<PyRecordBatch> {
    let schema = schema.into_inner();
    let merge = || {
        let pieces = pieces.into_iter().map(Arrays::batches).collect::<Result<Vec<_>>>()?;
        let mut pieces = pieces.concat();
        match (pieces.len(), pieces.pop()) {
            (1, Some(only)) => Ok(only),
            (_, last) => {
                pieces.extend(last);
                Ok(concat_batches(&schema, &pieces)?)
            }
        }
    };
    compute(py, merge).map(PyRecordBatch::new)
}
