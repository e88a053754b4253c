//! Tables that executors read by themselves: DataFusion's listing tables over the pinned files.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use datafusion::catalog::TableProvider;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, config::TableParquetOptions};
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::listing::{
    ListingOptions, ListingTable, ListingTableConfig, ListingTableUrl,
};
use datafusion::datasource::provider_as_source;
use datafusion::logical_expr::utils::conjunction;
use datafusion::logical_expr::{
    Expr, Join, JoinConstraint, LogicalPlan, LogicalPlanBuilder, TableScan, lit,
};
use datafusion::scalar::ScalarValue;
use futures::{StreamExt, TryStreamExt};
use object_store::ObjectStoreExt;
use url::Url;

use super::judge::refused;
use crate::catalog::FilesTable;
use crate::exec::{LakeProvider, MemoryTable};
use crate::formats::{Format, TableFiles};
use crate::query::provider_of;
use crate::{Error, Result};

/// The number of Hive directories of one table, each a scan of its own.
const MOST_DIRECTORIES: usize = 2_000;

/// Files that are looked at side by side.
pub(super) const LOOKS: usize = 32;

/// A table that a part reads.
#[derive(Clone, Debug)]
pub(super) struct ReadTable {
    /// Its name in the plan.
    pub name: String,
    /// Its pinned files.
    pub files: Arc<TableFiles>,
    /// The columns that are read.
    pub columns: Vec<String>,
}

