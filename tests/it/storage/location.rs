//! A location is parsed as typed, or refused by an error that names it.

use tensorquery::ErrorKind;
use tensorquery::storage::{Location, Scheme};

use super::write;

#[test]
fn cloud_paths_are_keys() {
    let location = Location::parse("s3://bucket/t/name=a%20b/ü x.csv").unwrap();
    assert_eq!(location.scheme(), Scheme::S3);
    assert_eq!(location.store_root(), "s3://bucket");
    assert_eq!(location.prefix().as_ref(), "t/name=a%20b/ü x.csv");
    assert_eq!(location.to_string(), "s3://bucket/t/name=a%20b/ü x.csv");
    assert!(!location.is_directory());

    let location = Location::parse("gs://bucket").unwrap();
    assert_eq!((location.scheme(), location.is_directory()), (Scheme::Gcs, true));
    assert!(location.prefix().is_root());
}

#[test]
fn azure_containers_of_one_account_are_different_stores() {
    let parse = |container: &str| {
        let text = format!("abfss://{container}@acct.dfs.core.windows.net/x/y.parquet");
        Location::parse(&text).unwrap()
    };
    let (one, two) = (parse("one"), parse("two"));
    assert_eq!(one.store_root(), "abfss://one@acct.dfs.core.windows.net");
    assert_ne!(one.store_root(), two.store_root());
}

#[test]
fn urls_are_decoded() {
    let location = Location::parse("https://host:8443/a%20b/c.csv").unwrap();
    assert_eq!(location.scheme(), Scheme::Http);
    assert_eq!(location.store_root(), "https://host:8443");
    assert_eq!(location.prefix().as_ref(), "a b/c.csv");

    for text in ["file:///a%20b/c", "file:/a%20b/c", "file://localhost/a%20b/c"] {
        assert_eq!(Location::parse(text).unwrap().prefix().as_ref(), "a b/c");
    }
    // An encoded wildcard is the character itself.
    let location = Location::parse("file:///no-such/a%2A.csv").unwrap();
    assert_eq!(location.pattern().as_deref(), Some("a[*].csv"));
}

#[test]
fn local_paths_are_made_absolute_and_stand_as_they_are() {
    let location = Location::parse("some/./a%20b//c.csv").unwrap();
    let current = std::env::current_dir().unwrap();
    assert!(location.is_local());
    assert_eq!(location.to_string(), format!("{}/some/a%20b/c.csv", current.display()));
    assert_eq!(location.store_root(), "file://");

    assert_eq!(Location::parse("/no-such/x/../y").unwrap().prefix().as_ref(), "no-such/y");
    assert_eq!(Location::parse("/../y").unwrap().prefix().as_ref(), "y");
    assert!(Location::parse("/x/").unwrap().is_directory());
    assert_eq!(Location::parse("/").unwrap().prefix().as_ref(), "");
}

#[cfg(unix)]
#[test]
fn a_parent_is_that_of_a_links_target() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), "far/away/a.csv", "");
    std::os::unix::fs::symlink(directory.path().join("far/away"), directory.path().join("link"))
        .unwrap();
    let location = Location::parse(&format!("{}/link/../x", directory.path().display())).unwrap();
    assert!(location.prefix().as_ref().ends_with("far/x"), "{location}");
}

#[test]
fn patterns_start_at_the_first_wildcard() {
    let location = Location::parse("s3://bucket/t/*/x?.csv").unwrap();
    assert_eq!(location.prefix().as_ref(), "t");
    assert_eq!(location.pattern().as_deref(), Some("*/x?.csv"));
    assert_eq!(location.to_string(), "s3://bucket/t/*/x?.csv");

    let location = Location::parse("s3://bucket/t/day=2026-*/").unwrap();
    assert_eq!(location.pattern().as_deref(), Some("day=2026-*/**"));
}

#[test]
fn a_local_file_that_exists_is_no_pattern() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), "a[1].csv", "");
    let location = super::location(directory.path(), "a[1].csv");
    assert_eq!(location.pattern(), None);
    assert!(location.prefix().as_ref().ends_with("a[1].csv"));
}

#[test]
fn hive_directories_count_from_above_the_path() {
    let root = |text: &str| Location::parse(text).unwrap().hive_root().to_string();
    assert_eq!(root("s3://b/t"), "t");
    assert_eq!(root("s3://b/t/"), "t");
    assert_eq!(root("s3://b/t/y=1/m=2/*.csv"), "t");
    assert_eq!(root("s3://b/t/y=1/m=2/a.csv"), "t");
    assert_eq!(root("s3://b/t/y=1/m=2"), "t");
    assert_eq!(root("s3://b/t/*/m=2/*.csv"), "t");
    assert_eq!(root("s3://b/y=1/a.csv"), "");
    assert_eq!(root("s3://b/y=1/t/a.csv"), "y=1/t/a.csv");
}

#[test]
fn what_is_no_location_is_refused() {
    for (text, part) in [
        ("", "empty"),
        ("s4://bucket/x", "did you mean \"s3\"?"),
        ("s3:///x", "no bucket"),
        ("s3://host:9000/x", "no bucket"),
        ("s3://b/a//c", "no name may be empty"),
        ("s3://b/a/../c", "no name may be empty"),
        ("s3://b/a**/c", "whole directory name"),
        ("s3://b/[a/c", "for a literal ["),
        ("/a\nb", "control character"),
        ("file://host/x", "absolute path without a host"),
        ("file:x", "absolute path without a host"),
        ("file:///a%2Fb", "decodes to no file name"),
        ("file:///a%FFb", "decodes to no file name"),
        ("https://host/", "one file"),
        ("https://host/*.csv", "one file"),
        ("https:///x y", "malformed"),
    ] {
        let error = Location::parse(text).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[test]
fn no_error_repeats_a_secret() {
    for text in [
        "s3://key:hunter2@bucket/x",
        "https://user:hunter2@host/x",
        "https://host/x?sig=hunter2",
        "https://host:hunter2/x",
        "abfss://c:hunter2@account.dfs.core.windows.net/x",
    ] {
        let error = Location::parse(text).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
    }
}
