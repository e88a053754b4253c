//! The local cache gives the bytes that the store has under the same etag. An entry that is damaged, missing, too large
//! or not writable costs requests, and never yields a wrong byte.

use std::ops::Range;
use std::path::{Path as LocalPath, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures::TryStreamExt;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectStore, ObjectStoreExt};
use proptest::prelude::*;
use tensorquery::ErrorKind;
use tensorquery::storage::{CacheOptions, FilePin, PinnedStore, RangeCache};

use super::{local, location, runtime, write};

const PLENTY: u64 = 1 << 30;

/// A file in a store of this test's own, and a folder for its ranges.
struct Remote {
    inner: Arc<dyn ObjectStore>,
    path: Path,
    content: Vec<u8>,
    pin: FilePin,
    folder: tempfile::TempDir,
}

impl Remote {
    async fn of(length: usize) -> Self {
        let content: Vec<u8> = (0..length).map(|at| (at / 3 + at / 251) as u8).collect();
        let inner: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let path = Path::from("t/a.parquet");
        inner.put(&path, content.clone().into()).await.unwrap();
        let pin = FilePin::from(inner.head(&path).await.unwrap());
        Self { inner, path, content, pin, folder: tempfile::tempdir().unwrap() }
    }

    /// A store as another process would open it.
    fn store(&self, size: u64) -> PinnedStore {
        let path = self.folder.path().join("cache").display().to_string();
        let cache = Arc::new(RangeCache::open(&CacheOptions { path, size }).unwrap());
        PinnedStore::new(Arc::clone(&self.inner), "s3://bucket", [self.pin.clone()])
            .with_cache(Some(cache), None)
    }

    async fn check(&self, store: &PinnedStore, ranges: &[Range<u64>]) {
        let read = store.get_ranges(&self.path, ranges).await.unwrap();
        assert_eq!(read.len(), ranges.len());
        for (bytes, range) in read.iter().zip(ranges) {
            assert_eq!(*bytes, self.content[range.start as usize..range.end as usize], "{range:?}");
        }
    }

    /// Whether a fresh store needs no request for these.
    async fn is_here(&self, ranges: &[Range<u64>]) -> bool {
        let store = self.store(PLENTY);
        self.check(&store, ranges).await;
        store.counters().requests() == 0
    }

    fn entries(&self) -> Vec<PathBuf> {
        let mut found: Vec<PathBuf> = files_below(self.folder.path())
            .into_iter()
            .filter(|path| path.file_name().unwrap().to_str().unwrap().contains('-'))
            .filter(|path| path.parent().unwrap().file_name().unwrap() != "tmp")
            .collect();
        found.sort();
        found
    }

    fn stored(&self) -> u64 {
        files_below(self.folder.path()).iter().map(|path| path.metadata().unwrap().len()).sum()
    }
}

fn files_below(folder: &LocalPath) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files_below(&path)),
            false => found.push(path),
        }
    }
    found
}

#[test]
fn what_was_read_once_is_read_from_disk() {
    runtime().block_on(async {
        let remote = Remote::of(3_000_000).await;
        let store = remote.store(PLENTY);
        let ranges = [2_000_000..2_900_000, 5..9, 9..70_000, 5..9];
        remote.check(&store, &ranges).await;
        let (requests, bytes) = (store.counters().requests(), store.counters().bytes());
        assert!(requests >= 1 && store.counters().cache_hits() == 0);
        remote.check(&store, &ranges).await;
        assert_eq!((store.counters().requests(), store.counters().bytes()), (requests, bytes));
        assert_eq!(store.counters().cache_hits(), 4);
        assert_eq!(store.counters().cache_bytes(), 900_000 + 69_991 + 4 + 4);
        // Touching ranges are one entry; and no byte was fetched beside those that were asked for, and gaps.
        assert_eq!(remote.entries().len(), 2);
        // Another process, other borders: only what nobody has fetched is fetched.
        let other = remote.store(PLENTY);
        remote.check(&other, &[6..100, 2_500_000..2_500_001]).await;
        assert_eq!(other.counters().requests(), 0);
        remote.check(&other, std::slice::from_ref(&(60_000..80_000))).await;
        assert_eq!((other.counters().requests(), other.counters().bytes()), (1, 10_000));
        assert!(remote.is_here(&[60_000..80_000, 70_000..80_000]).await);
        // A range that the file does not have comes from a footer that is wrong.
        let beyond = std::slice::from_ref(&(2_899_990..3_000_001));
        let error = other.get_ranges(&remote.path, beyond).await.unwrap_err().to_string();
        assert!(error.contains("cut short or damaged"), "{error}");
        assert!(other.get_ranges(&remote.path, &[]).await.unwrap().is_empty());
    });
}

