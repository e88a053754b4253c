//! Signed requests to a service of AWS that answers in JSON.

use std::collections::BTreeMap;
use std::env::var;

use http::{HeaderMap, HeaderName, HeaderValue, Method};
use object_store::client::HttpRequest;
use reqwest::{Client, StatusCode};
use serde_json::Value;

use super::signer::Signer;
use crate::bounds::{CATALOG_ANSWER, CATALOG_PAGES};
use crate::iceberg::catalog::rest::{
    CONNECT_TIMEOUT, TIMEOUT, Tries, is_passing, plain, unreachable,
};
use crate::storage::{client_builder, note_secrets, redact, whole, without_password};
use crate::{Error, Result};

/// The longest part of a service's message that is repeated.
const SHOWN: usize = 1000;

/// The most names of one listing.
const LISTED: usize = 1_000_000;

/// Kinds of errors that pass. Some of them come with status 400.
const PASSING: &[&str] = &[
    "InternalServerErrorException",
    "InternalServiceException",
    "RequestLimitExceeded",
    "RequestThrottled",
    "RequestThrottledException",
    "ServiceUnavailableException",
    "Throttling",
    "ThrottlingException",
    "TooManyRequestsException",
];

/// Sends requests to one service.
pub(super) struct AwsClient {
    /// The service's name, for error messages.
    name: &'static str,
    endpoint: String,
    http: Client,
    signer: Signer,
    /// For taking secrets out of messages.
    properties: BTreeMap<String, String>,
}

/// An answer that is an error.
pub(super) enum Refusal {
    /// What the request names does not exist.
    NotFound(Error),
    Other(Error),
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        let (Refusal::NotFound(error) | Refusal::Other(error)) = refusal;
        error
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

/// A request, which can be sent more than once.
pub(super) struct Request {
    pub(super) method: Method,
    /// Path and query, encoded.
    pub(super) path: String,
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) body: String,
}

impl AwsClient {
    /// # Arguments
    ///
    /// * `name`: for error messages.
    /// * `host`: the service's name in host names, as in `glue.eu-west-1.amazonaws.com`.
    /// * `endpoint`: an address that the user gave.
    ///
    /// # Errors
    ///
    /// `Config` for an address that is none.
    pub(super) fn try_new(
        name: &'static str,
        host: &str,
        endpoint: Option<&str>,
        signer: Signer,
        properties: &BTreeMap<String, String>,
    ) -> Result<Self> {
        note_secrets(properties);
        let endpoint = match endpoint.map(str::to_owned).or_else(|| endpoint_of_environment(host)) {
            Some(given) => given.trim_end_matches('/').to_owned(),
            None => {
                let region = signer.region();
                let end = if region.starts_with("cn-") { ".cn" } else { "" };
                format!("https://{host}.{region}.amazonaws.com{end}")
            }
        };
        if endpoint.parse::<url::Url>().ok().is_none_or(|url| !url.has_host()) {
            return Err(Error::config(format!(
                "the address of {name} must be a URL such as https://host:port, not {:?}",
                without_password(&endpoint)
            )));
        }
        // It follows no redirect: a signature holds for one host.
        let http = client_builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(TIMEOUT)
            .build()
            .map_err(|error| Error::config("cannot make an HTTP client").with_source(error))?;
        Ok(Self { name, endpoint, http, signer, properties: properties.clone() })
    }

    /// The service's answer.
    pub(super) async fn send(&self, request: Request) -> Result<Value, Refusal> {
        let url = format!("{}{}", self.endpoint, request.path);
        let mut tries = Tries::default();
        loop {
            let (status, headers, body) = match self.send_once(&url, &request).await? {
                Ok(answer) => answer,
                Err(error) if tries.again_after(&error).await => continue,
                Err(error) => return Err(unreachable(self.name, &url, &error).into()),
            };
            if status.is_success() {
                return serde_json::from_slice(&body).map_err(|error| {
                    Error::storage(format!("{} did not answer in JSON", self.name))
                        .with_source(error)
                        .with_context("url", plain(&url))
                        .into()
                });
            }
            let kind = kind_of(&headers, &body);
            let passes = is_passing(status) || PASSING.contains(&kind.as_str());
            if !(passes && tries.again_later(&headers).await) {
                return Err(self.refusal(&url, status, &kind, &body));
            }
        }
    }

