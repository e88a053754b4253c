//! A location names exactly its files, in one order.

use std::path::Path;
use std::sync::Arc;

use object_store::memory::InMemory;
use object_store::{ObjectStore, ObjectStoreExt};
use tensorquery::storage::{Location, list_all, list_files};
use tensorquery::{Error, ErrorKind, Result};

use super::{local, location, runtime, write};

/// The files below `directory` that `name` names, relative to it.
fn list(directory: &Path, name: &str) -> Result<Vec<String>> {
    let start = format!("{}/", directory.display());
    let pins = runtime().block_on(list_files(&local(), &location(directory, name)))?;
    Ok(pins
        .iter()
        .map(|pin| format!("/{}", pin.location).strip_prefix(&start).unwrap().to_owned())
        .collect())
}

fn list_error(directory: &Path, name: &str) -> Error {
    list(directory, name).unwrap_err()
}

#[test]
fn directories_are_read_recursively_and_sorted() {
    let directory = tempfile::tempdir().unwrap();
    let names = ["b.csv", "a/z.csv", "a/b/c.csv", "a.csv", "empty.csv"];
    for name in names {
        write(directory.path(), name, if name == "empty.csv" { "" } else { "x" });
    }
    for name in ["_SUCCESS", ".a.csv.crc", "_tmp/x.csv", "a/.git/x", "a/_b/c/d.csv"] {
        write(directory.path(), name, "x");
    }
    let sorted = ["a.csv", "a/b/c.csv", "a/z.csv", "b.csv", "empty.csv"];
    assert_eq!(list(directory.path(), "").unwrap(), sorted);
    assert_eq!(list(directory.path(), "**").unwrap(), sorted);
    assert_eq!(list(directory.path(), "a").unwrap(), ["a/b/c.csv", "a/z.csv"]);
    assert_eq!(list(directory.path(), "a/").unwrap(), ["a/b/c.csv", "a/z.csv"]);
    // A hidden name that is given is meant.
    assert_eq!(list(directory.path(), "_SUCCESS").unwrap(), ["_SUCCESS"]);
    assert_eq!(list(directory.path(), "_tmp").unwrap(), ["_tmp/x.csv"]);
}

#[test]
fn patterns_match_the_whole_path() {
    let directory = tempfile::tempdir().unwrap();
    for name in ["a.csv", "b.txt", "x/1.csv", "x/2.csv", "x/y/3.csv", "_h/4.csv", "x/.5.csv"] {
        write(directory.path(), name, "x");
    }
    let list = |name: &str| list(directory.path(), name).unwrap();
    assert_eq!(list("*.csv"), ["a.csv"]);
    assert_eq!(list("*/[12].csv"), ["x/1.csv", "x/2.csv"]);
    assert_eq!(list("**/*.csv"), ["a.csv", "x/1.csv", "x/2.csv", "x/y/3.csv"]);
    assert_eq!(list("?/**/*.csv"), ["x/1.csv", "x/2.csv", "x/y/3.csv"]);
    assert_eq!(list("x/**/y/*"), ["x/y/3.csv"]);
    assert_eq!(list("*/y/3.csv"), ["x/y/3.csv"]);
    assert_eq!(list("_*/*"), ["_h/4.csv"]);
    assert_eq!(list("x/.*"), ["x/.5.csv"]);
    assert_eq!(list("[x]/"), ["x/1.csv", "x/2.csv", "x/y/3.csv"]);
}

#[test]
fn odd_local_names_survive() {
    let directory = tempfile::tempdir().unwrap();
    let names = [
        "name=a%20b%2Fc/part 1.csv",
        "name=%25/x#y.csv",
        "ü/日本 語.csv",
        "q?*[x]/~{}^`|\"<>\\.csv",
        "%2e%2e/%.csv",
        "..a/...csv",
    ];
    let store = local();
    for name in names {
        write(directory.path(), name, name);
    }
    runtime().block_on(async {
        for name in names {
            let pins = list_files(&store, &location(directory.path(), name)).await.unwrap();
            assert_eq!(pins.len(), 1, "{name}");
            let read = store.get(&pins[0].location).await.unwrap().bytes().await.unwrap();
            assert_eq!(read, name.as_bytes());
        }
        let all = list_files(&store, &location(directory.path(), "[!.]*/")).await.unwrap();
        assert_eq!(all.len(), names.len() - 1);
        for pin in all {
            let read = store.get(&pin.location).await.unwrap().bytes().await.unwrap();
            let name = std::str::from_utf8(&read).unwrap();
            assert!(pin.location.as_ref().ends_with(name), "{} {name}", pin.location);
        }
    });
    // A whole URL of such a name finds it, too.
    let path = directory.path().join(names[0]);
    let url = url::Url::from_file_path(&path).unwrap();
    let pins = runtime().block_on(list_files(&store, &Location::parse(url.as_str()).unwrap()));
    assert_eq!(pins.unwrap().len(), 1);
}

