//! Column values that metadata has for each data file: constants of identity partitions, and bounds
//! for pruning.

use std::collections::HashMap;
use std::iter;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Int32Array, UInt64Array, new_empty_array,
    new_null_array,
};
use arrow::buffer::BooleanBuffer;
use arrow::datatypes::{DataType, Field, FieldRef, Int32Type, Schema, UInt64Type};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use datafusion::physical_expr::expressions::Column;
use datafusion::scalar::ScalarValue;
use iceberg::spec::{
    NameMapping, NestedField, PartitionSpec, PrimitiveLiteral, PrimitiveType,
    Schema as IcebergSchema, TableMetadata, Transform, Type,
};
use iceberg::transform::create_transform_function;

use super::assign::partition_value;
use super::bounds::{Bounds, file_bounds, partition_bounds};
use super::manifests::Entry;
use super::types::{arrow_field, primitive_scalar};
use crate::prune::{self, ColumnBounds, above_cut};
use crate::{Error, Result};

/// One batch with a row per data file, and for each column of the table up to five columns: see
/// [`Role`].
#[derive(Clone, Debug)]
pub struct FileValues {
    batch: RecordBatch,
    rows: UInt64Array,
    columns: HashMap<String, HashMap<Role, usize>>,
}

/// Facts about one column of a table, a value for each data file; null where nothing is known.
#[derive(Clone, Debug)]
pub struct KnownColumn {
    /// The column's name in the table.
    pub name: String,
    /// The files that do not store the column: true there, null of others. `lower` has the value in
    /// all of their rows, null among them. None where every file stores it.
    pub fixed: Option<BooleanArray>,
    /// No value is less, NaN aside. Of the column's type.
    pub lower: ArrayRef,
    /// No value is greater, NaN aside. Of the column's type.
    pub upper: ArrayRef,
    /// How many values are null.
    pub nulls: UInt64Array,
    /// How many values are NaN.
    pub nans: UInt64Array,
}

/// The values as an array of their type.
///
/// # Errors
/// An internal error where a value has another type.
pub fn values_array(
    values: impl IntoIterator<Item = Option<ScalarValue>>,
    data_type: &DataType,
) -> Result<ArrayRef> {
    let null = ScalarValue::try_from(data_type)?;
    let mut values = values.into_iter().map(|value| value.unwrap_or_else(|| null.clone()));
    match values.next() {
        Some(first) => Ok(ScalarValue::iter_to_array(iter::once(first).chain(values))?),
        None => Ok(new_empty_array(data_type)),
    }
}

/// The role of a batch column for a column of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Role {
    /// The value in files that do not store the column.
    Constant,
    /// Whether there is such a value; it may be null.
    Fixed,
    /// No value is less; null where unknown.
    Lower,
    /// No value is greater; null where unknown.
    Upper,
    /// Nulls in the column; null where unknown.
    Nulls,
    /// NaN in the column; null where unknown.
    Nans,
    /// Stored bytes of the column; null where unknown.
    Bytes,
    /// The bucket of all its values, of so many buckets; null where the file's spec has none.
    Bucket(u32),
}

impl Role {
    fn name(self) -> String {
        match self {
            Self::Constant => "constant".into(),
            Self::Fixed => "fixed".into(),
            Self::Lower => "lower".into(),
            Self::Upper => "upper".into(),
            Self::Nulls => "nulls".into(),
            Self::Nans => "nans".into(),
            Self::Bytes => "bytes".into(),
            Self::Bucket(count) => format!("bucket {count}"),
        }
    }

    fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "constant" => Self::Constant,
            "fixed" => Self::Fixed,
            "lower" => Self::Lower,
            "upper" => Self::Upper,
            "nulls" => Self::Nulls,
            "nans" => Self::Nans,
            "bytes" => Self::Bytes,
            _ => Self::Bucket(name.strip_prefix("bucket ")?.parse().ok()?),
        })
    }
}

/// The name of the batch's column of row counts.
const RECORDS: &str = "records";

/// Between a role and the column's name.
const OF: &str = " of ";

