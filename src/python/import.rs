//! Arrow from Python, by the PyCapsule interface.
//!
//! Imports Arrow data as `pyo3_arrow` does, with one fault fixed. Arrow takes the part of a struct
//! in a struct, or in a list of one length, twice, and panics, if only a part of the rows is meant,
//! as in `table.slice(10)`. Here each part is taken once.

use std::ffi::CStr;

use arrow::array::{
    Array, ArrayData, ArrayRef, AsArray, RecordBatch, RecordBatchOptions, make_array,
};
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef, UnionMode};
use arrow::error::ArrowError;
use arrow::ffi::{FFI_ArrowArray, FFI_ArrowSchema, from_ffi_and_data_type};
use arrow::ffi_stream::FFI_ArrowArrayStream;
use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use super::error::to_py;
use crate::{Error, Result};

/// Arrays of one type: anything with `__arrow_c_array__` or `__arrow_c_stream__`.
pub struct Arrays {
    field: FieldRef,
    found: Found,
}

enum Found {
    One(Option<FFI_ArrowArray>),
    Stream(FFI_ArrowArrayStream),
}

impl<'py> FromPyObject<'_, 'py> for Arrays {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let py = given.py();
        let (array, stream) = (intern!(py, "__arrow_c_array__"), intern!(py, "__arrow_c_stream__"));
        if given.hasattr(array)? {
            let capsules: (Bound<'py, PyCapsule>, Bound<'py, PyCapsule>) =
                given.call_method0(array)?.extract()?;
            Self::of_array(&capsules.0, &capsules.1)
        } else if given.hasattr(stream)? {
            Self::of_stream(&given.call_method0(stream)?.cast_into()?)
        } else {
            Err(PyValueError::new_err("expected __arrow_c_array__ or __arrow_c_stream__"))
        }
    }
}

impl Arrays {
    fn of_array(schema: &Bound<'_, PyCapsule>, array: &Bound<'_, PyCapsule>) -> PyResult<Self> {
        let schema = schema.pointer_checked(Some(c"arrow_schema"))?.cast::<FFI_ArrowSchema>();
        let array = array.pointer_checked(Some(c"arrow_array"))?.cast::<FFI_ArrowArray>();
        // SAFETY: the capsules' names say what they point to. The schema's lives as long as this
        // call, and the array moves out of its own.
        let (schema, array) =
            unsafe { (schema.as_ref(), FFI_ArrowArray::from_raw(array.as_ptr())) };
        let field = Field::try_from(schema).map_err(|error| to_py(error.into()))?;
        Ok(Self { field: field.into(), found: Found::One(Some(array)) })
    }

    fn of_stream(stream: &Bound<'_, PyCapsule>) -> PyResult<Self> {
        let stream = stream.pointer_checked(Some(c"arrow_array_stream"))?;
        // SAFETY: the capsule's name says what it points to, which moves out of it.
        let mut stream = unsafe { FFI_ArrowArrayStream::from_raw(stream.cast().as_ptr()) };
        let Some(get_schema) = stream.get_schema else {
            return Err(PyValueError::new_err("this stream was already consumed"));
        };
        let mut schema = FFI_ArrowSchema::empty();
        // SAFETY: the function is the stream's own, and writes a schema where one is.
        let field = match unsafe { get_schema(&raw mut stream, &raw mut schema) } {
            0 => Field::try_from(&schema),
            code => Err(failure(&mut stream, code)),
        };
        let field = field.map_err(|error| to_py(error.into()))?;
        Ok(Self { field: field.into(), found: Found::Stream(stream) })
    }

    /// Their type, and further properties.
    pub fn field(&self) -> &FieldRef {
        &self.field
    }

    /// The schema of the batches that they are.
    ///
    /// # Errors
    /// `Config` where they are not.
    pub fn schema(&self) -> Result<SchemaRef> {
        match self.field.data_type() {
            DataType::Struct(fields) => {
                let metadata = self.field.metadata().clone();
                Ok(Schema::new_with_metadata(fields.clone(), metadata).into())
            }
            other => Err(Error::config(format!(
                "expected an Arrow table, batch or reader, got an array of type {other}; wrap it in a table \
                 to give it a name"
            ))),
        }
    }

