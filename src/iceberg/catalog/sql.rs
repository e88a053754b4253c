//! The catalog that pyiceberg and Java's JDBC catalog keep in a database, read-only.

use std::collections::BTreeMap;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use async_trait::async_trait;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgRow};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteRow};
use sqlx::{ConnectOptions, Connection, Row};

use super::access::StorageAccess;
use super::connect::Client;
use super::error::{no_namespace, not_found};
use super::metadata::load_known;
use super::registered::LoadedTable;
use crate::runtime::Runtimes;
use crate::{Error, Result, list_names};

/// How long a database may take to answer a question. Each brings some names and locations.
const PATIENCE: Duration = Duration::from_secs(30);

/// All tables of a catalog. Every column, since older databases have no `iceberg_type`.
const TABLES: &str = "SELECT * FROM iceberg_tables WHERE catalog_name = $1";
const NAMESPACES: &str =
    "SELECT DISTINCT namespace FROM iceberg_namespace_properties WHERE catalog_name = $1";
const CATALOGS: &str = "SELECT DISTINCT catalog_name FROM iceberg_tables \
     UNION SELECT DISTINCT catalog_name FROM iceberg_namespace_properties";

/// A database with the tables `iceberg_tables` and `iceberg_namespace_properties`.
///
/// Each question opens a connection of its own, and nothing is ever written, so that a read-only
/// database will do. (The `iceberg` crate's catalog starts by creating the two tables.)
pub(super) struct SqlClient {
    database: Database,
    /// The name that a row must have; where it has none, the only one that the database has.
    catalog: String,
    is_named: bool,
    access: StorageAccess,
}

enum Database {
    Sqlite(Box<SqliteConnectOptions>),
    Postgres(Box<PgConnectOptions>),
    /// SQLite in the memory of this process: nobody has written to it.
    Empty,
}

/// A row of `iceberg_tables`.
struct TableRow {
    namespace: String,
    name: String,
    metadata_location: Option<String>,
}

impl SqlClient {
    pub(super) fn try_new(name: &str, properties: &BTreeMap<String, String>) -> Result<Self> {
        let uri = properties.get("uri").map(String::as_str).unwrap_or_default();
        let given = properties.get("catalog_name");
        Ok(Self {
            database: database(uri)?,
            catalog: given.map_or(name, String::as_str).to_owned(),
            is_named: given.is_some(),
            access: StorageAccess::new(properties),
        })
    }

    /// The first column of a query as text, unchanged or with the catalog's name.
    async fn texts(&self, query: &str, catalog: Option<&str>) -> Result<Vec<String>> {
        let texts = match &self.database {
            Database::Empty => return Ok(Vec::new()),
            Database::Sqlite(options) => {
                let rows = sqlite_rows(options, query, catalog).await?;
                rows.iter().map(|row| row.try_get::<String, _>(0)).collect::<Result<_, _>>()
            }
            Database::Postgres(options) => {
                let rows = postgres_rows(options, query, catalog, PATIENCE).await?;
                rows.iter().map(|row| row.try_get::<String, _>(0)).collect::<Result<_, _>>()
            }
        };
        texts.map_err(malformed)
    }

    async fn rows(&self, catalog: &str) -> Result<Vec<TableRow>> {
        let rows: Vec<Option<TableRow>> = match &self.database {
            Database::Empty => return Ok(Vec::new()),
            Database::Sqlite(options) => {
                let rows = sqlite_rows(options, TABLES, Some(catalog)).await?;
                rows.iter().map(table_row).collect::<Result<_>>()?
            }
            Database::Postgres(options) => {
                let rows = postgres_rows(options, TABLES, Some(catalog), PATIENCE).await?;
                rows.iter().map(table_row).collect::<Result<_>>()?
            }
        };
        Ok(rows.into_iter().flatten().collect())
    }

    /// The tables, and all namespaces as their names joined by dots.
    async fn contents(&self) -> Result<(Vec<TableRow>, Vec<String>)> {
        let catalog = self.catalog_name().await?;
        let tables = self.rows(&catalog).await?;
        let mut namespaces = self.texts(NAMESPACES, Some(&catalog)).await?;
        namespaces.extend(tables.iter().map(|row| row.namespace.clone()));
        Ok((tables, namespaces))
    }

