//! Sending requests: in turn, with a time limit, and counted.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http::header::{CONTENT_RANGE, CONTENT_TYPE, ETAG, Entry, RETRY_AFTER};
use http::{HeaderMap, Method, StatusCode, Uri, response::Parts};
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody,
    HttpResponse, HttpResponseBody, HttpService, SpawnService,
};
use tokio::runtime::Handle;
use url::Url;

use super::body::{WatchedBody, silent};
use super::client::store_client;
use super::listing::{Pages, check_page, is_listing};
use super::options::NetworkOptions;
use super::redirects::{RedirectError, Redirects};
use super::whole::{beginning, document};
use crate::Result;
use crate::bounds::STORE_DOCUMENT;
use crate::request_limiter::{Permit, RequestLimiter};
use crate::runtime::Runtimes;

/// Makes the HTTP clients of stores: requests run on threads of their own, so that they do not wait
/// behind decoding, and take part in the process's traffic.
#[derive(Debug)]
pub(in crate::storage) struct Connector {
    io: Handle,
    limiter: Arc<RequestLimiter>,
    patience: Duration,
    /// The longest that a request waits since a store said when to come again.
    longest_pause: Duration,
}

impl Connector {
    /// For this process.
    ///
    /// # Errors
    ///
    /// `Config` where the operating system refuses a thread.
    pub(in crate::storage) fn new(options: &NetworkOptions) -> Result<Self> {
        let runtimes = Runtimes::current()?;
        let limiter = Arc::clone(runtimes.limiter());
        let (patience, longest_pause) = (options.patience, options.retry.retry_timeout);
        Ok(Self { io: runtimes.io().clone(), limiter, patience, longest_pause })
    }
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        // The options' time limit is one of a whole request, which a slow link would exceed
        // without fault: it is left out.
        let service = Service {
            client: HttpClient::new(store_client(options)?),
            headers: options.get_default_headers().cloned().unwrap_or_default(),
            limiter: Arc::clone(&self.limiter),
            patience: self.patience,
            longest_pause: self.longest_pause,
            pages: Arc::default(),
        };
        Ok(HttpClient::new(SpawnService::new(service, self.io.clone())))
    }
}

#[derive(Clone, Debug)]
struct Service {
    client: HttpClient,
    /// The user's headers, for the server that the user named.
    headers: HeaderMap,
    limiter: Arc<RequestLimiter>,
    patience: Duration,
    /// The longest that a request waits since a store said when to come again.
    longest_pause: Duration,
    pages: Arc<Pages>,
}

#[async_trait]
impl HttpService for Service {
    async fn call(&self, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
        for (name, value) in &self.headers {
            if let Entry::Vacant(place) = request.headers_mut().entry(name) {
                place.insert(value.clone());
            }
        }
        let listing = is_listing(&request).then(|| self.pages.count(&request)).transpose()?;
        let is_listing = listing.is_some();
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
        let mut redirects = Redirects::default();
        let (parts, body, origin) = loop {
            let again = request.clone();
            let origin = origin_of(again.uri());
            let (parts, body) = self.send(request).await?;
            match redirected(&mut redirects, again, &parts) {
                Ok(Some(next)) => request = next,
                Ok(None) => break (parts, body, origin),
                // Of a kind that is not sent again: the answer would be the same.
                Err(error) => return Err(HttpError::new(HttpErrorKind::Decode, error)),
            }
        };
        if parts.status.is_client_error() || parts.status.is_server_error() {
            let bytes = beginning(body).await;
            return Ok(HttpResponse::from_parts(parts, bytes.into()));
        }
        if !is_retried_whole(&parts, is_listing, is_read) {
            return Ok(HttpResponse::from_parts(parts, body));
        }
        let bytes = document(body, origin, &STORE_DOCUMENT).await?;
        if let Some(listing) = listing {
            self.pages.add(listing, bytes.len() as u64);
            check_page(&bytes).inspect_err(|_| self.limiter.count_retry())?;
        }
        Ok(HttpResponse::from_parts(parts, bytes.into()))
    }
}