    /// All pages of a listing. `request` makes the request for the page of a token, and each answer
    /// has names under `field` and the token of the next page under `next`.
    pub(super) async fn pages(
        &self,
        field: &str,
        next: &str,
        request: impl Fn(Option<&str>) -> Request,
    ) -> Result<Vec<Value>, Refusal> {
        let (mut found, mut token) = (Vec::new(), None::<String>);
        for _ in 0..CATALOG_PAGES.most() {
            let mut answer = self.send(request(token.as_deref())).await?;
            if let Value::Array(page) = answer[field].take() {
                found.extend(page);
            }
            if found.len() > LISTED {
                break;
            }
            match answer[next].take() {
                Value::String(more) if !more.is_empty() => token = Some(more),
                _ => return Ok(found),
            }
        }
        Err(Error::storage(format!(
            "a listing of {} has more than {LISTED} names or {} pages",
            self.name,
            CATALOG_PAGES.most()
        ))
        .with_context("url", plain(&self.endpoint))
        .into())
    }

    /// Status, headers and body of an answer; within, the client's own error.
    async fn send_once(
        &self,
        url: &str,
        request: &Request,
    ) -> Result<reqwest::Result<(StatusCode, HeaderMap, Vec<u8>)>> {
        let mut signed = HttpRequest::new(request.body.clone().into());
        *signed.method_mut() = request.method.clone();
        *signed.uri_mut() = url.parse().map_err(|error| {
            Error::config(format!("{:?} is no URL of {}", plain(url), self.name)).with_source(error)
        })?;
        for (name, value) in &request.headers {
            let value = HeaderValue::from_str(value)
                .map_err(|_| Error::config(format!("{value:?} is no value of an HTTP header")))?;
            signed.headers_mut().insert(HeaderName::from_static(name), value);
        }
        self.signer.sign(&mut signed).await?;
        let sent = self
            .http
            .request(request.method.clone(), url)
            .headers(signed.headers().clone())
            .body(request.body.clone())
            .send()
            .await;
        let response = match sent {
            Ok(response) => response,
            Err(error) => return Ok(Err(error)),
        };
        let (status, headers) = (response.status(), response.headers().clone());
        let body = whole(response, &CATALOG_ANSWER).await;
        let body = body.map_err(|error| error.with_context("url", plain(url)))?;
        Ok(body.map(|body| (status, headers, body)))
    }

    fn refusal(&self, url: &str, status: StatusCode, kind: &str, body: &[u8]) -> Refusal {
        let parsed: Value = serde_json::from_slice(body).unwrap_or_default();
        let message = ["message", "Message"].iter().find_map(|name| parsed[*name].as_str());
        let text = String::from_utf8_lossy(body);
        let told = redact(message.unwrap_or(&text), &self.properties);
        let told: String = told.trim().chars().take(SHOWN).collect();
        let kind_told = if kind.is_empty() { String::new() } else { format!(" {kind}") };
        let error = Error::storage(format!("{} answered {status}{kind_told}: {told}", self.name))
            .with_context("url", plain(url));
        match kind {
            "EntityNotFoundException" | "NotFoundException" => Refusal::NotFound(error),
            _ => Refusal::Other(error),
        }
    }
}

/// The kind of an error: in a header, or in the body with a prefix of the service.
fn kind_of(headers: &HeaderMap, body: &[u8]) -> String {
    let header = headers.get("x-amzn-errortype").and_then(|kind| kind.to_str().ok());
    let in_body = || -> Option<String> {
        let body: Value = serde_json::from_slice(body).ok()?;
        ["__type", "code"].iter().find_map(|name| body[*name].as_str().map(str::to_owned))
    };
    let kind = header.map(str::to_owned).or_else(in_body).unwrap_or_default();
    let kind = kind.split(':').next().unwrap_or_default();
    kind.rsplit('#').next().unwrap_or_default().to_owned()
}

/// The address that AWS's variables give: of this service, or of all.
fn endpoint_of_environment(host: &str) -> Option<String> {
    let ignored = var("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS");
    if ignored.is_ok_and(|value| value.eq_ignore_ascii_case("true")) {
        return None;
    }
    [format!("AWS_ENDPOINT_URL_{}", host.to_uppercase()), "AWS_ENDPOINT_URL".to_owned()]
        .iter()
        .find_map(|name| var(name).ok().filter(|value| !value.is_empty()))
}
