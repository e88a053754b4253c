//! A file system that is no store of `object_store` is pinned and read as one, and scopes choose accounts.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectStore, ObjectStoreExt};
use tensorquery::storage::{
    ForeignFile, ForeignFiles, ForeignListing, PinnedStore, StorageOptions, StoreAccess, list_all,
};
use tensorquery::{Error, ErrorKind, Result};

/// Files in memory; what is kept back of each read; and whether etags are told.
#[derive(Default)]
struct Memory {
    files: Mutex<BTreeMap<String, (Vec<u8>, String)>>,
    kept_back: usize,
}

impl Memory {
    fn put(&self, path: &str, bytes: &[u8], e_tag: &str) {
        self.files.lock().unwrap().insert(path.into(), (bytes.to_vec(), e_tag.into()));
    }
}

fn file(path: &str, bytes: &[u8], e_tag: &str) -> ForeignFile {
    let size = bytes.len() as u64;
    ForeignFile { path: path.into(), size, e_tag: Some(e_tag.into()), last_modified: None }
}

#[async_trait]
impl ForeignFiles for Memory {
    fn root(&self) -> String {
        "toy:/".into()
    }

    async fn info(&self, path: &str) -> Result<Option<ForeignFile>> {
        let files = self.files.lock().unwrap();
        Ok(files.get(path).map(|(bytes, e_tag)| file(path, bytes, e_tag)))
    }

    async fn list(&self, directory: &str, recursive: bool) -> Result<ForeignListing> {
        let mut found = ForeignListing::default();
        for (path, (bytes, e_tag)) in self.files.lock().unwrap().iter() {
            let Some(rest) = path.strip_prefix(directory) else { continue };
            match rest.trim_start_matches('/').split_once('/') {
                Some((name, _)) if !recursive => {
                    let directory = format!("{directory}/{name}").trim_matches('/').to_owned();
                    if !found.directories.contains(&directory) {
                        found.directories.push(directory);
                    }
                }
                _ => found.files.push(file(path, bytes, e_tag)),
            }
        }
        Ok(found)
    }

    async fn read(&self, path: &str, range: Range<u64>) -> Result<Bytes> {
        let files = self.files.lock().unwrap();
        let (bytes, _) = files.get(path).ok_or_else(|| Error::storage("gone"))?;
        let end = (range.end as usize).min(bytes.len()).saturating_sub(self.kept_back);
        Ok(Bytes::copy_from_slice(&bytes[range.start as usize..end]))
    }
}

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

async fn pinned(memory: &Arc<Memory>, paths: &[&str]) -> Result<(PinnedStore, Vec<String>)> {
    let files: Arc<dyn ForeignFiles> = Arc::<Memory>::clone(memory);
    let access = StoreAccess { files: Some(files), ..StoreAccess::default() };
    let paths: Vec<String> = paths.iter().map(|path| (*path).to_owned()).collect();
    let opened = access.open_paths(&paths).await?;
    let listing = list_all(&opened.store, &opened.locations).await?;
    let names = listing.pins.iter().map(|pin| opened.locations[0].describe(&pin.location));
    let names = names.collect();
    Ok((PinnedStore::new(opened.store, opened.locations[0].store_root(), listing.pins), names))
}

#[test]
fn files_are_listed_and_read() {
    let memory = Arc::new(Memory::default());
    for name in ["a/1.csv", "a/2.csv", "a/b/3.csv", "a/b/4.txt", "c/5.csv"] {
        memory.put(name, name.as_bytes(), "1");
    }
    run(async {
        let (store, names) = pinned(&memory, &["a/**/*.csv"]).await.unwrap();
        assert_eq!(names, ["toy://a/1.csv", "toy://a/2.csv", "toy://a/b/3.csv"]);
        let path = Path::from("a/b/3.csv");
        assert_eq!(store.get(&path).await.unwrap().bytes().await.unwrap(), "a/b/3.csv");
        assert_eq!(store.get_range(&path, 2..5).await.unwrap(), "b/3");
        assert_eq!(store.get_ranges(&path, &[0..1, 4..9]).await.unwrap(), ["a", "3.csv"]);
        let last = GetOptions { range: Some(GetRange::Suffix(3)), ..GetOptions::default() };
        let last = store.get_opts(&path, last).await.unwrap();
        assert_eq!(last.bytes().await.unwrap(), "csv");
        let (_, names) = pinned(&memory, &["a/"]).await.unwrap();
        assert_eq!(names.len(), 4);
        let (_, names) = pinned(&memory, &["c/5.csv"]).await.unwrap();
        assert_eq!(names, ["toy://c/5.csv"]);
    });
}

#[test]
fn a_file_that_changed_or_is_cut_short_is_named() {
    let memory = Arc::new(Memory::default());
    memory.put("a.csv", b"abc", "1");
    run(async {
        let (store, _) = pinned(&memory, &["a.csv"]).await.unwrap();
        memory.put("a.csv", b"xyz", "2");
        let error = Error::from(store.get_range(&Path::from("a.csv"), 0..2).await.unwrap_err());
        assert_eq!(error.kind(), ErrorKind::Data);
        assert!(error.to_string().contains("toy://a.csv changed"), "{error}");
        memory.files.lock().unwrap().clear();
        let error = Error::from(store.get_range(&Path::from("a.csv"), 0..2).await.unwrap_err());
        assert!(error.to_string().contains("vanished"), "{error}");

        let short = Arc::new(Memory { kept_back: 1, ..Memory::default() });
        short.put("a.csv", b"abc", "1");
        let (store, _) = pinned(&short, &["a.csv"]).await.unwrap();
        let error = Error::from(store.get_range(&Path::from("a.csv"), 0..2).await.unwrap_err());
        assert!(error.to_string().contains("returned 1 bytes of toy://a.csv"), "{error}");
    });
}

#[test]
fn a_file_system_takes_no_options() {
    let options: StorageOptions = [("key".to_owned(), "s3cret".to_owned())].into_iter().collect();
    let files: Option<Arc<dyn ForeignFiles>> = Some(Arc::new(Memory::default()));
    let access = StoreAccess { options, files, credentials: None };
    let error = run(access.open_paths(&["a".to_owned()])).err().unwrap();
    assert!(error.to_string().contains("its own options"), "{error}");
    assert!(!format!("{access:?}").contains("s3cret"));
}