    /// The catalog's name in the database. pyiceberg's name of a catalog and the one of a session
    /// need not be the same; where the database has only one, that one is meant.
    async fn catalog_name(&self) -> Result<String> {
        let known = self.texts(CATALOGS, None).await?;
        if known.contains(&self.catalog) || known.is_empty() {
            return Ok(self.catalog.clone());
        }
        if let [only] = &known[..]
            && !self.is_named
        {
            return Ok(only.clone());
        }
        let mut names: Vec<&str> = known.iter().map(String::as_str).collect();
        names.sort_unstable();
        Err(Error::config(format!(
            "the database has no catalog {:?}; it has {}; pass one of them as \"catalog_name\"",
            self.catalog,
            list_names(&names),
        )))
    }
}

#[async_trait]
impl Client for SqlClient {
    async fn list_namespaces(&self, parent: &[String]) -> Result<Vec<Vec<String>>> {
        let (_, namespaces) = self.contents().await?;
        let depth = parent.len();
        Ok(namespaces
            .iter()
            .map(|namespace| namespace.split('.').map(str::to_owned).collect::<Vec<_>>())
            .filter(|names| names.starts_with(parent))
            .filter_map(|names| names.get(..=depth).map(<[String]>::to_vec))
            .collect())
    }

    async fn list_tables(&self, namespace: &[String]) -> Result<Vec<String>> {
        let (tables, namespaces) = self.contents().await?;
        let wanted = namespace.join(".");
        let below = format!("{wanted}.");
        if !namespaces.iter().any(|known| *known == wanted || known.starts_with(&below)) {
            return Err(no_namespace(namespace));
        }
        Ok(tables.into_iter().filter(|row| row.namespace == wanted).map(|row| row.name).collect())
    }

    async fn load_table(&self, namespace: &[String], name: &str) -> Result<LoadedTable> {
        let catalog = self.catalog_name().await?;
        let wanted = namespace.join(".");
        let row = self.rows(&catalog).await?;
        let row = row.into_iter().find(|row| row.namespace == wanted && row.name == name);
        let row = row.ok_or_else(|| not_found(namespace, name))?;
        let location = row.metadata_location.ok_or_else(|| {
            Error::data(format!("the catalog knows no metadata of the table {wanted}.{name}"))
        })?;
        load_known(location, self.access.open()?, self.access.clone()).await
    }
}

/// None for a view.
fn table_row<'r, R: Row>(row: &'r R) -> Result<Option<TableRow>>
where
    &'static str: sqlx::ColumnIndex<R>,
    String: sqlx::Decode<'r, R::Database> + sqlx::Type<R::Database>,
{
    let kind = match row.try_get::<Option<String>, _>("iceberg_type") {
        Ok(kind) => kind,
        Err(sqlx::Error::ColumnNotFound(_)) => None,
        Err(error) => return Err(malformed(error)),
    };
    if kind.is_some_and(|kind| kind != "TABLE") {
        return Ok(None);
    }
    Ok(Some(TableRow {
        namespace: row.try_get("table_namespace").map_err(malformed)?,
        name: row.try_get("table_name").map_err(malformed)?,
        metadata_location: row.try_get("metadata_location").map_err(malformed)?,
    }))
}

async fn sqlite_rows(
    options: &SqliteConnectOptions,
    query: &str,
    catalog: Option<&str>,
) -> Result<Vec<SqliteRow>> {
    let path = options.get_filename().display().to_string();
    if !options.get_filename().exists() {
        return Err(Error::storage(format!(
            "there is no SQLite database {path:?}; in a catalog's uri, sqlite:///name is relative \
             to the current directory and sqlite:////name is absolute"
        )));
    }
    let rows = match ask_sqlite(options, query, catalog).await {
        // A database with a write-ahead log needs a file beside it, which a read-only directory
        // refuses.
        Err(sqlx::Error::Database(error))
            if error.message().contains("unable to open")
                || error.message().contains("readonly") =>
        {
            ask_sqlite(&options.clone().immutable(true), query, catalog).await
        }
        other => other,
    };
    rows.map_err(|error| unanswered(&path, error))
}

