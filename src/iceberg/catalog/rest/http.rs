//! Requests to a REST catalog: headers, retries, and the meaning of its errors.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, RequestBuilder, Response, StatusCode};
use serde::Deserialize;

use super::auth::Auth;
use crate::bounds::CATALOG_ANSWER;
use crate::request_limiter::LONGEST_PAUSE;
use crate::storage::{
    client_builder, error_text, note_secrets, redact, retry_after, send, whole, without_password,
};
use crate::{Error, Result};

pub(in crate::iceberg::catalog) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
pub(in crate::iceberg::catalog) const TIMEOUT: Duration = Duration::from_secs(60);
/// How often a request is sent that a server refuses for now, or breaks off.
const ATTEMPTS: u32 = 6;
/// How often a request is sent while no server answers: the address may be wrong.
const ATTEMPTS_TO_REACH: u32 = 4;
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// The longest part of a server's message that is repeated.
const SHOWN: usize = 1000;

/// All but the characters that a URI leaves as they are (RFC 3986, section 2.3).
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Sends requests with the headers and the authorization of a catalog's properties.
pub(in crate::iceberg::catalog) struct Http {
    client: Client,
    headers: HeaderMap,
    auth: Arc<Auth>,
    /// For taking secrets out of messages.
    properties: BTreeMap<String, String>,
}

/// A server's answer that is not the expected one.
pub(in crate::iceberg::catalog) enum Refusal {
    /// 404; whether the server says that it is the namespace which is unknown.
    NotFound {
        is_namespace: bool,
    },
    /// The server does not support the request.
    Unsupported(Error),
    Other(Error),
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Unsupported(error) | Refusal::Other(error) => error,
            Refusal::NotFound { .. } => {
                Self::storage("the catalog answered 404: its uri, prefix or warehouse is unknown")
            }
        }
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

/// The body of an error (`ErrorModel` of the specification), or that of a Unity Catalog.
#[derive(Default, Deserialize)]
struct ErrorBody {
    #[serde(default)]
    error: ErrorModel,
    #[serde(default)]
    message: String,
    #[serde(default)]
    error_code: String,
}

#[derive(Default, Deserialize)]
struct ErrorModel {
    #[serde(default)]
    message: String,
    #[serde(default, rename = "type")]
    kind: String,
}

impl Http {
    /// # Errors
    ///
    /// `Config`, for a malformed header and for authorization that contradicts itself.
    pub(in crate::iceberg::catalog) fn try_new(
        properties: &BTreeMap<String, String>,
    ) -> Result<Self> {
        note_secrets(properties);
        let client = client_builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(TIMEOUT)
            .build()
            .map_err(|error| Error::config("cannot make an HTTP client").with_source(error))?;
        Ok(Self {
            client,
            headers: headers(properties)?,
            auth: Arc::new(Auth::try_new(properties)?),
            properties: properties.clone(),
        })
    }

    /// Adds the catalog's properties. A token is kept if they do not change how one is requested.
    pub(super) fn with_properties(&self, properties: &BTreeMap<String, String>) -> Result<Self> {
        note_secrets(properties);
        let auth = match Auth::is_same(&self.properties, properties) {
            true => Arc::clone(&self.auth),
            false => Arc::new(Auth::try_new(properties)?),
        };
        let (client, headers) = (self.client.clone(), headers(properties)?);
        Ok(Self { client, headers, auth, properties: properties.clone() })
    }

    /// The JSON at a URL.
    pub(in crate::iceberg::catalog) async fn get(&self, url: &str) -> Result<Vec<u8>, Refusal> {
        self.ask(url, None).await
    }

    /// The answer to a question that changes nothing, and so may be sent twice.
    pub(in crate::iceberg::catalog) async fn post(
        &self,
        url: &str,
        json: &str,
    ) -> Result<Vec<u8>, Refusal> {
        self.ask(url, Some(json)).await
    }

    async fn ask(&self, url: &str, json: Option<&str>) -> Result<Vec<u8>, Refusal> {
        let mut tries = Tries::default();
        let mut is_renewed = false;
        loop {
            let (request, token) = self.request(url, json).await?;
            let answer = match sent(&self.client, request, url).await? {
                Ok(response) if response.status().is_success() => {
                    let read = whole(response, &CATALOG_ANSWER).await;
                    match read.map_err(|error| error.with_context("url", plain(url)))? {
                        Ok(body) => return Ok(body),
                        Err(error) => Err(error),
                    }
                }
                Ok(response) if is_unauthorized(response.status()) && !is_renewed => {
                    is_renewed = true;
                    match self.auth.renew(&self.client, token.as_deref()).await? {
                        true => continue,
                        false => return Err(self.refusal(url, response, token.as_deref()).await),
                    }
                }
                other => other,
            };
            if tries.again(&answer).await {
                continue;
            }
            return Err(match answer {
                Ok(response) => self.refusal(url, response, token.as_deref()).await,
                Err(error) => self.unreachable(url, &error).into(),
            });
        }
    }

    async fn request(
        &self,
        url: &str,
        json: Option<&str>,
    ) -> Result<(RequestBuilder, Option<String>)> {
        let (headers, token) = self.auth.headers(&self.client, url).await?;
        let mut all = self.headers.clone();
        for (name, value) in &headers {
            // A header that the user gave is the user's.
            if !self.headers.contains_key(name) {
                all.insert(name.clone(), value.clone());
            }
        }
        let request = match json {
            None => self.client.get(url),
            Some(json) => {
                all.insert("content-type", HeaderValue::from_static("application/json"));
                self.client.post(url).body(json.to_owned())
            }
        };
        Ok((request.headers(all), token))
    }

