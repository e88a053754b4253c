//! Credentials that a catalog gives are used, renewed before they end or when they are refused, and
//! asked for once by all who need them.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use chrono::Utc;
use futures::future::join_all;
use object_store::ObjectStoreExt;
use tensorquery::iceberg::catalog::{IcebergCatalog, LoadedTable, StorageAccess};
use tensorquery::storage::RoutedStore;
use tensorquery::{Error, ErrorKind};

use super::server::{Request, Server};
use super::{metadata, names, properties};
use crate::support::block_on;

/// The kinds of stores, each with a table `t`.
#[derive(Clone, Copy)]
enum Kind {
    S3,
    Gcs,
    Azure,
}

impl Kind {
    fn root(self) -> &'static str {
        match self {
            Self::S3 => "s3://bucket",
            Self::Gcs => "gs://bucket",
            Self::Azure => "abfss://bucket@account.dfs.core.windows.net",
        }
    }

    /// The configuration of a table, as the catalog tells it.
    fn config(self, host: &str) -> String {
        match self {
            Self::S3 => {
                format!(
                    r#"{{"s3.endpoint": "http://{host}", "s3.region": "eu-west-1", "flag": true}}"#
                )
            }
            Self::Gcs => format!(r#"{{"gcs.service.host": "http://{host}"}}"#),
            // It is the user who names Azure's.
            Self::Azure => "{}".to_owned(),
        }
    }

    /// Credentials by number, with when they end.
    fn credentials(self, key: &str, expiry: Option<i64>) -> String {
        let (secrets, end) = match self {
            Self::S3 => (
                format!(
                    r#""s3.access-key-id": "{key}", "s3.secret-access-key": "hunter2",
                       "s3.session-token": "hunter2""#
                ),
                "s3.session-token-expires-at-ms",
            ),
            Self::Gcs => (format!(r#""gcs.oauth2.token": "{key}""#), "gcs.oauth2.token-expires-at"),
            Self::Azure => (
                format!(r#""adls.sas-token.account.dfs.core.windows.net": "?sv=1&sig={key}%2B""#),
                "adls.sas-token-expires-at-ms.account.dfs.core.windows.net",
            ),
        };
        match expiry {
            Some(expiry) => format!(r#"{{{secrets}, "{end}": "{expiry}"}}"#),
            None => format!("{{{secrets}}}"),
        }
    }

    fn is_given(self, request: &Request, key: &str) -> bool {
        let header = request.header("authorization");
        match self {
            Self::S3 => header.contains(&format!("Credential={key}/")),
            Self::Gcs => header == format!("Bearer {key}"),
            Self::Azure => request.target.contains(&format!("sig={key}%2B")),
        }
    }
}

/// A catalog and its store in one server: credentials are numbered, and the store takes only the newest.
struct Lake {
    server: Server,
    issued: Arc<AtomicUsize>,
    /// How long credentials hold; 0 where the catalog does not say.
    life_ms: Arc<AtomicI64>,
}

impl Lake {
    fn start(has_endpoint: bool) -> Self {
        Self::of(Kind::S3, has_endpoint)
    }

    fn of(kind: Kind, has_endpoint: bool) -> Self {
        let (issued, life_ms) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicI64::new(0)));
        let (number, life) = (Arc::clone(&issued), Arc::clone(&life_ms));
        let server =
            Server::start(move |request| answer(kind, request, has_endpoint, &number, &life));
        Self { server, issued, life_ms }
    }

    fn load(&self) -> LoadedTable {
        let url = self.server.url.as_str();
        let pairs = [("uri", url), ("token", "t"), ("azure_endpoint", url)];
        let catalog = IcebergCatalog::try_new("lake", properties(&pairs)).unwrap();
        block_on(catalog.load_table(&names("db"), "t")).unwrap()
    }
}

fn answer(
    kind: Kind,
    request: &Request,
    has_endpoint: bool,
    issued: &AtomicUsize,
    life: &AtomicI64,
) -> (u16, String) {
    let root = kind.root();
    let credentials = || {
        let number = issued.fetch_add(1, Ordering::SeqCst) + 1;
        let expiry = match life.load(Ordering::SeqCst) {
            0 => None,
            life => Some(Utc::now().timestamp_millis() + life),
        };
        format!(
            r#""storage-credentials": [{{"prefix": "{root}/", "config": {}}},
                {{"prefix": "{root}/t", "config": {}}}]"#,
            kind.credentials("wrong", None),
            kind.credentials(&format!("secret{number}"), expiry),
        )
    };
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
                r#"{{"metadata-location": "{root}/t/m.json", "metadata": {}, "config": {}, {}}}"#,
                metadata(&format!("{root}/t")),
                kind.config(request.header("host")),
                credentials()
            ),
        ),
        "/v1/namespaces/db/tables/t/credentials" if has_endpoint => {
            (200, format!("{{{}}}", credentials()))
        }
        target if target.starts_with("/bucket/") => {
            let newest = format!("secret{}", issued.load(Ordering::SeqCst));
            match kind.is_given(request, &newest) {
                true => (200, "content".into()),
                // S3 repeats the key that it refuses.
                false => (403, format!("refused: {} {target}", request.header("authorization"))),
            }
        }
        _ => (404, String::new()),
    }
}

fn read(store: &RoutedStore) -> Result<String, Error> {
    read_from(store, "s3a://bucket")
}

fn read_from(store: &RoutedStore, root: &str) -> Result<String, Error> {
    let path = RoutedStore::path_of(&format!("{root}/t/data/a.parquet"))?;
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
fn google_and_azure_are_given_new_tokens_too() {
    for kind in [Kind::Gcs, Kind::Azure] {
        let lake = Lake::of(kind, true);
        let table = lake.load();
        assert_eq!(read_from(&table.store, kind.root()).unwrap(), "content");
        // Refused without a word before.
        lake.issued.fetch_add(1, Ordering::SeqCst);
        lake.life_ms.store(4000, Ordering::SeqCst);
        assert_eq!(read_from(&table.store, kind.root()).unwrap(), "content");
        assert_eq!(lake.issued.load(Ordering::SeqCst), 3);
        // Renewed because the last quarter of their stated lifetime has begun.
        std::thread::sleep(Duration::from_millis(3100));
        assert_eq!(read_from(&table.store, kind.root()).unwrap(), "content");
        assert_eq!(lake.issued.load(Ordering::SeqCst), 4);
        let refused = lake.server.asked("/bucket/");
        assert_eq!(refused.len(), 4, "{refused:?}");
        let shown = format!("{table:?} {:?}", table.store);
        assert!(!shown.contains("secret4") && !shown.contains("secret1"), "{shown}");
    }
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
        let text = error.to_string();
        assert!(text.contains("s3://bucket/other"), "{text}");
        assert!(!text.contains("hunter2") && !text.contains("wrong"), "{text}");
    }
    // The first refusal was worth one question; what was just given is not asked for again.
    assert!(lake.issued.load(Ordering::SeqCst) <= 3);
}
