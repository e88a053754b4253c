//! Partitions as text, as the paths of their files have them: `day=2024-01-31/s_bucket=3`.

use iceberg::spec::{
    Literal, PartitionField, PrimitiveLiteral, PrimitiveType, TableMetadata, Transform, Type,
};

use super::assign::partition_value;
use super::manifests::Entry;
use super::types::newest_field;

/// The partition of a file; empty where its spec has no fields.
pub fn partition_text(metadata: &TableMetadata, entry: &Entry) -> String {
    let spec = metadata.partition_spec_by_id(entry.spec);
    let fields = spec.into_iter().flat_map(|spec| spec.fields()).enumerate();
    let texts = fields.map(|(position, field)| {
        let value = partition_value(entry.entry.data_file().partition(), position);
        format!("{}={}", field.name, value_text(metadata, field, value))
    });
    texts.collect::<Vec<_>>().join("/")
}

fn value_text(
    metadata: &TableMetadata,
    field: &PartitionField,
    value: Option<&PrimitiveLiteral>,
) -> String {
    let (Some(value), false) = (value, field.transform == Transform::Void) else {
        return "null".to_owned();
    };
    // The column may be gone, or wider than it was when the file was written.
    let source = newest_field(metadata, |schema| schema.field_by_id(field.source_id));
    let kind = source.and_then(|source| field.transform.result_type(&source.field_type).ok());
    match kind {
        Some(Type::Primitive(primitive)) => match widened(value, &primitive) {
            Some(value) => {
                let kind = Type::Primitive(primitive);
                field.transform.to_human_string(&kind, Some(&Literal::Primitive(value)))
            }
            None => format!("{value:?}"),
        },
        _ => format!("{value:?}"),
    }
}

/// A value as one of the type that its column has by now; None where it is none.
fn widened(value: &PrimitiveLiteral, kind: &PrimitiveType) -> Option<PrimitiveLiteral> {
    use PrimitiveLiteral as L;
    use PrimitiveType as T;
    const DAY: i64 = 86_400_000_000;
    Some(match (value, kind) {
        (L::Boolean(_), T::Boolean)
        | (L::Int(_), T::Int | T::Date)
        | (L::Long(_), T::Long | T::Time | T::Timestamp | T::Timestamptz)
        | (L::Long(_), T::TimestampNs | T::TimestamptzNs)
        | (L::Float(_), T::Float)
        | (L::Double(_), T::Double)
        | (L::Int128(_), T::Decimal { .. })
        | (L::String(_), T::String)
        | (L::UInt128(_), T::Uuid)
        | (L::Binary(_), T::Fixed(_) | T::Binary) => value.clone(),
        (L::Int(value), T::Long) => L::Long(i64::from(*value)),
        (L::Int(days), T::Timestamp | T::Timestamptz) => L::Long(i64::from(*days) * DAY),
        (L::Int(days), T::TimestampNs | T::TimestamptzNs) => {
            L::Long((i64::from(*days) * DAY).checked_mul(1000)?)
        }
        (L::Float(value), T::Double) => L::Double(f64::from(value.0).into()),
        (L::Binary(bytes), T::Uuid) => {
            L::UInt128(u128::from_be_bytes(bytes.as_slice().try_into().ok()?))
        }
        _ => return None,
    })
}
