//! Iceberg's names of storage properties, as pyiceberg takes them, become the options of a store.

use std::collections::BTreeMap;
use std::fmt;

use super::aliases::PROFILE;
use super::azure::azure_options;
use super::location::{Location, Scheme};
use super::options::{AZURE_OPTIONS, CLIENT_OPTIONS, GCS_OPTIONS, S3_OPTIONS};
use crate::{Error, Result};

/// The location and options that open one store.
pub(super) struct StoreOptions {
    /// The store's root, which Azure needs in another spelling than the files' names have.
    pub(super) location: Location,
    /// Options by the names of `object_store`, without those that `secret` holds.
    pub(super) options: BTreeMap<String, String>,
    /// Credentials that may be replaced by newer ones.
    pub(super) secret: Option<Secret>,
    /// When `secret` ends, in milliseconds since 1970-01-01 UTC; None where nobody said.
    pub(super) expires_at_ms: Option<i64>,
}

/// Credentials that a catalog can give. The `Debug` form shows none.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Secret {
    /// Key id, secret key, and the token of a session.
    S3 { key_id: String, secret_key: String, token: Option<String> },
    /// An OAuth2 token.
    Gcs(String),
    /// A shared access signature, a query string.
    AzureSas(String),
    /// An OAuth2 token.
    AzureBearer(String),
    /// The key of an account, in base64.
    AzureKey(String),
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::S3 { .. } => "S3(***)",
            Self::Gcs(_) => "Gcs(***)",
            Self::AzureSas(_) => "AzureSas(***)",
            Self::AzureBearer(_) => "AzureBearer(***)",
            Self::AzureKey(_) => "AzureKey(***)",
        })
    }
}

/// The options of the store with this root. Properties of other stores and of catalogs are passed
/// over; a local store takes none.
///
/// # Errors
///
/// `Config`, for a malformed value, half of a pair of keys, and properties that ask for unsupported
/// features (remote signing, assumed roles), which are named; never a value of a secret.
pub(super) fn store_options(
    root: &str,
    properties: &BTreeMap<String, String>,
) -> Result<StoreOptions> {
    let location = Location::of_store(root)?;
    let known = Properties(properties);
    match location.scheme() {
        Scheme::Local => Ok(StoreOptions {
            location,
            options: BTreeMap::new(),
            secret: None,
            expires_at_ms: None,
        }),
        Scheme::S3 => s3_options(location, known),
        Scheme::Gcs => gcs_options(location, known),
        Scheme::Azure => azure_options(root, known),
        Scheme::Foreign => Err(Error::config(format!("{root:?} names no object store"))),
        Scheme::Http => {
            let options = known.plain(CLIENT_OPTIONS);
            Ok(StoreOptions { location, options, secret: None, expires_at_ms: None })
        }
    }
}

/// Returns true if a property may say how files are reached, for any store.
pub(crate) fn is_storage_property(name: &str) -> bool {
    const SPACES: &[&str] = &["s3.", "client.", "gcs.", "adls."];
    let lower = name.to_ascii_lowercase();
    SPACES.iter().any(|space| lower.starts_with(space))
        || matches!(lower.as_str(), "expires-at-ms" | "expiration-time")
        || [S3_OPTIONS, S3_SHORT, GCS_OPTIONS, AZURE_OPTIONS, CLIENT_OPTIONS]
            .iter()
            .any(|names| names.contains(&lower.as_str()))
}

/// Properties by name, an empty value being none.
#[derive(Clone, Copy)]
pub(super) struct Properties<'a>(pub(super) &'a BTreeMap<String, String>);

impl<'a> Properties<'a> {
    pub(super) fn get(self, name: &str) -> Option<&'a str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// The first of several names that is given.
    pub(super) fn first(self, names: &[&str]) -> Option<&'a str> {
        names.iter().find_map(|name| self.get(name))
    }

    pub(super) fn flag(self, name: &str) -> Result<Option<bool>> {
        match self.get(name).map(str::to_ascii_lowercase).as_deref() {
            None => Ok(None),
            Some("true" | "t" | "1" | "yes" | "y" | "on") => Ok(Some(true)),
            Some("false" | "f" | "0" | "no" | "n" | "off") => Ok(Some(false)),
            Some(other) => {
                Err(Error::config(format!("{name} must be \"true\" or \"false\", not {other:?}")))
            }
        }
    }

    /// Milliseconds since 1970-01-01 UTC; a malformed number is no number, since a server wrote it.
    pub(super) fn millis(self, name: &str) -> Option<i64> {
        self.get(name).and_then(|value| value.parse().ok())
    }

    /// Those properties that have names of `object_store`, in any case.
    pub(super) fn plain(self, names: &[&str]) -> BTreeMap<String, String> {
        self.0
            .iter()
            .map(|(name, value)| (name.to_ascii_lowercase(), value.clone()))
            .filter(|(name, value)| names.contains(&name.as_str()) && !value.is_empty())
            .collect()
    }

    fn refuse(self, names: &[&str], instead: &str) -> Result<()> {
        match names.iter().find(|name| self.get(name).is_some()) {
            Some(name) => Err(Error::config(format!("{name} is not supported; {instead}"))),
            None => Ok(()),
        }
    }
}