/// The tables that a part reads, each scan of its own.
///
/// # Errors
/// `Query` for a table that executors cannot read, naming it.
pub(super) fn tables_of(part: &LogicalPlan) -> Result<Vec<ReadTable>> {
    let mut tables = Vec::new();
    part.apply(|node| {
        if let LogicalPlan::TableScan(scan) = node {
            let schema = scan.source.schema();
            let columns = wanted(scan).into_iter().map(|index| schema.field(index).name().clone());
            let columns = columns.collect();
            tables.push(ReadTable { name: name_of(scan), files: files_of(scan)?, columns });
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(tables)
}

/// Demands that the pinned files are unchanged.
///
/// # Errors
/// `Data` naming a file that has changed.
pub(super) async fn check_pins(tables: &[ReadTable]) -> Result<()> {
    let files = tables.iter().flat_map(|table| {
        let store = &table.files.store;
        table.files.files.iter().map(|file| (Arc::clone(store), file.meta.location.clone()))
    });
    // The store compares each answer with the pin.
    futures::stream::iter(files)
        .map(|(store, location)| async move { store.head(&location).await.map(drop) })
        .buffer_unordered(LOOKS)
        .try_collect::<()>()
        .await?;
    Ok(())
}

/// The part over listing tables, in a form that survives being sent: UNION ALL of two inputs each,
/// and joins by ON.
///
/// # Errors
/// `Query` for a table that executors cannot read.
pub(super) fn over_listings(part: &LogicalPlan, partitions: usize) -> Result<LogicalPlan> {
    let listing = Listing { partitions };
    let rewritten = part.clone().transform_up(|node| {
        Ok(match node {
            LogicalPlan::TableScan(scan) => Transformed::yes(listing.over(&scan)?),
            LogicalPlan::Union(union) => {
                let mut inputs = union.inputs.into_iter().map(Arc::unwrap_or_clone);
                let Some(first) = inputs.next() else {
                    return Err(refused("a UNION ALL has no inputs").into());
                };
                let pairs = inputs
                    .try_fold(LogicalPlanBuilder::from(first), |all, input| all.union(input))?;
                Transformed::yes(pairs.build()?)
            }
            LogicalPlan::Join(join) => {
                let constraint = JoinConstraint::On;
                Transformed::yes(LogicalPlan::Join(Join { join_constraint: constraint, ..join }))
            }
            other => Transformed::no(other),
        })
    })?;
    Ok(rewritten.data)
}

/// A path as a user would write it, or as Iceberg does, as the URL that executors know it by. Names
/// are as in the store, percent signs included.
///
/// # Errors
/// `Query` for a store that stock executors do not know.
pub(super) fn url_of(text: &str) -> Result<Url> {
    let odd = || refused(&format!("{text:?} has no URL that executors can read"));
    let local = |path: &str| Url::from_file_path(path).map_err(|()| odd());
    match text.split_once("://") {
        Some(("s3" | "s3a" | "s3n", rest)) => {
            let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
            let mut url = Url::parse(&format!("s3://{bucket}")).map_err(|_| odd())?;
            url.path_segments_mut().map_err(|()| odd())?.extend(key.split('/'));
            Ok(url)
        }
        Some(("file", path)) => local(path),
        None => local(text.strip_prefix("file:").unwrap_or(text)),
        Some(_) => Err(refused(&format!(
            "stock executors read s3:// and folders that all machines share, and not {text:?}"
        ))),
    }
}

/// How tables are made for a part.
#[derive(Clone, Copy)]
struct Listing {
    /// Tasks that read a table.
    partitions: usize,
}

impl Listing {
    /// A plan with the rows and columns of a scan.
    fn over(self, scan: &TableScan) -> Result<LogicalPlan> {
        let files = files_of(scan)?;
        let plan = match files.schema.table_partition_cols().is_empty() || files.metadata.is_some()
        {
            true => {
                let all = (0..files.files.len()).collect::<Vec<_>>();
                let table = self.table(&files, &all, scan.source.schema())?;
                // Such a table takes filters only to read less: they are in the plan above, too.
                let source = provider_as_source(table);
                LogicalPlanBuilder::scan(scan.table_name.clone(), source, scan.projection.clone())?
            }
            false => self.over_directories(scan, &files)?,
        };
        let plan = match scan.fetch {
            Some(rows) => plan.limit(0, Some(rows))?,
            None => plan,
        };
        Ok(plan.build()?)
    }

    /// The directories of a hive table one after the other, with their values as constants. Filters
    /// on these are nowhere else in the plan.
    fn over_directories(self, scan: &TableScan, files: &TableFiles) -> Result<LogicalPlanBuilder> {
        let mut directories: Vec<(&[ScalarValue], Vec<usize>)> = Vec::new();
        let mut known: HashMap<&[ScalarValue], usize> = HashMap::new();
        for (index, file) in files.files.iter().enumerate() {
            let values = file.partition_values.as_slice();
            let at = *known.entry(values).or_insert_with(|| {
                directories.push((values, Vec::new()));
                directories.len() - 1
            });
            directories[at].1.push(index);
        }
        if directories.len() > MOST_DIRECTORIES {
            return Err(refused(&format!(
                "the table {} has {} hive directories, and {MOST_DIRECTORIES} can be sent",
                name_of(scan),
                directories.len()
            )));
        }
        let schema = files.schema.table_schema();
        let partition_columns = files.schema.table_partition_cols();
        let stored = schema.fields().len() - partition_columns.len();
        let file_schema = Arc::new(Schema::new(schema.fields()[..stored].to_vec()));
        let mut wanted = wanted(scan);
        for filter in &scan.filters {
            for column in filter.column_refs() {
                wanted.push(schema.index_of(column.name())?);
            }
        }
        wanted.sort_unstable();
        wanted.dedup();
        let mut all: Option<LogicalPlanBuilder> = None;
        for (values, indices) in directories {
            let table = self.table(files, &indices, Arc::clone(&file_schema))?;
            let columns = wanted.iter().filter(|index| **index < stored).copied().collect();
            let source = provider_as_source(table);
            let rows = LogicalPlanBuilder::scan(scan.table_name.clone(), source, Some(columns))?;
            let columns = wanted.iter().map(|index| {
                let name = schema.field(*index).name();
                match index.checked_sub(stored) {
                    Some(place) => lit(values[place].clone()).alias(name),
                    None => {
                        Expr::Column(Column::new(Some(scan.table_name.clone()), name)).alias(name)
                    }
                }
            });
            let rows = rows.project(columns.collect::<Vec<_>>())?;
            all = Some(match all {
                Some(all) => all.union(rows.build()?)?,
                None => rows,
            });
        }
        let all = all.ok_or_else(|| without_files(&name_of(scan)))?;
        let mut all = all.alias(scan.table_name.clone())?;
        if let Some(filter) = conjunction(scan.filters.clone()) {
            all = all.filter(filter)?;
        }
        let columns = scan.projected_schema.columns().into_iter().map(Expr::Column);
        Ok(all.project(columns.collect::<Vec<_>>())?)
    }

    fn table(
        self,
        files: &TableFiles,
        indices: &[usize],
        schema: SchemaRef,
    ) -> Result<Arc<dyn TableProvider>> {
        let urls = indices
            .iter()
            .map(|index| Ok(ListingTableUrl::try_new(url_of(&files.display_path(*index))?, None)?));
        let mut options = TableParquetOptions::default();
        // Stock executors leave out row groups that match, where a NULL count is absent or a bound
        // in another order.
        options.global.pruning = false;
        options.global.enable_page_index = false;
        options.global.bloom_filter_on_read = false;
        options.global.schema_force_view_types = false;
        let format = Arc::new(ParquetFormat::default().with_options(options));
        let options = ListingOptions::new(format)
            // The files are known, whatever they are called.
            .with_file_extension("")
            .with_collect_stat(false)
            .with_target_partitions(self.partitions);
        let config = ListingTableConfig::new_with_multi_paths(urls.collect::<Result<_>>()?)
            .with_listing_options(options)
            .with_schema(schema);
        Ok(Arc::new(ListingTable::try_new(config)?))
    }
}

/// The pinned files of a scan.
fn files_of(scan: &TableScan) -> Result<Arc<TableFiles>> {
    let name = name_of(scan);
    let provider = provider_of(scan).ok_or_else(|| refused(&format!("{name} is no table")))?;
    let provider = provider.as_any();
    let files = if let Some(table) = provider.downcast_ref::<FilesTable>() {
        table.files()
    } else if let Some(table) = provider.downcast_ref::<LakeProvider>() {
        table.files()
    } else if provider.is::<MemoryTable>() {
        return Err(refused(&format!(
            "the table {name} is in the memory of this process; write it to the object store as Parquet and register that"
        )));
    } else {
        return Err(refused(&format!(
            "executors cannot read {name} as this process does (TABLESAMPLE, a metadata table)"
        )));
    };
    if !matches!(files.format, Format::Parquet) {
        return Err(refused(&format!(
            "the table {name} is {} and executors are given Parquet only",
            files.format.name()
        )));
    }
    if files.files.is_empty() {
        return Err(without_files(&name));
    }
    Ok(Arc::clone(files))
}

fn without_files(name: &str) -> Error {
    refused(&format!("the table {name} has no files"))
}

/// The columns that a scan reads.
fn wanted(scan: &TableScan) -> Vec<usize> {
    match &scan.projection {
        Some(columns) => columns.clone(),
        None => (0..scan.source.schema().fields().len()).collect(),
    }
}

fn name_of(scan: &TableScan) -> String {
    format!("{:?}", scan.table_name.table())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_lead_to_the_same_names() {
        for (text, url, key) in [
            ("s3://bucket/a/b.parquet", "s3://bucket/a/b.parquet", "a/b.parquet"),
            ("s3a://bucket/a.parquet", "s3://bucket/a.parquet", "a.parquet"),
            (
                "s3://bucket/day=1%2F2/x y.parquet",
                "s3://bucket/day=1%252F2/x%20y.parquet",
                "day=1%2F2/x y.parquet",
            ),
            ("/data/ü #1.parquet", "file:///data/%C3%BC%20%231.parquet", "data/ü #1.parquet"),
            ("file:///data/50%25.parquet", "file:///data/50%2525.parquet", "data/50%25.parquet"),
            ("s3://bucket/x?y=*.parquet", "s3://bucket/x%3Fy=*.parquet", "x?y=*.parquet"),
        ] {
            let found = url_of(text).unwrap();
            assert_eq!(found.as_str(), url);
            let there = ListingTableUrl::parse(found.as_str()).unwrap();
            assert_eq!(there.prefix().as_ref(), key, "{text}");
        }
    }

    #[test]
    fn stores_that_executors_do_not_know_are_named() {
        for text in ["gs://bucket/a.parquet", "az://box/a.parquet", "https://host/a.parquet"] {
            let error = url_of(text).unwrap_err();
            assert!(error.message().contains(text), "{error}");
        }
    }
}
