//! One read-only store of all the files of a table, wherever they lie.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    Error as StoreError, GetOptions, GetResult, ListResult, ObjectMeta, ObjectStore, Result,
};

use super::access::AccessConfig;
use super::hidden::hide;
use super::properties::store_options;
use super::read_only::Reads;
use super::store::open_with;
use super::uri::{Place, ROUTED_ROOT, path_of, place_of, uri_of};
use super::vended::{CredentialCache, Refresh, provider_of};
use crate::Error;

/// The name of this store in errors of `object_store`.
const STORE: &str = "RoutedStore";

/// A store whose paths are full URIs ([`path_of`](Self::path_of)), read-only.
///
/// The store behind a URI is opened when its first file is asked for, with the options that
/// [`AccessConfig`] has for it, and kept. Where the credentials come from a catalog, they are
/// renewed before they end, and once more when the store refuses them.
pub struct RoutedStore {
    credential_cache: Arc<CredentialCache>,
    opened: Mutex<HashMap<StoreKey, Arc<dyn ObjectStore>>>,
}

/// Process (a store does not survive `fork`), root, and the prefix that its credentials are for.
type StoreKey = (u32, String, String);

/// Where a request goes.
struct Route {
    store: Arc<dyn ObjectStore>,
    place: Place,
    /// The issue of credentials that it is sent with, or an older one.
    issue: u64,
}

impl RoutedStore {
    /// The root of such a store for [`PinnedStore`](super::PinnedStore), whose messages then show
    /// URIs.
    pub const ROOT: &'static str = ROUTED_ROOT;

    /// A store of files that `config` gives access to; `refresh` tells newer credentials. Opens
    /// nothing.
    pub fn new(config: AccessConfig, refresh: Option<Arc<dyn Refresh>>) -> Self {
        Self {
            credential_cache: Arc::new(CredentialCache::new(config, refresh)),
            opened: Mutex::default(),
        }
    }

    /// The path of a URI or an absolute local path; nothing is decoded. `/a/b`, `file:/a/b` and
    /// `file:///a/b` are one path.
    ///
    /// # Errors
    ///
    /// `Config`, for a relative path, an unknown scheme, and keys that no client can ask for.
    pub fn path_of(uri: &str) -> crate::Result<Path> {
        path_of(uri)
    }

    /// The URI of a path that [`path_of`](Self::path_of) made; a local one as an absolute path.
    pub fn uri_of(path: &Path) -> String {
        uri_of(path)
    }

    /// The properties and credentials as they are now; newer ones after a renewal.
    pub fn config(&self) -> AccessConfig {
        self.credential_cache.current().config.clone()
    }

    fn route(&self, location: &Path) -> crate::Result<Route> {
        let place = place_of(location)?;
        let issue = self.credential_cache.current();
        let uri = uri_of(location);
        let prefix = issue.config.prefix_of(&uri).to_owned();
        let key = (std::process::id(), place.root.clone(), prefix);
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let store = match opened.get(&key) {
            Some(store) => Arc::clone(store),
            None => {
                let options = store_options(&place.root, &issue.config.properties_of(&uri))?;
                let provider = provider_of(&self.credential_cache, &uri, &place.root, &options);
                let store = open_with(&options.location, &options.options, provider)?;
                opened.insert(key, Arc::clone(&store));
                store
            }
        };
        Ok(Route { store, place, issue: issue.number })
    }

    /// The answer to a request, which is sent once more where it was refused and there are newer
    /// credentials now.
    async fn answer<T, F>(&self, at: &Path, route: &Route, request: impl Fn() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let answer = self.credential_cache.answer(route.issue, request).await;
        answer.map_err(|error| {
            let uri = uri_of(at);
            let secrets = self.credential_cache.current().config.properties_of(&uri);
            hide(error, uri, &secrets)
        })
    }
}

fn failed(error: Error) -> StoreError {
    StoreError::Generic { store: STORE, source: Box::new(error) }
}

/// The outer path of a file that a store listed.
fn outer(start: &str, key: &Path) -> Result<Path> {
    Path::parse(format!("{start}/{key}")).map_err(Into::into)
}

fn no_directory() -> StoreError {
    let error = Error::storage("cannot list all stores at once; name a directory");
    StoreError::NotSupported { source: Box::new(error) }
}

#[async_trait]
impl Reads for RoutedStore {
    async fn get(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let route = self.route(location).map_err(failed)?;
        let request = || route.store.get_opts(&route.place.key, options.clone());
        let mut found = self.answer(location, &route, request).await?;
        found.meta.location = location.clone();
        Ok(found)
    }

    async fn ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let route = self.route(location).map_err(failed)?;
        let request = || route.store.get_ranges(&route.place.key, ranges);
        self.answer(location, &route, request).await
    }

    fn files(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let Some(prefix) = prefix else {
            return stream::once(async { Err(no_directory()) }).boxed();
        };
        match self.route(prefix) {
            Ok(Route { store, place, .. }) => store
                .list(Some(&place.key))
                .and_then(move |mut meta| {
                    let moved = outer(&place.start, &meta.location).map(|location| {
                        meta.location = location;
                        meta
                    });
                    std::future::ready(moved)
                })
                .boxed(),
            Err(error) => stream::once(async { Err(failed(error)) }).boxed(),
        }
    }

    async fn folder(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let prefix = prefix.ok_or_else(no_directory)?;
        let route = self.route(prefix).map_err(failed)?;
        let request = || route.store.list_with_delimiter(Some(&route.place.key));
        let mut listed = self.answer(prefix, &route, request).await?;
        for directory in &mut listed.common_prefixes {
            *directory = outer(&route.place.start, directory)?;
        }
        for meta in &mut listed.objects {
            meta.location = outer(&route.place.start, &meta.location)?;
        }
        Ok(listed)
    }
}

impl fmt::Display for RoutedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(STORE)
    }
}

impl fmt::Debug for RoutedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{STORE}({:?})", self.config())
    }
}
