//! pyiceberg's properties of Glue and S3 Tables under the names that the `iceberg` crates take.

use std::collections::{BTreeMap, HashMap};

use crate::{Error, Result};

/// The crate's name, and pyiceberg's names after the service's own `glue.` or `s3tables.`, and
/// after `client.`.
const SHARED: &[(&str, &str)] = &[
    ("region_name", "region"),
    ("aws_access_key_id", "access-key-id"),
    ("aws_secret_access_key", "secret-access-key"),
    ("aws_session_token", "session-token"),
    ("profile_name", "profile-name"),
];

/// Translates properties for the Glue crate.
pub(super) fn glue_properties(
    properties: &BTreeMap<String, String>,
) -> Result<HashMap<String, String>> {
    let mut known = service_properties("glue", properties)?;
    copy(properties, &["glue.endpoint", "uri"], "uri", &mut known);
    copy(properties, &["glue.id"], "catalog_id", &mut known);
    // The crate demands one, and only writers use it.
    known.insert(
        "warehouse".into(),
        properties
            .get("warehouse")
            .filter(|text| !text.is_empty())
            .map_or("none", |text| text)
            .into(),
    );
    Ok(known)
}

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

/// Translates properties for the S3 Tables crate.
pub(super) fn s3tables_properties(
    properties: &BTreeMap<String, String>,
) -> Result<HashMap<String, String>> {
    let mut known = service_properties("s3tables", properties)?;
    let bucket = table_bucket(properties)?;
    if let Some(region) = bucket.split(':').nth(3).filter(|region| !region.is_empty()) {
        known.entry("region_name".into()).or_insert_with(|| region.to_owned());
    }
    known.insert("table_bucket_arn".into(), bucket.to_owned());
    copy(properties, &["s3tables.endpoint", "uri"], "endpoint_url", &mut known);
    Ok(known)
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
pub(super) fn table_bucket(properties: &BTreeMap<String, String>) -> Result<&str> {
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

fn service_properties(
    service: &str,
    properties: &BTreeMap<String, String>,
) -> Result<HashMap<String, String>> {
    let mut known = HashMap::new();
    for (theirs, ours) in SHARED {
        let (own, shared) = (format!("{service}.{ours}"), format!("client.{ours}"));
        copy(properties, &[&own, &shared, theirs], theirs, &mut known);
    }
    // The crates fall back to the environment without a word.
    for (given, missing) in
        [("aws_access_key_id", "secret-access-key"), ("aws_secret_access_key", "access-key-id")]
    {
        let other = format!("aws_{}", missing.replace('-', "_"));
        if known.contains_key(given) && !known.contains_key(&other) {
            return Err(Error::config(format!(
                "{service}.{missing} is missing beside its other half; pass both"
            )));
        }
    }
    Ok(known)
}

fn copy(
    properties: &BTreeMap<String, String>,
    from: &[&str],
    to: &str,
    known: &mut HashMap<String, String>,
) {
    let given = from.iter().find_map(|name| properties.get(*name).filter(|text| !text.is_empty()));
    if let Some(value) = given {
        known.insert(to.to_owned(), value.clone());
    }
}
