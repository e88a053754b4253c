//! pyiceberg's properties of Glue and S3 Tables.

use std::collections::BTreeMap;

use super::signer::{Signer, keys_of};
use crate::{Error, Result};

/// The properties of the files of Glue's tables: they lie in Glue's region where nobody says
/// otherwise.
pub(super) fn glue_files(properties: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut files = properties.clone();
    let has_own = ["s3.region", "client.region"].iter().any(|name| files.contains_key(*name));
    if let Some(region) = properties.get("glue.region")
        && !has_own
    {
        files.insert("s3.region".into(), region.clone());
    }
    files
}

/// The properties of a catalog's files: a key for S3 Tables is one for its files too.
pub(super) fn s3tables_files(properties: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut files = properties.clone();
    let has_own = ["s3.access-key-id", "client.access-key-id"]
        .iter()
        .any(|name| properties.contains_key(*name));
    for name in ["access-key-id", "secret-access-key", "session-token"] {
        if let Some(value) = properties.get(&format!("s3tables.{name}"))
            && !has_own
        {
            files.insert(format!("s3.{name}"), value.clone());
        }
    }
    let arn = table_bucket(properties).ok();
    let region = properties
        .get("s3tables.region")
        .map(String::as_str)
        .or(arn.and_then(|arn| arn.split(':').nth(3)));
    if let Some(region) = region.filter(|region| !region.is_empty())
        && !properties.contains_key("client.region")
    {
        files.entry("s3.region".into()).or_insert_with(|| region.to_owned());
    }
    files
}

/// The ARN of the table bucket.
pub(in crate::iceberg::catalog) fn table_bucket(
    properties: &BTreeMap<String, String>,
) -> Result<&str> {
    let given = ["s3tables.warehouse", "warehouse", "table_bucket_arn"]
        .iter()
        .find_map(|name| properties.get(*name));
    match given {
        Some(arn) if arn.starts_with("arn:") => Ok(arn),
        Some(other) => Err(Error::config(format!(
            "\"s3tables.warehouse\" must be the ARN of a table bucket, as in \
             \"arn:aws:s3tables:eu-west-1:123456789012:bucket/name\", not {other:?}"
        ))),
        None => Err(Error::config(
            "a catalog of type \"s3tables\" needs the property \"s3tables.warehouse\": the ARN of \
             the table bucket",
        )),
    }
}

/// The signer of a service's requests: keys, profile and region among the properties that begin
/// with the service's name, then those of `client.`, then boto's names.
pub(super) fn service_signer(
    service: &str,
    region: Option<&str>,
    properties: &BTreeMap<String, String>,
) -> Result<Signer> {
    let first = |name: &str, other: &str| {
        [format!("{service}.{name}"), format!("client.{name}"), other.to_owned()]
            .iter()
            .find_map(|name| properties.get(name).filter(|text| !text.is_empty()).cloned())
    };
    let keys = keys_of(&[service, "client", ""], properties)?;
    let profile = first("profile-name", "profile_name");
    let profile = profile.as_deref().filter(|_| keys.is_none());
    let given = first("region", "region_name");
    let region = given.as_deref().or(region);
    Signer::try_new(service, keys, profile, region, (service, &format!("{service}.region")))
}
