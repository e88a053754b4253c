//! Credentials that options name, and that `object_store` itself does not know: profiles of AWS,
//! and a token for Google.

use std::collections::BTreeMap;
use std::sync::Arc;

use object_store::StaticCredentialProvider;
use object_store::gcp::GcpCredential;

use super::aliases::{GOOGLE_TOKEN, PROFILE, canonical, flag};
use super::location::{Location, Scheme};
use super::profiles::{Profile, ProfileKeys, Profiles};
use super::properties::store_options;
use super::store::Provider;
use super::vended::{CredentialCache, provider_for};
use crate::{Error, Result};

/// The options and credentials that open a store.
pub(super) struct Provided {
    /// Options of `object_store` alone.
    pub(super) options: BTreeMap<String, String>,
    pub(super) provider: Option<Provider>,
    /// Where a profile's keys are kept and renewed.
    pub(super) credential_cache: Option<Arc<CredentialCache>>,
}

/// Takes options that `object_store` does not know out of `options`, and adds those of an AWS
/// profile.
///
/// Keys come from, in this order: `provider`; keys among the options; the profile that they name;
/// keys in the environment; the profile that `AWS_PROFILE` names or the one named `default`, where
/// it says how to get keys; and the sources of `object_store` (web identity, containers, the
/// instance).
///
/// # Errors
///
/// `Config`, for a profile that no file has, and keys beside a profile.
pub(super) fn provided(
    location: &Location,
    options: &BTreeMap<String, String>,
    provider: Option<Provider>,
) -> Result<Provided> {
    let mut options = options.clone();
    match location.scheme() {
        Scheme::S3 => of_s3(location, options, provider),
        Scheme::Gcs => {
            let token = options.remove(GOOGLE_TOKEN);
            let own = token.map(|bearer| {
                Provider::Gcs(Arc::new(StaticCredentialProvider::new(GcpCredential { bearer })))
            });
            Ok(Provided { options, provider: provider.or(own), credential_cache: None })
        }
        _ => Ok(Provided { options, provider, credential_cache: None }),
    }
}

fn of_s3(
    location: &Location,
    mut options: BTreeMap<String, String>,
    mut provider: Option<Provider>,
) -> Result<Provided> {
    let named = options.remove(PROFILE);
    let names: Vec<String> =
        options.keys().filter_map(|name| canonical(Scheme::S3, name)).collect();
    let says = |name: &str| names.iter().any(|known| known == name);
    let has_keys = says("aws_access_key_id") || says("aws_secret_access_key");
    if has_keys && let Some(named) = &named {
        return Err(Error::config(format!(
            "the storage options hold keys and the profile {named:?}; give one of them"
        )));
    }
    let profile = match (&named, variable(&["AWS_PROFILE"])) {
        (Some(named), _) => Some(Profiles::read().get(named)?),
        // Whoever has keys need not have the profile.
        (None, Some(named)) => match Profiles::read().get(&named) {
            Ok(found) => Some(found),
            Err(_) if has_keys || provider.is_some() || environment_has_keys() => None,
            Err(error) => return Err(error),
        },
        (None, None) => Profiles::read().default_profile(),
    };
    let Some(profile) = profile else {
        return Ok(Provided { options, provider, credential_cache: None });
    };
    add_place(&profile, &mut options, &says);
    let is_anonymous = ["aws_skip_signature", "skip_signature"]
        .iter()
        .find_map(|name| options.get(*name))
        .is_some_and(|value| flag("anon", value).unwrap_or(false));
    let is_found = ["aws_role_arn", "aws_container_credentials_full_uri"];
    let is_found = is_found.into_iter().chain(["aws_container_credentials_relative_uri"]);
    let goes_before =
        named.is_some() || !(environment_has_keys() || is_found.into_iter().any(says));
    let mut credential_cache = None;
    if profile.has_keys && provider.is_none() && !has_keys && !is_anonymous && goes_before {
        let kept = Arc::new(CredentialCache::unasked(Arc::new(ProfileKeys::new(&profile))));
        let root = location.store_root();
        provider = provider_for(&kept, root, root, Scheme::S3, |root, properties| {
            let options = store_options(root, properties)?;
            Ok((options.secret, options.expires_at_ms))
        });
        credential_cache = Some(kept);
    }
    Ok(Provided { options, provider, credential_cache })
}

/// Region and endpoint, where neither options nor the environment say them.
fn add_place(
    profile: &Profile,
    options: &mut BTreeMap<String, String>,
    says: &impl Fn(&str) -> bool,
) {
    let is_said = says("aws_region") || says("aws_default_region");
    if let Some(region) = &profile.region
        && !is_said
        && variable(&["AWS_REGION", "AWS_DEFAULT_REGION"]).is_none()
    {
        options.insert("aws_region".into(), region.clone());
    }
    let is_said = says("aws_endpoint") || says("aws_endpoint_url_s3");
    let variables = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"];
    let is_ignored = variable(&["AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"])
        .is_some_and(|value| value.eq_ignore_ascii_case("true"));
    if let Some(endpoint) = &profile.endpoint
        && !is_said
        && !is_ignored
        && variable(&variables).is_none()
    {
        options.insert("aws_endpoint_url_s3".into(), endpoint.trim_end_matches('/').to_owned());
        if endpoint.starts_with("http://") && !says("allow_http") {
            options.insert("allow_http".into(), "true".into());
        }
    }
}

fn environment_has_keys() -> bool {
    variable(&["AWS_ACCESS_KEY_ID"]).is_some() && variable(&["AWS_SECRET_ACCESS_KEY"]).is_some()
}

fn variable(names: &[&str]) -> Option<String> {
    names.iter().find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
}