/// Asks a database of the kind of `$connection`; `sqlx` has no connection of any kind that tells
/// its rows' types.
macro_rules! ask {
    ($name:ident, $options:ty, $connection:ty, $row:ty) => {
        async fn $name(
            options: &$options,
            query: &str,
            catalog: Option<&str>,
        ) -> Result<Vec<$row>, sqlx::Error> {
            let mut connection: $connection = options.connect().await?;
            let mut asked = sqlx::query(query);
            if let Some(catalog) = catalog {
                asked = asked.bind(catalog);
            }
            let rows = asked.fetch_all(&mut connection).await?;
            connection.close().await?;
            Ok(rows)
        }
    };
}

ask!(ask_sqlite, SqliteConnectOptions, SqliteConnection, SqliteRow);
ask!(ask_postgres, PgConnectOptions, PgConnection, PgRow);

async fn postgres_rows(
    options: &PgConnectOptions,
    query: &str,
    catalog: Option<&str>,
    patience: Duration,
) -> Result<Vec<PgRow>> {
    let place = format!("postgresql://{}:{}", options.get_host(), options.get_port());
    // The driver waits for ever.
    let runtimes = Runtimes::current()?;
    match runtimes.within(patience, ask_postgres(options, query, catalog)).await {
        Ok(rows) => rows.map_err(|error| unanswered(&place, error)),
        Err(_) => Err(Error::storage(format!(
            "the database {place} of the catalog did not answer within {} seconds",
            patience.as_secs_f64()
        ))),
    }
}

/// The database of a URI as SQLAlchemy writes it.
fn database(uri: &str) -> Result<Database> {
    let (dialect, rest) = uri.split_once("://").ok_or_else(|| {
        Error::config(
            "the uri of a SQL catalog must be sqlite:///path, sqlite:////absolute/path or \
             postgresql://user:password@host/database",
        )
    })?;
    // `postgresql+psycopg2`: the driver is Python's.
    let (system, _) = dialect.split_once('+').unwrap_or((dialect, ""));
    match system.to_ascii_lowercase().as_str() {
        "sqlite" => {
            let path = rest.split_once('?').map_or(rest, |(path, _)| path);
            let path = path.strip_prefix('/').unwrap_or(path);
            if path.is_empty() || path == ":memory:" {
                return Ok(Database::Empty);
            }
            let options = SqliteConnectOptions::new()
                .filename(Path::new(path))
                .read_only(true)
                .create_if_missing(false);
            Ok(Database::Sqlite(Box::new(options)))
        }
        "postgresql" | "postgres" => {
            // The driver's message may repeat the password.
            let options = PgConnectOptions::from_str(&format!("postgresql://{rest}"));
            let options = options.map_err(|_| {
                Error::config(
                    "malformed uri of a SQL catalog; write postgresql://user:password@host:port/database, and in user and \
                     password %40 for @, %2F for / and %3A for :",
                )
            })?;
            Ok(Database::Postgres(Box::new(options)))
        }
        other => Err(Error::config(format!(
            "the database {other:?} of a SQL catalog is not supported; supported are sqlite and \
             postgresql"
        ))),
    }
}

fn unanswered(place: &str, error: sqlx::Error) -> Error {
    if let sqlx::Error::Database(told) = &error
        && (told.message().contains("no such table") || told.code().as_deref() == Some("42P01"))
    {
        return Error::config(format!(
            "the database {place} has no Iceberg catalog: the tables iceberg_tables and \
             iceberg_namespace_properties are not there"
        ));
    }
    Error::storage(format!("the database {place} of the catalog does not answer: {error}"))
}

fn malformed(error: sqlx::Error) -> Error {
    Error::data(format!("the database has no Iceberg catalog that can be read: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_that_accepts_and_never_answers_is_given_up() {
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = silent.local_addr().unwrap();
        let Ok(Database::Postgres(options)) =
            database(&format!("postgresql://me:secret@{address}/lake"))
        else {
            panic!("not the uri of a PostgreSQL database");
        };
        let patience = Duration::from_millis(200);
        let runtimes = Runtimes::current().unwrap();
        let answer = runtimes.cpu().block_on(postgres_rows(&options, CATALOGS, None, patience));
        let error = answer.unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::Storage);
        let expected =
            format!("postgresql://{address} of the catalog did not answer within 0.2 seconds");
        assert!(error.to_string().contains(&expected), "{error}");
    }
}
