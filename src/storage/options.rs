//! Storage options: which ones each store knows, and which hold secrets.

use std::collections::BTreeMap;
use std::str::FromStr;

use super::aliases::{GOOGLE_TOKEN, HEADERS, PROFILE, foreign_names, store_name};
use super::location::Scheme;
use super::network::NETWORK_OPTIONS;
use crate::{Error, Result, list_names, suggestion};

/// Options of every remote store.
pub(super) const CLIENT_OPTIONS: &[&str] = &[
    "allow_http",
    "allow_invalid_certificates",
    "connect_timeout",
    "default_content_type",
    "http1_only",
    "http2_keep_alive_interval",
    "http2_keep_alive_timeout",
    "http2_keep_alive_while_idle",
    "http2_max_frame_size",
    "http2_only",
    "pool_idle_timeout",
    "pool_max_idle_per_host",
    "proxy_ca_certificate",
    "proxy_excludes",
    "proxy_url",
    "randomize_addresses",
    "user_agent",
];

/// More options of an S3 store; each also without `aws_`.
pub(super) const S3_OPTIONS: &[&str] = &[
    "aws_access_key_id",
    "aws_allow_http",
    "aws_checksum_algorithm",
    "aws_container_authorization_token_file",
    "aws_container_credentials_full_uri",
    "aws_container_credentials_relative_uri",
    "aws_default_region",
    "aws_endpoint",
    "aws_endpoint_url",
    "aws_endpoint_url_s3",
    "aws_endpoint_url_sts",
    "aws_imdsv1_fallback",
    "aws_metadata_endpoint",
    "aws_region",
    "aws_request_payer",
    "aws_role_arn",
    "aws_role_session_name",
    "aws_s3_express",
    "aws_secret_access_key",
    "aws_session_token",
    "aws_skip_signature",
    "aws_sse_customer_key_base64",
    "aws_unsigned_payload",
    "aws_virtual_hosted_style_request",
    "aws_web_identity_token_file",
];

/// More options of a Google store; each also without `google_`.
pub(super) const GCS_OPTIONS: &[&str] = &[
    "google_application_credentials",
    "google_base_url",
    "google_service_account",
    "google_service_account_key",
    "google_service_account_path",
    "google_skip_signature",
];

/// More options of an Azure store.
pub(super) const AZURE_OPTIONS: &[&str] = &[
    "account_key",
    "account_name",
    "azure_allow_http",
    "azure_endpoint",
    "azure_federated_token_file",
    "azure_msi_endpoint",
    "azure_msi_resource_id",
    "azure_object_id",
    "azure_skip_signature",
    "azure_storage_account_key",
    "azure_storage_account_name",
    "azure_storage_authority_host",
    "azure_storage_client_id",
    "azure_storage_client_secret",
    "azure_storage_sas_key",
    "azure_storage_sas_token",
    "azure_storage_tenant_id",
    "azure_storage_token",
    "azure_storage_use_emulator",
    "azure_use_azure_cli",
    "azure_use_fabric_endpoint",
    "client_id",
    "client_secret",
    "sas_token",
    "tenant_id",
];

/// The keys of `options`, in any case, as the store's own type, each with its value.
///
/// # Errors
///
/// `Config`, for an unknown key (with the nearest known one) and for two names of one key.
pub(super) fn parse_keys<K: FromStr + PartialEq>(
    options: &BTreeMap<String, String>,
    scheme: Scheme,
    known: &[&str],
) -> Result<Vec<(K, String)>> {
    let mut parsed: Vec<(K, &str, String)> = Vec::with_capacity(options.len());
    for (name, value) in options {
        let key = name.to_ascii_lowercase().parse::<K>().map_err(|_| {
            let own: Vec<&str> =
                known.iter().chain(CLIENT_OPTIONS).chain(NETWORK_OPTIONS).copied().collect();
            let foreign: Vec<&str> = foreign_names(scheme).collect();
            let short = known.iter().filter_map(|name| {
                name.strip_prefix("aws_").or_else(|| name.strip_prefix("google_"))
            });
            let all = own.iter().chain(&foreign).copied().chain(short);
            let fsspec = match foreign.is_empty() {
                true => String::new(),
                false => format!(", and fsspec's names {}", list_names(&foreign)),
            };
            Error::config(format!(
                "unknown storage option {name:?} for {}{}; the options are {}{fsspec}",
                store_name(scheme),
                suggestion(name, all),
                list_names(&own),
            ))
        })?;
        if let Some((_, other, _)) = parsed.iter().find(|(seen, ..)| *seen == key) {
            return Err(Error::config(format!(
                "the storage options {other:?} and {name:?} are two names of one; give one of them"
            )));
        }
        parsed.push((key, name, value.clone()));
    }
    Ok(parsed.into_iter().map(|(key, _, value)| (key, value)).collect())
}