/// A server that is reached by `http://` was meant.
pub(super) fn allow_http(options: &mut BTreeMap<String, String>, endpoint: &str) {
    let is_said = options.keys().any(|name| name.ends_with("allow_http"));
    if endpoint.starts_with("http://") && !is_said {
        options.insert("allow_http".into(), "true".into());
    }
}

/// Names without `aws_` that are taken too. No others: `token` is a catalog's.
const S3_SHORT: &[&str] = &[
    "access_key_id",
    "endpoint",
    "endpoint_url",
    "region",
    "secret_access_key",
    "session_token",
    "skip_signature",
    "virtual_hosted_style_request",
];

/// Key id, secret key and session token, in the order in which pyiceberg looks for them.
const S3_KEYS: &[[&str; 3]] = &[
    ["s3.access-key-id", "s3.secret-access-key", "s3.session-token"],
    ["client.access-key-id", "client.secret-access-key", "client.session-token"],
    ["aws_access_key_id", "aws_secret_access_key", "aws_session_token"],
    ["access_key_id", "secret_access_key", "session_token"],
];

fn s3_options(location: Location, known: Properties<'_>) -> Result<StoreOptions> {
    let mut options = known.plain(S3_OPTIONS);
    options.extend(known.plain(S3_SHORT));
    options.extend(known.plain(CLIENT_OPTIONS));
    let mut secret = None;
    for [key_id, secret_key, token] in S3_KEYS {
        let mut take =
            |name: &str| options.remove(name).or_else(|| known.get(name).map(str::to_owned));
        let found = (take(key_id), take(secret_key), take(token));
        secret = match (secret, found) {
            (Some(secret), _) => Some(secret),
            (None, (Some(key_id), Some(secret_key), token)) => {
                Some(Secret::S3 { key_id, secret_key, token })
            }
            (None, (Some(_), None, _)) => return Err(half_of(key_id, secret_key)),
            (None, (None, Some(_), _)) => return Err(half_of(secret_key, key_id)),
            (None, (None, None, _)) => None,
        };
    }
    let anonymous =
        known.flag("s3.anonymous")?.or(known.flag("s3.allow-anonymous")?).unwrap_or(false);
    if anonymous {
        options.insert("aws_skip_signature".into(), "true".into());
        secret = None;
    } else if secret.is_none() {
        known.refuse(
            &["s3.role-arn", "client.role-arn", "client.assume-role.arn"],
            "assume the role and pass its s3.access-key-id, s3.secret-access-key and s3.session-token",
        )?;
        let is_signed_remotely = known.flag("s3.remote-signing-enabled")?.unwrap_or(false);
        if is_signed_remotely || known.get("s3.signer").is_some() {
            return Err(Error::config(
                "the catalog wants to sign the requests to S3 itself (s3.remote-signing-enabled or \
                 s3.signer), which is not supported; let it vend credentials, or pass \
                 s3.access-key-id and s3.secret-access-key",
            ));
        }
    }
    let profile = known.first(&["s3.profile-name", "client.profile-name"]);
    if let (None, false, Some(profile)) = (&secret, anonymous, profile) {
        options.insert(PROFILE.into(), profile.into());
    }
    if let Some(region) = known.first(&["s3.region", "client.region"]) {
        options.insert("aws_region".into(), region.into());
    }
    let is_virtual = match known.flag("s3.path-style-access")? {
        Some(path_style) => Some(!path_style),
        None => known.flag("s3.force-virtual-addressing")?,
    };
    if let Some(endpoint) = known.get("s3.endpoint") {
        let endpoint = endpoint.trim_end_matches('/');
        let bucket = location.store_root().trim_start_matches("s3://");
        // With virtual addressing, the endpoint is the bucket's own.
        let endpoint = match (is_virtual, endpoint.split_once("://")) {
            (Some(true), Some((scheme, host))) => format!("{scheme}://{bucket}.{host}"),
            _ => endpoint.to_owned(),
        };
        options.insert("aws_endpoint".into(), endpoint);
        // Java's default is virtual addressing, which few servers of one's own know.
        options.insert(
            "aws_virtual_hosted_style_request".into(),
            is_virtual.unwrap_or(false).to_string(),
        );
    } else if let Some(is_virtual) = is_virtual {
        options.insert("aws_virtual_hosted_style_request".into(), is_virtual.to_string());
    }
    let endpoint =
        ["aws_endpoint", "aws_endpoint_url", "aws_endpoint_url_s3", "endpoint", "endpoint_url"]
            .iter()
            .find_map(|name| options.get(*name).cloned());
    allow_http(&mut options, endpoint.as_deref().unwrap_or_default());
    if let Some(proxy) = known.get("s3.proxy-uri") {
        options.insert("proxy_url".into(), proxy.into());
    }
    for (name, option) in
        [("s3.connect-timeout", "connect_timeout"), ("s3.request-timeout", "timeout")]
    {
        if let Some(seconds) = known.get(name) {
            options.insert(option.into(), seconds_text(name, seconds)?);
        }
    }
    if known.get("s3.sse.type") == Some("custom")
        && let Some(key) = known.get("s3.sse.key")
    {
        options.insert("aws_server_side_encryption".into(), "sse-c".into());
        options.insert("aws_sse_customer_key_base64".into(), key.into());
    }
    let expires_at_ms = known.millis("s3.session-token-expires-at-ms").or(other_expiry(known));
    Ok(StoreOptions { location, options, secret, expires_at_ms })
}