    /// The batches that they are.
    ///
    /// # Errors
    /// As for [`schema`](Self::schema); those of the stream; `Data` where a whole row is null.
    pub fn batches(self) -> Result<Vec<RecordBatch>> {
        let schema = self.schema()?;
        self.map(|array| batch(&schema, array?.as_ref())).collect()
    }
}

fn batch(schema: &SchemaRef, array: &dyn Array) -> Result<RecordBatch> {
    let Some(rows) = array.as_struct_opt() else {
        return Err(Error::data(format!("expected rows, got {}", array.data_type())));
    };
    if rows.null_count() > 0 {
        return Err(Error::data(format!(
            "{} of {} rows are null as a whole, which a table cannot be; give their columns nulls instead",
            rows.null_count(),
            rows.len()
        )));
    }
    let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
    Ok(RecordBatch::try_new_with_options(schema.clone(), rows.columns().to_vec(), &options)?)
}

impl Iterator for Arrays {
    type Item = std::result::Result<ArrayRef, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        let array = match &mut self.found {
            Found::One(array) => array.take()?,
            Found::Stream(stream) => {
                let mut array = FFI_ArrowArray::empty();
                let get_next = stream.get_next?;
                // SAFETY: the function is the stream's own, and writes an array where one is.
                match unsafe { get_next(stream, &raw mut array) } {
                    0 if array.is_released() => return None,
                    0 => array,
                    code => return Some(Err(failure(stream, code))),
                }
            }
        };
        // SAFETY: whoever made the array says that it is of this type.
        let data = unsafe { from_ffi_and_data_type(array, self.field.data_type().clone()) };
        Some(data.map(|mut data| {
            data.align_buffers();
            make_array(part(&data, 0, data.len()))
        }))
    }
}

/// Why a stream has failed, in its own words where it has any.
fn failure(stream: &mut FFI_ArrowArrayStream, code: i32) -> ArrowError {
    let said = stream.get_last_error.and_then(|get_last_error| {
        // SAFETY: the function is the stream's own; what it returns lives until the stream is asked
        // for something else.
        unsafe {
            let said = get_last_error(stream);
            (!said.is_null()).then(|| CStr::from_ptr(said).to_string_lossy().into_owned())
        }
    });
    ArrowError::CDataInterface(said.unwrap_or_else(|| format!("the stream failed with {code}")))
}

/// So many rows of `data` from the row `first` on, where no struct within begins after the first
/// row of its fields.
fn part(data: &ArrayData, first: usize, rows: usize) -> ArrayData {
    let start = data.offset() + first;
    let whole = |child: &ArrayData| part(child, 0, child.len());
    let children = data.child_data().iter();
    // Of what begins anew: the buffers, and the rows of each child.
    let (buffers, children) = match data.data_type() {
        DataType::Struct(_) => (vec![], children.map(|child| part(child, start, rows)).collect()),
        DataType::FixedSizeList(_, width) => {
            let width = *width as usize;
            let child = |child: &ArrayData| part(child, start * width, rows * width);
            (vec![], children.map(child).collect())
        }
        DataType::Union(_, UnionMode::Sparse) => {
            let kinds = data.buffers()[0].slice_with_length(start, rows);
            (vec![kinds], children.map(|child| part(child, start, rows)).collect())
        }
        _ => {
            let children: Vec<_> = children.map(whole).collect();
            let sliced = data.slice(first, rows).into_builder().child_data(children);
            // SAFETY: the children have the rows that they had.
            return unsafe { sliced.build_unchecked() };
        }
    };
    let nulls = data.nulls().map(|nulls| nulls.slice(first, rows));
    let builder = ArrayData::builder(data.data_type().clone()).len(rows).nulls(nulls);
    // SAFETY: these rows of `data`, which is of this type.
    unsafe { builder.buffers(buffers).child_data(children).build_unchecked() }
}
