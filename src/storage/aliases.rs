//! The names of storage options in the vocabularies that users know, kind of store by kind of
//! store.
//!
//! `object_store`'s own names (those of delta-rs and polars, with and without `aws_`, `google_` and
//! `azure_`) and fsspec's (`s3fs`, `gcsfs`, `adlfs`, its HTTP file system) become one name for each
//! option. A nested option of fsspec is written with dots here: `client_kwargs.region_name`.

use std::collections::BTreeMap;
use std::str::FromStr;

use object_store::ClientConfigKey;
use object_store::aws::AmazonS3ConfigKey;
use object_store::azure::AzureConfigKey;
use object_store::gcp::GoogleConfigKey;

use super::location::Scheme;
use super::secrets::note_secrets;
use crate::{Error, Result};

/// The AWS profile to take keys, region and endpoint from; no option of `object_store`.
pub(super) const PROFILE: &str = "aws_profile";
/// An OAuth2 token for Google; no option of `object_store`.
pub(super) const GOOGLE_TOKEN: &str = "google_bearer_token";
/// The prefix of a header for every request to an HTTP server; no option of `object_store`.
pub(super) const HEADERS: &str = "headers.";

/// s3fs's names, and names that AWS's own tools print.
const S3: &[(&str, &str)] = &[
    ("accesskeyid", "aws_access_key_id"),
    ("anon", "aws_skip_signature"),
    ("client_kwargs.aws_access_key_id", "aws_access_key_id"),
    ("client_kwargs.aws_secret_access_key", "aws_secret_access_key"),
    ("client_kwargs.aws_session_token", "aws_session_token"),
    ("client_kwargs.endpoint_url", "aws_endpoint_url"),
    ("client_kwargs.region_name", "aws_region"),
    ("client_kwargs.use_ssl", "use_ssl"),
    ("client_kwargs.verify", "verify"),
    ("config_kwargs.connect_timeout", "connect_seconds"),
    ("config_kwargs.max_pool_connections", "pool_max_idle_per_host"),
    ("config_kwargs.read_timeout", "read_seconds"),
    ("config_kwargs.region_name", "aws_region"),
    ("config_kwargs.s3.addressing_style", "addressing_style"),
    ("config_kwargs.signature_version", "signature_version"),
    ("config_kwargs.user_agent", "user_agent"),
    ("key", "aws_access_key_id"),
    ("password", "aws_secret_access_key"),
    ("profile", PROFILE),
    ("region_name", "aws_region"),
    ("requester_pays", "aws_request_payer"),
    ("secret", "aws_secret_access_key"),
    ("secretaccesskey", "aws_secret_access_key"),
    ("sessiontoken", "aws_session_token"),
    ("username", "aws_access_key_id"),
    ("verify", "verify"),
    ("aws_profile", PROFILE),
    ("use_ssl", "use_ssl"),
];

/// gcsfs's names.
const GCS: &[(&str, &str)] = &[
    ("access_token", GOOGLE_TOKEN),
    ("anon", "google_skip_signature"),
    ("bearer_token", GOOGLE_TOKEN),
    ("endpoint_url", "google_base_url"),
    ("google_bearer_token", GOOGLE_TOKEN),
    ("project", "project"),
    ("token", "token"),
];

/// adlfs's names.
const AZURE: &[(&str, &str)] = &[
    ("account_host", "account_host"),
    ("anon", "azure_skip_signature"),
    ("connection_string", "connection_string"),
    ("credential", "credential"),
];

/// Those of fsspec's HTTP file system.
const HTTP: &[(&str, &str)] = &[];