impl FileValues {
    /// Values of these data files, for the columns of `schema`, which `mapping` finds in files
    /// without field ids.
    ///
    /// # Errors
    /// `Data` where a partition value does not fit its column.
    pub fn of(
        metadata: &TableMetadata,
        schema: &IcebergSchema,
        mapping: Option<&NameMapping>,
        files: &[Entry],
    ) -> Result<Self> {
        let mut fields: Vec<FieldRef> =
            vec![Arc::new(Field::new(RECORDS, DataType::UInt64, false))];
        let records = files.iter().map(|file| file.entry.record_count());
        let mut arrays: Vec<ArrayRef> = vec![Arc::new(UInt64Array::from_iter_values(records))];
        let specs = by_id(metadata);
        let mapped = mapping.map(ids_by_name);
        for field in schema.as_struct().fields().iter().filter(|f| f.field_type.is_primitive()) {
            let data_type = arrow_field(field).data_type().clone();
            let null = ScalarValue::try_from(&data_type)?;
            let is_read =
                mapped.as_ref().is_none_or(|mapped| is_read_as_written(metadata, mapped, field));
            let mut bounds: Vec<Bounds> = Vec::with_capacity(files.len());
            let mut constants: Vec<ScalarValue> = Vec::with_capacity(files.len());
            let mut fixed = vec![None; files.len()];
            let mut buckets: HashMap<u32, Vec<Option<i32>>> = HashMap::new();
            for (number, file) in files.iter().enumerate() {
                let mut found = match is_read {
                    true => file_bounds(file.entry.data_file(), field.id, &data_type),
                    false => Bounds::default(),
                };
                if matches!(*field.field_type, Type::Primitive(PrimitiveType::Uuid)) {
                    // Writers in Java compare their halves as signed numbers.
                    (found.lower, found.upper) = (None, None);
                }
                let mut constant = null.clone();
                for (position, part) in parts(&specs, file.spec) {
                    if part.source_id != field.id {
                        continue;
                    }
                    let value = partition_value(file.entry.data_file().partition(), position);
                    if part.transform == Transform::Identity {
                        fixed[number] = Some(true);
                    }
                    match (part.transform, value) {
                        // A dropped field, and one whose values nobody here understands.
                        (Transform::Void | Transform::Unknown, _) => {}
                        (Transform::Identity, Some(value)) => {
                            constant = primitive_scalar(value, &data_type)
                                .map_err(|e| e.with_context("partition field", &part.name))?;
                            found.narrow(&partition_bounds(part.transform, value, &data_type));
                        }
                        (Transform::Bucket(count), Some(PrimitiveLiteral::Int(bucket))) => {
                            buckets.entry(count).or_insert_with(|| vec![None; files.len()])
                                [number] = Some(*bucket);
                        }
                        (transform, Some(value)) => {
                            found.narrow(&partition_bounds(transform, value, &data_type));
                        }
                        // A null of any other transform is of nulls only.
                        (_, None) => found.nulls = Some(file.entry.record_count()),
                    }
                }
                bounds.push(found);
                constants.push(constant);
            }
            let mut add = |role: Role, array: ArrayRef| {
                if array.null_count() < array.len() {
                    let name = format!("{}{OF}{}", role.name(), field.name);
                    fields.push(Arc::new(Field::new(name, array.data_type().clone(), true)));
                    arrays.push(array);
                }
            };
            add(Role::Constant, values_array(constants.into_iter().map(Some), &data_type)?);
            add(Role::Fixed, Arc::new(BooleanArray::from(fixed)));
            add(Role::Lower, values_array(bounds.iter().map(|b| b.lower.clone()), &data_type)?);
            add(Role::Upper, values_array(bounds.iter().map(|b| b.upper.clone()), &data_type)?);
            let nulls: UInt64Array = bounds.iter().map(|b| b.nulls).collect();
            add(Role::Nulls, Arc::new(nulls));
            let nans: UInt64Array = bounds.iter().map(|b| b.nans).collect();
            add(Role::Nans, Arc::new(nans));
            for (count, buckets) in buckets {
                add(Role::Bucket(count), Arc::new(Int32Array::from(buckets)));
            }
        }
        for field in schema.as_struct().fields() {
            let mut leaves = vec![field.id];
            leaf_ids(&field.field_type, &mut leaves);
            let stored = files.iter().map(|file| {
                let sizes = file.entry.data_file().column_sizes();
                let known = leaves.iter().filter_map(|id| sizes.get(id).copied());
                known.reduce(|a, b| a + b)
            });
            let stored: UInt64Array = stored.collect();
            if stored.null_count() < stored.len() {
                let name = format!("{}{OF}{}", Role::Bytes.name(), field.name);
                fields.push(Arc::new(Field::new(name, DataType::UInt64, true)));
                arrays.push(Arc::new(stored));
            }
        }
        let options = RecordBatchOptions::new().with_row_count(Some(files.len()));
        let schema = Arc::new(Schema::new(fields));
        Self::from_batch(RecordBatch::try_new_with_options(schema, arrays, &options)?)
    }

