//! Delta tables in a session: by their place, pinned when a query is made.

use std::sync::Arc;

use super::lake::{Lake, LakeAccess, LakeOrigin, LakeSource};
use super::metadata_tables::{Columns, batch_of, longs, texts, texts_or_null, times};
use super::registered::Registered;
use super::registry::{Session, TABLE_SCHEMA};
use crate::catalog::{TableOptions, open_delta};
use crate::delta::{Commit, DataFile, DeltaTable, TablePlace, commits, load};
use crate::formats::TableMetadata;
use crate::iceberg::TravelTo;
use crate::iceberg::catalog::DeltaPlace;
use crate::storage::{Location, OpenedPaths};
use crate::{Error, Result};

/// The metadata table of a table's commits.
const HISTORY: &str = "history";

/// Returns true if Delta tables have a metadata table of this name.
pub(super) fn is_delta_kind(kind: &str) -> bool {
    [HISTORY, "files"].contains(&kind)
}

impl Session {
    /// Reads the log of the table at a place, and pins a version.
    pub(super) async fn load_delta(
        &self,
        name: &str,
        place: &DeltaPlace,
        source: &LakeSource,
    ) -> Result<Lake> {
        let (opened, place) = open(place).await?;
        let (spec, values) =
            load(&opened.store, &place, name, &source.at, source.scan_filter.clone()).await?;
        let table = DeltaTable::try_new(spec, values)?;
        let (url, counters) = (self.new_store_url()?, Arc::clone(self.counters()));
        let table = open_delta(table, opened.store, url, counters, self.cache());
        Ok(Lake {
            table: Arc::new(table),
            access: LakeAccess::Delta(opened.access),
            source: Some(source.clone()),
        })
    }

    /// Returns true if a name is that of a metadata table of a registered Delta table, such as
    /// `events$history`.
    pub(super) fn is_delta_metadata(&self, name: &str) -> bool {
        let Some((table, kind)) = name.rsplit_once('$') else { return false };
        is_delta_kind(kind) && self.delta_source(table).is_some()
    }

    /// The rows of a metadata table; None where the name is none of one.
    pub(super) async fn delta_metadata(
        &self,
        name: &str,
        at: &TravelTo,
    ) -> Result<Option<Registered>> {
        let Some((table, kind)) = name.rsplit_once('$') else { return Ok(None) };
        if !is_delta_kind(kind) {
            return Ok(None);
        }
        let Some(source) = self.delta_source(table) else { return Ok(None) };
        let source = LakeSource { at: at.clone(), ..source };
        self.delta_rows(table, kind, &source).await.map(Some)
    }

    /// The rows of a metadata table of a Delta table.
    pub(super) async fn delta_rows(
        &self,
        table: &str,
        kind: &str,
        source: &LakeSource,
    ) -> Result<Registered> {
        let Some(place) = self.delta_place(&source.origin).await? else {
            return Err(Error::config(format!("{:?} is no Delta table", source.origin)));
        };
        let columns = match kind {
            HISTORY => {
                let (opened, place) = open(&place).await?;
                history(&commits(&opened.store, &place, table).await?)
            }
            _ => files(&self.load_delta(table, &place, source).await?)?,
        };
        let (schema, batch) = batch_of(columns)?;
        Registered::of_batches(schema, vec![batch])
    }

    /// Where a registered Delta table comes from.
    fn delta_source(&self, table: &str) -> Option<LakeSource> {
        let key = (TABLE_SCHEMA.to_owned(), table.to_owned());
        match self.registered(&key) {
            Some(Registered::Lake(lake)) if matches!(lake.access, LakeAccess::Delta(_)) => {
                lake.source.clone()
            }
            _ => None,
        }
    }

    /// Returns true if an origin is one of Delta tables alone.
    pub(super) fn keeps_delta(&self, origin: &LakeOrigin) -> bool {
        match origin {
            LakeOrigin::Delta { .. } => true,
            LakeOrigin::Catalog { catalog, .. } => {
                self.catalog(catalog).is_ok_and(|catalog| catalog.keeps_delta())
            }
            LakeOrigin::Registered { .. } | LakeOrigin::Path { .. } => false,
        }
    }