/// Options that tune a library of fsspec and mean nothing to any other reader.
const TUNING: &[&str] = &[
    "access",
    "asynchronous",
    "block_size",
    "blocksize",
    "cache_options",
    "cache_regions",
    "cache_timeout",
    "cache_type",
    "check_connection",
    "consistency",
    "default_block_size",
    "default_cache_type",
    "default_fill_cache",
    "default_location",
    "encoded",
    "fixed_upload_size",
    "listings_expiry_time",
    "location_mode",
    "loop",
    "max_concurrency",
    "max_paths",
    "same_names",
    "secure_serialize",
    "session",
    "session_kwargs",
    "simple_links",
    "size_policy",
    "skip_instance_cache",
    "use_listings_cache",
    "version_aware",
];

/// Prefixes of nested options that have no meaning here, each with its owner.
const REFUSED: &[(&str, &str)] = &[
    ("config_kwargs.", "of botocore"),
    ("client_kwargs.", "of the library's HTTP client"),
    ("s3_additional_kwargs.", "of boto3's requests"),
];

/// The option of `object_store` and its value, and defaults that go with it.
#[derive(Default)]
struct Meaning {
    said: Vec<(String, String)>,
    implied: Vec<(String, String)>,
}

impl Meaning {
    fn of(name: &str, value: &str) -> Self {
        Self { said: vec![(name.to_owned(), value.to_owned())], implied: Vec::new() }
    }

    fn implied(name: &str, value: &str) -> Self {
        Self { said: Vec::new(), implied: vec![(name.to_owned(), value.to_owned())] }
    }
}

/// The names that fsspec's libraries have for options of a kind of store.
pub(super) fn foreign_names(scheme: Scheme) -> impl Iterator<Item = &'static str> {
    let table = table(scheme).iter().map(|(name, _)| *name);
    table.filter(|name| !matches!(*name, "accesskeyid" | "secretaccesskey" | "sessiontoken"))
}

/// Options under one name each. An unknown option keeps its name: the opened store refuses it.
///
/// # Errors
///
/// `Config`, for two names of one option, a value that has no meaning here, and an option that only
/// tunes a library of fsspec. No value that may be a secret is repeated.
pub(super) fn translate(
    scheme: Scheme,
    given: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>> {
    note_secrets(given);
    let mut found: BTreeMap<String, (String, &str)> = BTreeMap::new();
    let mut implied = Vec::new();
    for (name, value) in given {
        let lower = name.to_ascii_lowercase();
        let meaning = meaning(scheme, name, &lower, value)?;
        implied.extend(meaning.implied);
        for (key, value) in meaning.said {
            if let Some((_, other)) = found.insert(key, (value, name)) {
                return Err(Error::config(format!(
                    "the storage options {other:?} and {name:?} are two names of one; give one of \
                     them"
                )));
            }
        }
    }
    let mut options: BTreeMap<String, String> =
        found.into_iter().map(|(key, (value, _))| (key, value)).collect();
    for (key, value) in implied {
        options.entry(key).or_insert(value);
    }
    allow_http(scheme, &mut options);
    let is_virtual = given.iter().any(|(name, value)| {
        name.eq_ignore_ascii_case("config_kwargs.s3.addressing_style") && value == "virtual"
    });
    if is_virtual && options.contains_key("aws_endpoint_url_s3") {
        return Err(Error::config(
            "config_kwargs: {\"s3\": {\"addressing_style\": \"virtual\"}} together with an endpoint is not \
             supported; write the bucket into the endpoint (https://bucket.host) and pass \
             aws_virtual_hosted_style_request=True",
        ));
    }
    Ok(options)
}

fn table(scheme: Scheme) -> &'static [(&'static str, &'static str)] {
    match scheme {
        Scheme::S3 => S3,
        Scheme::Gcs => GCS,
        Scheme::Azure => AZURE,
        Scheme::Http => HTTP,
        Scheme::Local | Scheme::Foreign => &[],
    }
}

