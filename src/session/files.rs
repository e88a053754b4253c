//! Tables over files: listed and inferred here, or taken from the plan cache, or from a memo of
//! another process.

use std::sync::Arc;

use super::delta::has_local_log;
use super::query::path_memos;
use super::registered::Registered;
use super::registry::{Session, TABLE_SCHEMA};
use super::serialised_plan;
use crate::catalog::{FilesSpec, ListedFiles, TableOptions, infer_table, list_table};
use crate::formats::TableFiles;
use crate::storage::{Location, OpenedPaths, is_delta_folder};
use crate::{Error, Result};

/// Where the plan cache keeps tables.
const CACHED_TABLES: &str = "tables";

impl Session {
    /// Registers files under a name, replacing an earlier table of that name.
    ///
    /// # Errors
    /// As [`list_table`] and [`infer_table`]; `Config` for an empty name.
    pub async fn register_files(
        &self,
        name: &str,
        paths: &[String],
        options: TableOptions,
    ) -> Result<()> {
        self.check_name(name)?;
        let listed = self.delta_or_files(paths, options).await?;
        self.bind((TABLE_SCHEMA.to_owned(), name.to_owned()), listed)
    }

    /// Registers files that another process has listed and inferred. Options of the store are this
    /// process's own; the other options are ignored.
    ///
    /// # Errors
    /// `Config` where the memo is damaged or of another store, or the options are not valid.
    pub async fn adopt_files(
        &self,
        name: &str,
        paths: &[String],
        options: &TableOptions,
        memo: &[u8],
    ) -> Result<()> {
        self.check_name(name)?;
        let listed = self.of_listed(paths, options, memo).await?;
        self.bind((TABLE_SCHEMA.to_owned(), name.to_owned()), listed)
    }

    /// Files that another process has listed.
    pub(super) async fn of_listed(
        &self,
        paths: &[String],
        options: &TableOptions,
        memo: &[u8],
    ) -> Result<Registered> {
        let opened = options.access().open_paths(paths).await?;
        let (table, spec) = self.of_memo(memo, &opened)?;
        Ok(Registered::Files { table: Arc::new(table), spec })
    }

    /// A memo of a registered table over files; see [`adopt_files`](Self::adopt_files).
    ///
    /// # Errors
    /// `TableNotFound`; `Config` where it is no table over files.
    pub fn table_memo(&self, name: &str) -> Result<Vec<u8>> {
        let (table, spec) = self.files_of(name)?;
        serialised_plan::of_table(&table, &spec)
    }

    fn files_of(&self, name: &str) -> Result<(Arc<TableFiles>, FilesSpec)> {
        match self.registered(&(TABLE_SCHEMA.to_owned(), name.to_owned())) {
            Some(Registered::Files { table, spec }) => Ok((table, spec)),
            Some(_) => Err(Error::config(format!("table {name:?} is not over files"))),
            None => Err(self.table_not_found(name)),
        }
    }

    /// Memos of the path literals of a view, by path.
    ///
    /// # Errors
    /// `TableNotFound`.
    pub fn view_memos(&self, name: &str) -> Result<Vec<(String, Vec<u8>)>> {
        match self.registered(&(TABLE_SCHEMA.to_owned(), name.to_owned())) {
            Some(Registered::View { tables, .. }) => path_memos(&tables),
            _ => Err(self.table_not_found(name)),
        }
    }

    /// How the files of a path literal are read.
    pub(super) fn options_of_path(&self, path: &str, skip_bad: bool) -> TableOptions {
        let mut options = TableOptions { skip_bad, ..TableOptions::default() };
        if path.contains("://") && !path.starts_with("file:") {
            options.storage_options = self.options().storage_options.clone();
            if Location::takes_credentials(path) {
                options.credentials = self.options().credentials.clone();
            }
        }
        options
    }

    /// The Delta table that a path without a format names, or files.
    pub(super) async fn delta_or_files(
        &self,
        paths: &[String],
        options: TableOptions,
    ) -> Result<Registered> {
        let ([path], None) = (paths, &options.format) else {
            return self.listed(paths, options).await;
        };
        if has_local_log(path) {
            return self.delta_table(path, &options).await;
        }
        match self.listed(paths, options.clone()).await {
            // Of a store, only its listing tells.
            Err(error) if is_delta_folder(&error, path) => self.delta_table(path, &options).await,
            listed => listed,
        }
    }

    /// Lists files, with facts from the plan cache or from their footers.
    pub(super) async fn listed(
        &self,
        paths: &[String],
        options: TableOptions,
    ) -> Result<Registered> {
        let listed = list_table(paths, &options).await?;
        let Some(cache) = self.plan_cache() else {
            let (table, spec) = self.infer(listed, &options).await?;
            return Ok(Registered::Files { table: Arc::new(table), spec });
        };
        let entry = listed.form(&options)?.name();
        if let Some(memo) = cache.get(CACHED_TABLES, &entry).await {
            match self.of_memo(&memo, listed.opened()) {
                Ok((table, spec)) if listed.are(&spec) => {
                    return Ok(Registered::Files { table: Arc::new(table), spec });
                }
                Ok(_) => {
                    cache.is_odd(CACHED_TABLES, &entry, &Error::data("it is of other files"));
                }
                Err(error) => cache.is_odd(CACHED_TABLES, &entry, &error),
            }
        }
        let (table, spec) = self.infer(listed, &options).await?;
        cache.put(CACHED_TABLES, &entry, &serialised_plan::of_table(&table, &spec)?).await;
        Ok(Registered::Files { table: Arc::new(table), spec })
    }

    fn of_memo(&self, memo: &[u8], opened: &OpenedPaths) -> Result<(TableFiles, FilesSpec)> {
        let (url, counters) = (self.new_store_url()?, Arc::clone(self.counters()));
        serialised_plan::open_table(memo, opened, url, counters, self.cache())
    }

    async fn infer(
        &self,
        listed: ListedFiles,
        options: &TableOptions,
    ) -> Result<(TableFiles, FilesSpec)> {
        let url = self.new_store_url()?;
        let counters = Arc::clone(self.counters());
        infer_table(listed, options, url, counters, self.cache()).await
    }
}