fn half_of(given: &str, missing: &str) -> Error {
    Error::config(format!("{given} is given without {missing}; pass both"))
}

/// The expiry that some catalogs give for all their credentials.
pub(super) fn other_expiry(known: Properties<'_>) -> Option<i64> {
    known.millis("expires-at-ms").or(known.millis("expiration-time"))
}

/// pyiceberg's timeouts are seconds.
fn seconds_text(name: &str, seconds: &str) -> Result<String> {
    match seconds.parse::<f64>() {
        Ok(number) if number > 0.0 && number.is_finite() => {
            Ok(format!("{}ms", (number * 1000.0).ceil()))
        }
        _ => Err(Error::config(format!("{name} must be a number of seconds, not {seconds:?}"))),
    }
}

fn gcs_options(location: Location, known: Properties<'_>) -> Result<StoreOptions> {
    let mut options = known.plain(GCS_OPTIONS);
    options.extend(known.plain(CLIENT_OPTIONS));
    let mut secret = known.get("gcs.oauth2.token").map(|token| Secret::Gcs(token.to_owned()));
    if known.flag("gcs.no-auth")?.or(known.flag("gcs.allow-anonymous")?).unwrap_or(false) {
        options.insert("google_skip_signature".into(), "true".into());
        secret = None;
    }
    if let Some(key) = known.get("gcs.credentials-json") {
        options.insert("google_service_account_key".into(), key.into());
    }
    if let Some(host) = known.get("gcs.service.host") {
        options.insert("google_base_url".into(), host.trim_end_matches('/').into());
    }
    let endpoint = options.get("google_base_url").cloned();
    allow_http(&mut options, endpoint.as_deref().unwrap_or_default());
    let expires_at_ms = known.millis("gcs.oauth2.token-expires-at").or(other_expiry(known));
    Ok(StoreOptions { location, options, secret, expires_at_ms })
}

