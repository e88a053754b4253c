//! Profiles of AWS, from `~/.aws/config` and `~/.aws/credentials`.
//!
//! Region and endpoint are read here; keys come from AWS's own library, which knows single sign-on,
//! assumed roles and processes. It is asked when a store sends its first request, and again before
//! the keys end.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

use async_trait::async_trait;
use aws_config::Region;
use aws_config::profile::ProfileFileCredentialsProvider;
use aws_config::provider_config::ProviderConfig;
use aws_credential_types::provider::ProvideCredentials;

use super::access::AccessConfig;
use super::aws_http::AwsHttp;
use super::vended::Refresh;
use crate::runtime::Runtimes;
use crate::{Error, Result, list_names, suggestion};

/// Longer no source of keys takes that answers at all; a process or a log-in that hangs is an
/// error.
const PATIENCE: Duration = Duration::from_secs(60);

/// The profile without a name.
const DEFAULT: &str = "default";

/// Profiles from two files, by name.
#[derive(Debug, Default)]
pub(super) struct Profiles {
    profiles: BTreeMap<String, BTreeMap<String, String>>,
    services: BTreeMap<String, BTreeMap<String, String>>,
}

/// A profile's settings beside its keys.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Profile {
    pub(super) name: String,
    pub(super) region: Option<String>,
    pub(super) endpoint: Option<String>,
    /// Whether it says where keys come from.
    pub(super) has_keys: bool,
}

impl Profiles {
    /// Reads the files named by `AWS_CONFIG_FILE` and `AWS_SHARED_CREDENTIALS_FILE`, or those in
    /// `~/.aws`; returns no profiles if there are none.
    pub(super) fn read() -> Self {
        let text = |variable: &str, name: &str| {
            let path = match std::env::var(variable) {
                Ok(path) if !path.is_empty() => at_home(&path),
                _ => at_home(&format!("~/.aws/{name}")),
            };
            path.and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default()
        };
        Self::parse(
            &text("AWS_CONFIG_FILE", "config"),
            &text("AWS_SHARED_CREDENTIALS_FILE", "credentials"),
        )
    }

    fn parse(config: &str, credentials: &str) -> Self {
        let mut found = Self::default();
        for (section, values) in sections(config) {
            let (kind, name) = section.split_once(char::is_whitespace).unwrap_or(("", &section));
            let name = name.trim().trim_matches('"').to_owned();
            match kind {
                "profile" => found.profiles.entry(name).or_default().extend(values),
                "services" => found.services.entry(name).or_default().extend(values),
                "" if name == DEFAULT => found.profiles.entry(name).or_default().extend(values),
                _ => {}
            }
        }
        for (section, values) in sections(credentials) {
            found.profiles.entry(section).or_default().extend(values);
        }
        found
    }

    /// A profile by its name.
    ///
    /// # Errors
    ///
    /// `Config` with the nearest name, where no file has it.
    pub(super) fn get(&self, name: &str) -> Result<Profile> {
        let Some(values) = self.profiles.get(name) else {
            let names: Vec<&str> = self.profiles.keys().map(String::as_str).collect();
            let known = match names.is_empty() {
                true => "there are no profiles in ~/.aws/config and ~/.aws/credentials (or the files that \
                         AWS_CONFIG_FILE and AWS_SHARED_CREDENTIALS_FILE name)"
                    .to_owned(),
                false => format!("the profiles are {}", list_names(&names)),
            };
            return Err(Error::config(format!(
                "unknown AWS profile {name:?}{}; {known}",
                suggestion(name, names.iter().copied())
            )));
        };
        let service = values.get("services").and_then(|name| self.services.get(name));
        let endpoint = service
            .and_then(|values| values.get("s3.endpoint_url"))
            .or_else(|| values.get("s3.endpoint_url"))
            .or_else(|| values.get("endpoint_url"));
        let ignored = values.get("ignore_configured_endpoint_urls").is_some_and(|v| v == "true");
        let sources = [
            "aws_access_key_id",
            "credential_process",
            "login_session",
            "role_arn",
            "sso_account_id",
            "sso_session",
            "sso_start_url",
            "web_identity_token_file",
        ];
        Ok(Profile {
            name: name.to_owned(),
            region: values.get("region").cloned(),
            endpoint: endpoint.filter(|_| !ignored).cloned(),
            has_keys: sources.iter().any(|source| values.contains_key(*source)),
        })
    }

    /// The profile that is meant where nobody names one.
    pub(super) fn default_profile(&self) -> Option<Profile> {
        self.profiles.contains_key(DEFAULT).then(|| self.get(DEFAULT).ok()).flatten()
    }
}

