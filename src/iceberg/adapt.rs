//! Expressions over the table's columns as expressions over a data file's, whose columns have the
//! table's names by now (see [`rename`](super::rename)): columns that a file lacks, and types that
//! the table has widened since.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, ListArray, MapArray, StructArray, new_null_array,
};
use arrow::buffer::NullBuffer;
use arrow::compute::kernels::nullif::nullif;
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, Field, FieldRef, SchemaRef};
use datafusion::error::Result as DfResult;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{Column, lit};
use datafusion::physical_expr_adapter::{PhysicalExprAdapter, PhysicalExprAdapterFactory};
use datafusion::scalar::ScalarValue;
use iceberg::spec::{NestedFieldRef, Schema as IcebergSchema, Type};
use parquet::arrow::PARQUET_FIELD_ID_META_KEY;

use super::types::{arrow_field, scalar};
use crate::formats::{FileAdapter, SettledColumns, Shape, Shaped};
use crate::{Error, ErrorKind, Result};

/// Adapts expressions to the files of one partition: the same for all files that have the same
/// constants.
#[derive(Clone, Debug)]
pub struct FieldAdapter {
    schema: Arc<IcebergSchema>,
    /// By column, its value in a file that does not have it: of an identity partition, or the
    /// column's default.
    absent: Arc<HashMap<String, ScalarValue>>,
}

impl FieldAdapter {
    /// For files that have `constants` for columns which they do not store.
    ///
    /// # Errors
    /// `UnsupportedType` where a column's default is of a nested type.
    pub fn try_new(
        schema: &Arc<IcebergSchema>,
        constants: impl IntoIterator<Item = (String, ScalarValue)>,
    ) -> Result<Self> {
        let mut absent: HashMap<String, ScalarValue> = constants.into_iter().collect();
        for field in schema.as_struct().fields() {
            if let Some(value) = absent.get_mut(&field.name)
                && matches!(value, ScalarValue::Null)
            {
                *value = ScalarValue::try_from(arrow_field(field).data_type())?;
            }
            if let Some(default) = &field.initial_default
                && !absent.contains_key(&field.name)
            {
                let data_type = arrow_field(field).data_type().clone();
                let value = scalar(default, &data_type)
                    .map_err(|error| error.with_context("default of column", &field.name))?;
                absent.insert(field.name.clone(), value);
            }
        }
        Ok(Self { schema: Arc::clone(schema), absent: Arc::new(absent) })
    }
}

impl PhysicalExprAdapterFactory for FieldAdapter {
    fn create(
        &self,
        logical_file_schema: SchemaRef,
        physical_file_schema: SchemaRef,
    ) -> DfResult<Arc<dyn PhysicalExprAdapter>> {
        let file = Arc::clone(&physical_file_schema);
        let settled = FileColumns { fields: self.clone(), file };
        FileAdapter::over(settled, logical_file_schema, physical_file_schema)
    }
}

/// Columns that a file lacks, and nested ones that differ from the table's.
#[derive(Debug)]
struct FileColumns {
    fields: FieldAdapter,
    file: SchemaRef,
}

impl SettledColumns for FileColumns {
    fn column(&self, column: &Column) -> Result<Option<Arc<dyn PhysicalExpr>>> {
        let Ok(position) = self.file.index_of(column.name()) else {
            return Ok(self.fields.absent.get(column.name()).map(|value| lit(value.clone())));
        };
        let stored = self.file.field(position).data_type();
        let Some(wanted) = self.fields.schema.field_by_name(column.name()) else {
            return Ok(None);
        };
        let target = arrow_field(wanted);
        if stored == target.data_type() || !stored.is_nested() {
            return Ok(None);
        }
        let child = Arc::new(Column::new(column.name(), position));
        Ok(Some(Arc::new(Shaped { child, target, shape: ById(Arc::clone(wanted)) })))
    }
}

/// Fields by name, absent ones by default or null, widened types.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ById(NestedFieldRef);

impl Hash for ById {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.id.hash(state);
    }
}

impl Shape for ById {
    const NAME: &'static str = "by_field_id";

    fn shaped(&self, values: &ArrayRef, target: &Field) -> Result<ArrayRef> {
        adapt(values, &self.0.field_type, target.data_type())
    }
}