/// The meaning of one option. `name` is the user's spelling, and `lower` has it in small letters.
fn meaning(scheme: Scheme, name: &str, lower: &str, value: &str) -> Result<Meaning> {
    if scheme == Scheme::Http {
        let header = ["client_kwargs.headers.", HEADERS]
            .iter()
            .find_map(|start| lower.starts_with(start).then(|| &name[start.len()..]));
        if let Some(header) = header {
            return Ok(Meaning::of(&format!("{HEADERS}{}", header.to_ascii_lowercase()), value));
        }
    }
    let known = table(scheme).iter().find(|(alias, _)| *alias == lower).map(|(_, key)| *key);
    match known {
        Some(key) => special(key, name, value),
        None => match canonical(scheme, lower) {
            Some(key) => Ok(Meaning::of(&key, value)),
            None => unknown(scheme, name, lower, value),
        },
    }
}

/// The one name of an option that `object_store` knows.
pub(super) fn canonical(scheme: Scheme, name: &str) -> Option<String> {
    fn parsed<K: FromStr + AsRef<str>>(name: &str) -> Option<String> {
        name.parse::<K>().ok().map(|key| key.as_ref().to_owned())
    }
    match scheme {
        Scheme::S3 => parsed::<AmazonS3ConfigKey>(name),
        Scheme::Gcs => parsed::<GoogleConfigKey>(name),
        Scheme::Azure => parsed::<AzureConfigKey>(name),
        Scheme::Http => parsed::<ClientConfigKey>(name),
        Scheme::Local | Scheme::Foreign => None,
    }
}

/// An option of fsspec that is more than another name.
fn special(key: &str, name: &str, value: &str) -> Result<Meaning> {
    match key {
        "use_ssl" => Ok(match flag(name, value)? {
            true => Meaning::default(),
            false => Meaning::implied("allow_http", "true"),
        }),
        "verify" => match flag(name, value) {
            Ok(true) => Ok(Meaning::default()),
            Ok(false) => Ok(Meaning::of("allow_invalid_certificates", "true")),
            Err(_) => Err(Error::config(format!(
                "{name}={value:?} names a bundle of certificates, which is not supported; set \
                 SSL_CERT_FILE, or verify to true or false"
            ))),
        },
        "connect_seconds" => Ok(Meaning::of("connect_timeout", &seconds(name, value)?)),
        "read_seconds" => Ok(Meaning::of("timeout", &seconds(name, value)?)),
        "addressing_style" => match value {
            "path" => Ok(Meaning::of("aws_virtual_hosted_style_request", "false")),
            "virtual" => Ok(Meaning::of("aws_virtual_hosted_style_request", "true")),
            "auto" => Ok(Meaning::default()),
            other => Err(Error::config(format!(
                "{name}={other:?} must be \"path\", \"virtual\" or \"auto\""
            ))),
        },
        "signature_version" => match value {
            "s3v4" => Ok(Meaning::default()),
            "unsigned" => Ok(Meaning::of("aws_skip_signature", "true")),
            other => Err(Error::config(format!(
                "{name}={other:?} is not supported: requests are signed by version 4 (\"s3v4\"); \
                 anon=True signs none"
            ))),
        },
        // gcsfs needs it for listing buckets, which nobody does here.
        "project" => Ok(Meaning::default()),
        "token" => google_token(name, value),
        "connection_string" => connection_string(name, value),
        "account_host" => Ok(Meaning::of("azure_storage_endpoint", &with_scheme(value))),
        "credential" => match value.contains("sig=") {
            true => Ok(Meaning::of("azure_storage_sas_key", value)),
            false => Err(Error::config(format!(
                "{name} must be a shared access signature (a text with \"sig=\"); pass an account's \
                 key as account_key, and objects of azure.identity by credential_provider="
            ))),
        },
        other => Ok(with_canonical_names(Meaning::of(other, value))),
    }
}

/// The targets of the tables in the spelling in which `object_store` prints them.
fn with_canonical_names(mut meaning: Meaning) -> Meaning {
    for (key, _) in &mut meaning.said {
        for scheme in [Scheme::S3, Scheme::Gcs, Scheme::Azure] {
            if let Some(name) = canonical(scheme, key) {
                *key = name;
                break;
            }
        }
    }
    meaning
}

