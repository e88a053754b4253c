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
use crate::storage::{Location, OpenedPaths, StoreAccess};
use crate::{Error, Result};

/// The metadata tables of a Delta table.
const KINDS: &[&str] = &["history", "files"];

impl Session {
    /// Reads the log of the table at a location, and pins a version.
    pub(super) async fn load_delta(
        &self,
        name: &str,
        location: &str,
        access: &StoreAccess,
        source: &LakeSource,
    ) -> Result<Lake> {
        let opened = access.open_paths(&[location.to_owned()]).await?;
        let place = place_of(&opened, location)?;
        let (spec, values) =
            load(&opened.store, &place, name, &source.at, source.scan_filter.clone()).await?;
        let table = DeltaTable::try_new(spec, values)?;
        let (url, counters) = (self.new_store_url()?, Arc::clone(self.counters()));
        let table = open_delta(table, opened.store, url, counters, self.cache())?;
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
        KINDS.contains(&kind) && self.delta_source(table).is_some()
    }

    /// The rows of a metadata table; None where the name is none of one.
    pub(super) async fn delta_metadata(
        &self,
        name: &str,
        at: &TravelTo,
    ) -> Result<Option<Registered>> {
        let Some((table, kind)) = name.rsplit_once('$') else { return Ok(None) };
        let Some((source, location, access)) = self.delta_source(table) else { return Ok(None) };
        let columns = match kind {
            "history" => {
                let opened = access.open_paths(std::slice::from_ref(&location)).await?;
                let place = place_of(&opened, &location)?;
                history(&commits(&opened.store, &place, table).await?)
            }
            "files" => {
                let source = LakeSource { at: at.clone(), ..source };
                let lake = self.load_delta(table, &location, &access, &source).await?;
                files(&lake)?
            }
            _ => return Ok(None),
        };
        let (schema, batch) = batch_of(columns)?;
        Registered::of_batches(schema, vec![batch]).map(Some)
    }

    /// Where a registered Delta table comes from.
    fn delta_source(&self, table: &str) -> Option<(LakeSource, String, StoreAccess)> {
        let key = (TABLE_SCHEMA.to_owned(), table.to_owned());
        let Some(Registered::Lake(lake)) = self.registered(&key) else { return None };
        let source = lake.source.clone()?;
        match &source.origin {
            LakeOrigin::Delta { location, access } => {
                let (location, access) = (location.clone(), access.clone());
                Some((source, location, access))
            }
            _ => None,
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
        ("file_path", texts((0..files.len()).map(|index| table.listed(index).uri.to_owned()))),
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