/// `array`, whose nested fields have the table's names, as the table's type.
///
/// # Errors
/// `Data` where the stored type does not become the table's.
pub fn adapt(array: &ArrayRef, wanted: &Type, target: &DataType) -> Result<ArrayRef> {
    if array.data_type() == target {
        return Ok(Arc::clone(array));
    }
    let misfit = || {
        Error::data(format!(
            "stored values of type {} do not fit the table's {target}",
            array.data_type()
        ))
    };
    match (wanted, target) {
        (Type::Struct(wanted), DataType::Struct(fields)) => {
            let stored = array.as_struct_opt().ok_or_else(misfit)?;
            let columns = wanted
                .fields()
                .iter()
                .zip(fields)
                .map(|(wanted, field)| {
                    let values = match child_of(stored, wanted, field.name()) {
                        Some(column) => adapt(column, &wanted.field_type, field.data_type()),
                        None => absent(wanted, field, stored.len()),
                    };
                    within(values?, field, stored.nulls())
                })
                .collect::<Result<Vec<_>>>()?;
            let nulls = stored.nulls().cloned();
            Ok(Arc::new(match fields.is_empty() {
                true => StructArray::new_empty_fields(stored.len(), nulls),
                false => StructArray::try_new(fields.clone(), columns, nulls)?,
            }))
        }
        (Type::List(wanted), DataType::List(element)) => {
            let stored = array.as_list_opt::<i32>().ok_or_else(misfit)?;
            let values =
                adapt(stored.values(), &wanted.element_field.field_type, element.data_type())?;
            let offsets = stored.offsets().clone();
            let list =
                ListArray::try_new(Arc::clone(element), offsets, values, stored.nulls().cloned())?;
            Ok(Arc::new(list))
        }
        (Type::Map(wanted), DataType::Map(entries, sorted)) => {
            let stored = array.as_map_opt().ok_or_else(misfit)?;
            let DataType::Struct(fields) = entries.data_type() else { return Err(misfit()) };
            let (Some(key), Some(value)) = (fields.first(), fields.get(1)) else {
                return Err(misfit());
            };
            let keys = adapt(stored.keys(), &wanted.key_field.field_type, key.data_type())?;
            let values = adapt(stored.values(), &wanted.value_field.field_type, value.data_type())?;
            let columns = vec![keys, values];
            let pairs = StructArray::try_new(fields.clone(), columns, None)?;
            let (offsets, nulls) = (stored.offsets().clone(), stored.nulls().cloned());
            Ok(Arc::new(MapArray::try_new(Arc::clone(entries), offsets, pairs, nulls, *sorted)?))
        }
        (Type::Primitive(_), target) if !array.data_type().is_nested() => {
            let strict = CastOptions { safe: false, ..CastOptions::default() };
            Ok(cast_with_options(array, target, &strict)?)
        }
        _ => Err(misfit()),
    }
}

/// The stored field that is meant: by its id, where the stored type says ids (ORC), else by its
/// name, which is the table's by then (Parquet).
fn child_of<'a>(
    stored: &'a StructArray,
    wanted: &NestedFieldRef,
    name: &str,
) -> Option<&'a ArrayRef> {
    let ids: Vec<Option<i32>> = stored.fields().iter().map(stored_id).collect();
    if ids.iter().all(Option::is_none) {
        return stored.column_by_name(name);
    }
    ids.iter().position(|id| *id == Some(wanted.id)).map(|position| stored.column(position))
}

/// The field id in a field's metadata.
pub fn stored_id(field: &FieldRef) -> Option<i32> {
    field.metadata().get(PARQUET_FIELD_ID_META_KEY)?.parse().ok()
}

/// The values of a field of a struct, null where the struct is: a reader of the field alone does
/// not look at the struct.
fn within(values: ArrayRef, field: &FieldRef, parent: Option<&NullBuffer>) -> Result<ArrayRef> {
    match parent {
        Some(nulls) if field.is_nullable() => {
            Ok(nullif(&values, &BooleanArray::new(!nulls.inner(), None))?)
        }
        _ => Ok(values),
    }
}

/// The values of a nested field that a file does not have.
fn absent(wanted: &NestedFieldRef, field: &FieldRef, rows: usize) -> Result<ArrayRef> {
    match &wanted.initial_default {
        Some(default) => Ok(scalar(default, field.data_type())?.to_array_of_size(rows)?),
        None if field.is_nullable() => Ok(new_null_array(field.data_type(), rows)),
        None => Err(Error::new(
            ErrorKind::Data,
            format!(
                "the required field {:?} is missing in the data file and has no default",
                field.name()
            ),
        )),
    }
}
