//! Properties are checked before anything is connected to.

use tensorquery::ErrorKind;
use tensorquery::iceberg::catalog::IcebergCatalog;

use super::properties;

fn refused(pairs: &[(&str, &str)]) -> String {
    let error = IcebergCatalog::try_new("lake", properties(pairs)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    error.to_string()
}

fn kind(pairs: &[(&str, &str)]) -> String {
    let catalog = IcebergCatalog::try_new("lake", properties(pairs)).unwrap();
    let shown = format!("{catalog:?}");
    shown.split("type: \"").nth(1).unwrap().split('"').next().unwrap().to_owned()
}

#[test]
fn the_type_is_named_or_follows_from_the_uri() {
    assert_eq!(kind(&[("type", "rest"), ("uri", "http://x")]), "rest");
    assert_eq!(kind(&[("type", "JDBC"), ("uri", "sqlite:///x.db")]), "sql");
    assert_eq!(kind(&[("uri", "https://x/api")]), "rest");
    assert_eq!(kind(&[("uri", "thrift://h:9083,thrift://g:9083")]), "hive");
    assert_eq!(kind(&[("uri", "postgresql+psycopg2://u:p@h/d")]), "sql");
    assert_eq!(kind(&[("type", "in-memory")]), "in-memory");
    assert_eq!(kind(&[("type", "memory"), ("uri", "sqlite:///:memory:")]), "in-memory");
    assert_eq!(kind(&[("type", "in-memory"), ("uri", "sqlite:///x.db")]), "sql");
    let arn = "arn:aws:s3tables:eu-west-1:123456789012:bucket/b";
    assert_eq!(kind(&[("type", "s3tables"), ("s3tables.warehouse", arn)]), "s3tables");
    assert_eq!(kind(&[("type", "glue"), ("glue.region", "eu-west-1")]), "glue");
}

#[test]
fn wrong_properties_are_named_with_the_fix() {
    let text = refused(&[("type", "gleu")]);
    assert!(text.contains("unknown catalog type \"gleu\"; did you mean \"glue\"?"), "{text}");
    assert!(refused(&[]).contains("\"type\" or \"uri\""));
    assert!(refused(&[("type", "rest")]).contains("\"uri\""));
    assert!(refused(&[("uri", "mysql://user:hunter2@h/d")]).contains("mysql://user:***@h/d"));
    let text = refused(&[("type", "glue"), ("glue.reigon", "x"), ("gleu.region", "eu")]);
    assert!(text.contains("did you mean \"glue.region\"?"), "{text}");
    assert!(refused(&[("type", "s3tables")]).contains("s3tables.warehouse"));
    assert!(refused(&[("type", "s3tables"), ("warehouse", "b")]).contains("ARN"));
    let text = refused(&[("uri", "thrift://h:1"), ("hive.kerberos-authentication", "true")]);
    assert!(text.contains("hive.kerberos-authentication is not supported"), "{text}");
    let text = refused(&[("uri", "http://x"), ("credental", "hunter2")]);
    assert!(text.contains("did you mean \"credential\"?") && !text.contains("hunter2"), "{text}");
    let text = refused(&[("uri", "http://x"), ("s3.acess-key-id", "hunter2")]);
    assert!(text.contains("did you mean \"s3.access-key-id\"?"), "{text}");
    assert!(refused(&[("uri", "http://x"), ("scan-planning-mode", "server")]).contains("client"));
    // A server may know what nobody here does.
    assert_eq!(kind(&[("uri", "http://x"), ("acme.setting", "1")]), "rest");
}

#[test]
fn a_catalog_shows_no_secret() {
    let catalog = IcebergCatalog::try_new(
        "lake",
        properties(&[
            ("uri", "postgresql://user:hunter2@host/db"),
            ("s3.secret-access-key", "hunter2"),
            ("s3.session-token", "hunter2"),
            ("adls.connection-string", "AccountKey=hunter2"),
            ("s3.region", "eu-west-1"),
        ]),
    )
    .unwrap();
    let shown = format!("{catalog:?}");
    assert!(!shown.contains("hunter2"), "{shown}");
    assert!(shown.contains("eu-west-1") && shown.contains("host/db"), "{shown}");
    let catalog = IcebergCatalog::try_new(
        "lake",
        properties(&[
            ("uri", "http://x"),
            ("credential", "id:hunter2"),
            ("token", "hunter2"),
            ("header.X-Key", "hunter2"),
        ]),
    )
    .unwrap();
    let shown = format!("{catalog:?}");
    assert!(!shown.contains("hunter2"), "{shown}");
}
