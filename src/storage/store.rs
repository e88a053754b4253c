//! From a location and its options to an object store.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use object_store::aws::{AmazonS3Builder, AwsCredentialProvider};
use object_store::azure::{AzureCredentialProvider, MicrosoftAzureBuilder};
use object_store::client::SpawnedReqwestConnector;
use object_store::gcp::{GcpCredentialProvider, GoogleCloudStorageBuilder};
use object_store::http::HttpBuilder;
use object_store::local::LocalFileSystem;
use object_store::{ClientConfigKey, ObjectStore};

use super::location::{Location, Scheme};
use super::opaque::OpaqueStore;
use super::options::{AZURE_OPTIONS, GCS_OPTIONS, S3_OPTIONS, parse_keys, redact};
use crate::runtime::Runtimes;
use crate::{Error, Result, list_names};

/// Opens the store of a location. Cloud stores start from the environment (`AWS_*`, `GOOGLE_*`,
/// `AZURE_*`), which `options` override; keys are taken in any case.
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
    open_with(location, options, None)
}

/// What gives a store its credentials, request by request.
pub(super) enum Provider {
    S3(AwsCredentialProvider),
    Gcs(GcpCredentialProvider),
    Azure(AzureCredentialProvider),
}

/// Opens a store whose credentials come from `provider`, where there is one of its kind.
pub(super) fn open_with(
    location: &Location,
    options: &BTreeMap<String, String>,
    provider: Option<Provider>,
) -> Result<Arc<dyn ObjectStore>> {
    let root = location.store_root();
    let failed = |error: object_store::Error| build_error(root, &error, options);
    let store: Arc<dyn ObjectStore> = match location.scheme() {
        Scheme::Local => {
            let names: Vec<&str> = options.keys().map(String::as_str).collect();
            if !names.is_empty() {
                return Err(Error::config(format!(
                    "a local path takes no storage options, but got {}",
                    list_names(&names)
                ))
                .with_context("path", location));
            }
            return Ok(Arc::new(LocalFileSystem::new()));
        }
        Scheme::S3 => Arc::new(
            parse_keys(options, "S3", S3_OPTIONS)?
                .into_iter()
                .fold(
                    match provider {
                        Some(Provider::S3(given)) => {
                            AmazonS3Builder::from_env().with_credentials(given)
                        }
                        _ => AmazonS3Builder::from_env(),
                    },
                    |builder, (key, value)| builder.with_config(key, value),
                )
                .with_url(root)
                .with_http_connector(network()?)
                .build()
                .map_err(failed)?,
        ),
        Scheme::Gcs => Arc::new(
            parse_keys(options, "Google Cloud Storage", GCS_OPTIONS)?
                .into_iter()
                .fold(
                    match provider {
                        Some(Provider::Gcs(given)) => {
                            GoogleCloudStorageBuilder::from_env().with_credentials(given)
                        }
                        _ => GoogleCloudStorageBuilder::from_env(),
                    },
                    |builder, (key, value)| builder.with_config(key, value),
                )
                .with_url(root.replacen("gcs://", "gs://", 1))
                .with_http_connector(network()?)
                .build()
                .map_err(failed)?,
        ),
        Scheme::Azure => Arc::new(
            parse_keys(options, "Azure", AZURE_OPTIONS)?
                .into_iter()
                .fold(
                    match provider {
                        Some(Provider::Azure(given)) => {
                            MicrosoftAzureBuilder::from_env().with_credentials(given)
                        }
                        _ => MicrosoftAzureBuilder::from_env(),
                    },
                    |builder, (key, value)| builder.with_config(key, value),
                )
                .with_url(root)
                .with_http_connector(network()?)
                .build()
                .map_err(failed)?,
        ),
        Scheme::Http => Arc::new(
            parse_keys(options, "HTTP", &[])?
                .into_iter()
                .fold(
                    // Who writes http:// wants it.
                    HttpBuilder::new().with_config(
                        ClientConfigKey::AllowHttp,
                        root.starts_with("http://").to_string(),
                    ),
                    |builder, (key, value)| builder.with_config(key, value),
                )
                .with_url(root)
                .with_http_connector(network()?)
                .build()
                .map_err(failed)?,
        ),
    };
    Ok(Arc::new(OpaqueStore(store)))
}

/// Requests run on threads of their own, so that they do not wait behind decoding.
fn network() -> Result<SpawnedReqwestConnector> {
    Ok(SpawnedReqwestConnector::new(Runtimes::current()?.io().clone()))
}

/// The message alone, since the source's `Debug` form might show what the message hides.
fn build_error(root: &str, error: &impl fmt::Display, options: &BTreeMap<String, String>) -> Error {
    Error::config(format!("cannot open {root}: {}", redact(&error.to_string(), options)))
}
