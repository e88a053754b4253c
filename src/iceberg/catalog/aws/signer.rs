//! Signatures of AWS (Signature Version 4), and the keys that they are made with.

use std::collections::BTreeMap;

use object_store::aws::{AwsAuthorizer, AwsCredential, AwsCredentialProvider};
use object_store::client::HttpRequest;

use crate::storage::aws_identity;
use crate::{Error, Result};

/// Signs requests to one service in one region.
pub(in crate::iceberg::catalog) struct Signer {
    credentials: AwsCredentialProvider,
    service: String,
    region: String,
}

impl Signer {
    /// Finds keys and a region: those given come first, then the profile, then the sources that S3
    /// has, too. Errors name the place that wants them and the property for the region.
    ///
    /// # Errors
    ///
    /// `Config` where nothing says the region, and for a profile that no file has.
    pub(in crate::iceberg::catalog) fn try_new(
        service: &str,
        keys: Option<AwsCredential>,
        profile: Option<&str>,
        region: Option<&str>,
        (place, region_property): (&str, &str),
    ) -> Result<Self> {
        let (credentials, region) = aws_identity(keys, profile, region, place)?;
        let region = region.ok_or_else(|| {
            Error::config(format!(
                "the region of the catalog is not known; pass the property {region_property:?}, or \
                 set AWS_REGION"
            ))
        })?;
        Ok(Self { credentials, service: service.to_owned(), region })
    }

    /// The region that signatures name.
    pub(super) fn region(&self) -> &str {
        &self.region
    }

    /// Adds the headers of a signature to a request that has its method, URL, headers and body.
    ///
    /// # Errors
    ///
    /// Errors of the source of the keys.
    pub(in crate::iceberg::catalog) async fn sign(&self, request: &mut HttpRequest) -> Result<()> {
        let credential = self.credentials.get_credential().await.map_err(Error::from)?;
        AwsAuthorizer::new(&credential, &self.service, &self.region).authorize(request, None);
        // The client writes it itself, and alike.
        request.headers_mut().remove("host");
        Ok(())
    }
}

/// The keys of the first of `spaces` that has some: `glue.access-key-id` lies in the space `glue`.
///
/// # Errors
///
/// `Config` for one half of a pair.
pub(in crate::iceberg::catalog) fn keys_of(
    spaces: &[&str],
    properties: &BTreeMap<String, String>,
) -> Result<Option<AwsCredential>> {
    let get = |name: &str| properties.get(name).filter(|value| !value.is_empty()).cloned();
    for space in spaces {
        let names = ["access-key-id", "secret-access-key", "session-token"];
        let [key_id, secret_key, token] = match space.is_empty() {
            true => names.map(|name| format!("aws_{}", name.replace('-', "_"))),
            false => names.map(|name| format!("{space}.{name}")),
        };
        let missing = match (get(&key_id), get(&secret_key)) {
            (Some(id), Some(secret)) => {
                return Ok(Some(AwsCredential {
                    key_id: id,
                    secret_key: secret,
                    token: get(&token),
                }));
            }
            (None, None) => continue,
            (Some(_), None) => secret_key,
            (None, Some(_)) => key_id,
        };
        return Err(Error::config(format!(
            "{missing} is missing beside its other half; pass both"
        )));
    }
    Ok(None)
}
