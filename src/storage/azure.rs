//! Iceberg's `adls.*` properties as the options of an Azure store.

use super::location::Location;
use super::properties::{Properties, Secret, StoreOptions, allow_http, other_expiry, plain_azure};
use crate::{Error, Result};

/// The host's suffix after the account, in hosts that `object_store` knows.
const KNOWN_HOSTS: &[&str] = &["dfs.core.windows.net", "blob.core.windows.net"];

/// Microsoft's clouds for some countries. Of another host a URI is not enough: a table's metadata
/// names its files, and the account's token goes where they lie.
const CLOUDS: &[&str] = &["core.chinacloudapi.cn", "core.usgovcloudapi.net", "core.cloudapi.de"];

/// The options of a container. An account's own tokens (`adls.sas-token.<account>`) come before
/// those for all accounts.
///
/// # Errors
///
/// `Config`, for a malformed connection string, a container whose account nobody names, and a host that
/// only its URI names and that is none of Azure's.
pub(super) fn azure_options(root: &str, known: Properties<'_>) -> Result<StoreOptions> {
    let mut options = plain_azure(known);
    let (container, host) = match root.split_once("://").map(|(_, rest)| rest) {
        Some(rest) => rest.split_once('@').map_or((rest, None), |(name, host)| (name, Some(host))),
        None => (root, None),
    };
    let mut put = |name: &str, value: &str| options.insert(name.to_owned(), value.to_owned());
    let mut sas = None;
    if let Some(text) = known.get("adls.connection-string") {
        for part in text.split(';').filter(|part| !part.trim().is_empty()) {
            let (name, value) = part.split_once('=').ok_or_else(|| {
                Error::config(
                    "adls.connection-string must be of the form Name=value;Name=value, as Azure shows it",
                )
            })?;
            match name.trim() {
                "AccountName" => drop(put("account_name", value)),
                "AccountKey" => drop(put("account_key", value)),
                "BlobEndpoint" => drop(put("azure_endpoint", value.trim_end_matches('/'))),
                "SharedAccessSignature" => sas = Some(value.to_owned()),
                // Protocol, suffix and the endpoints of other services say nothing more.
                _ => {}
            }
        }
    }
    for (name, option) in [
        ("adls.account-key", "account_key"),
        ("adls.tenant-id", "tenant_id"),
        ("adls.client-id", "client_id"),
        ("adls.client-secret", "client_secret"),
        ("adls.account-name", "account_name"),
    ] {
        if let Some(value) = known.get(name) {
            put(option, value);
        }
    }
    if known.flag("adls.anon")?.unwrap_or(false) {
        put("azure_skip_signature", "true");
    }
    let named = known.get("adls.account-host");
    let host = named.or(host);
    let fabric = host.is_some_and(|host| host.ends_with(".fabric.microsoft.com"));
    // The account that a URI names is the account, whatever the properties say.
    if let Some((account, service)) = host.and_then(|host| host.split_once('.')) {
        put("account_name", account);
        let is_known = fabric || KNOWN_HOSTS.contains(&service);
        if !is_known && !has_endpoint(known) {
            let is_cloud = CLOUDS.iter().any(|cloud| service.ends_with(&format!(".{cloud}")));
            if named.is_none() && !is_cloud {
                return Err(Error::config(format!(
                    "{root} lies on a host that is none of Azure's; if it is right, pass the property \
                     \"adls.account-host\": \"{account}.{service}\""
                )));
            }
            let service = match service.strip_prefix("dfs.") {
                Some(cloud) => format!("blob.{cloud}"),
                None => service.to_owned(),
            };
            put("azure_endpoint", &format!("https://{account}.{service}"));
        }
    }
    let account =
        options.get("account_name").or(options.get("azure_storage_account_name")).cloned();
    let (own, expiry) = account_sas(known, account.as_deref());
    let secret = match known.get("adls.token") {
        Some(token) => Some(Secret::AzureBearer(token.to_owned())),
        None => own.map(str::to_owned).or(sas).map(Secret::AzureSas),
    };
    let endpoint = options.get("azure_endpoint").cloned();
    allow_http(&mut options, endpoint.as_deref().unwrap_or_default());
    let expires_at_ms = expiry.or(other_expiry(known));
    // The account and its host are options now, whichever host it is.
    let location = match fabric {
        true => Location::of_store(root)?,
        false => Location::of_store(&format!("az://{container}"))?,
    };
    Ok(StoreOptions { location, options, secret, expires_at_ms })
}

fn has_endpoint(known: Properties<'_>) -> bool {
    known.get("azure_endpoint").is_some()
        || known.get("adls.connection-string").is_some_and(|text| text.contains("BlobEndpoint="))
}

/// The account's token and when it ends: `adls.sas-token.<account>` or
/// `adls.sas-token.<account>.<host>`, else `adls.sas-token`.
fn account_sas<'a>(known: Properties<'a>, account: Option<&str>) -> (Option<&'a str>, Option<i64>) {
    const TOKEN: &str = "adls.sas-token";
    const EXPIRY: &str = "adls.sas-token-expires-at-ms";
    let account = account.unwrap_or_default();
    let own = known.0.iter().find_map(|(name, token)| {
        let of = name.strip_prefix(TOKEN)?.strip_prefix('.')?;
        let is_own = of == account || of.split('.').next() == Some(account);
        (is_own && !token.is_empty()).then_some((of, token.as_str()))
    });
    match own {
        Some((of, token)) => {
            let expiry = [format!("{EXPIRY}.{of}"), format!("{EXPIRY}.{account}"), EXPIRY.into()];
            (Some(token), expiry.iter().find_map(|name| known.millis(name)))
        }
        None => (known.get(TOKEN), known.millis(EXPIRY)),
    }
}
