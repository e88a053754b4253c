//! Which origins a catalog's answers may lead to. Its configuration may name another address of
//! the catalog, of the server of tokens, or of new credentials: whoever answers there gets the
//! token, the headers or the client's secret. So a move to another origin needs the user's word.

use std::collections::BTreeMap;

use url::{Origin, Url};

use super::auth::{Auth, token_server};
use crate::storage::without_password;
use crate::{Error, Result};

/// The property by which a user trusts more origins.
pub(in super::super) const TRUSTED_ORIGINS: &str = "trusted-origins";

/// The origins that the user named.
pub(super) struct Trust {
    catalog: Origin,
    /// Where tokens come from: an origin of its own only where the user says so.
    tokens: Origin,
    /// Those of `trusted-origins`.
    more: Vec<Origin>,
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
