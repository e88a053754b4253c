//! Which origins a catalog's answers may lead to. Its configuration may name another address of
//! the catalog, of the server of tokens, or of new credentials: whoever answers there gets the
//! token, the headers or the client's secret. So a move to another origin needs the user's word.

use std::collections::BTreeMap;

use url::{Origin, Url};

use super::auth::{Auth, token_server};
use crate::storage::{is_storage_property, without_password};
use crate::{Error, Result};

/// The property by which a user trusts more origins.
pub(in super::super) const TRUSTED_ORIGINS: &str = "trusted-origins";

/// Properties of files that name a server which gets a token, or all that is sent; and the
/// beginnings of the credentials that may stand beside them.
const SERVERS: &[(&str, &[&str])] = &[
    ("gcs.service.host", &["gcs.oauth2.token", "gcs.no-auth"]),
    (
        "adls.account-host",
        &["adls.account-key", "adls.sas-token", "adls.token", "adls.client-", "adls.anon"],
    ),
    (
        "adls.connection-string",
        &[
            "adls.account-key",
            "adls.sas-token",
            "adls.token",
            "adls.client-",
            "adls.connection-string",
            "adls.anon",
        ],
    ),
    ("s3.proxy-uri", &[]),
];

/// The spaces of Iceberg's properties of files.
const SPACES: &[&str] = &["s3.", "client.", "gcs.", "adls."];

/// A catalog's properties without options of stores under their own names: those name local files
/// that hold credentials, and servers that give some, which are the user's to name.
pub(super) fn of_answer(mut properties: BTreeMap<String, String>) -> BTreeMap<String, String> {
    properties.retain(|name, _| {
        let name = name.to_ascii_lowercase();
        !is_storage_property(&name)
            || SPACES.iter().any(|space| name.starts_with(space))
            || name.starts_with("expir")
    });
    properties
}

/// Takes the properties that name a server of files out of a table's.
pub(super) fn servers_of(table: &mut BTreeMap<String, String>) -> Vec<(String, String)> {
    SERVERS.iter().filter_map(|(property, _)| table.remove_entry(*property)).collect()
}

/// The address that a property's value names; None where it names none.
fn address_of(property: &str, said: &str) -> Option<String> {
    match property {
        "adls.account-host" => Some(format!("https://{said}")),
        "adls.connection-string" => {
            let mut parts = said.split(';').filter_map(|part| part.split_once('='));
            let found = parts.find(|(name, _)| name.trim() == "BlobEndpoint")?;
            Some(found.1.to_owned())
        }
        _ => Some(said.to_owned()),
    }
}

/// The origins that the user named.
pub(super) struct Trust {
    catalog: Origin,
    /// Where tokens come from: an origin of its own only where the user says so.
    tokens: Origin,
    /// Those of `trusted-origins`.
    more: Vec<Origin>,
    /// The user's properties.
    given: BTreeMap<String, String>,
    /// Nobody learns anything where there is nothing to learn.
    has_secrets: bool,
}

impl Trust {
    /// Reads the user's properties, before a catalog's answer is laid over them.
    ///
    /// # Errors
    ///
    /// `Config`, for an address that is none of http or https.
    pub(super) fn try_new(given: &BTreeMap<String, String>) -> Result<Self> {
        let uri = given.get("uri").map(String::as_str).unwrap_or_default();
        let more = given.get(TRUSTED_ORIGINS).map(String::as_str).unwrap_or_default();
        let more = more.split(',').map(str::trim).filter(|one| !one.is_empty());
        Ok(Self {
            catalog: origin("uri", uri)?,
            tokens: origin("oauth2-server-uri", &token_server(given))?,
            more: more.map(|one| origin(TRUSTED_ORIGINS, one)).collect::<Result<_>>()?,
            given: given.clone(),
            has_secrets: Auth::is_asked(given) || given.keys().any(|n| n.starts_with("header.")),
        })
    }

