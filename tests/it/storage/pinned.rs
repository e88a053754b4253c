//! A pinned file is read as it was, or an error names it; every byte is counted.

use std::path::Path as LocalPath;
use std::sync::Arc;

use bytes::Bytes;
use futures::TryStreamExt;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt};
use proptest::prelude::*;
use tensorquery::storage::{FilePin, PinnedStore, list_files};
use tensorquery::{Error, ErrorKind};

use super::{local, location, runtime, write};

/// A store over one pinned file of this content.
fn pinned(directory: &LocalPath, content: impl AsRef<[u8]>) -> (PinnedStore, Path) {
    write(directory, "a b.bin", content);
    let pins = runtime().block_on(list_files(&local(), &location(directory, "a b.bin"))).unwrap();
    let path = pins[0].location.clone();
    (PinnedStore::new(local(), "file://", pins), path)
}

/// All ways to read bytes; each must fail alike.
async fn read_all_ways(store: &PinnedStore, path: &Path) -> Vec<object_store::Result<()>> {
    let whole = async { store.get(path).await?.bytes().await };
    let tail = async {
        let options = GetOptions::new().with_range(Some(GetRange::Suffix(2)));
        store.get_opts(path, options).await?.bytes().await
    };
    vec![
        whole.await.map(drop),
        tail.await.map(drop),
        store.head(path).await.map(drop),
        store.get_range(path, 0..2).await.map(drop),
        store.get_ranges(path, &[0..1, 2..3]).await.map(drop),
    ]
}

fn check_all_fail(store: &PinnedStore, path: &Path, parts: &[&str]) {
    for result in runtime().block_on(read_all_ways(store, path)) {
        let error = Error::from(result.unwrap_err());
        assert_eq!(error.kind(), ErrorKind::Data, "{error}");
        assert!(parts.iter().all(|part| error.to_string().contains(part)), "{error}");
        assert!(error.to_string().ends_with("register the table again"), "{error}");
    }
}

#[test]
fn an_unchanged_file_is_read_and_counted() {
    let directory = tempfile::tempdir().unwrap();
    let content: Vec<u8> = (0..3_000_000_u32).map(|at| (at / 7) as u8).collect();
    let (store, path) = pinned(directory.path(), &content);
    let counters = store.counters();
    runtime().block_on(async {
        assert_eq!(store.get(&path).await.unwrap().bytes().await.unwrap(), content);
        assert_eq!((counters.requests(), counters.bytes()), (1, 3_000_000));
        assert_eq!(store.head(&path).await.unwrap().size, 3_000_000);
        assert_eq!((counters.requests(), counters.bytes()), (2, 3_000_000));
        let ranges = [2_000_000..2_000_010, 5..9, 5..5, 0..3_000_000];
        let read = store.get_ranges(&path, &ranges).await.unwrap();
        for (bytes, range) in read.iter().zip(ranges) {
            assert_eq!(*bytes, content[range.start as usize..range.end as usize]);
        }
        assert_eq!((counters.requests(), counters.bytes()), (3, 6_000_014));
        // Whoever stops early has not read the rest.
        let mut stream = store.get(&path).await.unwrap().into_stream();
        let first = stream.try_next().await.unwrap().unwrap();
        assert!(first.len() <= 64 * 1024);
        assert_eq!(counters.bytes(), 6_000_014 + first.len() as u64);
        assert!(store.get_ranges(&path, &[]).await.unwrap().is_empty());
        assert!(
            store.get_ranges(&path, std::slice::from_ref(&(2_999_999..3_000_001))).await.is_err()
        );
    });
}

/// A range past the end means a damaged file: it is refused before memory is allocated, which would end the process.
#[test]
fn a_range_behind_the_end_is_refused_before_memory_is_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    let (store, path) = pinned(directory.path(), "abcdef");
    for end in [7, 1 << 44, u64::MAX / 4] {
        let ranges = [0..2, 2..end];
        let error = runtime().block_on(store.get_ranges(&path, &ranges)).unwrap_err();
        let error = Error::from(error);
        assert_eq!(error.kind(), ErrorKind::Data, "{error}");
        let message = format!("cut short or damaged: it refers to byte {end} of 6");
        assert!(error.to_string().contains(&message), "{error}");
    }
    // One that became shorter is named as changed.
    let read = runtime().block_on(store.get_ranges(&path, &[0..6, 4..6])).unwrap();
    assert_eq!(read, ["abcdef", "ef"]);
    write(directory.path(), "a b.bin", "abc");
    let error = runtime().block_on(store.get_ranges(&path, &[0..2, 2..7])).unwrap_err();
    assert!(Error::from(error).to_string().ends_with("register the table again"));
}

