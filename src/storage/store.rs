//! From a location and its options to an object store.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue};
use object_store::aws::{AmazonS3Builder, AwsCredentialProvider};
use object_store::azure::{AzureCredentialProvider, MicrosoftAzureBuilder};
use object_store::gcp::{GcpCredentialProvider, GoogleCloudStorageBuilder};
use object_store::http::HttpBuilder;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ClientConfigKey, ClientOptions, ObjectStore};

use super::aliases::{HEADERS, translate};
use super::layer::Layered;
use super::location::{Location, Scheme};
use super::machine_keys::with_machine_keys;
use super::network::{Connector, NetworkOptions};
use super::options::{AZURE_OPTIONS, GCS_OPTIONS, S3_OPTIONS, parse_keys, redact};
use super::provided::{Provided, provided};
use super::resumable_body::Resumed;
use super::scoped::{Account, ScopedStore};
use super::secrets::note_secrets;
use crate::runtime::Runtimes;
use crate::{Error, Result, list_names};

/// Opens the store of a location. Cloud stores start from the environment (`AWS_*`, `GOOGLE_*`,
/// `AZURE_*`), which `options` override; names are those of `object_store` and of fsspec, in any
/// case.
///
/// Neither the store's `Debug` form nor an error of this function shows a secret.
///
/// # Errors
///
/// `Config`, for an unknown, repeated or malformed option, and any option for a local path.
pub fn open_store(
    location: &Location,
    options: &BTreeMap<String, String>,
) -> Result<Arc<dyn ObjectStore>> {
    open_with(location, &translate(location.scheme(), options)?, None)
}

/// The source of a store's credentials, request by request.
pub(super) enum Provider {
    S3(AwsCredentialProvider),
    Gcs(GcpCredentialProvider),
    Azure(AzureCredentialProvider),
}

/// A client of S3 by options of `object_store`.
pub(super) fn s3_builder(
    options: &BTreeMap<String, String>,
    provider: &Option<Provider>,
) -> Result<AmazonS3Builder> {
    let builder = match provider {
        Some(Provider::S3(given)) => {
            AmazonS3Builder::from_env().with_credentials(Arc::clone(given))
        }
        _ => AmazonS3Builder::from_env(),
    };
    let keys = parse_keys(options, Scheme::S3, S3_OPTIONS)?;
    Ok(keys.into_iter().fold(builder, |builder, (key, value)| builder.with_config(key, value)))
}

/// Opens a store whose credentials come from `provider`, where there is one of its kind. Options
/// have the names of `object_store`, and names of `aliases` that it does not know.
pub(super) fn open_with(
    location: &Location,
    options: &BTreeMap<String, String>,
    provider: Option<Provider>,
) -> Result<Arc<dyn ObjectStore>> {
    note_secrets(options);
    let root = location.store_root();
    let Provided { options, provider, credential_cache } = provided(location, options, provider)?;
    let options = &options;
    let failed = |error: object_store::Error| build_error(root, &error, options);
    if location.is_local() {
        return open_local(location, options);
    }
    let mut options = options.clone();
    let network = NetworkOptions::take(&mut options)?;
    let options = &options;
    limit_requests(&network)?;
    let connector = || Connector::new(&network);
    // The builders have no trait in common.
    macro_rules! cloud {
        ($builder:ident, $scheme:ident, $names:expr, $root:expr) => {{
            let builder = match provider {
                Some(Provider::$scheme(given)) => $builder::from_env().with_credentials(given),
                _ => $builder::from_env(),
            };
            let builder = parse_keys(options, Scheme::$scheme, $names)?
                .into_iter()
                .fold(builder, |builder, (key, value)| builder.with_config(key, value))
                .with_url($root)
                .with_retry(network.retry.clone())
                .with_http_connector(connector()?);
            Arc::new(builder.build().map_err(failed)?)
        }};
    }
    let store: Arc<dyn ObjectStore> = match location.scheme() {
        Scheme::Local => return open_local(location, options),
        Scheme::S3 => {
            let builder = s3_builder(options, &provider)?.with_url(root);
            let builder = match provider {
                Some(_) => {
                    builder.with_retry(network.retry.clone()).with_http_connector(connector()?)
                }
                None => with_machine_keys(builder, &network, root)?,
            };
            Arc::new(builder.build().map_err(failed)?)
        }
        Scheme::Gcs => {
            let root = root.replacen("gcs://", "gs://", 1);
            cloud!(GoogleCloudStorageBuilder, Gcs, GCS_OPTIONS, root)
        }
        Scheme::Azure => cloud!(MicrosoftAzureBuilder, Azure, AZURE_OPTIONS, root),
        Scheme::Http => Arc::new(
            HttpBuilder::new()
                .with_client_options(http_options(root, options)?)
                .with_url(root)
                .with_retry(network.retry.clone())
                .with_http_connector(connector()?)
                .build()
                .map_err(failed)?,
        ),
        Scheme::Foreign => {
            return Err(Error::config(format!("{root:?} names no object store")));
        }
    };
    let layer = Resumed { retry: network.retry.clone() };
    let store: Arc<dyn ObjectStore> = Arc::new(Layered { inner: store, layer });
    Ok(match credential_cache {
        Some(_) => {
            let (prefix, secrets) = (Path::default(), options.clone());
            Arc::new(ScopedStore::inside(
                root,
                Account { prefix, store, credential_cache, secrets },
            ))
        }
        None => store,
    })
}

/// The client of an HTTP server: who writes `http://` wants it, and `headers.*` go with each
/// request.
fn http_options(root: &str, options: &BTreeMap<String, String>) -> Result<ClientOptions> {
    let mut headers = HeaderMap::new();
    let mut others = BTreeMap::new();
    for (name, value) in options {
        let Some(header) = name.strip_prefix(HEADERS) else {
            others.insert(name.clone(), value.clone());
            continue;
        };
        let malformed = || Error::config(format!("{name} in storage_options is no HTTP header"));
        let mut value = HeaderValue::from_str(value).map_err(|_| malformed())?;
        value.set_sensitive(true);
        headers.insert(HeaderName::from_str(header).map_err(|_| malformed())?, value);
    }
    let client = ClientOptions::new()
        .with_config(ClientConfigKey::AllowHttp, root.starts_with("http://").to_string());
    let client = parse_keys(&others, Scheme::Http, &[])?
        .into_iter()
        .fold(client, |client, (key, value)| client.with_config(key, value));
    Ok(match headers.is_empty() {
        true => client,
        false => client.with_default_headers(headers),
    })
}

fn open_local(
    location: &Location,
    options: &BTreeMap<String, String>,
) -> Result<Arc<dyn ObjectStore>> {
    let names: Vec<&str> = options.keys().map(String::as_str).collect();
    if names.is_empty() {
        return Ok(Arc::new(LocalFileSystem::new()));
    }
    let message = format!("a local path takes no storage options, but got {}", list_names(&names));
    Err(Error::config(message).with_context("path", location))
}

fn limit_requests(network: &NetworkOptions) -> Result<()> {
    if let Some(most) = network.most_requests {
        Runtimes::current()?.limiter().allow_at_most(most);
    }
    Ok(())
}

/// The message alone, since the source's `Debug` form might show what the message hides.
fn build_error(root: &str, error: &impl fmt::Display, options: &BTreeMap<String, String>) -> Error {
    let told = redact(&error.to_string(), options);
    let hint = match told.contains("Account must be specified") {
        true => {
            "; pass account_name, or name the account in the path: abfss://container@account.dfs.core.windows.net/…"
        }
        false => "",
    };
    Error::config(format!("cannot open {root}: {told}{hint}"))
}
