//! How requests to a REST catalog are authorized: a token, OAuth2 client credentials, or AWS
//! signatures.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use object_store::client::{HttpRequest, HttpRequestBody};
use reqwest::header::{HeaderMap, HeaderValue};
use reqwest::{Client, Response};
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::Mutex;

use super::http::{Tries, plain, sent, unreachable};
use crate::bounds::TOKEN;
use crate::iceberg::catalog::aws::{Signer, keys_of};
use crate::storage::{error_text, redact, whole};
use crate::{Error, Result};

/// How long before its end a token is renewed at most; a quarter of a shorter life.
const MARGIN: Duration = Duration::from_secs(60);
const SHOWN: usize = 500;
const SIGV4: &str = "rest.sigv4-enabled";

/// The authorization of a catalog's properties.
pub(super) struct Auth {
    kind: Kind,
    token: Mutex<Option<Token>>,
}

enum Kind {
    None,
    /// `token`, which nobody renews.
    Fixed,
    /// `credential`.
    OAuth(OAuth),
    /// `rest.sigv4-enabled`.
    SigV4(Signer),
}

#[derive(Clone)]
struct Token {
    value: String,
    renew_at: Option<Instant>,
}

/// OAuth2 client credentials (RFC 6749, section 4.4).
struct OAuth {
    server: String,
    form: Vec<(&'static str, String)>,
    /// For taking secrets out of messages.
    properties: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct TokenAnswer {
    access_token: String,
    /// A number, or a number as text.
    #[serde(default)]
    expires_in: Option<Value>,
}

impl Auth {
    /// Returns true if two sets of properties ask for the same authorization.
    pub(super) fn is_same(
        one: &BTreeMap<String, String>,
        other: &BTreeMap<String, String>,
    ) -> bool {
        const NAMES: &[&str] =
            &["audience", "credential", "oauth2-server-uri", "resource", "scope", "token", "uri"];
        const SPACES: &[&str] = &["rest.", "client.", "s3."];
        let is_signed = one.contains_key(SIGV4) || other.contains_key(SIGV4);
        let changed = |name: &&String| one.get(*name) != other.get(*name);
        !one.keys().chain(other.keys()).filter(changed).any(|name| {
            let is_signing = SPACES.iter().any(|space| name.starts_with(space));
            NAMES.contains(&name.as_str()) || (is_signed && is_signing)
        })
    }

    /// Returns true if properties ask for authorization of any kind.
    pub(super) fn is_asked(properties: &BTreeMap<String, String>) -> bool {
        ["token", "credential"].iter().any(|name| given(properties, name).is_some())
            || is_signed(properties)
    }

    /// Returns true if a server of tokens gets a client's secret.
    pub(super) fn asks_for_tokens(properties: &BTreeMap<String, String>) -> bool {
        given(properties, "credential").is_some() && !is_signed(properties)
    }

    /// # Errors
    ///
    /// `Config`, for a malformed property.
    pub(super) fn try_new(properties: &BTreeMap<String, String>) -> Result<Self> {
        let get = |name: &str| given(properties, name);
        let token = get("token").map(|value| Token { value: value.clone(), renew_at: None });
        let kind = if is_signed(properties) {
            Kind::SigV4(signer(properties)?)
        } else if let Some(credential) = get("credential") {
            Kind::OAuth(OAuth::new(properties, credential))
        } else if token.is_some() {
            Kind::Fixed
        } else {
            Kind::None
        };
        Ok(Self { kind, token: Mutex::new(token) })
    }

    /// The headers for a request, and the token that is in them.
    pub(super) async fn headers(
        &self,
        client: &Client,
        url: &str,
    ) -> Result<(HeaderMap, Option<String>)> {
        let mut headers = HeaderMap::new();
        let token = match &self.kind {
            Kind::None => None,
            Kind::SigV4(signer) => {
                let mut request = HttpRequest::new(HttpRequestBody::empty());
                *request.uri_mut() = url.parse().map_err(|error| {
                    Error::config(format!("{url:?} is no URL of a catalog")).with_source(error)
                })?;
                signer.sign(&mut request).await?;
                headers = std::mem::take(request.headers_mut());
                None
            }
            Kind::Fixed => self.token.lock().await.clone().map(|token| token.value),
            Kind::OAuth(oauth) => {
                let mut known = self.token.lock().await;
                match known.as_ref() {
                    Some(token) if token.renew_at.is_none_or(|at| Instant::now() < at) => {
                        Some(token.value.clone())
                    }
                    _ => Some(known.insert(oauth.ask(client).await?).value.clone()),
                }
            }
        };
        if let Some(token) = &token {
            let mut value = HeaderValue::from_str(&format!("Bearer {token}"))
                .map_err(|_| Error::config("the token for the catalog is no HTTP header"))?;
            value.set_sensitive(true);
            headers.insert("authorization", value);
        }
        Ok((headers, token))
    }

    /// Returns true if there is a token newer than the one that was refused; asks for one where
    /// that is possible.
    pub(super) async fn renew(&self, client: &Client, refused: Option<&str>) -> Result<bool> {
        let Kind::OAuth(oauth) = &self.kind else { return Ok(false) };
        let mut known = self.token.lock().await;
        if known.as_ref().is_none_or(|token| Some(token.value.as_str()) == refused) {
            *known = Some(oauth.ask(client).await?);
        }
        Ok(true)
    }
}

fn given<'a>(properties: &'a BTreeMap<String, String>, name: &str) -> Option<&'a String> {
    properties.get(name).filter(|value| !value.is_empty())
}