/// The options that say who asks, in the names of `aliases`.
pub(super) fn is_credential(scheme: Scheme, name: &str) -> bool {
    let names: &[&str] = match scheme {
        Scheme::S3 => &[
            "aws_access_key_id",
            "aws_secret_access_key",
            "aws_session_token",
            "aws_skip_signature",
            "aws_role_arn",
            "aws_role_session_name",
            "aws_web_identity_token_file",
            "aws_container_credentials_relative_uri",
            "aws_container_credentials_full_uri",
            "aws_container_authorization_token_file",
            PROFILE,
        ],
        Scheme::Gcs => &[
            "google_service_account",
            "google_service_account_key",
            "google_application_credentials",
            "google_skip_signature",
            GOOGLE_TOKEN,
        ],
        Scheme::Azure => &[
            "azure_storage_account_key",
            "azure_storage_client_id",
            "azure_storage_client_secret",
            "azure_storage_tenant_id",
            "azure_storage_authority_id",
            "azure_storage_sas_key",
            "azure_storage_token",
            "azure_federated_token_file",
            "azure_use_azure_cli",
            "azure_skip_signature",
        ],
        Scheme::Http => return name.starts_with(HEADERS),
        Scheme::Local | Scheme::Foreign => return false,
    };
    names.contains(&name)
}

/// Shorter values are words or numbers of a message, more likely than secrets in it.
const SHORTEST: usize = 4;

/// `text` without the values of options and environment variables that hold secrets.
pub(crate) fn redact(text: &str, options: &BTreeMap<String, String>) -> String {
    let environment = std::env::vars_os().filter_map(|(name, value)| {
        let (name, value) = (name.into_string().ok()?, value.into_string().ok()?);
        let is_store = ["AWS_", "AZURE_", "GOOGLE_"].iter().any(|start| name.starts_with(start));
        is_store.then_some((name, value))
    });
    let given = options.iter().map(|(name, value)| (name.clone(), value.clone()));
    let mut secrets: Vec<String> = given
        .chain(environment)
        .filter(|(name, value)| is_secret(name) && value.len() >= SHORTEST && !is_flag(value))
        .map(|(_, value)| value)
        .collect();
    // The longest first, so that no rest of a secret remains beside a shorter one.
    secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
    secrets.iter().fold(text.to_owned(), |text, secret| text.replace(secret.as_str(), "***"))
}

/// Properties as they may be shown: the values of secrets are stars, and so is a password in a URL.
pub(crate) fn shown(properties: &BTreeMap<String, String>) -> BTreeMap<&str, String> {
    let value = |name: &str, value: &str| match is_secret(name) {
        true => "***".to_owned(),
        false => without_password(value),
    };
    properties.iter().map(|(name, text)| (name.as_str(), value(name, text))).collect()
}

/// `postgresql://user:password@host/db?password=password` without the passwords.
pub(crate) fn without_password(url: &str) -> String {
    let (address, query) = url.split_once('?').map_or((url, None), |(a, q)| (a, Some(q)));
    let shortened = || {
        let (scheme, rest) = address.split_once("://")?;
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (user, host) = authority.rsplit_once('@')?;
        let (name, _) = user.split_once(':')?;
        Some(format!("{scheme}://{name}:***@{host}{path}"))
    };
    let address = shortened().unwrap_or_else(|| address.to_owned());
    let Some(query) = query else { return address };
    let pairs = query.split('&').map(|pair| match pair.split_once('=') {
        Some((name, _)) if is_secret(name) => format!("{name}=***"),
        _ => pair.to_owned(),
    });
    format!("{address}?{}", pairs.collect::<Vec<_>>().join("&"))
}

pub(super) fn is_flag(value: &str) -> bool {
    matches!(value.to_ascii_lowercase().as_str(), "true" | "false")
}

/// Returns true if an option's value must never be shown.
pub(crate) fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let is_path = name.ends_with("_file") || name.ends_with("_path");
    !is_path
        && [
            "secret",
            "key",
            "token",
            "sas",
            "password",
            "proxy_url",
            "service_account",
            "credential",
            "connection-string",
            // A header of a catalog or a server may be its authorization.
            "header.",
            "headers.",
        ]
        .iter()
        .any(|part| name.contains(part))
}

#[cfg(test)]
mod tests {
    use object_store::ClientConfigKey;
    use object_store::aws::AmazonS3ConfigKey;
    use object_store::azure::AzureConfigKey;
    use object_store::gcp::GoogleConfigKey;

    use super::*;

    #[test]
    fn every_option_offered_is_known_to_its_store() {
        assert!(CLIENT_OPTIONS.iter().all(|name| name.parse::<ClientConfigKey>().is_ok()));
        for name in S3_OPTIONS.iter().chain(CLIENT_OPTIONS) {
            assert!(name.parse::<AmazonS3ConfigKey>().is_ok(), "{name}");
        }
        for name in GCS_OPTIONS.iter().chain(CLIENT_OPTIONS) {
            assert!(name.parse::<GoogleConfigKey>().is_ok(), "{name}");
        }
        for name in AZURE_OPTIONS.iter().chain(CLIENT_OPTIONS) {
            assert!(name.parse::<AzureConfigKey>().is_ok(), "{name}");
        }
    }

    #[test]
    fn secrets_are_redacted() {
        let options = BTreeMap::from([
            ("AWS_SECRET_ACCESS_KEY".to_owned(), "hunter2".to_owned()),
            ("token".to_owned(), "hunter2hunter2".to_owned()),
            ("aws_region".to_owned(), "eu-west-1".to_owned()),
        ]);
        let text = redact("eu-west-1 hunter2 hunter2hunter2x", &options);
        assert_eq!(text, "eu-west-1 *** ***x");
    }
}
