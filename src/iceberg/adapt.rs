//! Expressions over the table's columns as expressions over a data file's, whose columns have the
//! table's names by now (see [`rename`](super::rename)): columns that a file lacks, and types that
//! the table has widened since.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, ListArray, MapArray, StructArray, new_null_array,
};
use arrow::buffer::NullBuffer;
use arrow::compute::kernels::nullif::nullif;
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, FieldRef, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::ColumnarValue;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{Column, lit};
use datafusion::physical_expr_adapter::{
    DefaultPhysicalExprAdapterFactory, PhysicalExprAdapter, PhysicalExprAdapterFactory,
};
use datafusion::scalar::ScalarValue;
use iceberg::spec::{NestedFieldRef, Schema as IcebergSchema, Type};
use parquet::arrow::PARQUET_FIELD_ID_META_KEY;

use super::types::{arrow_field, scalar};
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
        let rest = DefaultPhysicalExprAdapterFactory
            .create(logical_file_schema, Arc::clone(&physical_file_schema))?;
        Ok(Arc::new(FileAdapter { fields: self.clone(), physical: physical_file_schema, rest }))
    }
}

/// A [`FieldAdapter`] for the schema of one file.
#[derive(Debug)]
struct FileAdapter {
    fields: FieldAdapter,
    physical: SchemaRef,
    /// DataFusion's own adapter: null for absent columns, and casts between primitive types.
    rest: Arc<dyn PhysicalExprAdapter>,
}

impl FileAdapter {
    fn column(&self, column: &Column) -> Option<Arc<dyn PhysicalExpr>> {
        let Ok(position) = self.physical.index_of(column.name()) else {
            return self.fields.absent.get(column.name()).map(|value| lit(value.clone()));
        };
        let stored = self.physical.field(position);
        let wanted = self.fields.schema.field_by_name(column.name())?;
        let target = arrow_field(wanted);
        let is_same = stored.data_type() == target.data_type();
        if is_same || !stored.data_type().is_nested() {
            return None;
        }
        let child = Arc::new(Column::new(column.name(), position)) as Arc<dyn PhysicalExpr>;
        Some(Arc::new(NestedAdapter { child, field: Arc::clone(wanted), target }))
    }
}

impl PhysicalExprAdapter for FileAdapter {
    fn rewrite(&self, expr: Arc<dyn PhysicalExpr>) -> DfResult<Arc<dyn PhysicalExpr>> {
        // Columns that are settled here must not meet DataFusion's adapter, which would settle them
        // otherwise.
        if let Some(column) = expr.as_any().downcast_ref::<Column>() {
            return match self.column(column) {
                Some(settled) => Ok(settled),
                None => self.rest.rewrite(expr),
            };
        }
        let children: Vec<_> = expr
            .children()
            .into_iter()
            .map(|child| self.rewrite(Arc::clone(child)))
            .collect::<DfResult<_>>()?;
        match children.is_empty() {
            true => Ok(expr),
            false => expr.with_new_children(children),
        }
    }
}

/// A nested column of a file as the table's: fields by name, absent ones by default or null,
/// widened types.
#[derive(Clone, Debug)]
struct NestedAdapter {
    child: Arc<dyn PhysicalExpr>,
    field: NestedFieldRef,
    target: FieldRef,
}

impl PartialEq for NestedAdapter {
    fn eq(&self, other: &Self) -> bool {
        self.child.eq(&other.child) && self.field == other.field
    }
}

impl Eq for NestedAdapter {}

impl Hash for NestedAdapter {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.child.hash(state);
        self.field.id.hash(state);
    }
}

impl fmt::Display for NestedAdapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "by_field_id({} AS {})", self.child, self.target.data_type())
    }
}

impl PhysicalExpr for NestedAdapter {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn data_type(&self, _: &Schema) -> DfResult<DataType> {
        Ok(self.target.data_type().clone())
    }

    fn nullable(&self, _: &Schema) -> DfResult<bool> {
        Ok(self.target.is_nullable())
    }

    fn evaluate(&self, batch: &RecordBatch) -> DfResult<ColumnarValue> {
        let array = self.child.evaluate(batch)?.into_array(batch.num_rows())?;
        Ok(ColumnarValue::Array(adapt(&array, &self.field.field_type, self.target.data_type())?))
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        vec![&self.child]
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn PhysicalExpr>>,
    ) -> DfResult<Arc<dyn PhysicalExpr>> {
        let child = children.into_iter().next().unwrap_or_else(|| Arc::clone(&self.child));
        Ok(Arc::new(Self {
            child,
            field: Arc::clone(&self.field),
            target: Arc::clone(&self.target),
        }))
    }

    fn fmt_sql(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
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