fn is_signed(properties: &BTreeMap<String, String>) -> bool {
    given(properties, SIGV4).is_some_and(|value| value.eq_ignore_ascii_case("true"))
}

/// The address of the server of tokens, which may be relative to the catalog's.
pub(super) fn token_server(properties: &BTreeMap<String, String>) -> String {
    let server = properties.get("oauth2-server-uri").filter(|uri| !uri.is_empty());
    let server = server.map_or("v1/oauth/tokens", String::as_str);
    match server.contains("://") {
        true => server.to_owned(),
        false => {
            let uri = properties.get("uri").map(String::as_str).unwrap_or_default();
            format!("{}/{}", uri.trim_end_matches('/'), server.trim_start_matches('/'))
        }
    }
}

impl OAuth {
    fn new(properties: &BTreeMap<String, String>, credential: &str) -> Self {
        let mut form = vec![("grant_type", "client_credentials".to_owned())];
        // Without a colon, it is the secret alone.
        let secret = match credential.split_once(':') {
            Some((id, secret)) => {
                form.push(("client_id", id.to_owned()));
                secret
            }
            None => credential,
        };
        form.push(("client_secret", secret.to_owned()));
        let scope = properties.get("scope").map_or("catalog", String::as_str);
        form.push(("scope", scope.to_owned()));
        for name in ["audience", "resource"] {
            if let Some(value) = properties.get(name) {
                form.push((name, value.clone()));
            }
        }
        let server = token_server(properties);
        // The halves are secrets too.
        let mut properties = properties.clone();
        properties.insert("client-secret".into(), secret.to_owned());
        Self { server, form, properties }
    }

    async fn ask(&self, client: &Client) -> Result<Token> {
        let body: Vec<String> = self
            .form
            .iter()
            .map(|(name, value)| format!("{name}={}", super::http::encode(value)))
            .collect();
        // The catalog's own headers are for the catalog: another server of tokens does not get
        // them.
        let is_own =
            !self.properties.get("oauth2-server-uri").is_some_and(|uri| uri.contains("://"));
        let own = if is_own { super::http::headers(&self.properties)? } else { HeaderMap::new() };
        let body = body.join("&");
        let mut tries = Tries::default();
        let text = loop {
            let request = client
                .post(&self.server)
                .headers(own.clone())
                .header("content-type", "application/x-www-form-urlencoded")
                .header("accept", "application/json")
                .body(body.clone());
            let answer = match sent(client, request, &self.server).await? {
                Ok(response) if response.status().is_success() => {
                    let read = whole(response, &TOKEN).await;
                    match read.map_err(|error| error.with_context("url", plain(&self.server)))? {
                        Ok(text) => break text,
                        Err(error) => Err(error),
                    }
                }
                other => other,
            };
            if tries.again(&answer).await {
                continue;
            }
            return Err(match answer {
                Ok(response) => self.refusal(response).await,
                Err(error) => unreachable("the server of tokens", &self.server, &error),
            });
        };
        // The text holds the token, so that no message repeats it.
        let TokenAnswer { access_token: value, expires_in } = serde_json::from_slice(&text)
            .map_err(|_| {
                Error::storage("no token for the catalog: the server answered without access_token")
                    .with_context("url", plain(&self.server))
            })?;
        let seconds = expires_in.and_then(|value| match value {
            Value::String(text) => text.parse().ok(),
            other => other.as_f64(),
        });
        let life = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        let renew_at =
            life.and_then(|life| Instant::now().checked_add(life - MARGIN.min(life / 4)));
        Ok(Token { value, renew_at })
    }

    async fn refusal(&self, response: Response) -> Error {
        let status = response.status();
        // The status says enough where the rest does not arrive.
        let text = error_text(response).await;
        let told: String = redact(&text, &self.properties).chars().take(SHOWN).collect();
        Error::storage(format!(
            "no token for the catalog, since the server answered {status}: {told}; check the properties credential, scope \
             and oauth2-server-uri"
        ))
        .with_context("url", plain(&self.server))
    }
}

/// The signer of `rest.sigv4-enabled`.
fn signer(properties: &BTreeMap<String, String>) -> Result<Signer> {
    let get = |name: &str| properties.get(name).filter(|value| !value.is_empty());
    let keys = keys_of(&["rest", "client", "s3"], properties)?;
    let service = get("rest.signing-name").map_or("execute-api", String::as_str);
    let profile = get("client.profile-name").map(String::as_str).filter(|_| keys.is_none());
    let region = get("rest.signing-region").or(get("client.region")).map(String::as_str);
    Signer::try_new(service, keys, profile, region, (SIGV4, "rest.signing-region"))
}
