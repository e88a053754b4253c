//! Python functions over Arrow arrays, for SQL.

use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::ArrayData;
use arrow::array::{Array, ArrayRef, make_array, new_empty_array};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer};
use arrow::compute::concat;
use arrow::datatypes::{DataType, Field, IntervalUnit, Schema, TimeUnit};
use datafusion::logical_expr::Volatility;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString};
use pyo3_arrow::{PyArray, PyDataType};

use super::calls::call;
use super::error::{raised, to_py};
use super::import::Arrays;
use crate::session::{decode_schema, encode_schema};
use crate::storage::ForeignFunction;
use crate::{Error, ErrorKind, Result, suggestion};

/// A `tensorquery.sql.functions.Function`.
pub struct PyFunction {
    object: Py<PyAny>,
    name: String,
    input_types: Vec<DataType>,
    return_type: DataType,
    volatility: Volatility,
    digest: String,
}

impl PyFunction {
    /// Wraps it.
    pub fn try_new(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let text = |name: &str| -> PyResult<String> { object.getattr(name)?.extract() };
        let types: Vec<u8> = object.getattr("types")?.extract()?;
        let schema = decode_schema(&types).map_err(to_py)?;
        let mut types: Vec<DataType> =
            schema.fields().iter().map(|field| field.data_type().clone()).collect();
        let return_type =
            types.pop().ok_or_else(|| to_py(Error::config("a function has a return_type")))?;
        let volatility = match text("volatility")?.as_str() {
            "immutable" => Volatility::Immutable,
            "stable" => Volatility::Stable,
            _ => Volatility::Volatile,
        };
        Ok(Self {
            object: object.clone().unbind(),
            name: text("name")?,
            input_types: types,
            return_type,
            volatility,
            digest: text("digest")?,
        })
    }

    /// The Python object.
    pub fn object(&self, py: Python<'_>) -> Py<PyAny> {
        self.object.clone_ref(py)
    }

    fn call_with(&self, py: Python<'_>, arguments: Vec<ArrayRef>) -> Result<ArrayRef> {
        let failed = |error: PyErr| {
            raised(py, error, ErrorKind::Data, format!("the Python function {} failed", self.name))
        };
        let ask = || -> PyResult<Bound<'_, PyAny>> {
            let arrays = PyList::empty(py);
            for array in arguments {
                arrays.append(Bound::new(py, PyArray::from_array_ref(array))?)?;
            }
            self.object.bind(py).call_method1("call", (arrays,))
        };
        let answer = ask().map_err(failed)?;
        let speaks = |name: &str| answer.hasattr(name).unwrap_or(false);
        if !speaks("__arrow_c_array__") && !speaks("__arrow_c_stream__") {
            let kind = answer.get_type().name();
            return Err(Error::data(format!(
                "the function {} returned {}, which is no Arrow array; return a pyarrow.Array, or anything with \
                 __arrow_c_array__ or __arrow_c_stream__",
                self.name,
                kind.map_or_else(|_| "an object".into(), |name| name.to_string())
            )));
        }
        let chunks = || -> PyResult<(Vec<ArrayRef>, DataType)> {
            let found: Arrays = answer.extract()?;
            let kind = found.field().data_type().clone();
            let chunks = found.collect::<std::result::Result<_, _>>();
            Ok((chunks.map_err(|error| to_py(error.into()))?, kind))
        };
        let (chunks, kind) = chunks().map_err(|error| {
            let message = format!("what the function {} returned cannot be read", self.name);
            raised(py, error, ErrorKind::Data, message)
        })?;
        // Copied: what Python owns could only be released with the GIL, on whatever thread drops it
        // last.
        let mut owned = chunks.iter().map(|chunk| own(chunk)).collect::<Result<Vec<_>>>()?;
        match (owned.len(), owned.pop()) {
            (1, Some(array)) => Ok(array),
            (_, None) => Ok(new_empty_array(&kind)),
            (_, Some(last)) => {
                owned.push(last);
                let parts: Vec<&dyn Array> = owned.iter().map(AsRef::as_ref).collect();
                Ok(concat(&parts)?)
            }
        }
    }
}

impl ForeignFunction for PyFunction {
    fn name(&self) -> &str {
        &self.name
    }

    fn input_types(&self) -> &[DataType] {
        &self.input_types
    }

    fn return_type(&self) -> &DataType {
        &self.return_type
    }

    fn volatility(&self) -> Volatility {
        self.volatility
    }

    fn digest(&self) -> &str {
        &self.digest
    }

    fn call(&self, arguments: Vec<ArrayRef>, _rows: usize) -> Result<ArrayRef> {
        call(|py| self.call_with(py, arguments))
    }
}

/// Copies an array into memory of this crate, and checks it on the way: a damaged array would be
/// undefined behaviour.
fn own(array: &ArrayRef) -> Result<ArrayRef> {
    Ok(make_array(own_data(&array.to_data())?))
}

fn own_data(data: &ArrayData) -> Result<ArrayData> {
    let nulls = data.nulls().map(|nulls| {
        let bits: BooleanBuffer = nulls.inner().iter().collect();
        NullBuffer::new(bits)
    });
    let children = data.child_data().iter().map(own_data).collect::<Result<Vec<_>>>()?;
    let buffers = data.buffers().iter().map(|buffer| Buffer::from_slice_ref(buffer.as_slice()));
    Ok(ArrayData::builder(data.data_type().clone())
        .len(data.len())
        .offset(data.offset())
        .nulls(nulls)
        .buffers(buffers.collect())
        .child_data(children)
        .build()?)
}

