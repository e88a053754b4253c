//! The SQL catalog: what pyiceberg wrote is read from a database that nobody may write to.

use std::path::Path;

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection, Executor};
use tensorquery::iceberg::catalog::IcebergCatalog;
use tensorquery::{Error, ErrorKind};

use super::{names, properties, write_metadata};
use crate::support::block_on;

/// The tables as pyiceberg makes them.
const SCHEMA: &str = "
    CREATE TABLE iceberg_tables (
        catalog_name VARCHAR(255) NOT NULL, table_namespace VARCHAR(255) NOT NULL,
        table_name VARCHAR(255) NOT NULL, metadata_location VARCHAR(1000),
        previous_metadata_location VARCHAR(1000),
        PRIMARY KEY (catalog_name, table_namespace, table_name));
    CREATE TABLE iceberg_namespace_properties (
        catalog_name VARCHAR(255) NOT NULL, namespace VARCHAR(255) NOT NULL,
        property_key VARCHAR(255) NOT NULL, property_value VARCHAR(1000) NOT NULL,
        PRIMARY KEY (catalog_name, namespace, property_key));";

fn database(path: &Path, statements: &str) {
    block_on(async {
        let options = SqliteConnectOptions::new().filename(path).create_if_missing(true);
        let mut connection = options.connect().await.unwrap();
        connection.execute(statements).await.unwrap();
        connection.close().await.unwrap();
    });
}

/// A database of two catalogs; returns the properties' uri.
fn two_catalogs(directory: &Path) -> (String, String) {
    let file = write_metadata(directory, "metadata/00001-x.metadata.json");
    let path = directory.join("catalog.db");
    database(
        &path,
        &format!(
            "{SCHEMA}
             INSERT INTO iceberg_tables VALUES ('prod', 'db', 'events', '{file}', NULL);
             INSERT INTO iceberg_tables VALUES ('prod', 'db.deep', 'users', 'file:{file}', NULL);
             INSERT INTO iceberg_tables VALUES ('prod', 'db', 'gone', '/no/v1.metadata.json', NULL);
             INSERT INTO iceberg_namespace_properties VALUES ('prod', 'empty', 'exists', 'true');
             INSERT INTO iceberg_tables VALUES ('other', 'db', 'events', '{file}', NULL);"
        ),
    );
    (format!("sqlite:///{}", path.display()), file)
}

fn catalog(name: &str, uri: &str) -> IcebergCatalog {
    IcebergCatalog::try_new(name, properties(&[("type", "sql"), ("uri", uri)])).unwrap()
}

#[test]
fn tables_and_nested_namespaces_are_found() {
    let directory = tempfile::tempdir().unwrap();
    let (uri, file) = two_catalogs(directory.path());
    let catalog = catalog("prod", &uri);
    block_on(async {
        assert_eq!(catalog.list_namespaces(&[]).await.unwrap(), [names("db"), names("empty")]);
        assert_eq!(catalog.list_namespaces(&names("db")).await.unwrap(), [names("db.deep")]);
        assert_eq!(catalog.list_tables(&names("db")).await.unwrap(), ["events", "gone"]);
        assert!(catalog.list_tables(&names("empty")).await.unwrap().is_empty());
        let table = catalog.load_table(&names("db.deep"), "users").await.unwrap();
        assert_eq!(table.metadata_location, Some(format!("file:{file}")));

        let error = catalog.load_table(&names("db"), "event").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TableNotFound);
        assert!(error.to_string().contains("did you mean \"events\"?"), "{error}");
        let error = catalog.load_table(&names("bd"), "events").await.unwrap_err();
        assert!(error.to_string().contains("did you mean \"db\"?"), "{error}");
        let error = catalog.list_tables(&names("bd")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TableNotFound);
        let error = catalog.load_table(&names("db"), "gone").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Storage);
        assert!(error.to_string().contains("/no/v1.metadata.json"), "{error}");
    });
}

#[test]
fn a_name_that_the_database_does_not_know_is_answered_with_those_it_does() {
    let directory = tempfile::tempdir().unwrap();
    let (uri, _) = two_catalogs(directory.path());
    let error = block_on(catalog("lake", &uri).list_namespaces(&[])).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("other, prod"), "{error}");
    let pairs = [("uri", uri.as_str()), ("catalog_name", "other")];
    let catalog = IcebergCatalog::try_new("lake", properties(&pairs)).unwrap();
    assert_eq!(block_on(catalog.list_tables(&names("db"))).unwrap(), ["events"]);
}

#[test]
fn the_only_catalog_of_a_database_is_meant() {
    let directory = tempfile::tempdir().unwrap();
    let file = write_metadata(directory.path(), "metadata/00001-x.metadata.json");
    let path = directory.path().join("catalog.db");
    // With the column of newer databases, and a view in it.
    database(
        &path,
        &format!(
            "{SCHEMA} ALTER TABLE iceberg_tables ADD COLUMN iceberg_type VARCHAR(5);
             INSERT INTO iceberg_tables VALUES ('default', 'db', 'a', '{file}', NULL, 'TABLE');
             INSERT INTO iceberg_tables VALUES ('default', 'db', 'b', '{file}', NULL, NULL);
             INSERT INTO iceberg_tables VALUES ('default', 'db', 'v', '{file}', NULL, 'VIEW');"
        ),
    );
    let catalog = catalog("lake", &format!("sqlite:///{}", path.display()));
    assert_eq!(block_on(catalog.list_tables(&names("db"))).unwrap(), ["a", "b"]);
    let error = block_on(catalog.load_table(&names("db"), "v")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TableNotFound);
}

#[test]
fn reading_changes_nothing_and_needs_no_right_to_write() {
    let directory = tempfile::tempdir().unwrap();
    let (uri, _) = two_catalogs(directory.path());
    let path = directory.path().join("catalog.db");
    let mut rights = std::fs::metadata(&path).unwrap().permissions();
    rights.set_readonly(true);
    std::fs::set_permissions(&path, rights).unwrap();
    let before = std::fs::read(&path).unwrap();
    assert_eq!(block_on(catalog("prod", &uri).list_tables(&names("db"))).unwrap().len(), 2);
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

#[test]
fn databases_without_a_catalog_are_errors() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.db");
    let uri = format!("sqlite:///{}", path.display());
    let error =
        |uri: &str| -> Error { block_on(catalog("lake", uri).list_namespaces(&[])).unwrap_err() };
    let missing = error(&uri);
    assert_eq!(missing.kind(), ErrorKind::Storage);
    assert!(missing.to_string().contains("x.db"), "{missing}");
    // A read creates neither the file nor its tables.
    assert!(!path.exists());
    database(&path, "CREATE TABLE t (x INTEGER)");
    let empty = error(&uri);
    assert_eq!(empty.kind(), ErrorKind::Config);
    assert!(empty.to_string().contains("no Iceberg catalog"), "{empty}");
    let other = error("mysql://u:hunter2@h/d");
    assert!(other.to_string().contains("sqlite and postgresql"), "{other}");
    let unreachable = error("postgresql+psycopg2://u:hunter2@127.0.0.1:1/d");
    assert_eq!(unreachable.kind(), ErrorKind::Storage);
    assert!(!unreachable.to_string().contains("hunter2"), "{unreachable}");
}
