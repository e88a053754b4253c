//! Credentials that a catalog, a profile or a user's function gives for a while: kept, and renewed
//! before they end.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use chrono::Utc;
use object_store::aws::AwsCredential;
use object_store::azure::{AzureAccessKey, AzureCredential};
use object_store::gcp::GcpCredential;
use object_store::{CredentialProvider, Error as StoreError, Result as StoreResult};
use percent_encoding::percent_decode_str;

use super::access::AccessConfig;
use super::location::Scheme;
use super::properties::{Secret, StoreOptions, store_options};
use super::secrets::note_secrets;
use super::store::Provider;
use crate::runtime::ForkLock;
use crate::{Error, Result};

/// How long before their end credentials are renewed at most. A quarter of their life is enough for
/// those that live shorter.
const MARGIN_MS: i64 = 5 * 60 * 1000;
/// After a failed or useless renewal, the next one waits.
const PAUSE: Duration = Duration::from_secs(1);

/// Where new credentials come from.
#[async_trait]
pub trait Refresh: Send + Sync {
    /// Asks for all properties and credentials of a table's files, or of one store, anew.
    async fn refresh(&self) -> Result<AccessConfig>;
}

/// The current credentials of a table's files, shared by all its stores.
pub(super) struct CredentialCache {
    issue: RwLock<Arc<Issue>>,
    refresh: Option<Arc<dyn Refresh>>,
    /// Who renews is inside, so that those who want the same wait for that one answer.
    fork_lock: ForkLock,
    failed: Mutex<Option<Instant>>,
}

/// A catalog's answer at one time.
pub(super) struct Issue {
    /// Counts the answers.
    pub(super) number: u64,
    pub(super) config: AccessConfig,
    /// Nobody was asked yet.
    is_unasked: bool,
    received_ms: i64,
    received: Instant,
}

impl CredentialCache {
    pub(super) fn new(config: AccessConfig, refresh: Option<Arc<dyn Refresh>>) -> Self {
        let issue = RwLock::new(Arc::new(Issue::new(0, config)));
        Self { issue, refresh, fork_lock: ForkLock::default(), failed: Mutex::default() }
    }

    /// Asks when the first request is made.
    pub(super) fn unasked(refresh: Arc<dyn Refresh>) -> Self {
        let issue = Issue { is_unasked: true, ..Issue::new(0, AccessConfig::default()) };
        Self {
            issue: RwLock::new(Arc::new(issue)),
            ..Self::new(AccessConfig::default(), Some(refresh))
        }
    }

    pub(super) fn current(&self) -> Arc<Issue> {
        Arc::clone(&self.issue.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// An issue newer than number `used`: one that another request has asked for meanwhile, or the
    /// answer to a new question.
    async fn renew(&self, refresh: &dyn Refresh, used: u64) -> Result<Arc<Issue>> {
        let _inside = self.fork_lock.enter().await;
        let now = self.current();
        if now.number != used {
            return Ok(now);
        }
        match refresh.refresh().await {
            Ok(config) => {
                let issue = Arc::new(Issue::new(used + 1, config));
                *self.issue.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&issue);
                Ok(issue)
            }
            Err(error) => {
                *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
                Err(error)
            }
        }
    }

    /// Returns true if a request that was refused with issue `used` may be sent again, because
    /// there is a newer one now.
    async fn after_refusal(&self, used: u64) -> Result<bool> {
        let Some(refresh) = &self.refresh else { return Ok(false) };
        let now = self.current();
        if now.number != used {
            return Ok(true);
        }
        // What is refused although it was just given is forbidden.
        if now.number > 0 && now.received.elapsed() < PAUSE {
            return Ok(false);
        }
        self.renew(&**refresh, used).await.map(|_| true)
    }

    /// Returns true if a request with issue `used` should be sent once more after this failure.
    pub(super) async fn can_repeat(&self, used: u64, error: &StoreError) -> StoreResult<bool> {
        if !is_refusal(error) {
            return Ok(false);
        }
        let failed = |error| StoreError::Generic { store: "credentials", source: Box::new(error) };
        self.after_refusal(used).await.map_err(failed)
    }

    /// The answer to a request with issue `used`, which is sent once more where it was refused and
    /// there are newer credentials now.
    pub(super) async fn answer<T, F>(&self, used: u64, request: impl Fn() -> F) -> StoreResult<T>
    where
        F: Future<Output = StoreResult<T>>,
    {
        match request().await {
            Err(error) if self.can_repeat(used, &error).await? => request().await,
            answer => answer,
        }
    }

    fn has_just_failed(&self) -> bool {
        let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        failed.is_some_and(|at| at.elapsed() < PAUSE)
    }
}

impl Issue {
    fn new(number: u64, config: AccessConfig) -> Self {
        note_secrets(&config.properties);
        config.credentials.iter().for_each(|(_, given)| note_secrets(given));
        let received_ms = Utc::now().timestamp_millis();
        Self { number, config, is_unasked: false, received_ms, received: Instant::now() }
    }

