//! From a user's description of a table's place to locations and their one store.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use chrono::Utc;
use object_store::ObjectStore;
use serde::{Deserialize, Serialize};

use super::access::AccessConfig;
use super::aliases::{GOOGLE_TOKEN, PROFILE, store_name, translate};
use super::foreign::{ForeignCredentials, ForeignFiles, opener};
use super::foreign_store::ForeignStore;
use super::location::{Location, Scheme};
use super::options::is_credential;
use super::properties::Secret;
use super::scoped::{Account, ScopedStore};
use super::scopes::{Scope, StorageOptions, flat, merged};
use super::store::{Provider, open_with};
use super::vended::{CredentialCache, Refresh, provider_for};
use crate::{Error, Result, list_names};

/// When credentials end, in the answer of a [`ForeignCredentials`].
const EXPIRY: &str = "expires_at_ms";

/// How the files of a table are reached.
///
/// The serialised form is the options alone, and holds secrets: it is for a worker process, and
/// never for a checkpoint or a log. The `Debug` form shows none.
#[derive(Clone, Default, Serialize, Deserialize)]
pub struct StoreAccess {
    /// Options of the stores.
    #[serde(default, skip_serializing_if = "StorageOptions::is_empty")]
    pub options: StorageOptions,
    /// Who is asked for credentials, which come before those among the options.
    #[serde(skip)]
    pub credentials: Option<Arc<dyn ForeignCredentials>>,
    /// A file system that is no store of `object_store`.
    #[serde(skip)]
    pub files: Option<Arc<dyn ForeignFiles>>,
}

/// A store, where in it the user's paths lead, and how another process reaches it.
pub struct OpenedPaths {
    /// As given; not empty, and all in one store.
    pub locations: Vec<Location>,
    /// The store.
    pub store: Arc<dyn ObjectStore>,
    /// With the file system that was found for URLs that `object_store` does not know.
    pub access: StoreAccess,
}

impl OpenedPaths {
    /// The root of the store, as [`Location::store_root`].
    pub fn root(&self) -> &str {
        self.locations.first().map_or("", Location::store_root)
    }
}

impl StoreAccess {
    /// Opens the one store of some paths. Where there are credentials to ask for, they are asked
    /// for now.
    ///
    /// # Errors
    ///
    /// `Config`, for an empty list, paths in two stores, and options that the store does not know;
    /// errors of the credential provider; errors of the bindings for a file system that is not
    /// installed.
    pub async fn open_paths(&self, paths: &[String]) -> Result<OpenedPaths> {
        let mut access = self.clone();
        let mut locations = Vec::with_capacity(paths.len());
        if let Some(files) = &access.files {
            if !access.options.is_empty() || access.credentials.is_some() {
                return Err(Error::config(
                    "a file system has its own options and credentials; pass them where it is made, \
                     not beside filesystem=",
                ));
            }
            let root = files.root();
            for path in paths {
                locations.push(Location::foreign(&root, path)?);
            }
        } else if let Some((files, inner)) = self.open_foreign(paths).await? {
            let root = files.root();
            for path in inner {
                locations.push(Location::foreign(&root, &path)?);
            }
            access.files = Some(files);
            access.options = StorageOptions::default();
        } else {
            for path in paths {
                locations.push(Location::parse(path)?);
            }
        }
        let Some(first) = locations.first() else {
            return Err(Error::config("an empty list of paths was given; name at least one file"));
        };
        let other = locations.iter().find(|other| other.store_root() != first.store_root());
        if let Some(other) = other {
            return Err(Error::config(format!(
                "one table reads one store, but {first} and {other} are in two; register two tables and \
                 join them with UNION ALL"
            )));
        }
        let store = access.open(first).await?;
        Ok(OpenedPaths { locations, store, access })
    }

    /// Opens the store of files that another process found, by [`Location::store_root`].
    ///
    /// # Errors
    ///
    /// As [`open_paths`](Self::open_paths).
    pub async fn open_root(&self, root: &str) -> Result<Arc<dyn ObjectStore>> {
        match &self.files {
            Some(files) => Ok(Arc::new(ForeignStore::new(Arc::clone(files)))),
            None => self.open(&Location::of_store(root)?).await,
        }
    }

    async fn open(&self, location: &Location) -> Result<Arc<dyn ObjectStore>> {
        if let Some(files) = &self.files {
            return Ok(Arc::new(ForeignStore::new(Arc::clone(files))));
        }
        let mut accounts = self.accounts(location).await?;
        // The local store has no secrets, and PinnedStore wants its open files.
        if location.is_local()
            && let Some(account) = accounts.pop()
        {
            return Ok(account.store);
        }
        Ok(Arc::new(ScopedStore::new(self, location, accounts)))
    }

    /// Opens an account for each part of a store that has options of its own.
    pub(super) async fn accounts(&self, location: &Location) -> Result<Vec<Account>> {
        let mut accounts = Vec::new();
        for scope in self.options.of_store(location)? {
            accounts.push(self.open_scope(location, scope).await?);
        }
        Ok(accounts)
    }