#[test]
fn streams_are_kept_and_read_from_disk() {
    runtime().block_on(async {
        let remote = Remote::of(3_000_000).await;
        let store = remote.store(PLENTY);
        let whole = store.get(&remote.path).await.unwrap().bytes().await.unwrap();
        assert_eq!(whole, remote.content);
        let requests = store.counters().requests();
        for (range, wanted) in [
            (None, 0..3_000_000),
            (Some(GetRange::Bounded(10..2_000_000)), 10..2_000_000),
            (Some(GetRange::Bounded(2_999_990..4_000_000)), 2_999_990..3_000_000),
            (Some(GetRange::Suffix(7)), 2_999_993..3_000_000),
            (Some(GetRange::Offset(2_999_999)), 2_999_999..3_000_000),
        ] {
            let options = GetOptions::new().with_range(range);
            let result = store.get_opts(&remote.path, options).await.unwrap();
            assert_eq!((result.range.clone(), result.meta.size), (wanted.clone(), 3_000_000));
            assert_eq!(result.meta.e_tag, remote.pin.e_tag);
            let read = result.bytes().await.unwrap();
            assert_eq!(read, remote.content[wanted.start as usize..wanted.end as usize]);
        }
        assert_eq!(store.counters().requests(), requests);
        // A head asks the store, whatever is here.
        assert_eq!(store.head(&remote.path).await.unwrap().size, 3_000_000);
        assert_eq!(store.counters().requests(), requests + 1);
    });
}

#[test]
fn a_stream_goes_on_from_the_store_where_the_cache_ends() {
    runtime().block_on(async {
        let remote = Remote::of(3_000_000).await;
        let store = remote.store(PLENTY);
        remote.check(&store, &[0..1_500_000, 2_000_000..2_100_000]).await;
        let before = store.counters().bytes();
        let whole = store.get(&remote.path).await.unwrap().bytes().await.unwrap();
        assert_eq!(whole, remote.content);
        assert_eq!(store.counters().bytes() - before, 1_500_000);
        assert!(remote.is_here(std::slice::from_ref(&(0..3_000_000))).await);
    });
}