    /// Returns true if credentials of this issue should be renewed before they are used.
    fn is_due(&self, expires_at_ms: i64) -> bool {
        let life = expires_at_ms - self.received_ms;
        // Ended before it came: the clocks disagree, so that only the store can tell. Not so for
        // the first issue, which may have waited in another process.
        if life <= 0 && self.number > 0 {
            return false;
        }
        Utc::now().timestamp_millis() >= expires_at_ms - MARGIN_MS.min(life / 4)
    }
}

/// Returns true if a store refused the credentials. S3 answers 400 to a token that has ended.
fn is_refusal(error: &StoreError) -> bool {
    match error {
        StoreError::PermissionDenied { .. } | StoreError::Unauthenticated { .. } => true,
        StoreError::Generic { source, .. } => {
            let text = source.to_string();
            ["ExpiredToken", "TokenRefreshRequired", "InvalidToken"]
                .iter()
                .any(|code| text.contains(code))
        }
        _ => false,
    }
}

/// The provider of a store's credentials; None where it has to find its own.
pub(super) fn provider_of(
    credential_cache: &Arc<CredentialCache>,
    uri: &str,
    root: &str,
    options: &StoreOptions,
) -> Option<Provider> {
    let scheme = match options.secret.as_ref()? {
        Secret::S3 { .. } => Scheme::S3,
        Secret::Gcs(_) => Scheme::Gcs,
        Secret::AzureSas(_) | Secret::AzureBearer(_) | Secret::AzureKey(_) => Scheme::Azure,
    };
    let read: Read = |root, properties| {
        let options = store_options(root, properties)?;
        Ok((options.secret, options.expires_at_ms))
    };
    provider_for(credential_cache, uri, root, scheme, read)
}

/// The provider of the credentials of a kind of store, which `read` finds among an answer's
/// properties.
pub(super) fn provider_for(
    credential_cache: &Arc<CredentialCache>,
    uri: &str,
    root: &str,
    scheme: Scheme,
    read: Read,
) -> Option<Provider> {
    let credential_cache = Arc::clone(credential_cache);
    let (uri, root) = (uri.to_owned(), root.to_owned());
    Some(match scheme {
        Scheme::S3 => {
            let (make, cached) = (s3_credential, Mutex::default());
            Provider::S3(Arc::new(Vended { credential_cache, uri, root, read, make, cached }))
        }
        Scheme::Gcs => {
            let (make, cached) = (gcs_credential, Mutex::default());
            Provider::Gcs(Arc::new(Vended { credential_cache, uri, root, read, make, cached }))
        }
        Scheme::Azure => {
            let (make, cached) = (azure_credential, Mutex::default());
            Provider::Azure(Arc::new(Vended { credential_cache, uri, root, read, make, cached }))
        }
        Scheme::Local | Scheme::Http | Scheme::Foreign => return None,
    })
}

type Make<C> = fn(Secret) -> Option<C>;

/// From a store's root and properties to credentials and when they end, in milliseconds since
/// 1970-01-01 UTC.
pub(super) type Read = fn(&str, &BTreeMap<String, String>) -> Result<(Option<Secret>, Option<i64>)>;

/// The credentials of one store, as `object_store` wants them.
struct Vended<C> {
    credential_cache: Arc<CredentialCache>,
    /// A file of the store, by which its credentials are found among all.
    uri: String,
    root: String,
    read: Read,
    make: Make<C>,
    cached: Mutex<Option<Cached<C>>>,
}

struct Cached<C> {
    number: u64,
    credential: Arc<C>,
    expires_at_ms: Option<i64>,
}

impl<C> Vended<C> {
    /// The credential of an issue, parsed once.
    fn of(&self, issue: &Issue) -> Result<(Arc<C>, Option<i64>)> {
        let mut cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = cached.as_ref().filter(|known| known.number == issue.number) {
            return Ok((Arc::clone(&known.credential), known.expires_at_ms));
        }
        let (secret, expires_at_ms) =
            (self.read)(&self.root, &issue.config.properties_of(&self.uri))?;
        let credential = secret.and_then(self.make).ok_or_else(|| {
            Error::storage(format!("no credentials for {} are given any more", self.root))
        })?;
        let credential = Arc::new(credential);
        let number = issue.number;
        *cached = Some(Cached { number, credential: Arc::clone(&credential), expires_at_ms });
        Ok((credential, expires_at_ms))
    }

