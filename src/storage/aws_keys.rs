//! Keys of AWS for services other than S3.

use std::collections::BTreeMap;
use std::sync::Arc;

use object_store::StaticCredentialProvider;
use object_store::aws::{AmazonS3ConfigKey, AwsCredential, AwsCredentialProvider};

use super::aliases::PROFILE;
use super::location::Location;
use super::machine_keys::aws_keys;
use super::provided::{Provided, provided};
use super::store::{Provider, s3_builder};
use crate::Result;

/// The source of keys, and the region where something says it. Keys come from `keys`, then from the
/// profile, then from where S3's come from without options. `place` names the service in errors.
///
/// # Errors
///
/// `Config` for a profile that no file has.
pub(crate) fn aws_identity(
    keys: Option<AwsCredential>,
    profile: Option<&str>,
    region: Option<&str>,
    place: &str,
) -> Result<(AwsCredentialProvider, Option<String>)> {
    // The place of options alone: no bucket is asked.
    let location = Location::of_store("s3://none")?;
    let given = [(PROFILE, profile), ("aws_region", region)];
    let options: BTreeMap<String, String> = given
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())))
        .collect();
    let keys = keys.map(|keys| Provider::S3(Arc::new(StaticCredentialProvider::new(keys))));
    let Provided { options, provider, .. } = provided(&location, &options, keys)?;
    let builder = s3_builder(&options, &provider)?;
    let region = builder.get_config_value(&AmazonS3ConfigKey::Region);
    let credentials = match provider {
        Some(Provider::S3(given)) => given,
        // Only requests to a bucket use the region, and one must be given.
        _ => aws_keys(builder.with_region(region.as_deref().unwrap_or("us-east-1")), place)?,
    };
    Ok((credentials, region))
}
