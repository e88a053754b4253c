//! Avro delete files of Iceberg tables: rows of primitive values, a few columns of them.

use std::sync::Arc;

use apache_avro::types::Value;
use apache_avro::{Reader, Schema as AvroSchema};
use arrow::array::{ArrayRef, new_empty_array};
use arrow::datatypes::{DataType, Field, Schema, TimeUnit};
use arrow::record_batch::RecordBatch;
use datafusion::scalar::ScalarValue;
use object_store::{ObjectStore, ObjectStoreExt};

use super::avro_header::{SCHEMA, unlabel_uuids, with_header};
use super::read::StoredColumns;
use super::types::arrow_schema;
use crate::bounds::MANIFEST;
use crate::formats::avro::vetted;
use crate::storage::RoutedStore;
use crate::{Error, Result};

/// The attribute of an Avro field that says its id.
const FIELD_ID: &str = "field-id";

/// The wanted columns of an Avro delete file, of the table's types.
///
/// # Errors
/// `Data` where the file is damaged, lacks a column, or has a value of another type; storage errors
/// as they are.
pub async fn read(
    store: &Arc<dyn ObjectStore>,
    uri: &str,
    columns: StoredColumns<'_>,
) -> Result<Vec<RecordBatch>> {
    let file = store.get(&RoutedStore::path_of(uri)?).await?;
    MANIFEST.check(file.meta.size, "this Avro file has")?;
    let bytes = vetted(&file.bytes().await?, 1)?;
    let damaged = |error: apache_avro::Error| {
        Error::data(format!("this is not a readable Avro file: {error}"))
    };
    let plain = with_header(&bytes, |header| {
        let mut schema = header.json(SCHEMA)?;
        unlabel_uuids(&mut schema).then(|| header.set(SCHEMA, &schema))
    });
    let reader = Reader::new(plain.as_deref().unwrap_or(&bytes)).map_err(damaged)?;
    let wanted = wanted(columns)?;
    let places = places(reader.writer_schema(), &wanted)?;
    let mut values: Vec<Vec<ScalarValue>> = vec![Vec::new(); wanted.len()];
    for row in reader {
        let Value::Record(fields) = row.map_err(damaged)? else {
            return Err(Error::data("the rows of an Avro delete file must be records"));
        };
        for ((place, column), values) in places.iter().zip(&wanted).zip(&mut values) {
            let value = fields.get(*place).map_or(&Value::Null, |(_, value)| value);
            values.push(scalar(value, column.field.data_type()).ok_or_else(|| {
                let data_type = column.field.data_type();
                Error::data(format!("the value {value:?} does not fit a column of {data_type}"))
            })?);
        }
    }
    let arrays = wanted.iter().zip(values).map(|(column, values)| -> Result<ArrayRef> {
        match values.is_empty() {
            true => Ok(new_empty_array(column.field.data_type())),
            false => Ok(ScalarValue::iter_to_array(values)?),
        }
    });
    let arrays = arrays.collect::<Result<Vec<_>>>()?;
    let schema = Arc::new(Schema::new(wanted.into_iter().map(|c| c.field).collect::<Vec<_>>()));
    Ok(vec![RecordBatch::try_new(schema, arrays)?])
}

/// A wanted column: found by its id, or by its name where it has none.
struct Wanted {
    field: Field,
    id: Option<i32>,
}

fn wanted(columns: StoredColumns<'_>) -> Result<Vec<Wanted>> {
    match columns {
        StoredColumns::Named(names) => Ok(names
            .iter()
            .map(|name| {
                let kind = if *name == "pos" { DataType::Int64 } else { DataType::Utf8 };
                Wanted { field: Field::new(*name, kind, true), id: None }
            })
            .collect()),
        StoredColumns::OfTable(spec, names) => {
            let schema = arrow_schema(&spec.schema);
            let column = |name: &String| {
                let field = schema.field_with_name(name)?.clone().with_nullable(true);
                let id = spec.schema.as_struct().fields().iter().find(|f| f.name == *name);
                Ok(Wanted { field, id: id.map(|field| field.id) })
            };
            names.iter().map(column).collect()
        }
    }
}

