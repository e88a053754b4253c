//! Credentials that a catalog gives are used, renewed before they end or when they are refused, and
//! asked for once by all who need them.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use chrono::Utc;
use futures::future::join_all;
use object_store::ObjectStoreExt;
use tensorquery::catalog::iceberg::{IcebergCatalog, LoadedTable, StorageAccess};
use tensorquery::storage::RoutedStore;
use tensorquery::{Error, ErrorKind};

use super::server::{Request, Server};
use super::{metadata, names, properties};
use crate::support::block_on;

/// A catalog and its store in one server: credentials by number, of which the store takes the newest only.
struct Lake {
    server: Server,
    issued: Arc<AtomicUsize>,
    /// How long credentials hold; 0 where the catalog does not say.
    life_ms: Arc<AtomicI64>,
}

impl Lake {
    fn start(has_endpoint: bool) -> Self {
        let (issued, life_ms) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicI64::new(0)));
        let (number, life) = (Arc::clone(&issued), Arc::clone(&life_ms));
        let server = Server::start(move |request| answer(request, has_endpoint, &number, &life));
        Self { server, issued, life_ms }
    }

    fn load(&self) -> LoadedTable {
        let pairs = [("uri", self.server.url.as_str()), ("token", "t")];
        let catalog = IcebergCatalog::try_new("lake", properties(&pairs)).unwrap();
        block_on(catalog.load_table(&names("db"), "t")).unwrap()
    }
}

fn answer(
    request: &Request,
    has_endpoint: bool,
    issued: &AtomicUsize,
    life: &AtomicI64,
) -> (u16, String) {
    let credentials = || {
        let number = issued.fetch_add(1, Ordering::SeqCst) + 1;
        let expiry = match life.load(Ordering::SeqCst) {
            0 => String::new(),
            life => format!(
                r#", "s3.session-token-expires-at-ms": "{}""#,
                Utc::now().timestamp_millis() + life
            ),
        };
        format!(
            r#""storage-credentials": [
                {{"prefix": "s3://bucket/", "config": {{"s3.access-key-id": "wrong",
                  "s3.secret-access-key": "x"}}}},
                {{"prefix": "s3://bucket/t", "config": {{"s3.access-key-id": "key{number}",
                  "s3.secret-access-key": "hunter2", "s3.session-token": "hunter2"{expiry}}}}}]"#
        )
    };
    let host = request.header("host");
    match request.target.as_str() {
        "/v1/config" if has_endpoint => (
            200,
            r#"{"defaults": {}, "overrides": {}, "endpoints":
                ["GET /v1/{prefix}/namespaces/{namespace}/tables/{table}/credentials"]}"#
                .into(),
        ),
        "/v1/config" => (200, r#"{"defaults": {}, "overrides": {}}"#.into()),
        "/v1/namespaces/db/tables/t" => (
            200,
            format!(
                r#"{{"metadata-location": "s3://bucket/t/m.json", "metadata": {},
                    "config": {{"s3.endpoint": "http://{host}", "s3.region": "eu-west-1"}}, {}}}"#,
                metadata("s3://bucket/t"),
                credentials()
            ),
        ),
        "/v1/namespaces/db/tables/t/credentials" if has_endpoint => {
            (200, format!("{{{}}}", credentials()))
        }
        target if target.starts_with("/bucket/") => {
            let newest = format!("Credential=key{}/", issued.load(Ordering::SeqCst));
            match request.header("authorization").contains(&newest) {
                true => (200, "content".into()),
                false => (403, "<Error><Code>InvalidAccessKeyId</Code></Error>".into()),
            }
        }
        _ => (404, String::new()),
    }
}

fn read(store: &RoutedStore) -> Result<String, Error> {
    let path = RoutedStore::path_of("s3a://bucket/t/data/a.parquet")?;
    block_on(async {
        let bytes = store.get(&path).await?.bytes().await?;
        Ok(String::from_utf8(bytes.to_vec()).unwrap())
    })
}

#[test]
fn the_longest_prefix_gives_the_credentials() {
    let lake = Lake::start(false);
    let table = lake.load();
    assert_eq!(read(&table.store).unwrap(), "content");
    assert_eq!(lake.issued.load(Ordering::SeqCst), 1);
    let sent = &lake.server.asked("/bucket/")[0];
    assert_eq!(sent.header("x-amz-security-token"), "hunter2");
    let shown = format!("{table:?} {:?} {}", table.store, table.store);
    assert!(!shown.contains("hunter2"), "{shown}");
}

#[test]
fn refused_credentials_are_renewed_once_for_all() {
    for has_endpoint in [false, true] {
        let lake = Lake::start(has_endpoint);
        let table = lake.load();
        // Somebody else was given newer ones, so that the store refuses these.
        lake.issued.fetch_add(1, Ordering::SeqCst);
        let path = RoutedStore::path_of("s3://bucket/t/a.parquet").unwrap();
        let reads = (0..16).map(|_| table.store.get(&path));
        let results = block_on(join_all(reads));
        assert!(results.iter().all(Result::is_ok));
        assert_eq!(lake.issued.load(Ordering::SeqCst), 3);
        assert_eq!(lake.server.asked("/credentials").len(), usize::from(has_endpoint));
    }
}

#[test]
fn credentials_of_two_seconds_never_end_in_a_request() {
    let lake = Lake::start(true);
    lake.life_ms.store(2000, Ordering::SeqCst);
    let table = lake.load();
    for _ in 0..9 {
        assert_eq!(read(&table.store).unwrap(), "content");
        std::thread::sleep(Duration::from_millis(400));
    }
    // Renewed after one and a half seconds each time, and not for every request.
    let issued = lake.issued.load(Ordering::SeqCst);
    assert!((2..=4).contains(&issued), "{issued} issues");
    let refused: Vec<_> = lake.server.asked("/bucket/");
    assert_eq!(refused.len(), 9);
}

#[test]
fn another_process_renews_credentials_that_ended_on_their_way() {
    let lake = Lake::start(false);
    lake.life_ms.store(300, Ordering::SeqCst);
    let text = serde_json::to_string(&lake.load().access).unwrap();
    std::thread::sleep(Duration::from_millis(400));
    lake.life_ms.store(60_000, Ordering::SeqCst);
    let access: StorageAccess = serde_json::from_str(&text).unwrap();
    assert_eq!(read(&access.open().unwrap()).unwrap(), "content");
    assert_eq!(lake.issued.load(Ordering::SeqCst), 2);
    // It asked the catalog once more, and the store never with what had ended.
    assert_eq!(lake.server.asked("/bucket/").len(), 1);
}

#[test]
fn what_stays_forbidden_is_told_and_not_asked_forever() {
    let lake = Lake::start(false);
    let table = lake.load();
    let path = RoutedStore::path_of("s3://bucket/other").unwrap();
    for _ in 0..5 {
        let error = Error::from(block_on(table.store.get(&path)).unwrap_err());
        assert_eq!(error.kind(), ErrorKind::Storage);
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }
    // The first refusal was worth one question; what was just given is not asked for again.
    assert!(lake.issued.load(Ordering::SeqCst) <= 3);
}