impl Service {
    /// Sends one request in its turn, and watches its body.
    async fn send(&self, request: HttpRequest) -> Result<(Parts, HttpResponseBody), HttpError> {
        let host = request.uri().authority().map_or("", |host| host.as_str());
        let permit = self.limiter.admit(host, self.longest_pause).await;
        let answer = tokio::time::timeout(self.patience, self.client.execute(request)).await;
        let response = match answer {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => {
                self.limiter.count_retry();
                return Err(repeatable(told(error)));
            }
            Err(_) => {
                self.limiter.count_retry();
                return Err(silent(self.patience));
            }
        };
        let (parts, body) = response.into_parts();
        note(&parts, &permit);
        let body = WatchedBody::new(body, permit, self.patience, promised(&parts));
        Ok((parts, HttpResponseBody::new(body)))
    }
}

/// The request that an answer to `sent` redirects to; None for any other answer.
fn redirected(
    redirects: &mut Redirects,
    mut sent: HttpRequest,
    answer: &Parts,
) -> Result<Option<HttpRequest>, RedirectError> {
    // Most requests end here, without their address being parsed.
    if answer.status.is_success() {
        return Ok(None);
    }
    let Ok(url) = Url::parse(&sent.uri().to_string()) else { return Ok(None) };
    let judged = redirects.judge(&url, sent.method(), answer.status, &answer.headers)?;
    let Some(next) = judged else { return Ok(None) };
    let Ok(uri) = next.url.as_str().parse() else {
        return Err(RedirectError::no_address(&url));
    };
    next.clean(sent.headers_mut());
    if !next.keeps_body {
        *sent.body_mut() = HttpRequestBody::empty();
    }
    *sent.uri_mut() = uri;
    *sent.method_mut() = next.method;
    Ok(Some(sent))
}

/// The error with the cause at its root, such as a certificate that nobody trusts: the client's own
/// text is that a request could not be sent.
fn told(error: HttpError) -> HttpError {
    let kind = error.kind();
    let root = std::iter::successors(error.source(), |&cause| cause.source()).last();
    match root.map(ToString::to_string) {
        Some(cause) => HttpError::new(kind, Unsent { cause, error }),
        None => error,
    }
}

/// A request that could not be sent, or had no answer.
#[derive(Debug)]
struct Unsent {
    cause: String,
    error: HttpError,
}

impl fmt::Display for Unsent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.cause)
    }
}

impl StdError for Unsent {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&self.error)
    }
}

/// The error of a request that may be sent again. One of an unknown kind is a connection that an
/// earlier answer spoilt, as by more bytes than it promised; `object_store` repeats reads.
fn repeatable(error: HttpError) -> HttpError {
    match error.kind() {
        HttpErrorKind::Unknown => HttpError::new(HttpErrorKind::Interrupted, error),
        _ => error,
    }
}

/// Counts an answer's facts about the store.
fn note(parts: &Parts, permit: &Permit) {
    let status = parts.status;
    match status {
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
            permit.count_retry();
            permit.throttled(retry_after(&parts.headers));
        }
        status if status.is_server_error() || status == StatusCode::REQUEST_TIMEOUT => {
            permit.count_retry();
        }
        _ => permit.answered(),
    }
}

/// The pause that an answer asks for.
pub(crate) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse::<u32>().ok()?;
    Some(Duration::from_secs(seconds.into()))
}

/// The bytes of an answered range. A length of the body beside it is ignored: it was seen to be
/// wrong if a server compresses, or a proxy cuts.
fn promised(parts: &Parts) -> Option<u64> {
    if parts.status != StatusCode::PARTIAL_CONTENT {
        return None;
    }
    let text = parts.headers.get(CONTENT_RANGE)?.to_str().ok()?;
    let (range, _) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last) = (first.parse::<u64>().ok()?, last.parse::<u64>().ok()?);
    (last + 1).checked_sub(first)
}

/// Scheme, host and port, as errors name a server.
fn origin_of(uri: &Uri) -> String {
    let host = uri.authority().map_or("", |host| host.as_str());
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    format!("{}://{host}", uri.scheme_str().unwrap_or("http"))
}

/// Returns true if the whole answer is read here, so that one that breaks off is asked for again:
/// listings, tokens and the like, which `object_store` asks for again only where they fail before
/// their body. The body of an object, which has an etag, it asks for again by range.
fn is_retried_whole(parts: &Parts, is_listing: bool, is_read: bool) -> bool {
    let kind = parts.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or("");
    let is_document =
        !parts.headers.contains_key(ETAG) && (kind.contains("xml") || kind.contains("json"));
    parts.status == StatusCode::OK && (is_listing || is_document || !is_read)
}