fn places(schema: &AvroSchema, wanted: &[Wanted]) -> Result<Vec<usize>> {
    let AvroSchema::Record(record) = schema else {
        return Err(Error::data("the rows of an Avro delete file must be records"));
    };
    let place = |column: &Wanted| {
        record.fields.iter().position(|field| match column.id {
            Some(id) => {
                field.custom_attributes.get(FIELD_ID).and_then(|v| v.as_i64())
                    == Some(i64::from(id))
            }
            None => field.name == *column.field.name(),
        })
    };
    wanted
        .iter()
        .map(|column| {
            place(column).ok_or_else(|| {
                Error::data(format!("the delete file has no column {:?}", column.field.name()))
            })
        })
        .collect()
}

/// A value as one of the column's type; None where it does not fit.
fn scalar(value: &Value, data_type: &DataType) -> Option<ScalarValue> {
    Some(match (value, data_type) {
        (Value::Union(_, inner), _) => return scalar(inner, data_type),
        (Value::Null, _) => ScalarValue::try_from(data_type).ok()?,
        (Value::Boolean(v), DataType::Boolean) => ScalarValue::Boolean(Some(*v)),
        (Value::Int(v), DataType::Int32) => ScalarValue::Int32(Some(*v)),
        (Value::Int(v), DataType::Int64) => ScalarValue::Int64(Some(i64::from(*v))),
        (Value::Long(v), DataType::Int64) => ScalarValue::Int64(Some(*v)),
        (Value::Float(v), DataType::Float32) => ScalarValue::Float32(Some(*v)),
        (Value::Float(v), DataType::Float64) => ScalarValue::Float64(Some(f64::from(*v))),
        (Value::Double(v), DataType::Float64) => ScalarValue::Float64(Some(*v)),
        (Value::String(v) | Value::Enum(_, v), DataType::Utf8) => {
            ScalarValue::Utf8(Some(v.clone()))
        }
        (Value::Date(v) | Value::Int(v), DataType::Date32) => ScalarValue::Date32(Some(*v)),
        (Value::TimeMicros(v) | Value::Long(v), DataType::Time64(_)) => {
            ScalarValue::Time64Microsecond(Some(*v))
        }
        (
            Value::TimestampMicros(v) | Value::LocalTimestampMicros(v) | Value::Long(v),
            DataType::Timestamp(TimeUnit::Microsecond, zone),
        ) => ScalarValue::TimestampMicrosecond(Some(*v), zone.clone()),
        (
            Value::TimestampNanos(v) | Value::LocalTimestampNanos(v) | Value::Long(v),
            DataType::Timestamp(TimeUnit::Nanosecond, zone),
        ) => ScalarValue::TimestampNanosecond(Some(*v), zone.clone()),
        (Value::Decimal(v), DataType::Decimal128(precision, scale)) => {
            let bytes = <Vec<u8>>::try_from(v).ok()?;
            ScalarValue::Decimal128(Some(big_endian(&bytes)?), *precision, *scale)
        }
        (Value::Uuid(v), DataType::FixedSizeBinary(16)) => {
            ScalarValue::FixedSizeBinary(16, Some(v.as_bytes().to_vec()))
        }
        (Value::Fixed(_, v) | Value::Bytes(v), DataType::FixedSizeBinary(width))
            if v.len() == *width as usize =>
        {
            ScalarValue::FixedSizeBinary(*width, Some(v.clone()))
        }
        (Value::Bytes(v) | Value::Fixed(_, v), DataType::Binary) => {
            ScalarValue::Binary(Some(v.clone()))
        }
        _ => return None,
    })
}

/// A two's complement number of up to 16 bytes, the most significant first.
fn big_endian(bytes: &[u8]) -> Option<i128> {
    let negative = bytes.first().is_some_and(|first| first & 0x80 != 0);
    let mut whole = [if negative { 0xff } else { 0 }; 16];
    whole.get_mut(16_usize.checked_sub(bytes.len())?..)?.copy_from_slice(bytes);
    Some(i128::from_be_bytes(whole))
}