/// gcsfs's `token`: a word, the path of a file of credentials, or the content of such a file.
fn google_token(name: &str, value: &str) -> Result<Meaning> {
    match value {
        "anon" => return Ok(Meaning::of("google_skip_signature", "true")),
        // What is tried without options, too.
        "google_default" | "cloud" => return Ok(Meaning::default()),
        "browser" | "cache" => {
            return Err(Error::config(format!(
                "{name}={value:?} is not supported; log in by `gcloud auth application-default login` \
                 and leave it out"
            )));
        }
        _ => {}
    }
    if value.trim_start().starts_with('{') {
        return match json_type(value).as_deref() {
            Some("authorized_user") => Err(Error::config(format!(
                "{name} holds the credentials of a user (type \"authorized_user\"), which are read \
                 from files only; pass the path of the file"
            ))),
            _ => Ok(Meaning::of("google_service_account_key", value)),
        };
    }
    if value.starts_with("ya29.") {
        return Ok(Meaning::of(GOOGLE_TOKEN, value));
    }
    match std::fs::read_to_string(value) {
        Ok(text) => match json_type(&text).as_deref() {
            Some("authorized_user") => Ok(Meaning::of("google_application_credentials", value)),
            _ => Ok(Meaning::of("google_service_account", value)),
        },
        // It may be a secret, so it is not repeated.
        Err(error) => Err(Error::config(format!(
            "{name} must be \"anon\", \"google_default\", \"cloud\", the path of a file of credentials, \
             or a dict with its content; the value given is none of the words, and as a file it \
             cannot be read ({}); pass an access token as access_token",
            error.kind()
        ))),
    }
}

fn json_type(text: &str) -> Option<String> {
    let value: serde_json::Value = serde_json::from_str(text).ok()?;
    Some(value.get("type")?.as_str()?.to_owned())
}

/// The parts of an Azure connection string.
fn connection_string(name: &str, value: &str) -> Result<Meaning> {
    let mut meaning = Meaning::default();
    let (mut account, mut protocol, mut suffix) = (None, "https", None);
    let mut endpoint = None;
    for part in value.split(';').filter(|part| !part.trim().is_empty()) {
        let (key, text) = part.split_once('=').ok_or_else(|| {
            Error::config(format!(
                "{name} must be of the form Name=value;Name=value, as Azure shows it"
            ))
        })?;
        let mut put = |key: &str, text: &str| meaning.said.push((key.into(), text.into()));
        match key.trim() {
            "AccountName" => {
                account = Some(text);
                put("azure_storage_account_name", text);
            }
            "AccountKey" => put("azure_storage_account_key", text),
            "SharedAccessSignature" => put("azure_storage_sas_key", text),
            "BlobEndpoint" => endpoint = Some(text.trim_end_matches('/').to_owned()),
            "DefaultEndpointsProtocol" => protocol = text,
            "EndpointSuffix" if text != "core.windows.net" => suffix = Some(text),
            "UseDevelopmentStorage" if text == "true" => put("azure_storage_use_emulator", "true"),
            // The endpoints of other services say nothing more.
            _ => {}
        }
    }
    if let (None, Some(account), Some(suffix)) = (&endpoint, account, suffix) {
        endpoint = Some(format!("{protocol}://{account}.blob.{suffix}"));
    }
    if let Some(endpoint) = endpoint {
        meaning.said.push(("azure_storage_endpoint".into(), endpoint));
    }
    Ok(with_canonical_names(meaning))
}