    /// Checks a catalog's configuration, laid over the user's properties.
    ///
    /// # Errors
    ///
    /// `Config`, for an address of another origin.
    pub(super) fn check(&self, merged: &BTreeMap<String, String>) -> Result<()> {
        let uri = merged.get("uri").map(String::as_str).unwrap_or_default();
        self.check_address("uri", uri)?;
        if !Auth::asks_for_tokens(merged) {
            return Ok(());
        }
        let server = token_server(merged);
        let found = origin("oauth2-server-uri", &server)?;
        self.judge("oauth2-server-uri", &found, &self.tokens)
    }

    /// Checks an address of the catalog's to which a request goes with the catalog's token and
    /// headers.
    ///
    /// # Errors
    ///
    /// `Config`, for an address of another origin.
    pub(super) fn check_address(&self, property: &str, address: &str) -> Result<()> {
        self.judge(property, &origin(property, address)?, &self.catalog)
    }

    /// Checks what an answer says of a table's files.
    ///
    /// A server of files that gets a bearer's token is one that the user names, or one whose token
    /// the catalog gives. An endpoint of S3 is free: it gets signatures, which are good for nothing
    /// else.
    ///
    /// # Errors
    ///
    /// `Config`, for a server of another origin.
    pub(super) fn check_files(&self, config: &BTreeMap<String, String>) -> Result<()> {
        for (property, own) in SERVERS {
            let Some(said) = config.get(*property).filter(|said| !said.is_empty()) else {
                continue;
            };
            let is_given = self.given.get(*property) == Some(said);
            let has_own = |names: &BTreeMap<String, String>| {
                names.keys().any(|name| own.iter().any(|own| name.starts_with(own)))
            };
            // Of the user's credentials beside them, the client may take those.
            if is_given || (has_own(config) && !has_own(&self.given)) {
                continue;
            }
            let Some(address) = address_of(property, said) else { continue };
            let found = origin(property, &address)?;
            if !self.more.contains(&found) {
                let found = found.ascii_serialization();
                return Err(Error::config(format!(
                    "the catalog's answer sets {property:?} to a server at {found}, which would get your own credentials \
                     for the files; if it is to get them, pass {property:?} yourself, or add {found} to the catalog's \
                     property {TRUSTED_ORIGINS:?}"
                )));
            }
        }
        Ok(())
    }

    fn judge(&self, property: &str, found: &Origin, own: &Origin) -> Result<()> {
        if !self.has_secrets || found == own || self.more.contains(found) {
            return Ok(());
        }
        let (found, own) = (found.ascii_serialization(), own.ascii_serialization());
        Err(Error::config(format!(
            "the catalog's answer moves {property:?} from {own} to {found}, which would get the credentials or headers that \
             you gave for {own}; if {found} is to get them, add it to the catalog's property {TRUSTED_ORIGINS:?}"
        )))
    }
}