    /// Values that another table format's metadata has, a row for each of `records`.
    ///
    /// # Errors
    /// An internal error where a value has another type than its column.
    pub fn of_columns(records: Vec<u64>, columns: Vec<KnownColumn>) -> Result<Self> {
        let files = records.len();
        let mut fields: Vec<FieldRef> =
            vec![Arc::new(Field::new(RECORDS, DataType::UInt64, false))];
        let mut arrays: Vec<ArrayRef> = vec![Arc::new(UInt64Array::from(records))];
        for known in columns {
            let mut add = |role: Role, array: ArrayRef| {
                if array.null_count() < array.len() {
                    let name = format!("{}{OF}{}", role.name(), known.name);
                    fields.push(Arc::new(Field::new(name, array.data_type().clone(), true)));
                    arrays.push(array);
                }
            };
            if let Some(fixed) = known.fixed {
                add(Role::Constant, Arc::clone(&known.lower));
                add(Role::Fixed, Arc::new(fixed));
            }
            add(Role::Lower, known.lower);
            add(Role::Upper, known.upper);
            add(Role::Nulls, Arc::new(known.nulls));
            add(Role::Nans, Arc::new(known.nans));
        }
        let options = RecordBatchOptions::new().with_row_count(Some(files));
        let schema = Arc::new(Schema::new(fields));
        Self::from_batch(RecordBatch::try_new_with_options(schema, arrays, &options)?)
    }

    /// From the batch that [`batch`](Self::batch) gave.
    ///
    /// # Errors
    /// `Data` where it is another one.
    pub fn from_batch(batch: RecordBatch) -> Result<Self> {
        let rows = batch
            .column_by_name(RECORDS)
            .and_then(|column| column.as_primitive_opt::<UInt64Type>());
        let rows = rows.cloned().ok_or_else(|| Error::data("values of files lack their rows"))?;
        let mut columns: HashMap<String, HashMap<Role, usize>> = HashMap::new();
        for (position, field) in batch.schema().fields().iter().enumerate() {
            if let Some((role, column)) = field.name().split_once(OF)
                && let Some(role) = Role::parse(role)
            {
                columns.entry(column.to_owned()).or_default().insert(role, position);
            }
        }
        Ok(Self { batch, rows, columns })
    }

    /// As one batch, a row per file.
    pub fn batch(&self) -> &RecordBatch {
        &self.batch
    }

    fn get(&self, column: &str, role: Role) -> Option<&ArrayRef> {
        Some(self.batch.column(*self.columns.get(column)?.get(&role)?))
    }

    /// Stored bytes of some columns in file `index`; None where the metadata does not say.
    pub fn stored_bytes(&self, columns: &[String], index: usize) -> Option<u64> {
        let mut total = 0;
        for column in columns {
            // A column that the file does not have takes no bytes; one whose size nobody wrote is
            // not told from it.
            if let Some(sizes) = self.get(column, Role::Bytes) {
                let sizes = sizes.as_primitive_opt::<UInt64Type>()?;
                total += if sizes.is_valid(index) { sizes.value(index) } else { 0 };
            }
        }
        (total > 0).then_some(total)
    }

    /// The columns that have a constant in file `index`, and the constants.
    ///
    /// # Errors
    /// An internal error where a value has no scalar form.
    pub fn constants(&self, index: usize) -> Result<Vec<(String, ScalarValue)>> {
        let mut found = Vec::new();
        for (name, roles) in &self.columns {
            let Some(fixed) = roles.get(&Role::Fixed) else { continue };
            if self.batch.column(*fixed).is_valid(index) {
                let value = match roles.get(&Role::Constant) {
                    Some(position) => {
                        ScalarValue::try_from_array(self.batch.column(*position), index)?
                    }
                    // Null in every file.
                    None => ScalarValue::Null,
                };
                found.push((name.clone(), value));
            }
        }
        found.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(found)
    }
}

/// Data files as containers.
impl prune::Bounds for FileValues {
    fn containers(&self) -> usize {
        self.batch.num_rows()
    }