    /// The place of a Delta table, for which a catalog is asked; None where the origin is one of
    /// Iceberg tables.
    pub(super) async fn delta_place(&self, origin: &LakeOrigin) -> Result<Option<DeltaPlace>> {
        match origin {
            LakeOrigin::Delta { location, access } => {
                Ok(Some(DeltaPlace { location: location.clone(), access: access.clone() }))
            }
            LakeOrigin::Catalog { catalog, namespace, table } => {
                let catalog = self.catalog(catalog)?;
                match catalog.keeps_delta() {
                    true => catalog.delta_place(namespace, table).await.map(Some),
                    false => Ok(None),
                }
            }
            LakeOrigin::Registered { .. } | LakeOrigin::Path { .. } => Ok(None),
        }
    }

    /// The Delta table at a path.
    pub(super) async fn delta_table(
        &self,
        path: &str,
        options: &TableOptions,
    ) -> Result<Registered> {
        let origin = LakeOrigin::Delta { location: path.to_owned(), access: options.access() };
        let source = LakeSource { origin, at: TravelTo::Current, scan_filter: None };
        Ok(Registered::Lake(Arc::new(self.load_lake(path, &source).await?)))
    }
}

/// Opens the store of a table's directory.
async fn open(place: &DeltaPlace) -> Result<(OpenedPaths, TablePlace)> {
    let opened = place.access.open_paths(std::slice::from_ref(&place.location)).await?;
    let directory = place_of(&opened, &place.location)?;
    Ok((opened, directory))
}

/// The directory of a table.
fn place_of(opened: &OpenedPaths, location: &str) -> Result<TablePlace> {
    match opened.locations.first().filter(|found| found.pattern().is_none()) {
        Some(directory) => Ok(TablePlace {
            store: opened.root().to_owned(),
            directory: directory.prefix().clone(),
        }),
        None => Err(Error::config(format!(
            "{location:?} is a pattern; a Delta table is named by its directory"
        ))),
    }
}

fn history(commits: &[Commit]) -> Columns {
    let json = |value: &Option<serde_json::Value>| value.as_ref().map(ToString::to_string);
    let info = || commits.iter().map(|commit| &commit.info);
    vec![
        ("version", longs(commits.iter().map(|commit| Some(commit.version)))),
        ("timestamp", times(commits.iter().map(|commit| commit.time))),
        ("operation", texts_or_null(info().map(|info| info.operation.clone()))),
        (
            "operation_parameters",
            texts_or_null(info().map(|info| json(&info.operation_parameters))),
        ),
        ("operation_metrics", texts_or_null(info().map(|info| json(&info.operation_metrics)))),
        ("engine_info", texts_or_null(info().map(|info| info.engine_info.clone()))),
    ]
}

fn files(lake: &Lake) -> Result<Columns> {
    let Some(table) = DeltaTable::of(&lake.table) else {
        return Err(Error::config("a Delta table lost its version"));
    };
    let files = &table.spec().files;
    let partition = |index: usize| -> Result<String> {
        let values = table.constants(index)?;
        let parts = values.iter().map(|(name, value)| match value.is_null() {
            true => format!("{name}=null"),
            false => format!("{name}={value}"),
        });
        Ok(parts.collect::<Vec<_>>().join("/"))
    };
    let partitions = (0..files.len()).map(partition).collect::<Result<Vec<_>>>()?;
    let deleted = |file: &DataFile| file.vector.as_ref().map_or(0, |vector| vector.cardinality);
    Ok(vec![
        ("file_path", texts((0..files.len()).map(|index| table.uri(index)))),
        ("partition", texts(partitions.iter())),
        ("record_count", longs(files.iter().map(|file| Some(file.records as i64)))),
        ("deleted_count", longs(files.iter().map(|file| Some(deleted(file) as i64)))),
        ("file_size_in_bytes", longs(files.iter().map(|file| Some(file.size as i64)))),
    ])
}

/// Returns true if a path names a local directory that holds a Delta table's log.
pub(super) fn has_local_log(path: &str) -> bool {
    let folder = match Location::parse(path) {
        Ok(location) if location.is_local() && location.pattern().is_none() => {
            location.local_folder().join("_delta_log")
        }
        _ => return false,
    };
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names = files.filter_map(|file| file.file_name().into_string().ok());
    names.any(|name| name.ends_with(".json") || name.ends_with(".parquet"))
}