#[test]
fn who_stops_early_keeps_what_arrived() {
    runtime().block_on(async {
        let remote = Remote::of(3_000_000).await;
        let mut stream = remote.store(PLENTY).get(&remote.path).await.unwrap().into_stream();
        let first: Bytes = stream.try_next().await.unwrap().unwrap();
        drop(stream);
        let length = first.len() as u64;
        // It is written in the background.
        for _ in 0..1000 {
            if !remote.entries().is_empty() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(remote.is_here(std::slice::from_ref(&(0..length))).await);
    });
}

#[test]
fn another_version_is_never_found() {
    runtime().block_on(async {
        let mut remote = Remote::of(100_000).await;
        let wanted = [0..100, 50_000..60_000];
        remote.check(&remote.store(PLENTY), &wanted).await;
        // The same size, other bytes, and so another etag.
        let old = remote.store(PLENTY);
        let content: Vec<u8> = remote.content.iter().map(|byte| !byte).collect();
        remote.inner.put(&remote.path, content.clone().into()).await.unwrap();
        // What is pinned and here is what was pinned; what is not here cannot be had any more.
        remote.check(&old, &wanted).await;
        let error = old.get_ranges(&remote.path, &[0..100, 50..200]).await.unwrap_err();
        let error = tensorquery::Error::from(error);
        assert_eq!(error.kind(), ErrorKind::Data, "{error}");
        assert!(error.to_string().contains("changed"), "{error}");
        // Pinned anew, it is another file.
        remote.content = content;
        remote.pin = FilePin::from(remote.inner.head(&remote.path).await.unwrap());
        assert!(!remote.is_here(&wanted).await);
        assert!(remote.is_here(&wanted).await);
    });
}

#[test]
fn only_pinned_remote_files_with_an_identity_are_kept() {
    runtime().block_on(async {
        let remote = Remote::of(1000).await;
        let path = remote.folder.path().join("cache").display().to_string();
        let cache = Arc::new(RangeCache::open(&CacheOptions { path, size: PLENTY }).unwrap());
        let open = |inner: Arc<dyn ObjectStore>, root: &str, pins: Vec<FilePin>, scope| {
            PinnedStore::new(inner, root, pins).with_cache(Some(Arc::clone(&cache)), scope)
        };
        let size = FilePin { e_tag: None, last_modified: None, ..remote.pin.clone() };
        let unpinned = open(Arc::clone(&remote.inner), "s3://bucket", vec![], None);
        let unknown = open(Arc::clone(&remote.inner), "s3://bucket", vec![size.clone()], None);
        write(remote.folder.path(), "local.bin", [7; 1000]);
        let files = location(remote.folder.path(), "local.bin");
        let pins = tensorquery::storage::list_files(&local(), &files).await.unwrap();
        let place = pins[0].location.clone();
        let disk = open(local(), "file://", pins, None);
        for (store, path) in [(unpinned, &remote.path), (unknown, &remote.path), (disk, &place)] {
            for requests in 1..3 {
                store.get_ranges(path, std::slice::from_ref(&(3..9))).await.unwrap();
                assert!(store.counters().requests() >= requests);
                assert_eq!(store.counters().cache_hits(), 0);
            }
            store.get(path).await.unwrap().bytes().await.unwrap();
        }
        assert!(remote.entries().is_empty());
        let lake = open(Arc::clone(&remote.inner), "s3://bucket", vec![size], Some("table"));
        remote.check(&lake, std::slice::from_ref(&(3..9))).await;
        assert_eq!(remote.entries().len(), 1);
    });
}

#[test]
fn a_damaged_entry_is_removed_and_fetched_again() {
    runtime().block_on(async {
        let remote = Remote::of(200_000).await;
        let range = 1000..190_000;
        let ranges = std::slice::from_ref(&range);
        remote.check(&remote.store(PLENTY), ranges).await;
        let [entry] = &remote.entries()[..] else { panic!("{:?}", remote.entries()) };
        let whole = std::fs::read(entry).unwrap();
        let at = |index: usize| {
            let mut damaged = whole.clone();
            damaged[index] ^= 1;
            damaged
        };
        // A bit of the magic, key, range, header's checksum, checksums, first and last content; short, long, empty.
        let mut damages: Vec<Vec<u8>> =
            [0, 9, 41, 50, 57, 65, 80, 100_000, whole.len() - 1].map(at).into();
        damages.push(whole[..whole.len() - 1].to_vec());
        damages.push([&whole[..], &[0]].concat());
        damages.push(Vec::new());
        damages.push(vec![0; whole.len()]);
        for damage in damages {
            std::fs::write(entry, &damage).unwrap();
            let store = remote.store(PLENTY);
            remote.check(&store, ranges).await;
            assert_eq!((store.counters().requests(), store.counters().cache_hits()), (1, 0));
            assert_eq!(std::fs::read(entry).unwrap(), whole);
            assert!(remote.is_here(ranges).await);
        }
        // An entry of another file under this name is not this file's.
        let other = Remote::of(200_000).await;
        let mut content = other.content.clone();
        content.reverse();
        other.inner.put(&Path::from("t/b.parquet"), content.into()).await.unwrap();
        let pin = FilePin::from(other.inner.head(&Path::from("t/b.parquet")).await.unwrap());
        let other = Remote { path: Path::from("t/b.parquet"), pin, ..other };
        other.store(PLENTY).get_ranges(&other.path, ranges).await.unwrap();
        std::fs::copy(&other.entries()[0], entry).unwrap();
        let store = remote.store(PLENTY);
        remote.check(&store, ranges).await;
        assert_eq!(store.counters().requests(), 1);
    });
}

#[test]
fn the_limit_holds_and_what_was_read_last_stays() {
    runtime().block_on(async {
        let remote = Remote::of(1_000_000).await;
        let store = remote.store(300_000);
        for part in 0..10 {
            let range = part * 100_000..part * 100_000 + 50_000;
            remote.check(&store, std::slice::from_ref(&range)).await;
            // So that the order is known: as if each had been read a minute before the next one.
            for (index, path) in remote.entries().iter().enumerate() {
                let file = std::fs::File::options().write(true).open(path).unwrap();
                let minutes = 60 * (100 - index as u64);
                file.set_modified(SystemTime::now() - Duration::from_secs(minutes)).unwrap();
            }
            assert!(remote.stored() <= 301_000, "{}", remote.stored());
        }
        let kept = remote.entries().len();
        assert!((3..=5).contains(&kept), "{kept}");
        let last = 900_000..950_000;
        assert!(remote.is_here(std::slice::from_ref(&last)).await);
        assert!(!remote.is_here(std::slice::from_ref(&(0..50_000))).await);
        // What would never fit is read all the same.
        remote.check(&remote.store(10), &[0..1000, 400_000..900_000]).await;
    });
}

#[test]
fn many_threads_and_stores_share_a_folder() {
    runtime().block_on(async {
        let remote = Arc::new(Remote::of(2_000_000).await);
        let tasks = (0..8_u64).map(|task| {
            let remote = Arc::clone(&remote);
            tokio::spawn(async move {
                let store = remote.store(400_000);
                for step in 0..60 {
                    let start = (task * 7919 + step * 104_729) % 1_900_000;
                    let ranges = [start..start + 10_000, start + 60_000..start + 100_000];
                    remote.check(&store, &ranges).await;
                }
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.unwrap();
        }
        let stored: u64 = remote.entries().iter().map(|path| path.metadata().unwrap().len()).sum();
        assert!(stored <= 400_000, "{stored}");
        assert!(!remote.entries().is_empty());
    });
}

#[test]
fn a_folder_that_cannot_be_used_is_told_once() {
    runtime().block_on(async {
        let remote = Remote::of(1000).await;
        let open = |path: String| RangeCache::open(&CacheOptions { path, size: PLENTY });
        // Nobody can make a folder there, root neither.
        let cache = Arc::new(open("/proc/self/ranges".into()).unwrap());
        let store =
            PinnedStore::new(Arc::clone(&remote.inner), "s3://bucket", [remote.pin.clone()])
                .with_cache(Some(Arc::clone(&cache)), None);
        remote.check(&store, &[0..10, 20..30]).await;
        let trouble = cache.trouble().unwrap();
        assert!(trouble.contains("/proc/self/ranges"), "{trouble}");
        assert!(cache.trouble().is_none());
        write(remote.folder.path(), "file", "x");
        for (path, hint) in [
            (remote.folder.path().join("file").display().to_string(), "is a file"),
            ("s3://bucket/ranges".into(), "a local disk"),
            (" ".into(), "a local disk"),
        ] {
            let error = open(path).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config);
            assert!(error.to_string().contains(hint), "{error}");
        }
    });
}

#[test]
fn the_folder_is_for_its_user_alone_and_names_nothing() {
    use std::os::unix::fs::PermissionsExt;
    runtime().block_on(async {
        let remote = Remote::of(1000).await;
        remote.check(&remote.store(PLENTY), &[0..10, 20..30]).await;
        let files = files_below(&remote.folder.path().join("cache"));
        assert!(files.len() >= 3, "{files:?}");
        for file in files {
            assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{file:?}");
            let folder = file.parent().unwrap().metadata().unwrap().permissions().mode();
            assert_eq!(folder & 0o777, 0o700, "{file:?}");
            let content = std::fs::read(&file).unwrap();
            for word in ["bucket", "parquet"] {
                assert!(!file.display().to_string().contains(word));
                assert!(memchr::memmem::find(&content, word.as_bytes()).is_none());
            }
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn any_reads_in_any_order_are_the_file(
        reads in prop::collection::vec(
            prop::collection::vec((0_u64..290_000, 1_u64..90_000), 1..5), 1..10),
        size in prop_oneof![Just(PLENTY), Just(150_000_u64)],
    ) {
        runtime().block_on(async {
            let remote = Remote::of(300_000).await;
            let store = remote.store(size);
            for (step, ranges) in reads.into_iter().enumerate() {
                let ranges: Vec<Range<u64>> = ranges
                    .into_iter()
                    .map(|(start, length)| start..(start + length).min(300_000))
                    .collect();
                remote.check(&store, &ranges).await;
                if step % 3 == 2 {
                    let range = ranges[0].clone();
                    let options = GetOptions::new().with_range(Some(GetRange::Bounded(range.clone())));
                    let read = store.get_opts(&remote.path, options).await.unwrap();
                    let wanted = &remote.content[range.start as usize..range.end as usize];
                    assert_eq!(read.bytes().await.unwrap(), wanted);
                }
            }
        });
    }
}