#[test]
fn a_changed_file_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let (store, path) = pinned(directory.path(), "0123456789");
    write(directory.path(), "a b.bin", "0123456789ab");
    check_all_fail(&store, &path, &["/a b.bin changed", "(size 10 -> 12)"]);

    // Same size, same bytes, another file: nobody can know that the bytes are the same.
    let (store, path) = pinned(directory.path(), "0123456789");
    write(directory.path(), "new", "9876543210");
    std::fs::rename(directory.path().join("new"), directory.path().join("a b.bin")).unwrap();
    check_all_fail(&store, &path, &["changed", "same size of 10"]);

    let (store, path) = pinned(directory.path(), "0123456789");
    std::fs::File::options()
        .write(true)
        .open(directory.path().join("a b.bin"))
        .unwrap()
        .set_modified(std::time::UNIX_EPOCH)
        .unwrap();
    check_all_fail(&store, &path, &["changed", "same size of 10"]);

    let (store, path) = pinned(directory.path(), "0123456789");
    write(directory.path(), "a b.bin", "");
    check_all_fail(&store, &path, &["(size 10 -> 0)"]);

    std::fs::remove_file(directory.path().join("a b.bin")).unwrap();
    check_all_fail(&store, &path, &["/a b.bin vanished after the query was planned"]);
}

#[test]
fn a_file_that_changes_while_it_is_read_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let (store, path) = pinned(directory.path(), vec![1; 4_000_000]);
    let file = std::fs::File::options().write(true).open(directory.path().join("a b.bin")).unwrap();
    runtime().block_on(async {
        let mut stream = store.get(&path).await.unwrap().into_stream();
        assert_eq!(stream.try_next().await.unwrap().unwrap()[0], 1);
        std::io::Write::write_all(&mut &file, &[2; 3_000_000]).unwrap();
        let error = Error::from(stream.try_collect::<Vec<Bytes>>().await.unwrap_err());
        assert_eq!(error.kind(), ErrorKind::Data);
        assert!(error.to_string().contains("while it was read"), "{error}");
    });
    let (store, path) = pinned(directory.path(), vec![1; 4_000_000]);
    runtime().block_on(async {
        let stream = store.get(&path).await.unwrap().into_stream();
        file.set_len(100).unwrap();
        let error = Error::from(stream.try_collect::<Vec<Bytes>>().await.unwrap_err());
        assert!(error.to_string().contains("(size 4000000 -> 100)"), "{error}");
    });
}

#[test]
fn stores_that_stream_are_checked_by_etag() {
    runtime().block_on(async {
        let inner: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let path = Path::from("t/a");
        inner.put(&path, "0123456789".into()).await.unwrap();
        let pin = FilePin::from(inner.head(&path).await.unwrap());
        let weak =
            FilePin { e_tag: pin.e_tag.clone().map(|e_tag| format!("W/{e_tag}")), ..pin.clone() };
        let none = FilePin { e_tag: None, ..pin.clone() };
        for pin in [pin, weak, none] {
            inner.put(&path, "0123456789".into()).await.unwrap();
            let now = FilePin::from(inner.head(&path).await.unwrap());
            let pin = FilePin { e_tag: pin.e_tag.and(now.e_tag.clone()), ..now };
            let store = PinnedStore::new(Arc::clone(&inner), "s3://bucket", [pin]);
            for result in read_all_ways(&store, &path).await {
                result.unwrap();
            }
            let ranges = [7..9, 0..2];
            assert_eq!(store.get_ranges(&path, &ranges).await.unwrap(), ["78", "01"]);
            inner.put(&path, "01".into()).await.unwrap();
            for result in read_all_ways(&store, &path).await {
                let error = Error::from(result.unwrap_err());
                assert_eq!(error.kind(), ErrorKind::Data, "{error}");
                assert!(error.to_string().contains("s3://bucket/t/a changed"), "{error}");
                assert!(error.to_string().contains("size 10 -> 2"), "{error}");
            }
            inner.delete(&path).await.unwrap();
            for result in read_all_ways(&store, &path).await {
                let error = Error::from(result.unwrap_err());
                assert!(error.to_string().contains("vanished"), "{error}");
            }
        }
    });
}