fn unknown(scheme: Scheme, name: &str, lower: &str, value: &str) -> Result<Meaning> {
    if scheme == Scheme::Local || scheme == Scheme::Foreign {
        return Ok(Meaning::of(name, value));
    }
    if scheme == Scheme::S3 && lower == "s3_additional_kwargs.requestpayer" {
        let pays = (value == "requester").to_string();
        return Ok(Meaning::of("aws_request_payer", &pays));
    }
    let near = crate::nearest(lower, foreign_names(scheme).filter(|known| known.contains('.')));
    if let Some((_, what)) = REFUSED.iter().find(|(start, _)| lower.starts_with(start)) {
        let known: Vec<&str> = foreign_names(scheme).filter(|known| known.contains('.')).collect();
        let instead = match (near, known.is_empty()) {
            (Some(near), _) => format!("did you mean {near:?}?"),
            (None, true) => "leave it out".to_owned(),
            (None, false) => format!("those taken are {}", known.join(", ")),
        };
        return Err(Error::config(format!(
            "the storage option {name:?} {what} is not supported for {}; {instead}, or pass the \
             library's file system as filesystem=",
            store_name(scheme)
        )));
    }
    if TUNING.contains(&lower) {
        return Err(Error::config(format!(
            "the storage option {name:?} tunes a library of fsspec and means nothing here; leave it \
             out, or pass the library's file system as filesystem="
        )));
    }
    Ok(Meaning::of(lower, value))
}

/// The kind of store in messages.
pub(super) fn store_name(scheme: Scheme) -> &'static str {
    match scheme {
        Scheme::Local => "local files",
        Scheme::S3 => "S3",
        Scheme::Gcs => "Google Cloud Storage",
        Scheme::Azure => "Azure",
        Scheme::Http => "HTTP",
        Scheme::Foreign => "a file system of fsspec",
    }
}

/// Allows `http://` for a server with such an address, since the user wrote it. The endpoint of S3
/// in its own name precedes an environment variable.
fn allow_http(scheme: Scheme, options: &mut BTreeMap<String, String>) {
    let variables: &[&str] = match scheme {
        Scheme::S3 => &["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"],
        Scheme::Gcs => &["GOOGLE_BASE_URL"],
        Scheme::Azure => &["AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"],
        _ => return,
    };
    let key = match scheme {
        Scheme::S3 => "aws_endpoint_url_s3",
        Scheme::Gcs => "google_base_url",
        _ => "azure_storage_endpoint",
    };
    let plain = canonical(scheme, "aws_endpoint").or(canonical(scheme, key));
    if let Some(plain) = plain
        && plain != key
        && let Some(value) = options.remove(&plain)
    {
        options.entry(key.to_owned()).or_insert(value);
    }
    if let Some(value) = options.get_mut(key) {
        *value = value.trim_end_matches('/').to_owned();
    }
    let given = options.get(key).cloned();
    let endpoint =
        given.or_else(|| variables.iter().find_map(|variable| std::env::var(variable).ok()));
    if endpoint.is_some_and(|endpoint| endpoint.starts_with("http://")) {
        options.entry("allow_http".to_owned()).or_insert_with(|| "true".to_owned());
    }
}

fn with_scheme(host: &str) -> String {
    match host.contains("://") {
        true => host.trim_end_matches('/').to_owned(),
        false => format!("https://{host}"),
    }
}

/// Returns true if an option's value says yes.
pub(super) fn flag(name: &str, value: &str) -> Result<bool> {
    match value.to_ascii_lowercase().as_str() {
        "true" | "t" | "1" | "yes" | "y" | "on" => Ok(true),
        "false" | "f" | "0" | "no" | "n" | "off" => Ok(false),
        _ => Err(Error::config(format!("{name} must be true or false"))),
    }
}

/// botocore's timeouts are seconds.
fn seconds(name: &str, value: &str) -> Result<String> {
    match value.parse::<f64>() {
        Ok(number) if number > 0.0 && number.is_finite() => {
            Ok(format!("{}ms", (number * 1000.0).ceil()))
        }
        _ => Err(Error::config(format!("{name} must be a number of seconds, not {value:?}"))),
    }
}

#[cfg(test)]
mod tests;
