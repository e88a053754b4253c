//! Parquet types without what they are annotated with: as the numbers, bytes and groups that they are stored as.

use std::sync::Arc;

use parquet::basic::ConvertedType;
use parquet::errors::Result;
use parquet::schema::types::{Type, TypePtr};

/// A type, of whose elements those that are `stripped` have no logical type.
///
/// # Errors
/// Those of the format's own checks.
pub(super) fn without_annotations(
    of: &TypePtr,
    stripped: &dyn Fn(&Type) -> bool,
) -> Result<TypePtr> {
    let (info, is_stripped) = (of.get_basic_info(), stripped(of));
    let id = info.has_id().then(|| info.id());
    let repetition = info.has_repetition().then(|| info.repetition());
    match of.as_ref() {
        Type::PrimitiveType { .. } if !is_stripped => Ok(Arc::clone(of)),
        Type::PrimitiveType { physical_type, type_length, .. } => {
            let mut builder = Type::primitive_type_builder(of.name(), *physical_type)
                .with_length(*type_length)
                .with_id(id);
            if let Some(repetition) = repetition {
                builder = builder.with_repetition(repetition);
            }
            Ok(Arc::new(builder.build()?))
        }
        Type::GroupType { fields, .. } => {
            let children = fields.iter().map(|field| without_annotations(field, stripped));
            let children = children.collect::<Result<Vec<_>>>()?;
            let is_same = children.iter().zip(fields).all(|(new, old)| Arc::ptr_eq(new, old));
            if is_same && !is_stripped {
                return Ok(Arc::clone(of));
            }
            let mut builder =
                Type::group_type_builder(of.name()).with_fields(children).with_id(id);
            if !is_stripped {
                builder = builder
                    .with_converted_type(info.converted_type())
                    .with_logical_type(info.logical_type_ref().cloned());
            }
            if let Some(repetition) = repetition {
                builder = builder.with_repetition(repetition);
            }
            Ok(Arc::new(builder.build()?))
        }
    }
}

/// Whether a type is one of time spans: months, days and milliseconds.
pub(super) fn is_interval(of: &Type) -> bool {
    of.is_primitive() && of.get_basic_info().converted_type() == ConvertedType::INTERVAL
}

/// Whether any element of a type is one that `is_it`.
pub(super) fn has_element(of: &Type, is_it: &dyn Fn(&Type) -> bool) -> bool {
    is_it(of) || of.is_group() && of.get_fields().iter().any(|field| has_element(field, is_it))
}