#[test]
fn what_names_nothing_is_an_error_that_says_so() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), "data/flights.parquet", "x");
    write(directory.path(), "hidden/_SUCCESS", "");
    std::fs::create_dir(directory.path().join("empty")).unwrap();
    for (name, part) in [
        ("data/flights.paruqet", "flights.paruqet; did you mean \"flights.parquet\"?"),
        ("dta/flights.parquet", "did you mean \"data\"?"),
        ("empty", "holds no files"),
        ("hidden/", "names that start with _ or . are skipped"),
        ("data/*.csv", "no file matches the pattern"),
        ("nowhere/*.csv", "no file matches the pattern"),
        ("d*", "end it with /"),
        ("data/flights.parquet/", "must be a directory"),
        ("data/flights.parquet/x", "no file or directory"),
    ] {
        let error = list_error(directory.path(), name);
        assert_eq!(error.kind(), ErrorKind::TableNotFound, "{error}");
        assert!(error.to_string().contains(part), "{error}");
        let path = format!("{}/{}", directory.path().display(), name.trim_end_matches('/'));
        assert!(error.to_string().contains(&path), "{error}");
    }
}

#[cfg(unix)]
#[test]
fn links_are_followed_and_loops_end() {
    use std::os::unix::fs::symlink;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    write(path, "real/a.csv", "x");
    std::fs::create_dir(path.join("t")).unwrap();
    symlink(path.join("real"), path.join("t/linked")).unwrap();
    symlink(path.join("nowhere"), path.join("t/broken")).unwrap();
    assert_eq!(list(path, "t").unwrap(), ["t/linked/a.csv"]);
    symlink(path.join("t"), path.join("t/loop")).unwrap();
    let error = list_error(path, "t");
    assert_eq!(error.kind(), ErrorKind::Storage);
    assert!(error.to_string().contains("loop"), "{error}");
}

#[cfg(target_os = "linux")]
#[test]
fn names_that_are_not_utf8_are_an_error() {
    use std::os::unix::ffi::OsStrExt;
    let directory = tempfile::tempdir().unwrap();
    let name = std::ffi::OsStr::from_bytes(b"a\xff.csv");
    std::fs::write(directory.path().join(name), "x").unwrap();
    let error = list_error(directory.path(), "");
    assert_eq!(error.kind(), ErrorKind::Storage);
    assert!(error.to_string().contains("not UTF-8"), "{error}");
}

#[test]
fn a_list_keeps_its_order_and_refuses_a_file_twice() {
    let directory = tempfile::tempdir().unwrap();
    for name in ["b.csv", "y=1/a.csv", "y=1/c.csv"] {
        write(directory.path(), name, "x");
    }
    let all = |names: &[&str]| {
        let locations: Vec<Location> =
            names.iter().map(|name| location(directory.path(), name)).collect();
        runtime().block_on(list_all(&local(), &locations))
    };
    let listing = all(&["y=1/c.csv", "b.csv", "y=1/a*"]).unwrap();
    let names: Vec<_> = listing.pins.iter().map(|pin| pin.location.filename().unwrap()).collect();
    assert_eq!(names, ["c.csv", "b.csv", "a.csv"]);
    let root = location(directory.path(), "").hive_root();
    assert_eq!((&listing.roots[0], &listing.roots[2]), (&root, &root));

    let error = all(&["y=1", "b.csv", "y=1/a.csv"]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("y=1/a.csv is named twice"), "{error}");
    assert!(all(&[]).is_err());
    let mixed = [location(directory.path(), ""), Location::parse("s3://b/x").unwrap()];
    let error = runtime().block_on(list_all(&local(), &mixed)).unwrap_err();
    assert!(error.to_string().contains("one store"), "{error}");
}

#[test]
fn directory_markers_of_object_stores_are_skipped() {
    runtime().block_on(async {
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        for (key, content) in [
            ("t/a.csv", "x"),
            ("t/empty.csv", ""),
            ("t/sub", ""),
            ("t/sub/b", "x"),
            ("t/gone", ""),
            ("t/h_$folder$", ""),
            ("u/x", ""),
        ] {
            store
                .put(&object_store::path::Path::parse(key).unwrap(), content.into())
                .await
                .unwrap();
        }
        let list = async |text: &str| -> Result<Vec<String>> {
            let pins = list_files(&store, &Location::parse(text).unwrap()).await?;
            Ok(pins.iter().map(|pin| pin.location.to_string()).collect())
        };
        assert_eq!(list("s3://b/t").await.unwrap(), ["t/a.csv", "t/empty.csv", "t/sub/b"]);
        assert_eq!(list("s3://b/t/*").await.unwrap(), ["t/a.csv", "t/empty.csv"]);
        assert_eq!(list("s3://b/**/b").await.unwrap(), ["t/sub/b"]);
        for text in ["s3://b/u/", "s3://b/none", "s3://b/t/none*", "http://host/none"] {
            let error = list(text).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::TableNotFound, "{error}");
        }
    });
}