#[test]
fn a_long_answer_is_asked_for_as_it_is_read() {
    const LENGTH: u64 = 41 << 20;
    runtime().block_on(async {
        let inner: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let path = Path::from("t/long");
        let content: Vec<u8> = (0..LENGTH).map(|at| (at % 251) as u8).collect();
        inner.put(&path, content.clone().into()).await.unwrap();
        let pin = FilePin::from(inner.head(&path).await.unwrap());
        let store = PinnedStore::new(Arc::clone(&inner), "s3://bucket", [pin]);
        let counters = store.counters();
        for (range, requests) in [(0..LENGTH, 6), (5..LENGTH - 7, 6), (3..(16 << 20) + 3, 2)] {
            let before = counters.requests();
            let options = GetOptions::new().with_range(Some(range.clone()));
            let answer = store.get_opts(&path, options).await.unwrap();
            assert_eq!(answer.range, range);
            let bytes = answer.bytes().await.unwrap();
            assert!(bytes == content[range.start as usize..range.end as usize], "{range:?}");
            assert_eq!(counters.requests() - before, requests, "{range:?}");
        }

        let (requests, bytes) = (counters.requests(), counters.bytes());
        let mut stream = store.get(&path).await.unwrap().into_stream();
        stream.try_next().await.unwrap().unwrap();
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        assert!(counters.requests() - requests <= 3, "{}", counters.requests() - requests);
        assert!(counters.bytes() - bytes <= 24 << 20, "{}", counters.bytes() - bytes);

        inner.put(&path, vec![0; LENGTH as usize].into()).await.unwrap();
        let error = Error::from(stream.try_collect::<Vec<_>>().await.unwrap_err());
        assert!(error.to_string().contains("s3://bucket/t/long changed"), "{error}");
    });
}

#[test]
fn files_without_a_pin_are_read_as_they_are() {
    let directory = tempfile::tempdir().unwrap();
    let (store, _) = pinned(directory.path(), "0");
    write(directory.path(), "other", "1");
    let path = location(directory.path(), "other").prefix().clone();
    runtime().block_on(async {
        assert_eq!(store.get(&path).await.unwrap().bytes().await.unwrap(), "1");
        write(directory.path(), "other", "22");
        assert_eq!(store.get_ranges(&path, std::slice::from_ref(&(0..2))).await.unwrap(), ["22"]);
        std::fs::remove_file(directory.path().join("other")).unwrap();
        let error = store.get(&path).await.unwrap_err();
        assert!(matches!(error, object_store::Error::NotFound { .. }), "{error}");
        let prefix = location(directory.path(), "").prefix().clone();
        let listed: Vec<ObjectMeta> = store.list(Some(&prefix)).try_collect().await.unwrap();
        assert_eq!(listed.len(), 1);
    });
}

#[test]
fn writing_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let (store, path) = pinned(directory.path(), "0");
    runtime().block_on(async {
        let results = [
            store.put(&path, "1".into()).await.map(drop),
            store.put_multipart(&path).await.map(drop),
            store.delete(&path).await,
            store.copy(&path, &Path::from("x")).await,
            store.rename(&path, &Path::from("x")).await,
        ];
        for result in results {
            let error = result.unwrap_err();
            assert!(matches!(error, object_store::Error::NotSupported { .. }), "{error}");
            assert!(error.to_string().contains("read-only"), "{error}");
        }
    });
    assert_eq!(std::fs::read(directory.path().join("a b.bin")).unwrap(), b"0");
}

proptest! {
    #[test]
    fn a_pin_survives_json(
        names in prop::collection::vec("[^/\\p{Cc}]{1,8}", 1..4),
        size: u64,
        nanos in 0..i64::MAX,
        e_tag in prop::option::of("\\PC*"),
        version in prop::option::of("\\PC*"),
    ) {
        prop_assume!(names.iter().all(|name| name != "." && name != ".."));
        let location = Path::parse(names.join("/")).unwrap();
        let last_modified = Some(chrono::DateTime::from_timestamp_nanos(nanos));
        let pin = FilePin { location, size, last_modified, e_tag, version, changed: None };
        let text = serde_json::to_string(&pin).unwrap();
        prop_assert_eq!(&serde_json::from_str::<FilePin>(&text).unwrap(), &pin);
        prop_assert_eq!(FilePin::from(ObjectMeta::from(pin.clone())), pin);
    }
}

#[test]
fn a_pin_with_a_path_that_is_none_is_refused() {
    let text = r#"{"path": "a/../b", "size": 1, "last_modified": "2026-01-01T00:00:00Z"}"#;
    assert!(serde_json::from_str::<FilePin>(text).is_err());
}
