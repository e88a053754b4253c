//! Stages in stores that refuse, forget to answer, or have a clock of their own.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use chrono::TimeDelta;
use futures::StreamExt;
use futures::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error as StoreError, GetOptions, GetResult, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, Result as StoreResult,
};

use super::build_lease::LEASE;
use super::ensure::{Attempt, Made, OpenStage, Wanted, ensure};
use super::list::list_stages;
use super::manifest::StageFile;
use super::place::StagePlace;
use crate::Result;
use crate::runtime::Runtimes;

/// A store in memory with faults.
#[derive(Debug, Default)]
struct Faulty {
    store: InMemory,
    /// Conditions are refused by an error without a name, as for 501.
    has_no_conditions: bool,
    /// The next lease is written, and the answer says that it is there already, as it does to a
    /// second try.
    loses_an_answer: AtomicBool,
    keeps_all: bool,
    /// How far its clock is ahead.
    ahead: TimeDelta,
}

impl Faulty {
    fn at_its_time(&self, mut meta: ObjectMeta) -> ObjectMeta {
        meta.last_modified += self.ahead;
        meta
    }
}

impl fmt::Display for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Faulty")
    }
}

#[async_trait]
impl ObjectStore for Faulty {
    async fn put_opts(
        &self,
        path: &Path,
        bytes: PutPayload,
        options: PutOptions,
    ) -> StoreResult<PutResult> {
        if self.has_no_conditions && options.mode != PutMode::Overwrite {
            return Err(StoreError::Generic { store: "Faulty", source: "501".into() });
        }
        let put = self.store.put_opts(path, bytes, options).await?;
        if path.filename() == Some(LEASE) && self.loses_an_answer.swap(false, Ordering::Relaxed) {
            return Err(StoreError::AlreadyExists { path: path.to_string(), source: "412".into() });
        }
        Ok(put)
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> StoreResult<Box<dyn MultipartUpload>> {
        self.store.put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> StoreResult<GetResult> {
        let mut found = self.store.get_opts(path, options).await?;
        found.meta = self.at_its_time(found.meta);
        Ok(found)
    }

    async fn get_ranges(&self, path: &Path, ranges: &[Range<u64>]) -> StoreResult<Vec<Bytes>> {
        self.store.get_ranges(path, ranges).await
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, StoreResult<Path>>,
    ) -> BoxStream<'static, StoreResult<Path>> {
        if !self.keeps_all {
            return self.store.delete_stream(paths);
        }
        let refuse = |path: StoreResult<Path>| {
            let path = path?.to_string();
            Err(StoreError::PermissionDenied { path, source: "403".into() })
        };
        paths.map(refuse).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, StoreResult<ObjectMeta>> {
        let ahead = self.ahead;
        let shift = move |found: StoreResult<ObjectMeta>| {
            found.map(|meta| ObjectMeta { last_modified: meta.last_modified + ahead, ..meta })
        };
        self.store.list(prefix).map(shift).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> StoreResult<ListResult> {
        self.store.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> StoreResult<()> {
        self.store.copy_opts(from, to, options).await
    }
}

fn key(number: usize) -> String {
    format!("{number:064}")
}

/// Has a stage of a thousand bytes built, or opened.
async fn stage(place: &StagePlace, number: usize) -> Result<OpenStage> {
    let (key, progress) = (key(number), Arc::default());
    let wanted = Wanted {
        place,
        key: &key,
        why: "a test",
        timeout: Duration::from_secs(60),
        limited: false,
        progress: &progress,
    };
    ensure(wanted, |_: Attempt, folder: Path| async move {
        let file = StageFile { name: "part".to_owned(), bytes: 1000, rows: 1 };
        place.store().put(&folder.join("part"), vec![0; 1000].into()).await?;
        Ok(Made::Files(vec![file], String::new()))
    })
    .await
}

fn run(test: impl AsyncFnOnce()) {
    Runtimes::current().unwrap().cpu().block_on(test());
}

#[test]
fn a_store_without_conditions_takes_stages() {
    run(async || {
        let store = Faulty { has_no_conditions: true, ..Faulty::default() };
        let place = StagePlace::in_store(Arc::new(store));
        assert!(stage(&place, 1).await.unwrap().built);
        assert!(!stage(&place, 1).await.unwrap().built);
        let lease = place.store().head(&place.path([&*key(1), LEASE])).await;
        assert!(matches!(lease, Err(StoreError::NotFound { .. })), "it is given back");
    });
}

#[test]
fn a_lease_whose_answer_was_lost_is_ones_own() {
    run(async || {
        let store = Faulty { loses_an_answer: AtomicBool::new(true), ..Faulty::default() };
        let place = StagePlace::in_store(Arc::new(store));
        let began = Instant::now();
        assert!(stage(&place, 1).await.unwrap().built);
        assert!(began.elapsed() < Duration::from_secs(10), "it waited for itself");
    });
}

#[test]
fn a_stage_is_built_where_nothing_may_be_removed() {
    run(async || {
        let store = Faulty { keeps_all: true, ..Faulty::default() };
        let place = StagePlace::in_store(Arc::new(store));
        assert!(stage(&place, 1).await.unwrap().built);
        assert!(!stage(&place, 1).await.unwrap().built);
    });
}

#[test]
fn the_clock_of_the_store_says_what_is_swept() {
    run(async || {
        for days in [-8, 8] {
            let store = Faulty { ahead: TimeDelta::days(days), ..Faulty::default() };
            let place = StagePlace::in_store(Arc::new(store)).bounded(Some(1));
            for number in 1..3 {
                assert!(stage(&place, number).await.unwrap().built);
            }
            let left = list_stages(&place).await.unwrap();
            assert_eq!(left.len(), 2, "one is new, the other may be in use");
        }
    });
}

#[test]
fn a_lease_that_says_nothing_is_waited_for_and_not_an_error() {
    run(async || {
        let place = StagePlace::in_store(Arc::new(Faulty::default()));
        place.store().put(&place.path([&*key(1), LEASE]), Vec::new().into()).await.unwrap();
        let began = Instant::now();
        assert!(stage(&place, 1).await.unwrap().built);
        assert!(began.elapsed() > Duration::from_secs(15));
    });
}