fn origin(property: &str, address: &str) -> Result<Origin> {
    let url = Url::parse(address).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
    url.map(|url| url.origin()).ok_or_else(|| {
        Error::config(format!(
            "the property {property:?} of a REST catalog must name servers by http:// or https://, as in \
             \"https://auth.example.com\"; got {:?}",
            without_password(address)
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(given: &[(&str, &str)], answer: &[(&str, &str)]) -> Option<String> {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let mut merged: BTreeMap<String, String> = given.iter().map(own).collect();
        let trust = Trust::try_new(&merged).unwrap();
        merged.extend(answer.iter().map(own));
        trust.check(&merged).err().map(|error| error.to_string())
    }

    #[test]
    fn a_token_for_files_goes_to_no_server_that_a_catalog_names() {
        let own = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        let told = |given: &[(&str, &str)], answer: &[(&str, &str)]| {
            let mut all = own(given);
            all.insert("uri".into(), "https://a.test".into());
            Trust::try_new(&all).unwrap().check_files(&own(answer)).err().map(|e| e.to_string())
        };
        let (host, token) =
            (("gcs.service.host", "https://b.test"), ("gcs.oauth2.token", "s3cret"));
        let error = told(&[token], &[host]).unwrap();
        assert!(error.contains("\"gcs.service.host\" to a server at https://b.test"), "{error}");
        // The environment may have credentials, too.
        assert!(told(&[], &[host]).is_some());
        assert!(told(&[host, token], &[host]).is_none());
        assert!(told(&[], &[host, ("gcs.oauth2.token", "theirs")]).is_none());
        assert!(told(&[(TRUSTED_ORIGINS, "https://b.test")], &[host]).is_none());
        let away =
            ("adls.connection-string", "BlobEndpoint=https://b.test;SharedAccessSignature=x");
        assert!(told(&[("adls.token", "s3cret")], &[away]).is_some());
        assert!(told(&[], &[away]).is_none());
        assert!(told(&[], &[("adls.connection-string", "AccountName=x;AccountKey=y")]).is_none());
        assert!(told(&[], &[("adls.account-host", "x.b.test")]).is_some());
        assert!(
            told(&[], &[("s3.proxy-uri", "http://b.test"), ("s3.access-key-id", "x")]).is_some()
        );
        assert!(told(&[], &[("s3.endpoint", "http://b.test")]).is_none());
    }

    #[test]
    fn a_catalog_names_no_option_of_a_store() {
        let names = [
            "s3.region",
            "aws_endpoint",
            "AWS_Container_Credentials_Full_URI",
            "prefix",
            "proxy_url",
            "expires-at-ms",
            "google_service_account",
            "adls.sas-token.x",
            "uri",
        ];
        let said = names.map(|name| (name.to_owned(), String::new()));
        let kept: Vec<String> = of_answer(BTreeMap::from(said)).into_keys().collect();
        assert_eq!(kept, ["adls.sas-token.x", "expires-at-ms", "prefix", "s3.region", "uri"]);
    }

    #[test]
    fn a_catalog_stays_where_the_user_found_it() {
        let (uri, secret) = (("uri", "https://a.test/x"), ("credential", "id:s3cret"));
        let away = ("oauth2-server-uri", "https://b.test/tokens");
        let error = told(&[uri, secret], &[away]).unwrap();
        assert!(
            error.contains("\"oauth2-server-uri\" from https://a.test to https://b.test"),
            "{error}"
        );
        assert!(!error.contains("s3cret"), "{error}");
        assert!(told(&[uri, secret], &[("uri", "https://b.test/x")]).is_some());
        assert!(told(&[uri, ("token", "t")], &[("uri", "http://a.test/x")]).is_some());
        assert!(told(&[uri, ("header.X", "t")], &[("uri", "https://a.test:1/x")]).is_some());
        // Of the same origin, without tokens, without secrets, or on the user's word.
        assert!(told(&[uri, secret], &[("oauth2-server-uri", "https://a.test:443/t")]).is_none());
        assert!(told(&[uri, secret], &[("oauth2-server-uri", "v2/tokens")]).is_none());
        assert!(told(&[uri, ("token", "t")], &[away]).is_none());
        assert!(told(&[uri], &[("uri", "https://b.test/x"), away]).is_none());
        assert!(told(&[uri, secret, away], &[("oauth2-server-uri", "https://b.test/2")]).is_none());
        let trusted = (TRUSTED_ORIGINS, " https://c.test, https://b.test");
        assert!(told(&[uri, secret, trusted], &[away, ("uri", "https://c.test/")]).is_none());
        // The user's own server of tokens is not the catalog.
        assert!(told(&[uri, secret, away], &[("oauth2-server-uri", "v1/tokens")]).is_some());
        assert!(told(&[uri, secret, away], &[("uri", "https://b.test/x")]).is_some());
    }
}
