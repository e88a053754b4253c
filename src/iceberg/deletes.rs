//! Deletes, read once per process and kept: positions as bitmaps by data file, equality deletes as
//! sets of keys.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray};
use arrow::datatypes::{DataType, Float32Type, Float64Type, Int64Type};
use arrow::record_batch::RecordBatch;
use arrow::row::{RowConverter, SortField};
use object_store::{ObjectStore, ObjectStoreExt};
use roaring::RoaringTreemap;
use tokio::sync::OnceCell;

use super::puffin::deletion_vector;
use super::read::{StoredColumns, read_columns};
use super::spec::{DeleteFile, DeleteKind, EqualityGroup, LakeSpec};
use super::types::arrow_schema;
use crate::bounds::DELETION_VECTOR;
use crate::formats::Positions;
use crate::storage::RoutedStore;
use crate::{Error, Result};

type Cell<T> = Arc<OnceCell<Arc<T>>>;

/// The deletes of one snapshot that were asked for so far.
#[derive(Debug, Default)]
pub struct DeleteCache {
    /// By delete file that names several data files: the positions in each of them.
    files: Mutex<HashMap<u32, Cell<HashMap<String, Positions>>>>,
    /// By data file, of all its delete files together.
    positions: Mutex<HashMap<u32, Cell<RoaringTreemap>>>,
    groups: Mutex<HashMap<u32, Cell<EqualityKeys>>>,
}

fn cell<T>(cells: &Mutex<HashMap<u32, Cell<T>>>, key: u32) -> Cell<T> {
    Arc::clone(cells.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_default())
}

impl DeleteCache {
    /// The deleted positions of data file `index`; None where no delete file lists any.
    ///
    /// # Errors
    /// `Data` where a delete file is damaged; storage errors as they are.
    pub async fn positions(
        &self,
        spec: &LakeSpec,
        store: &Arc<dyn ObjectStore>,
        index: u32,
    ) -> Result<Option<Positions>> {
        let file = &spec.files[index as usize];
        if file.positions.is_empty() {
            return Ok(None);
        }
        let cell = cell(&self.positions, index);
        let union = cell.get_or_try_init(|| async {
            let mut all = Positions::default();
            for id in &file.positions {
                let Some(found) = self.named_by(spec, store, *id, &file.uri).await? else {
                    continue;
                };
                match all.is_empty() {
                    true => all = found,
                    false => *Arc::make_mut(&mut all) |= found.as_ref(),
                }
            }
            if let Some(beyond) = all.max().filter(|last| *last >= file.records) {
                return Err(Error::data(format!(
                    "a delete file names row {beyond} of data file {}, which has {} rows",
                    file.uri, file.records
                )));
            }
            Ok(all)
        });
        Ok(Some(Arc::clone(union.await?)))
    }

    /// The positions that one delete file names in the data file `uri`.
    async fn named_by(
        &self,
        spec: &LakeSpec,
        store: &Arc<dyn ObjectStore>,
        id: u32,
        uri: &str,
    ) -> Result<Option<Positions>> {
        let file = &spec.deletes[id as usize];
        let located = |error: Error| error.with_context("delete file", &file.uri);
        if let DeleteKind::Vector { offset, length } = file.kind {
            let path = RoutedStore::path_of(&file.uri)?;
            let end = offset.checked_add(length).ok_or_else(|| {
                located(Error::data("the deletion vector lies at an impossible place"))
            })?;
            DELETION_VECTOR.check(length, "the deletion vector has").map_err(located)?;
            let bytes = store.get_range(&path, offset..end).await?;
            return Ok(Some(Arc::new(deletion_vector(&bytes, file.records).map_err(located)?)));
        }
        // Of a file that names one data file nobody else asks.
        if file.target.is_some() {
            return Ok(read_positions(store, file).await.map_err(located)?.remove(uri));
        }
        let cell = cell(&self.files, id);
        let load = || async { read_positions(store, file).await.map(Arc::new).map_err(located) };
        Ok(cell.get_or_try_init(load).await?.get(uri).cloned())
    }

    /// The keys of one group of equality deletes.
    ///
    /// # Errors
    /// `Data` where a delete file is damaged or lacks a column; storage errors as they are.
    pub async fn keys(
        &self,
        spec: &LakeSpec,
        store: &Arc<dyn ObjectStore>,
        group: u32,
    ) -> Result<Arc<EqualityKeys>> {
        let cell = cell(&self.groups, group);
        let members = &spec.groups[group as usize];
        let keys = cell.get_or_try_init(|| async {
            Ok::<_, Error>(Arc::new(EqualityKeys::read(spec, store, members).await?))
        });
        Ok(Arc::clone(keys.await?))
    }
}