/// The types of a function's arguments and of its values, as bytes for `PyFunction` and as text.
/// Types are objects with `__arrow_c_schema__`, or names.
#[pyfunction]
pub fn function_types<'py>(
    py: Python<'py>,
    input_types: Vec<Bound<'py, PyAny>>,
    return_type: Bound<'py, PyAny>,
) -> PyResult<(Bound<'py, PyBytes>, Vec<String>)> {
    let mut types = Vec::with_capacity(input_types.len() + 1);
    for (number, input) in input_types.iter().enumerate() {
        types.push(type_of(input, &format!("input_types[{number}]"))?);
    }
    types.push(type_of(&return_type, "return_type")?);
    let texts = types.iter().map(ToString::to_string).collect();
    let fields: Vec<Field> = types
        .into_iter()
        .enumerate()
        .map(|(number, kind)| Field::new(number.to_string(), kind, true))
        .collect();
    let bytes = encode_schema(&Schema::new(fields)).map_err(to_py)?;
    Ok((PyBytes::new(py, &bytes), texts))
}

fn type_of(given: &Bound<'_, PyAny>, place: &str) -> PyResult<DataType> {
    if let Ok(name) = given.cast::<PyString>() {
        let name = name.to_string();
        return parse_type(&name).ok_or_else(|| {
            to_py(Error::config(format!(
                "{place}={name:?} is no type{}; write a name such as \"int64\", \"float32\", \"utf8\", \"bool\", \
                 \"timestamp[us]\" or \"list<float32>\", or give a pyarrow type",
                suggestion(&name, NAMES.iter().map(|(name, _)| *name)),
            )))
        });
    }
    if !given.hasattr("__arrow_c_schema__")? {
        return Err(to_py(Error::config(format!(
            "{place} is a {}; a type is a name such as \"int64\", or a pyarrow type (an object with \
             __arrow_c_schema__)",
            given.get_type().name()?
        ))));
    }
    Ok(given.extract::<PyDataType>()?.into_inner())
}

/// Types by name, as Arrow and pyarrow call them.
const NAMES: [(&str, DataType); 33] = [
    ("bool", DataType::Boolean),
    ("boolean", DataType::Boolean),
    ("int8", DataType::Int8),
    ("int16", DataType::Int16),
    ("int32", DataType::Int32),
    ("int64", DataType::Int64),
    ("uint8", DataType::UInt8),
    ("uint16", DataType::UInt16),
    ("uint32", DataType::UInt32),
    ("uint64", DataType::UInt64),
    ("float16", DataType::Float16),
    ("halffloat", DataType::Float16),
    ("float32", DataType::Float32),
    ("float", DataType::Float32),
    ("float64", DataType::Float64),
    ("double", DataType::Float64),
    ("utf8", DataType::Utf8),
    ("string", DataType::Utf8),
    ("str", DataType::Utf8),
    ("large_utf8", DataType::LargeUtf8),
    ("large_string", DataType::LargeUtf8),
    ("string_view", DataType::Utf8View),
    ("binary", DataType::Binary),
    ("large_binary", DataType::LargeBinary),
    ("date32", DataType::Date32),
    ("date32[day]", DataType::Date32),
    ("date64", DataType::Date64),
    ("date64[ms]", DataType::Date64),
    ("time32[s]", DataType::Time32(TimeUnit::Second)),
    ("time32[ms]", DataType::Time32(TimeUnit::Millisecond)),
    ("time64[us]", DataType::Time64(TimeUnit::Microsecond)),
    ("time64[ns]", DataType::Time64(TimeUnit::Nanosecond)),
    ("month_day_nano_interval", DataType::Interval(IntervalUnit::MonthDayNano)),
];

fn parse_type(name: &str) -> Option<DataType> {
    let name = name.trim();
    let lower = name.to_lowercase();
    let known: HashMap<&str, &DataType> = NAMES.iter().map(|(name, kind)| (*name, kind)).collect();
    if let Some(kind) = known.get(lower.as_str()) {
        return Some((*kind).clone());
    }
    let inner = |prefix: &str, close: char| {
        lower.starts_with(prefix).then(|| name[prefix.len()..].strip_suffix(close)).flatten()
    };
    if let Some(item) = inner("list<", '>').or_else(|| inner("list[", ']')) {
        let item = item.strip_prefix("item:").unwrap_or(item);
        return Some(DataType::new_list(parse_type(item)?, true));
    }
    if let Some(item) = inner("large_list<", '>').or_else(|| inner("large_list[", ']')) {
        let item = item.strip_prefix("item:").unwrap_or(item);
        return Some(DataType::new_large_list(parse_type(item)?, true));
    }
    if let Some(unit) = inner("duration[", ']') {
        return Some(DataType::Duration(unit_of(unit)?));
    }
    let (unit, zone) = match inner("timestamp[", ']')?.split_once(',') {
        Some((unit, zone)) => (unit, Some(zone.trim().strip_prefix("tz=")?)),
        None => (inner("timestamp[", ']')?, None),
    };
    Some(DataType::Timestamp(unit_of(unit)?, zone.map(Arc::from)))
}

fn unit_of(name: &str) -> Option<TimeUnit> {
    match name.trim() {
        "s" => Some(TimeUnit::Second),
        "ms" => Some(TimeUnit::Millisecond),
        "us" => Some(TimeUnit::Microsecond),
        "ns" => Some(TimeUnit::Nanosecond),
        _ => None,
    }
}

/// The Python object behind a function.
pub fn object_of(py: Python<'_>, function: &dyn ForeignFunction) -> Option<Py<PyAny>> {
    let any: &dyn Any = function;
    any.downcast_ref::<PyFunction>().map(|function| function.object(py))
}