    async fn open_scope(&self, location: &Location, scope: Scope) -> Result<Account> {
        let Scope { prefix, options } = scope;
        let scheme = location.scheme();
        let names_own = || options.keys().any(|name| is_credential(scheme, name));
        let asked = self.credentials.as_ref().filter(|from| !(from.is_fallback() && names_own()));
        let Some(credentials) = asked else {
            let store = open_with(location, &options, None)?;
            return Ok(Account { prefix, store, credential_cache: None, secrets: options });
        };
        if matches!(scheme, Scheme::Local | Scheme::Http) {
            return Err(Error::config(format!(
                "{} take no credential_provider; pass headers as storage_options for HTTP",
                store_name(scheme)
            )));
        }
        let root = location.store_root();
        let url = match prefix.is_root() {
            true => format!("{root}/"),
            false => format!("{root}/{prefix}/"),
        };
        let who = credentials.describe();
        let asked = Arc::new(Asked { credentials: Arc::clone(credentials), url, scheme });
        let first = asked.refresh().await?;
        let (answer, expires_at_ms) = parsed(scheme, &first.properties)?;
        let given = merged(scheme, &options, answer);
        let (secret, rest) = split(scheme, given);
        if expires_at_ms.is_some_and(|end| Utc::now().timestamp_millis() >= end) {
            return Err(Error::storage(format!(
                "{who} gave credentials for {root} that have already ended (expires_at)"
            )));
        }
        if secret.is_none() && expires_at_ms.is_some() {
            return Err(Error::config(format!(
                "{who} gave expires_at and none of the credentials for {} that can be \
                 renewed: {}",
                store_name(scheme),
                renewable(scheme),
            )));
        }
        let secrets = rest.clone();
        let credential_cache = Arc::new(CredentialCache::new(first, Some(asked)));
        let provider: Option<Provider> = match secret {
            Some(_) => provider_for(&credential_cache, root, root, scheme, |root, properties| {
                let scheme = Location::of_store(root)?.scheme();
                let (options, expires_at_ms) = parsed(scheme, properties)?;
                Ok((split(scheme, options).0, expires_at_ms))
            }),
            None => None,
        };
        let store = open_with(location, &rest, provider)?;
        Ok(Account { prefix, store, credential_cache: Some(credential_cache), secrets })
    }

    /// The file system of URLs that `object_store` does not know, and the paths in it.
    async fn open_foreign(
        &self,
        paths: &[String],
    ) -> Result<Option<(Arc<dyn ForeignFiles>, Vec<String>)>> {
        let Some((url, scheme)) =
            paths.iter().find_map(|path| Some((path, Location::foreign_scheme(path)?)))
        else {
            return Ok(None);
        };
        let Some(opener) = opener() else { return Ok(None) };
        // Where nobody knows the scheme, the error of a location names the nearest one.
        if !opener.knows(scheme).await? {
            return Ok(None);
        }
        if self.credentials.is_some() {
            return Err(Error::config(format!(
                "{scheme}:// is read by a file system of fsspec, which takes no credential_provider; pass \
                 its own options as storage_options"
            )));
        }
        Ok(Some(opener.open(paths, &self.options.of_foreign(url)?).await?))
    }
}

impl fmt::Debug for StoreAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreAccess")
            .field("options", &self.options)
            .field("credentials", &self.credentials.as_ref().map(|given| given.name()))
            .field("files", &self.files.as_ref().map(|files| files.root()))
            .finish()
    }
}

/// Asks a user's function for credentials.
struct Asked {
    credentials: Arc<dyn ForeignCredentials>,
    url: String,
    scheme: Scheme,
}

#[async_trait]
impl Refresh for Asked {
    async fn refresh(&self) -> Result<AccessConfig> {
        let answer = self.credentials.ask(&self.url).await?;
        let properties = flat(&answer, self.scheme)?;
        // A malformed answer is told here, and not when its keys are used.
        let (options, _) = parsed(self.scheme, &properties)?;
        if options.contains_key(PROFILE) {
            return Err(Error::config(format!(
                "{} names a profile; pass it as storage_options, or give its keys",
                self.credentials.describe()
            )));
        }
        Ok(AccessConfig { properties, credentials: Vec::new() })
    }
}

/// An answer as options under one name each, and when its credentials end.
fn parsed(
    scheme: Scheme,
    answer: &BTreeMap<String, String>,
) -> Result<(BTreeMap<String, String>, Option<i64>)> {
    let mut answer = answer.clone();
    let expires_at_ms = answer.remove(EXPIRY).and_then(|end| end.parse().ok());
    if scheme == Scheme::Gcs
        && let Some(token) = answer.get("token")
        && !token.trim_start().starts_with('{')
        && token != "anon"
        && !std::path::Path::new(token).exists()
    {
        // An access token, which in options would be the name of a file.
        let token = answer.remove("token").unwrap_or_default();
        answer.insert(GOOGLE_TOKEN.into(), token);
    }
    Ok((translate(scheme, &answer)?, expires_at_ms))
}

/// Credentials that can be replaced while a store is open, and the other options.
fn split(
    scheme: Scheme,
    mut options: BTreeMap<String, String>,
) -> (Option<Secret>, BTreeMap<String, String>) {
    let secret = match scheme {
        Scheme::S3 => {
            let key_id = options.get("aws_access_key_id").cloned();
            match (key_id, options.get("aws_secret_access_key").cloned()) {
                (Some(key_id), Some(secret_key)) => {
                    options.remove("aws_access_key_id");
                    options.remove("aws_secret_access_key");
                    let token = options.remove("aws_session_token");
                    Some(Secret::S3 { key_id, secret_key, token })
                }
                _ => None,
            }
        }
        Scheme::Gcs => options.remove(GOOGLE_TOKEN).map(Secret::Gcs),
        Scheme::Azure => options
            .remove("azure_storage_token")
            .map(Secret::AzureBearer)
            .or_else(|| options.remove("azure_storage_sas_key").map(Secret::AzureSas))
            .or_else(|| options.remove("azure_storage_account_key").map(Secret::AzureKey)),
        Scheme::Local | Scheme::Http | Scheme::Foreign => None,
    };
    (secret, options)
}

fn renewable(scheme: Scheme) -> String {
    let names: &[&str] = match scheme {
        Scheme::S3 => &["key", "secret", "token"],
        Scheme::Gcs => &["token"],
        _ => &["token", "sas_token", "account_key"],
    };
    list_names(names)
}