/// The sections of a file in the form of AWS. A key indented below a name without a value is
/// `name.key`.
fn sections(text: &str) -> Vec<(String, BTreeMap<String, String>)> {
    let mut found: Vec<(String, BTreeMap<String, String>)> = Vec::new();
    let mut outer = None;
    for line in text.lines() {
        let is_indented = line.starts_with([' ', '\t']);
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(section) = line.strip_prefix('[').and_then(|rest| rest.split(']').next()) {
            found.push((section.trim().to_owned(), BTreeMap::new()));
            outer = None;
            continue;
        }
        let (Some((_, values)), Some((name, value))) = (found.last_mut(), line.split_once('='))
        else {
            continue;
        };
        let name = name.trim().to_ascii_lowercase();
        let value = value.split(" #").next().unwrap_or_default();
        let value = value.split(" ;").next().unwrap_or_default().trim();
        match (&outer, is_indented) {
            (Some(outer), true) => {
                values.insert(format!("{outer}.{name}"), value.to_owned());
            }
            _ if value.is_empty() => outer = Some(name),
            _ => {
                outer = None;
                values.insert(name, value.to_owned());
            }
        }
    }
    found
}

fn at_home(path: &str) -> Option<PathBuf> {
    match path.strip_prefix("~/") {
        Some(rest) => std::env::home_dir().map(|home| home.join(rest)),
        None => Some(path.into()),
    }
}

/// Asks AWS's library for the keys of a profile.
pub(super) struct ProfileKeys {
    name: String,
    region: Option<String>,
}

impl ProfileKeys {
    pub(super) fn new(profile: &Profile) -> Self {
        Self { name: profile.name.clone(), region: profile.region.clone() }
    }

    async fn ask(name: String, region: Option<String>) -> Result<AccessConfig> {
        let config = ProviderConfig::without_region()
            .with_region(region.map(Region::new))
            .with_http_client(AwsHttp::try_new()?);
        let provider = ProfileFileCredentialsProvider::builder()
            .configure(&config)
            .profile_name(name.clone())
            .build();
        let failed = || Error::storage(format!("the AWS profile {name:?} gives no keys"));
        let keys = tokio::time::timeout(PATIENCE, provider.provide_credentials())
            .await
            .map_err(|_| {
                failed().with_source(format!("no answer within {} s", PATIENCE.as_secs()))
            })?
            .map_err(|error| failed().with_source(chain(&error)))?;
        let mut properties = BTreeMap::from([
            ("s3.access-key-id".to_owned(), keys.access_key_id().to_owned()),
            ("s3.secret-access-key".to_owned(), keys.secret_access_key().to_owned()),
        ]);
        if let Some(token) = keys.session_token() {
            properties.insert("s3.session-token".into(), token.to_owned());
        }
        let millis = |end: std::time::SystemTime| {
            end.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis())
        };
        if let Some(end) = keys.expiry() {
            let end = millis(end).to_string();
            properties.insert("s3.session-token-expires-at-ms".into(), end);
        }
        Ok(AccessConfig { properties, credentials: Vec::new() })
    }
}

/// The texts of an error and of its sources, which its own text does not include.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text = format!("{text}: {source}");
        next = source.source();
    }
    text
}

#[async_trait]
impl Refresh for ProfileKeys {
    async fn refresh(&self) -> Result<AccessConfig> {
        // Its connections and processes belong to the threads for I/O.
        let asked = Self::ask(self.name.clone(), self.region.clone());
        match Runtimes::current()?.io().spawn(asked).await {
            Ok(found) => found,
            Err(error) => {
                Err(Error::storage(format!("the AWS profile {:?} gives no keys", self.name))
                    .with_source(error))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "# a comment\n[default]\nregion = eu-west-1\n\n[profile dev]\n\
        region=us-east-2 # near\nservices = local\ncredential_process = /bin/keys --x=1\n\
        [services local]\ns3 =\n  endpoint_url = http://127.0.0.1:9000\nsqs =\n  endpoint_url = http://q\n\
        [profile nested]\ns3 =\n    addressing_style = path\nregion = r\n[sso-session x]\nregion = no\n";

    #[test]
    fn profiles_say_region_and_endpoint() {
        let found = Profiles::parse(CONFIG, "[default]\naws_access_key_id = a\n[other]\nregion=z");
        let dev = found.get("dev").unwrap();
        assert_eq!(dev.region.as_deref(), Some("us-east-2"));
        assert_eq!(dev.endpoint.as_deref(), Some("http://127.0.0.1:9000"));
        assert!(dev.has_keys && found.default_profile().unwrap().has_keys);
        let nested = found.get("nested").unwrap();
        assert_eq!((nested.region.as_deref(), nested.has_keys), (Some("r"), false));
        assert_eq!(found.get("other").unwrap().region.as_deref(), Some("z"));
        let error = found.get("devv").unwrap_err().to_string();
        assert!(error.contains("did you mean \"dev\"?"), "{error}");
        assert_eq!(Profiles::default().default_profile(), None);
    }
}