/// Azure's options, and nothing that is a secret of its own kind.
pub(super) fn plain_azure(known: Properties<'_>) -> BTreeMap<String, String> {
    let mut options = known.plain(AZURE_OPTIONS);
    options.extend(known.plain(CLIENT_OPTIONS));
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(root: &str, pairs: &[(&str, &str)]) -> StoreOptions {
        let pairs = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        store_options(root, &pairs.collect()).unwrap()
    }

    fn given(options: &StoreOptions) -> Vec<(&str, &str)> {
        options.options.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
    }

    #[test]
    fn names_of_iceberg_become_options_of_s3() {
        let found = options(
            "s3://bucket",
            &[
                ("s3.endpoint", "http://127.0.0.1:9000/"),
                ("s3.access-key-id", "id"),
                ("s3.secret-access-key", "secret"),
                ("s3.session-token-expires-at-ms", "17"),
                ("client.region", "eu-west-1"),
                ("client.session-token", "of another key"),
                ("s3.request-timeout", "1.5"),
                ("token", "of the catalog"),
                ("gcs.oauth2.token", "of another store"),
            ],
        );
        let expected = [
            ("allow_http", "true"),
            ("aws_endpoint", "http://127.0.0.1:9000"),
            ("aws_region", "eu-west-1"),
            ("aws_virtual_hosted_style_request", "false"),
            ("timeout", "1500ms"),
        ];
        assert_eq!(given(&found), expected);
        let (key_id, secret_key) = ("id".to_owned(), "secret".to_owned());
        assert_eq!(found.secret, Some(Secret::S3 { key_id, secret_key, token: None }));
        assert_eq!(found.expires_at_ms, Some(17));
        assert!(!format!("{:?}", found.secret).contains("secret"));
    }

    #[test]
    fn a_bucket_can_be_addressed_by_its_host() {
        let endpoint = ("s3.endpoint", "https://oss.example");
        let found = options("s3://bucket", &[endpoint, ("s3.force-virtual-addressing", "True")]);
        assert_eq!(found.options["aws_endpoint"], "https://bucket.oss.example");
        let found = options("s3://bucket", &[("s3.path-style-access", "false")]);
        assert_eq!(given(&found), [("aws_virtual_hosted_style_request", "true")]);
    }

    #[test]
    fn names_of_object_store_are_taken_too() {
        let found = options(
            "s3://bucket",
            &[
                ("AWS_Access_Key_Id", "id"),
                ("aws_secret_access_key", "x"),
                ("ENDPOINT", "http://h"),
            ],
        );
        assert_eq!(given(&found), [("allow_http", "true"), ("endpoint", "http://h")]);
        assert!(found.secret.is_some());
        let found = options(
            "s3://bucket",
            &[("s3.anonymous", "true"), ("s3.access-key-id", "id"), ("s3.secret-access-key", "x")],
        );
        assert_eq!(given(&found), [("aws_skip_signature", "true")]);
        assert!(found.secret.is_none());
    }

    #[test]
    fn local_files_take_no_options() {
        let found = options("file://", &[("s3.endpoint", "x"), ("adls.account-key", "x")]);
        assert!(found.options.is_empty() && found.secret.is_none());
    }

    #[test]
    fn names_of_iceberg_become_options_of_google() {
        let found = options(
            "gs://bucket",
            &[
                ("gcs.oauth2.token", "token"),
                ("gcs.oauth2.token-expires-at", "17"),
                ("gcs.service.host", "http://127.0.0.1:4443"),
            ],
        );
        let expected = [("allow_http", "true"), ("google_base_url", "http://127.0.0.1:4443")];
        assert_eq!(given(&found), expected);
        assert_eq!(
            (found.secret, found.expires_at_ms),
            (Some(Secret::Gcs("token".into())), Some(17))
        );
    }

    #[test]
    fn an_azure_account_has_tokens_of_its_own() {
        let root = "abfss://c@acct.dfs.core.windows.net";
        let found = options(
            root,
            &[
                ("adls.sas-token", "sig=all"),
                ("adls.sas-token.acct.dfs.core.windows.net", "sig=own"),
                ("adls.sas-token.other", "sig=other"),
                ("adls.sas-token-expires-at-ms.acct.dfs.core.windows.net", "17"),
            ],
        );
        assert_eq!(found.location.store_root(), "az://c");
        assert_eq!(given(&found), [("account_name", "acct")]);
        assert_eq!(found.secret, Some(Secret::AzureSas("sig=own".into())));
        assert_eq!(found.expires_at_ms, Some(17));
        let found = options(
            "abfss://c@acct.dfs.core.chinacloudapi.cn",
            &[("adls.account-key", "key"), ("adls.client-id", "id")],
        );
        let endpoint = "https://acct.blob.core.chinacloudapi.cn";
        let expected = [
            ("account_key", "key"),
            ("account_name", "acct"),
            ("azure_endpoint", endpoint),
            ("client_id", "id"),
        ];
        assert_eq!(given(&found), expected);
        let found = options(
            "az://c",
            &[(
                "adls.connection-string",
                "DefaultEndpointsProtocol=http;AccountName=dev;AccountKey=a2V5==;\
                 BlobEndpoint=http://127.0.0.1:10000/dev;",
            )],
        );
        let expected = [
            ("account_key", "a2V5=="),
            ("account_name", "dev"),
            ("allow_http", "true"),
            ("azure_endpoint", "http://127.0.0.1:10000/dev"),
        ];
        assert_eq!(given(&found), expected);
    }
}