    async fn credential(&self) -> Result<Arc<C>> {
        let issue = self.credential_cache.current();
        if issue.is_unasked
            && let Some(refresh) = &self.credential_cache.refresh
        {
            let first = self.credential_cache.renew(&**refresh, issue.number).await?;
            return Ok(self.of(&first)?.0);
        }
        let (credential, expires_at_ms) = self.of(&issue)?;
        let (Some(refresh), Some(expires_at_ms)) = (&self.credential_cache.refresh, expires_at_ms)
        else {
            return Ok(credential);
        };
        if !issue.is_due(expires_at_ms) {
            return Ok(credential);
        }
        let has_ended = Utc::now().timestamp_millis() >= expires_at_ms;
        if !has_ended && self.credential_cache.has_just_failed() {
            return Ok(credential);
        }
        match self.credential_cache.renew(&**refresh, issue.number).await {
            Ok(newer) => Ok(self.of(&newer)?.0),
            // They still hold: there is time to ask again.
            Err(_) if !has_ended => Ok(credential),
            Err(error) => Err(Error::storage(format!(
                "the credentials for {} have ended, and there are no new ones",
                self.root
            ))
            .with_source(error)),
        }
    }
}

#[async_trait]
impl<C: fmt::Debug + Send + Sync> CredentialProvider for Vended<C> {
    type Credential = C;

    async fn get_credential(&self) -> object_store::Result<Arc<C>> {
        self.credential().await.map_err(|error| object_store::Error::Generic {
            store: "RoutedStore",
            source: Box::new(error),
        })
    }
}

impl<C> fmt::Debug for Vended<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Vended({})", self.root)
    }
}

fn s3_credential(secret: Secret) -> Option<AwsCredential> {
    match secret {
        Secret::S3 { key_id, secret_key, token } => {
            Some(AwsCredential { key_id, secret_key, token })
        }
        _ => None,
    }
}

fn gcs_credential(secret: Secret) -> Option<GcpCredential> {
    match secret {
        Secret::Gcs(bearer) => Some(GcpCredential { bearer }),
        _ => None,
    }
}

fn azure_credential(secret: Secret) -> Option<AzureCredential> {
    match secret {
        Secret::AzureBearer(token) => Some(AzureCredential::BearerToken(token)),
        Secret::AzureSas(token) => {
            let pairs = token.trim_start_matches('?').split('&').filter_map(|pair| {
                let (name, value) = pair.split_once('=')?;
                // The client encodes them again.
                let value = percent_decode_str(value).decode_utf8().ok()?;
                Some((name.to_owned(), value.into_owned()))
            });
            Some(AzureCredential::SASToken(pairs.collect()))
        }
        Secret::AzureKey(key) => {
            Some(AzureCredential::AccessKey(AzureAccessKey::try_new(&key).ok()?))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Empty;

    #[async_trait]
    impl Refresh for Empty {
        async fn refresh(&self) -> Result<AccessConfig> {
            Ok(AccessConfig::default())
        }
    }

    #[test]
    fn a_forked_process_does_not_wait_for_who_renewed_in_its_parent() {
        futures::executor::block_on(async {
            let credential_cache = CredentialCache {
                fork_lock: ForkLock::inherited().await,
                ..CredentialCache::new(AccessConfig::default(), Some(Arc::new(Empty)))
            };
            assert!(credential_cache.after_refusal(0).await.unwrap());
            assert_eq!(credential_cache.current().number, 1);
        });
    }
}
