//! The kinds of objects that names stand for, and how they are told apart and shown.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;

use super::ipc;
use super::lake::Lake;
use crate::Result;
use crate::catalog::FilesSpec;
use crate::fingerprint::{self, Form};
use crate::formats::TableFiles;
use crate::query::{Definition, Moment, PATH_SCHEMA};
use crate::storage::ForeignFunction;

/// A table's schema and name: `("public", "flights")` or `("path", "data/*.parquet")`.
pub(super) type TableKey = (String, String);

/// A registered table as `Session.tables()` shows it.
#[derive(Clone, Debug)]
pub struct TableInfo {
    /// The name in SQL.
    pub name: String,
    /// `parquet`, `csv`, `json`, `arrow`, `iceberg`, `delta`, `memory` or `view`.
    pub kind: &'static str,
    /// Files, for tables over files.
    pub files: Option<usize>,
    /// Bytes stored or held.
    pub bytes: Option<u64>,
    /// Rows, where known without reading.
    pub rows: Option<u64>,
    /// Files that were left out, with the reason.
    pub quarantined: Vec<(String, String)>,
}

/// The object that a name stands for.
#[derive(Clone, Debug)]
pub(super) enum Registered {
    /// Pinned files.
    Files { table: Arc<TableFiles>, spec: FilesSpec },
    /// Batches in memory, and digest and length of their content as Arrow IPC.
    Memory { schema: SchemaRef, batches: Arc<Vec<RecordBatch>>, digest: String, bytes: u64 },
    /// A pinned version of an Iceberg or Delta table.
    Lake(Arc<Lake>),
    /// A query by name, with the tables that it read when it was registered.
    View { definition: Arc<Definition>, tables: Vec<(TableKey, Registered)> },
    /// A function of the user's.
    Function(Arc<dyn ForeignFunction>),
    /// The moment of the time functions.
    Moment(Moment),
}

impl Registered {
    /// Batches in memory.
    ///
    /// # Errors
    /// Where they cannot be written as Arrow IPC.
    pub(super) fn of_batches(schema: SchemaRef, batches: Vec<RecordBatch>) -> Result<Self> {
        let (digest, bytes) = ipc::digest(&schema, &batches)?;
        Ok(Self::Memory { schema, batches: Arc::new(batches), digest, bytes })
    }
}

impl Registered {
    /// Writes its content into a form.
    ///
    /// # Errors
    /// `Config` where a column's type has no form.
    pub(super) fn write(&self, form: &mut Form) -> Result<()> {
        match self {
            Self::Files { table, spec } => {
                form.text("kind", "files");
                form.nested("format", "format", |form| {
                    spec.format.write(form);
                    Ok(())
                })?;
                fingerprint::schema(form, "columns", table.schema.table_schema())?;
                form.list("files", spec.files.iter().enumerate(), |form, (index, (pin, rows))| {
                    // With bucket or host: the same key in two stores is two files.
                    form.text("path", &table.display_path(index));
                    pin.write_content(form);
                    form.optional_number("rows", *rows);
                    Ok(())
                })?;
            }
            Self::Lake(lake) => {
                // The snapshot says its files, and its metadata never changes.
                form.text("kind", format_of(lake)).text("identity", &lake.identity()?);
                fingerprint::schema(form, "columns", lake.table.schema.table_schema())?;
            }
            Self::Memory { digest, .. } => {
                form.text("kind", "memory").text("digest", digest);
            }
            Self::View { definition, .. } => {
                form.text("kind", "view").text("sql", definition.text());
            }
            Self::Function(function) => {
                form.text("kind", "function").text("digest", function.digest());
            }
            Self::Moment(moment) => {
                form.text("kind", "moment").text("moment", &moment.text());
            }
        }
        Ok(())
    }
}

/// The name of a table's format.
fn format_of(lake: &Lake) -> &'static str {
    lake.pinned().map_or("iceberg", |pinned| pinned.format)
}

/// Returns true if two registrations of one name that do not read the same stand for one place
/// whose content has changed in between.
pub(super) fn has_moved_on(key: &TableKey, a: &Registered, b: &Registered) -> bool {
    let id = |lake: &Lake| lake.pinned().map(|pinned| pinned.table_id.to_owned());
    match (a, b) {
        (Registered::Lake(a), Registered::Lake(b)) => id(a) == id(b),
        _ => key.0 == PATH_SCHEMA,
    }
}

/// Returns true if two registrations of one name read the same. Paths and tables of Iceberg are
/// opened anew for each query that names them.
pub(super) fn same_content(a: &Registered, b: &Registered) -> bool {
    match (a, b) {
        (Registered::Files { table: a, spec: x }, Registered::Files { table: b, spec: y }) => {
            Arc::ptr_eq(a, b)
                || (x.root == y.root
                    && x.files == y.files
                    && x.format == y.format
                    && a.schema.table_schema() == b.schema.table_schema())
        }
        (Registered::Lake(a), Registered::Lake(b)) => {
            matches!((a.identity(), b.identity()), (Ok(a), Ok(b)) if a == b)
                && a.table.schema.table_schema() == b.table.schema.table_schema()
        }
        (Registered::Memory { digest: a, .. }, Registered::Memory { digest: b, .. }) => a == b,
        (
            Registered::View { definition: a, tables: x },
            Registered::View { definition: b, tables: y },
        ) => {
            let same = |((k, a), (l, b)): (&(TableKey, Registered), &(TableKey, Registered))| {
                k == l && same_content(a, b)
            };
            a.text() == b.text() && x.len() == y.len() && x.iter().zip(y).all(same)
        }
        (Registered::Function(a), Registered::Function(b)) => a.digest() == b.digest(),
        (Registered::Moment(a), Registered::Moment(b)) => a == b,
        _ => false,
    }
}

/// How a registration is shown.
pub(super) fn describe(name: &str, registered: &Registered) -> TableInfo {
    let name = name.to_owned();
    match registered {
        Registered::Files { table, spec } => TableInfo {
            name,
            quarantined: spec.quarantined.clone(),
            kind: table.format.name(),
            files: Some(table.files.len()),
            bytes: Some(table.files.iter().map(|file| file.meta.size).sum()),
            rows: table.files.iter().map(|file| file.rows).sum(),
        },
        Registered::Lake(lake) => TableInfo {
            name,
            quarantined: Vec::new(),
            kind: format_of(lake),
            files: Some(lake.table.files.len()),
            bytes: Some(lake.table.files.iter().map(|file| file.meta.size).sum()),
            rows: lake.table.files.iter().map(|file| file.rows).sum(),
        },
        Registered::Memory { batches, .. } => TableInfo {
            name,
            quarantined: Vec::new(),
            kind: "memory",
            files: None,
            bytes: Some(batches.iter().map(|batch| batch.get_array_memory_size() as u64).sum()),
            rows: Some(batches.iter().map(|batch| batch.num_rows() as u64).sum()),
        },
        Registered::View { .. } => {
            let quarantined = Vec::new();
            TableInfo { name, kind: "view", files: None, bytes: None, rows: None, quarantined }
        }
        Registered::Function(_) | Registered::Moment(_) => {
            let quarantined = Vec::new();
            TableInfo { name, kind: "function", files: None, bytes: None, rows: None, quarantined }
        }
    }
}