    fn column(&self, column: &Column) -> Option<ColumnBounds> {
        let get = |role| self.get(column.name(), role);
        let (lower, upper) = (get(Role::Lower), get(Role::Upper));
        let known = lower.or(upper).or_else(|| get(Role::Constant));
        // Of a column of which only nulls are counted, the type is in nobody's way.
        let data_type = known.map_or(DataType::Null, |known| known.data_type().clone());
        let counts = |role| get(role)?.as_primitive_opt::<UInt64Type>();
        let bounds = ColumnBounds::unknown(&data_type, self.batch.num_rows());
        let bounds = match counts(Role::Nulls) {
            Some(nulls) => bounds.with_nulls(&nulls.iter().collect::<Vec<_>>(), self.rows.values()),
            None => bounds,
        };
        let bounds = match counts(Role::Nans) {
            Some(nans) => bounds.with_nans(&nans.iter().collect::<Vec<_>>()),
            None => bounds,
        };
        let unknown = new_null_array(&data_type, self.batch.num_rows());
        let upper = above_cut(upper.unwrap_or(&unknown), &BooleanBuffer::new_set(unknown.len()));
        Some(bounds.with_extremes(lower.unwrap_or(&unknown), &upper))
    }

    /// Files whose values lie in another bucket.
    fn lacks(&self, column: &Column, value: &ScalarValue) -> Option<BooleanBuffer> {
        let roles = self.columns.get(column.name())?;
        let mut lacks = vec![false; self.batch.num_rows()];
        for (role, position) in roles {
            let Role::Bucket(count) = role else { continue };
            let Some(wanted) = bucket_of(value, *count) else { continue };
            let buckets = self.batch.column(*position).as_primitive_opt::<Int32Type>()?;
            for (lacks, bucket) in lacks.iter_mut().zip(buckets) {
                *lacks |= bucket.is_some_and(|bucket| bucket != wanted);
            }
        }
        Some(lacks.into_iter().collect())
    }
}

/// Returns true if a file's metrics of a field belong to the column that is read for it, even in a
/// file without ids. Metrics go by the id that the field had when they were written; such a file is
/// read by the names that the mapping has by now, and a name that a column has lost may be
/// another's.
fn is_read_as_written(
    metadata: &TableMetadata,
    mapped: &HashMap<&str, Option<i32>>,
    field: &NestedField,
) -> bool {
    let names = metadata
        .schemas_iter()
        .filter_map(|schema| Some(schema.as_struct().field_by_id(field.id)?.name.as_str()));
    let mut names = names.chain([field.name.as_str()]);
    names.all(|name| mapped.get(name) == Some(&Some(field.id)))
}

/// By name, the id of the field that a mapping finds under it; None of a name of several.
fn ids_by_name(mapping: &NameMapping) -> HashMap<&str, Option<i32>> {
    let mut found = HashMap::new();
    for field in mapping.fields() {
        for name in field.names() {
            let id = if found.contains_key(name.as_str()) { None } else { field.field_id() };
            found.insert(name.as_str(), id);
        }
    }
    found
}

/// The ids of all fields below a nested type.
fn leaf_ids(iceberg: &Type, ids: &mut Vec<i32>) {
    let mut add = |field: &iceberg::spec::NestedField| {
        ids.push(field.id);
        leaf_ids(&field.field_type, ids);
    };
    match iceberg {
        Type::Primitive(_) => {}
        Type::Struct(fields) => fields.fields().iter().for_each(|field| add(field)),
        Type::List(list) => add(&list.element_field),
        Type::Map(map) => {
            add(&map.key_field);
            add(&map.value_field);
        }
    }
}

/// The bucket that a value lies in; None where it has none.
fn bucket_of(value: &ScalarValue, count: u32) -> Option<i32> {
    if value.is_null() || matches!(value, ScalarValue::TimestampNanosecond(..)) {
        // The crate rounds nanoseconds before 1970 to other microseconds than writers do.
        return None;
    }
    let transform = create_transform_function(&Transform::Bucket(count)).ok()?;
    let buckets = transform.transform(value.to_array().ok()?).ok()?;
    buckets.as_primitive_opt::<Int32Type>()?.iter().next()?
}

type Specs = HashMap<i32, Arc<PartitionSpec>>;

fn by_id(metadata: &TableMetadata) -> Specs {
    metadata.partition_specs_iter().map(|spec| (spec.spec_id(), Arc::clone(spec))).collect()
}

fn parts(specs: &Specs, id: i32) -> impl Iterator<Item = (usize, &iceberg::spec::PartitionField)> {
    specs.get(&id).into_iter().flat_map(|spec| spec.fields().iter().enumerate())
}
