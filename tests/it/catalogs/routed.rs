//! A path is a full URI: nothing is decoded, and every spelling of a local file is one path.

use std::sync::Arc;

use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{GetOptions, GetResultPayload, ObjectStore, ObjectStoreExt};
use proptest::prelude::*;
use tensorquery::iceberg::catalog::StorageAccess;
use tensorquery::storage::{FilePin, PinnedStore, RoutedStore};
use tensorquery::{Error, ErrorKind};

use super::properties;
use crate::support::block_on;

fn path(uri: &str) -> Path {
    RoutedStore::path_of(uri).unwrap()
}

#[test]
fn uris_come_back_as_they_went_in() {
    for uri in [
        "/a/b",
        "/a b/p=x%20y/ü+&=?#.parquet",
        "s3://bucket/a/b.parquet",
        "s3a://bucket/p=a%2Fb/c d.parquet",
        "s3n://bucket/x",
        "gs://bucket/a:b/c",
        "abfss://container@account.dfs.core.windows.net/a/b",
        "wasbs://container@account.blob.core.windows.net/a",
        "az://container/a",
        "http://127.0.0.1:8080/a/b%20c.parquet",
        "https://host/a",
        "s3://bucket",
    ] {
        assert_eq!(RoutedStore::uri_of(&path(uri)), uri);
    }
}

#[test]
fn one_local_file_is_one_path() {
    for uri in
        ["/a/b%20c", "file:/a/b%20c", "file:///a/b%20c", "file://localhost/a/b%20c", "/a//b%20c"]
    {
        assert_eq!(path(uri), path("/a/b%20c"), "{uri}");
        assert_eq!(RoutedStore::uri_of(&path(uri)), "/a/b%20c");
    }
}

#[test]
fn what_names_no_file_is_refused() {
    for (uri, part) in [
        ("a/b", "neither an absolute path nor a URI"),
        ("s4://bucket/a", "did you mean \"s3\"?"),
        ("s3:///a", "no bucket"),
        ("s3://bucket/a//b", "cannot be read"),
        ("s3://bucket/a/../b", "cannot be read"),
        ("file://host/a", "absolute path without a host"),
        ("http://host/a?token=hunter2", "query string"),
        ("s3://key:hunter2@bucket/a", "credentials"),
    ] {
        let error = RoutedStore::path_of(uri).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().contains(part), "{error}");
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }
}

proptest! {
    #[test]
    fn any_key_comes_back(names in prop::collection::vec("[^/\\x00-\\x1f\\x7f]{1,8}", 1..4)) {
        prop_assume!(names.iter().all(|name| name != "." && name != ".."));
        let uri = format!("s3://bucket/{}", names.join("/"));
        prop_assert_eq!(RoutedStore::uri_of(&path(&uri)), uri);
        let uri = format!("/{}", names.join("/"));
        prop_assert_eq!(RoutedStore::uri_of(&path(&uri)), uri);
    }
}

#[test]
fn local_files_are_read_listed_and_pinned() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("a b%20c.bin");
    std::fs::write(&file, b"0123456789").unwrap();
    let uri = format!("file:{}", file.display());
    // Options for other stores are no business of a local one.
    let access = StorageAccess::new(&properties(&[("s3.endpoint", "http://127.0.0.1:1")]));
    let store = access.open().unwrap();
    let location = path(&uri);
    let inner: Arc<dyn ObjectStore> = store.clone();
    block_on(async {
        let found = store.get_opts(&location, GetOptions::new()).await.unwrap();
        assert_eq!(found.meta.location, location);
        assert!(matches!(found.payload, GetResultPayload::File(..)));
        assert_eq!(&store.get_range(&location, 2..5).await.unwrap()[..], b"234");
        let above = path(&directory.path().display().to_string());
        let listed: Vec<_> = store.list(Some(&above)).try_collect().await.unwrap();
        assert_eq!(listed.len(), 1);
        assert_eq!(listed[0].location, location);
        let listed = store.list_with_delimiter(Some(&above)).await.unwrap();
        assert_eq!(listed.objects[0].location, location);

        let pin = FilePin::from(store.head(&location).await.unwrap());
        let pinned = PinnedStore::new(inner, RoutedStore::ROOT, [pin]);
        let counters = pinned.counters();
        let read = pinned.get_ranges(&location, &[0..2, 8..10]).await.unwrap();
        assert_eq!((&read[0][..], &read[1][..]), (&b"01"[..], &b"89"[..]));
        // The gap between them was not read: it is one open file.
        assert_eq!((counters.requests(), counters.bytes()), (1, 4));
        std::fs::write(&file, b"01234567890").unwrap();
        let error = Error::from(
            pinned.get_ranges(&location, std::slice::from_ref(&(0..2))).await.unwrap_err(),
        );
        assert_eq!(error.kind(), ErrorKind::Data);
        let shown = format!("file {} changed", file.display());
        assert!(error.to_string().contains(&shown), "{error}");
    });
}

#[test]
fn tables_are_read_only_and_a_missing_file_is_named() {
    let store = StorageAccess::default().open().unwrap();
    let location = path("/no/such/file.parquet");
    block_on(async {
        let error = store.get(&location).await.unwrap_err();
        assert!(error.to_string().contains("/no/such/file.parquet"), "{error}");
        assert!(store.put(&location, "x".into()).await.is_err());
        assert!(store.list(None).try_collect::<Vec<_>>().await.is_err());
    });
}

#[test]
fn access_travels_to_another_process_and_shows_no_secret() {
    let access = StorageAccess::new(&properties(&[
        ("s3.access-key-id", "hunter2"),
        ("s3.secret-access-key", "hunter2"),
        ("s3.region", "eu-west-1"),
        ("uri", "postgresql://u:hunter2@h/d"),
    ]));
    let shown = format!("{access:?} {:?}", access.open().unwrap());
    assert!(!shown.contains("hunter2") && shown.contains("eu-west-1"), "{shown}");
    let text = serde_json::to_string(&access).unwrap();
    // A catalog's password is nothing that files need.
    assert!(!text.contains("postgresql"), "{text}");
    let other: StorageAccess = serde_json::from_str(&text).unwrap();
    assert_eq!(serde_json::to_string(&other).unwrap(), text);
}

#[test]
fn wrong_options_are_told_when_a_file_is_read() {
    for (pairs, part) in [
        (&[("s3.access-key-id", "hunter2")][..], "s3.secret-access-key"),
        (&[("s3.role-arn", "arn:hunter2")][..], "s3.role-arn is not supported"),
        (&[("s3.remote-signing-enabled", "true")][..], "sign the requests"),
        (&[("s3.anonymous", "maybe")][..], "s3.anonymous must be \"true\" or \"false\""),
        (&[("s3.connect-timeout", "soon")][..], "number of seconds"),
    ] {
        let store = StorageAccess::new(&properties(pairs)).open().unwrap();
        let error = block_on(store.get(&path("s3://bucket/a"))).unwrap_err();
        let error = Error::from(error);
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        assert!(error.to_string().contains(part), "{error}");
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }
}
