//! From a location and its options to an object store.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::client::SpawnedReqwestConnector;
use object_store::gcp::GoogleCloudStorageBuilder;
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
                .fold(AmazonS3Builder::from_env(), |builder, (key, value)| {
                    builder.with_config(key, value)
                })
                .with_url(root)
                .with_http_connector(network()?)
                .build()
                .map_err(failed)?,
        ),
        Scheme::Gcs => Arc::new(
            parse_keys(options, "Google Cloud Storage", GCS_OPTIONS)?
                .into_iter()
                .fold(GoogleCloudStorageBuilder::from_env(), |builder, (key, value)| {
                    builder.with_config(key, value)
                })
                .with_url(root.replacen("gcs://", "gs://", 1))
                .with_http_connector(network()?)
                .build()
                .map_err(failed)?,
        ),
        Scheme::Azure => Arc::new(
            parse_keys(options, "Azure", AZURE_OPTIONS)?
                .into_iter()
                .fold(MicrosoftAzureBuilder::from_env(), |builder, (key, value)| {
                    builder.with_config(key, value)
                })
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
