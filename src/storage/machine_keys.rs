//! Keys of AWS where nobody gave any: the role of the machine. Its metadata service is asked
//! shortly, since most machines have none; then the error says how to give keys.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, AwsCredential, AwsCredentialProvider};
use object_store::{CredentialProvider, RetryConfig};

use super::network::{Connector, NetworkOptions};
use super::options::redact;
use crate::{Error, Result};

/// How long an answer of the metadata service may take: it is on the same machine.
const PATIENCE: Duration = Duration::from_secs(2);

/// How often a machine is asked again that may have no metadata service.
const REPEATS: usize = 1;

/// Completes the builder of a store of S3: its connections, and the role of the machine where
/// neither options nor the environment name another source of keys. `place` names the store in
/// errors.
///
/// # Errors
///
/// `Config` where the operating system refuses a thread.
pub(super) fn with_machine_keys(
    builder: AmazonS3Builder,
    network: &NetworkOptions,
    place: &str,
) -> Result<AmazonS3Builder> {
    let builder =
        builder.with_retry(network.retry.clone()).with_http_connector(Connector::new(network)?);
    if !needs_machine(&builder) {
        return Ok(builder);
    }
    let place = place.to_owned();
    let (quick, was_found) = (OnceLock::new(), AtomicBool::new(false));
    let keys =
        MachineKeys { builder: builder.clone(), network: network.clone(), place, quick, was_found };
    Ok(builder.with_credentials(Arc::new(keys)))
}

/// The keys that AWS's rules find for `place`, from a builder without a store.
///
/// # Errors
///
/// `Config`, for keys of which one half is missing.
pub(super) fn aws_keys(builder: AmazonS3Builder, place: &str) -> Result<AwsCredentialProvider> {
    let network = NetworkOptions::take(&mut Default::default())?;
    let store = with_machine_keys(builder.with_bucket_name("none"), &network, place)?.build();
    Ok(store.map_err(|error| Error::config(error.to_string()))?.credentials().clone())
}

/// Returns true if `object_store` would ask the machine.
fn needs_machine(builder: &AmazonS3Builder) -> bool {
    use AmazonS3ConfigKey as Key;
    let has = |key: Key| builder.get_config_value(&key).is_some_and(|value| !value.is_empty());
    let is_given = [Key::AccessKeyId, Key::SecretAccessKey, Key::ContainerCredentialsRelativeUri];
    let is_named = [
        (Key::WebIdentityTokenFile, Key::RoleArn),
        (Key::ContainerCredentialsFullUri, Key::ContainerAuthorizationTokenFile),
    ];
    !is_given.into_iter().any(has) && !is_named.into_iter().any(|(one, two)| has(one) && has(two))
}

/// The role of the machine.
struct MachineKeys {
    builder: AmazonS3Builder,
    network: NetworkOptions,
    place: String,
    /// Asks for a short time; keeps the keys until they end.
    quick: OnceLock<AwsCredentialProvider>,
    /// The machine has a role: asking for a longer time is worth it.
    was_found: AtomicBool,
}

impl std::fmt::Debug for MachineKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MachineKeys").field("place", &self.place).finish()
    }
}

impl MachineKeys {
    fn provider(&self, network: &NetworkOptions) -> object_store::Result<AwsCredentialProvider> {
        let connector = Connector::new(network).map_err(own)?;
        let builder = self.builder.clone().with_retry(network.retry.clone());
        Ok(builder.with_http_connector(connector).build()?.credentials().clone())
    }

    fn quick(&self) -> object_store::Result<&AwsCredentialProvider> {
        if let Some(known) = self.quick.get() {
            return Ok(known);
        }
        let mut network = self.network.clone();
        network.patience = network.patience.min(PATIENCE);
        network.retry = RetryConfig {
            max_retries: network.retry.max_retries.min(REPEATS),
            retry_timeout: network.retry.retry_timeout.min(PATIENCE),
            ..network.retry
        };
        let made = self.provider(&network)?;
        Ok(self.quick.get_or_init(|| made))
    }

    fn missing(&self, why: &str) -> object_store::Error {
        own(Error::storage(format!(
            "no credentials for {}: neither options nor the environment nor ~/.aws give keys, and {why}. Pass \
             storage_options={{\"key\": …, \"secret\": …}} or {{\"profile\": …}}, set AWS_ACCESS_KEY_ID and \
             AWS_SECRET_ACCESS_KEY, or pass {{\"skip_signature\": \"true\"}} if everybody may read it",
            self.place
        )))
    }
}

#[async_trait]
impl CredentialProvider for MachineKeys {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        // AWS's own variable for it.
        let is_off = std::env::var("AWS_EC2_METADATA_DISABLED");
        if is_off.is_ok_and(|value| value.eq_ignore_ascii_case("true")) {
            return Err(
                self.missing("AWS_EC2_METADATA_DISABLED keeps the machine from being asked")
            );
        }
        let asked = self.quick()?.get_credential().await;
        let asked = match asked {
            Err(_) if self.was_found.load(Ordering::Relaxed) => {
                self.provider(&self.network)?.get_credential().await
            }
            other => other,
        };
        asked.inspect(|_| self.was_found.store(true, Ordering::Relaxed)).map_err(|error| {
            let cause = redact(&root_of(&error), &Default::default());
            self.missing(&format!(
                "the metadata service of the machine gives none either ({cause})"
            ))
        })
    }
}

fn own(error: Error) -> object_store::Error {
    object_store::Error::Generic { store: "S3", source: Box::new(error) }
}

/// The text of the cause at the root.
fn root_of(error: &dyn std::error::Error) -> String {
    let root = std::iter::successors(Some(error), |&cause| cause.source()).last();
    root.map_or_else(|| error.to_string(), ToString::to_string)
}