    async fn refusal(&self, url: &str, response: Response, token: Option<&str>) -> Refusal {
        let status = response.status();
        // The status says enough where the rest does not arrive or is not of the specification.
        let body = error_text(response).await;
        let said = serde_json::from_str::<ErrorBody>(&body).unwrap_or_default();
        let ErrorModel { message, kind } = said.error;
        if status == StatusCode::NOT_FOUND {
            let is_schema = said.error_code.starts_with("SCHEMA");
            return Refusal::NotFound { is_namespace: is_schema || kind.contains("Namespace") };
        }
        let told = [message, said.message].into_iter().find(|told| !told.is_empty());
        let told = told.unwrap_or(body);
        let told = match token.filter(|token| !token.is_empty()) {
            Some(token) => told.replace(token, "***"),
            None => told,
        };
        let told: String = redact(&told, &self.properties).trim().chars().take(SHOWN).collect();
        let hint = match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                "; check the properties credential, token, scope and oauth2-server-uri"
            }
            _ => "",
        };
        let error = Error::storage(format!("the catalog answered {status}: {told}{hint}"))
            .with_context("url", plain(url));
        match status {
            StatusCode::METHOD_NOT_ALLOWED
            | StatusCode::NOT_ACCEPTABLE
            | StatusCode::NOT_IMPLEMENTED => Refusal::Unsupported(error),
            _ => Refusal::Other(error),
        }
    }

    fn unreachable(&self, url: &str, error: &reqwest::Error) -> Error {
        unreachable("the catalog", url, error)
    }
}

/// How often one request was sent.
pub(in crate::iceberg::catalog) struct Tries {
    sent: u32,
    pause: Duration,
}

impl Default for Tries {
    fn default() -> Self {
        Self { sent: 0, pause: FIRST_PAUSE }
    }
}

impl Tries {
    /// Returns true if the request that had this answer is to be sent again; waits before it says
    /// so, for as long as the server asks for.
    pub(in crate::iceberg::catalog) async fn again(
        &mut self,
        answer: &reqwest::Result<Response>,
    ) -> bool {
        match answer {
            Ok(response) if is_passing(response.status()) => {
                self.wait(ATTEMPTS, retry_after(response.headers())).await
            }
            Ok(_) => false,
            Err(error) => self.again_after(error).await,
        }
    }

    /// As [`again`](Self::again), where no answer came.
    pub(in crate::iceberg::catalog) async fn again_after(
        &mut self,
        error: &reqwest::Error,
    ) -> bool {
        if error.is_builder() {
            return false;
        }
        // Where a connection broke: what only reads, or asks for a token, may be sent twice.
        let most =
            if error.is_connect() || error.is_timeout() { ATTEMPTS_TO_REACH } else { ATTEMPTS };
        self.wait(most, None).await
    }

    /// As [`again`](Self::again), of an answer that says that it refuses for now.
    pub(in crate::iceberg::catalog) async fn again_later(&mut self, headers: &HeaderMap) -> bool {
        self.wait(ATTEMPTS, retry_after(headers)).await
    }

    async fn wait(&mut self, most: u32, asked: Option<Duration>) -> bool {
        self.sent += 1;
        if self.sent >= most {
            return false;
        }
        let asked = asked.unwrap_or_default().min(LONGEST_PAUSE);
        tokio::time::sleep(asked.max(self.pause)).await;
        self.pause *= 2;
        true
    }
}

/// Sends a request by the one rule for redirects.
///
/// # Errors
///
/// `Config`, for a URL that is none; `Storage`, for a redirect that is not followed.
pub(super) async fn sent(
    client: &Client,
    request: RequestBuilder,
    url: &str,
) -> Result<reqwest::Result<Response>> {
    let request = request.build().map_err(|error| {
        Error::config(format!("{:?} is no URL of a catalog", plain(url))).with_source(error)
    })?;
    send(client, request).await.map_err(|error| error.with_context("url", plain(url)))
}

/// A server that could not be reached, with the system's message.
pub(in crate::iceberg::catalog) fn unreachable(
    server: &str,
    url: &str,
    error: &reqwest::Error,
) -> Error {
    let mut cause = String::new();
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        cause = inner.to_string();
        source = inner.source();
    }
    let what = if error.is_timeout() { "did not answer in time" } else { "cannot be reached" };
    Error::storage(format!("{server} {what}: {cause}")).with_context("url", plain(url))
}

/// One name as a part of a URL's path or query.
pub(in crate::iceberg::catalog) fn encode(name: &str) -> String {
    utf8_percent_encode(name, ENCODED).to_string()
}

/// A URL up to the path, without a password.
pub(in crate::iceberg::catalog) fn plain(url: &str) -> String {
    without_password(url.split('?').next().unwrap_or(url))
}

/// Some catalogs answer 419 for an expired token.
fn is_unauthorized(status: StatusCode) -> bool {
    status == StatusCode::UNAUTHORIZED || status.as_u16() == 419
}

pub(in crate::iceberg::catalog) fn is_passing(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT
    )
}

/// The headers of `header.*`, and the headers of every request.
pub(super) fn headers(properties: &BTreeMap<String, String>) -> Result<HeaderMap> {
    let mut headers = HeaderMap::new();
    headers.insert("accept", HeaderValue::from_static("application/json"));
    headers.insert("x-iceberg-access-delegation", HeaderValue::from_static("vended-credentials"));
    for (property, value) in properties {
        let Some(name) = property.strip_prefix("header.") else { continue };
        let parsed = HeaderName::from_bytes(name.as_bytes()).ok();
        let value = HeaderValue::from_str(value).ok();
        // The value may be a secret.
        let (Some(name), Some(mut value)) = (parsed, value) else {
            return Err(Error::config(format!("the property {property:?} is no HTTP header")));
        };
        value.set_sensitive(true);
        headers.insert(name, value);
    }
    Ok(headers)
}