/// Reads a position delete file, with the columns `file_path` and `pos`. The first is only read if
/// it can differ.
async fn read_positions(
    store: &Arc<dyn ObjectStore>,
    file: &DeleteFile,
) -> Result<HashMap<String, Positions>> {
    let mut found: HashMap<String, Vec<u64>> = HashMap::new();
    let names: &[&str] = if file.target.is_some() { &["pos"] } else { &["pos", "file_path"] };
    let columns = StoredColumns::Named(names);
    for batch in read_columns(store, &file.uri, file.size, file.format, columns).await? {
        let malformed =
            || Error::data("a position delete file must have file_path as string and pos as long");
        let positions = batch.column(0).as_primitive_opt::<Int64Type>().ok_or_else(malformed)?;
        if batch.columns().iter().any(|column| column.null_count() > 0) {
            return Err(Error::data("a position delete file holds a null"));
        }
        if let Some(odd) = positions.values().iter().find(|position| **position < 0) {
            return Err(Error::data(format!("a position delete file names row {odd}")));
        }
        let rows = |range: Range<usize>| positions.values()[range].iter().map(|row| *row as u64);
        if let Some(target) = &file.target {
            found.entry(target.clone()).or_default().extend(rows(0..batch.num_rows()));
            continue;
        }
        let paths = arrow::compute::cast(batch.column(1), &DataType::Utf8)?;
        let paths = paths.as_string_opt::<i32>().ok_or_else(malformed)?;
        let mut at = 0;
        while at < batch.num_rows() {
            // Rows are sorted by path, so one look-up serves a run.
            let path = paths.value(at);
            let mut end = at + 1;
            while end < batch.num_rows() && paths.value(end) == path {
                end += 1;
            }
            found.entry(path.to_owned()).or_default().extend(rows(at..end));
            at = end;
        }
    }
    let bitmap = |mut rows: Vec<u64>| {
        // By the specification they are sorted, and then a bitmap is built at once.
        rows.sort_unstable();
        rows.dedup();
        RoaringTreemap::from_sorted_iter(rows)
            .map_err(|_| Error::data("positions of deleted rows are out of order"))
    };
    found.into_iter().map(|(path, rows)| Ok((path, Arc::new(bitmap(rows)?)))).collect()
}

/// Keys of deleted rows, each with the greatest sequence number that deletes it. Null equals null,
/// and NaN equals NaN.
#[derive(Debug)]
pub struct EqualityKeys {
    /// The key columns, by their names in the table.
    pub columns: Vec<String>,
    converter: RowConverter,
    newest: HashMap<Box<[u8]>, i64>,
}

impl EqualityKeys {
    async fn read(
        spec: &LakeSpec,
        store: &Arc<dyn ObjectStore>,
        group: &EqualityGroup,
    ) -> Result<Self> {
        let schema = arrow_schema(&spec.schema);
        let fields = group.columns.iter().map(|name| {
            let field = schema.field_with_name(name)?;
            Ok(SortField::new(field.data_type().clone()))
        });
        let converter = RowConverter::new(fields.collect::<Result<_>>()?)?;
        let mut newest: HashMap<Box<[u8]>, i64> = HashMap::new();
        for id in &group.files {
            let file = &spec.deletes[*id as usize];
            let columns = StoredColumns::OfTable(spec, &group.columns);
            let batches = read_columns(store, &file.uri, file.size, file.format, columns)
                .await
                .map_err(|error| error.with_context("delete file", &file.uri))?;
            for batch in batches {
                let keys: Vec<_> = batch.columns().iter().map(with_one_nan).collect();
                for row in &converter.convert_columns(&keys)? {
                    let sequence = newest.entry(row.as_ref().into()).or_insert(file.sequence);
                    *sequence = file.sequence.max(*sequence);
                }
            }
        }
        Ok(Self { columns: group.columns.clone(), converter, newest })
    }

    /// Which rows of `batch` stay: those whose key no newer delete names. `key` are the positions
    /// of the key columns.
    ///
    /// # Errors
    /// An internal error where a column has another type than the table's.
    pub fn keep(&self, batch: &RecordBatch, key: &[usize], sequence: i64) -> Result<BooleanArray> {
        let columns: Vec<_> = key.iter().map(|at| with_one_nan(batch.column(*at))).collect();
        let rows = self.converter.convert_columns(&columns)?;
        let is_kept = |row: arrow::row::Row<'_>| {
            self.newest.get(row.as_ref()).is_none_or(|newest| *newest <= sequence)
        };
        Ok(rows.iter().map(|row| Some(is_kept(row))).collect())
    }
}

/// A column of keys in which every NaN has the same bits, by which keys are compared.
fn with_one_nan(column: &ArrayRef) -> ArrayRef {
    match column.data_type() {
        DataType::Float32 => {
            let one = |value: f32| if value.is_nan() { f32::NAN } else { value };
            Arc::new(column.as_primitive::<Float32Type>().unary::<_, Float32Type>(one))
        }
        DataType::Float64 => {
            let one = |value: f64| if value.is_nan() { f64::NAN } else { value };
            Arc::new(column.as_primitive::<Float64Type>().unary::<_, Float64Type>(one))
        }
        _ => Arc::clone(column),
    }
}
