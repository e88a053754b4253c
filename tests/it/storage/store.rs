//! Options are checked, and secrets never shown.

use std::collections::BTreeMap;

use tensorquery::storage::{Location, open_store};
use tensorquery::{ErrorKind, Result};

fn open(path: &str, options: &[(&str, &str)]) -> Result<String> {
    let options: BTreeMap<String, String> =
        options.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    let store = open_store(&Location::parse(path).unwrap(), &options)?;
    Ok(format!("{store} {store:?} {store:#?}"))
}

#[test]
fn every_kind_of_store_opens_with_options_in_any_case() {
    assert!(open("/tmp/x", &[]).unwrap().contains("LocalFileSystem"));
    let s3 = [
        ("AWS_ACCESS_KEY_ID", "id"),
        ("aws_secret_access_key", "hunter2"),
        ("Aws_Endpoint", "http://localhost:9000"),
        ("aws_allow_http", "true"),
        ("region", "eu-west-1"),
        ("timeout", "10 seconds"),
    ];
    let shown = open("s3://bucket/x", &s3).unwrap();
    assert!(shown.contains("bucket") && !shown.contains("hunter2"), "{shown}");
    let shown = open("s3a://bucket/x", &s3).unwrap();
    assert!(shown.contains("bucket"), "{shown}");

    for path in ["az://c/x", "abfss://c@account.dfs.core.windows.net/x"] {
        let azure = [("account_name", "account"), ("azure_storage_sas_token", "?sig=hunter2")];
        let shown = open(path, &azure).unwrap();
        assert!(shown.contains("Azure") && !shown.contains("hunter2"), "{shown}");
    }
    for path in ["gs://bucket/x", "gcs://bucket/x"] {
        let shown = open(path, &[("google_skip_signature", "true")]).unwrap();
        assert!(shown.contains("bucket"), "{shown}");
    }
    assert!(open("http://localhost:1/x", &[("timeout", "1s")]).unwrap().contains("HttpStore"));
}

#[test]
fn bad_options_are_named() {
    for (path, options, part) in [
        ("/tmp/x", [("aws_region", "x")], "takes no storage options, but got aws_region"),
        ("s3://b/x", [("aws_regoin", "x")], "\"aws_regoin\" for S3; did you mean \"aws_region\"?"),
        ("gs://b/x", [("aws_region", "x")], "for Google Cloud Storage"),
        ("http://b/x", [("aws_region", "x")], "for HTTP"),
        ("s3://b/x", [("aws_allow_http", "perhaps")], "perhaps"),
    ] {
        let error = open(path, &options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().contains(part), "{error}");
    }
    let error = open("s3://b/x", &[("AWS_REGION", "x"), ("region", "y")]).unwrap_err();
    assert!(error.to_string().contains("two names of one"), "{error}");
}

#[test]
fn a_malformed_secret_is_not_repeated() {
    let options = [("account_name", "account"), ("account_key", "hunter2 is no base64!")];
    let error = open("az://c/x", &options).unwrap_err();
    assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
    let options = [("google_service_account_key", "{\"private_key\": \"hunter2\"")];
    let error = open("gs://c/x", &options).unwrap_err();
    assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
}
