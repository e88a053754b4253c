//! Parquet types as others: without annotations, as the numbers, bytes and groups that are stored;
//! and lists of older writers in the newer form.

use std::sync::Arc;

use parquet::basic::{ConvertedType, LogicalType, Repetition};
use parquet::errors::Result;
use parquet::schema::types::{Type, TypePtr};

/// Removes the logical types of all `stripped` types within a type.
///
/// # Errors
/// Errors of the format's own checks.
pub(in crate::formats) fn without_annotations(
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
            let mut builder = Type::group_type_builder(of.name()).with_fields(children).with_id(id);
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

/// Returns true if a type is one of time spans: months, days and milliseconds.
pub(in crate::formats) fn is_interval(of: &Type) -> bool {
    of.is_primitive() && of.get_basic_info().converted_type() == ConvertedType::INTERVAL
}

/// Returns true if any element of a type is one that `is_it`.
pub(in crate::formats) fn has_element(of: &Type, is_it: &dyn Fn(&Type) -> bool) -> bool {
    is_it(of) || of.is_group() && of.get_fields().iter().any(|field| has_element(field, is_it))
}

/// Returns true for a list whose repeated group is its element, though the `parquet` crate takes it
/// for a level between a list and its element. That is so if the group is a list or a map itself,
/// or holds only one repeated field. These are rules of the format for files of older writers:
/// <https://github.com/apache/parquet-format/blob/master/LogicalTypes.md#backward-compatibility-rules>.
pub(in crate::formats) fn is_legacy_list(of: &Type) -> bool {
    if of.is_primitive() || !is_list(of) {
        return false;
    }
    let [middle] = of.get_fields() else { return false };
    let is_repeated = |of: &Type| {
        let info = of.get_basic_info();
        info.has_repetition() && info.repetition() == Repetition::REPEATED
    };
    if middle.is_primitive() || !is_repeated(middle) {
        return false;
    }
    let is_alone = |fields: &[TypePtr]| matches!(fields, [field] if is_repeated(field));
    is_list(middle) || is_map(middle) || is_alone(middle.get_fields())
}

fn is_list(of: &Type) -> bool {
    let info = of.get_basic_info();
    info.converted_type() == ConvertedType::LIST
        || info.logical_type_ref() == Some(&LogicalType::List)
}

fn is_map(of: &Type) -> bool {
    let info = of.get_basic_info();
    matches!(info.converted_type(), ConvertedType::MAP | ConvertedType::MAP_KEY_VALUE)
        || info.logical_type_ref() == Some(&LogicalType::Map)
}

/// Rewrites lists as newer writers have them: a repeated group around the element, which is
/// required. The columns keep their levels.
///
/// # Errors
/// Errors of the format's own checks.
pub(in crate::formats) fn with_modern_lists(of: &TypePtr) -> Result<TypePtr> {
    if !has_element(of, &is_legacy_list) {
        return Ok(Arc::clone(of));
    }
    let mut fields: Vec<TypePtr> = of.get_fields().to_vec();
    if is_legacy_list(of) {
        let around = Type::group_type_builder("list").with_repetition(Repetition::REPEATED);
        let element =
            group_with(&fields[0], fields[0].get_fields().to_vec(), Repetition::REQUIRED)?;
        fields = vec![Arc::new(around.with_fields(vec![element]).build()?)];
    }
    let fields = fields.iter().map(with_modern_lists).collect::<Result<Vec<_>>>()?;
    let info = of.get_basic_info();
    group_with(of, fields, info.repetition())
}

/// A group with other fields, repeated or not.
fn group_with(of: &TypePtr, fields: Vec<TypePtr>, repetition: Repetition) -> Result<TypePtr> {
    let info = of.get_basic_info();
    let group = Type::group_type_builder(of.name())
        .with_fields(fields)
        .with_id(info.has_id().then(|| info.id()))
        .with_converted_type(info.converted_type())
        .with_logical_type(info.logical_type_ref().cloned())
        .with_repetition(repetition);
    Ok(Arc::new(group.build()?))
}
