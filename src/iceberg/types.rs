//! Iceberg's types and values as Arrow's.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Fields, Schema, TimeUnit};
use datafusion::scalar::ScalarValue;
use iceberg::spec::{
    Literal, NestedField, NestedFieldRef, PrimitiveLiteral, PrimitiveType, Schema as IcebergSchema,
    SchemaRef, TableMetadata, Type,
};

use crate::{Error, ErrorKind, Result};

/// A column by its id in the newest of a table's schemas that has it: the current one, or one from
/// before it was dropped.
pub fn newest_field(
    metadata: &TableMetadata,
    find: impl Fn(&IcebergSchema) -> Option<&NestedFieldRef>,
) -> Option<&NestedFieldRef> {
    let mut schemas: Vec<&SchemaRef> = metadata.schemas_iter().collect();
    schemas.sort_by_key(|schema| std::cmp::Reverse(schema.schema_id()));
    schemas.into_iter().find_map(|schema| find(schema))
}

/// The time zone of `timestamptz`: as Parquet's own readers name it, so that nothing has to be
/// cast.
const UTC: &str = "UTC";

/// The columns of an Iceberg schema, without field ids, in its order.
pub fn arrow_schema(schema: &IcebergSchema) -> Schema {
    let fields = schema.as_struct().fields().iter().map(|field| arrow_field(field));
    Schema::new(fields.collect::<Fields>())
}

/// One column.
pub fn arrow_field(field: &NestedField) -> FieldRef {
    Arc::new(Field::new(&field.name, arrow_type(&field.field_type), !field.required))
}

/// The Arrow type that a Parquet reader gives for an Iceberg type.
pub fn arrow_type(iceberg: &Type) -> DataType {
    match iceberg {
        Type::Primitive(primitive) => primitive_type(primitive),
        Type::Struct(fields) => {
            DataType::Struct(fields.fields().iter().map(|field| arrow_field(field)).collect())
        }
        Type::List(list) => DataType::List(named(&list.element_field, "element")),
        Type::Map(map) => {
            let entries = vec![named(&map.key_field, "key"), named(&map.value_field, "value")];
            let entries = Field::new("key_value", DataType::Struct(entries.into()), false);
            DataType::Map(Arc::new(entries), false)
        }
    }
}

fn named(field: &NestedField, name: &str) -> FieldRef {
    Arc::new(Field::new(name, arrow_type(&field.field_type), !field.required))
}

fn primitive_type(iceberg: &PrimitiveType) -> DataType {
    use TimeUnit::{Microsecond, Nanosecond};
    match iceberg {
        PrimitiveType::Boolean => DataType::Boolean,
        PrimitiveType::Int => DataType::Int32,
        PrimitiveType::Long => DataType::Int64,
        PrimitiveType::Float => DataType::Float32,
        PrimitiveType::Double => DataType::Float64,
        PrimitiveType::Decimal { precision, scale } => {
            DataType::Decimal128(*precision as u8, *scale as i8)
        }
        PrimitiveType::Date => DataType::Date32,
        PrimitiveType::Time => DataType::Time64(Microsecond),
        PrimitiveType::Timestamp => DataType::Timestamp(Microsecond, None),
        PrimitiveType::Timestamptz => DataType::Timestamp(Microsecond, Some(UTC.into())),
        PrimitiveType::TimestampNs => DataType::Timestamp(Nanosecond, None),
        PrimitiveType::TimestamptzNs => DataType::Timestamp(Nanosecond, Some(UTC.into())),
        PrimitiveType::String => DataType::Utf8,
        PrimitiveType::Uuid => DataType::FixedSizeBinary(16),
        PrimitiveType::Fixed(length) => {
            DataType::FixedSizeBinary(i32::try_from(*length).unwrap_or(i32::MAX))
        }
        PrimitiveType::Binary => DataType::Binary,
    }
}

/// A value of Iceberg's metadata (a default, a partition value, a bound) as a value of the column's
/// Arrow type.
///
/// # Errors
/// `Data` for a value that does not fit the type; `UnsupportedType` for values of nested types.
pub fn scalar(literal: &Literal, data_type: &DataType) -> Result<ScalarValue> {
    match literal {
        Literal::Primitive(literal) => primitive_scalar(literal, data_type),
        other => Err(Error::new(
            ErrorKind::UnsupportedType,
            format!("the value {other:?} of type {data_type} is not supported here"),
        )),
    }
}

/// As [`scalar`], of a primitive value.
///
/// # Errors
/// `Data` for a value that does not fit the type.
pub fn primitive_scalar(literal: &PrimitiveLiteral, data_type: &DataType) -> Result<ScalarValue> {
    use PrimitiveLiteral as L;
    let misfit = || {
        Error::data(format!(
            "the metadata's value {literal:?} does not fit a column of {data_type}"
        ))
    };
    let value = match (literal, data_type) {
        (L::Boolean(value), DataType::Boolean) => ScalarValue::Boolean(Some(*value)),
        (L::Int(value), DataType::Int32) => ScalarValue::Int32(Some(*value)),
        (L::Int(value), DataType::Int64) => ScalarValue::Int64(Some(i64::from(*value))),
        (L::Int(value), DataType::Date32) => ScalarValue::Date32(Some(*value)),
        // A date that was promoted to a timestamp.
        (L::Int(days), DataType::Timestamp(TimeUnit::Microsecond, zone)) => {
            ScalarValue::TimestampMicrosecond(Some(i64::from(*days) * 86_400_000_000), zone.clone())
        }
        (L::Long(value), DataType::Int64) => ScalarValue::Int64(Some(*value)),
        (L::Long(value), DataType::Int32) => {
            ScalarValue::Int32(Some(i32::try_from(*value).map_err(|_| misfit())?))
        }
        (L::Long(value), DataType::Time64(_)) => ScalarValue::Time64Microsecond(Some(*value)),
        (L::Long(value), DataType::Timestamp(TimeUnit::Microsecond, zone)) => {
            ScalarValue::TimestampMicrosecond(Some(*value), zone.clone())
        }
        (L::Long(value), DataType::Timestamp(TimeUnit::Nanosecond, zone)) => {
            ScalarValue::TimestampNanosecond(Some(*value), zone.clone())
        }
        (L::Float(value), DataType::Float32) => ScalarValue::Float32(Some(value.0)),
        (L::Float(value), DataType::Float64) => ScalarValue::Float64(Some(f64::from(value.0))),
        (L::Double(value), DataType::Float64) => ScalarValue::Float64(Some(value.0)),
        (L::Int128(value), DataType::Decimal128(precision, scale)) => {
            ScalarValue::Decimal128(Some(*value), *precision, *scale)
        }
        (L::String(value), DataType::Utf8) => ScalarValue::Utf8(Some(value.clone())),
        (L::UInt128(value), DataType::FixedSizeBinary(16)) => {
            ScalarValue::FixedSizeBinary(16, Some(value.to_be_bytes().to_vec()))
        }
        (L::Binary(value), DataType::FixedSizeBinary(width)) if value.len() == *width as usize => {
            ScalarValue::FixedSizeBinary(*width, Some(value.clone()))
        }
        (L::Binary(value), DataType::Binary) => ScalarValue::Binary(Some(value.clone())),
        _ => return Err(misfit()),
    };
    Ok(value)
}
