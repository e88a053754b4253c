//! The questions that a REST catalog is asked.

use std::collections::{BTreeMap, HashSet};

use async_trait::async_trait;
use percent_encoding::percent_decode_str;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::super::connect::Client;
use super::super::error::{no_namespace, not_found};
use super::super::registered::LoadedTable;
use super::http::{Http, Refusal, encode, plain};
use super::trust::{Trust, of_answer};
use crate::bounds::{CATALOG_ANSWER, CATALOG_PAGES, check_json};
use crate::{Error, Result};

/// The unit separator, between the names of a namespace in one part of a path.
const SEPARATOR: &str = "\u{1f}";

/// A connection to a REST catalog.
#[derive(Clone)]
pub(in super::super) struct RestClient {
    inner: std::sync::Arc<Inner>,
}

struct Inner {
    http: Http,
    trust: Trust,
    /// Properties from the user, for processes that connect again.
    given: BTreeMap<String, String>,
    /// The catalog's defaults, the user's properties, the catalog's overrides.
    properties: BTreeMap<String, String>,
    /// `https://host/path/v1/prefix`.
    base: String,
    separator: String,
    /// Endpoints that the catalog lists; empty if it lists none.
    endpoints: Vec<String>,
}

/// `GET /v1/config`.
#[derive(Default, Deserialize)]
struct ConfigAnswer {
    #[serde(default)]
    defaults: BTreeMap<String, Value>,
    #[serde(default)]
    overrides: BTreeMap<String, Value>,
    #[serde(default)]
    endpoints: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct NamespacesAnswer {
    #[serde(default)]
    namespaces: Vec<Vec<String>>,
    #[serde(default, rename = "next-page-token")]
    next: Option<String>,
}

#[derive(Deserialize)]
struct TablesAnswer {
    #[serde(default)]
    identifiers: Vec<Identifier>,
    #[serde(default, rename = "next-page-token")]
    next: Option<String>,
}

#[derive(Deserialize)]
struct Identifier {
    name: String,
}

impl RestClient {
    /// Asks the catalog for its configuration.
    ///
    /// # Errors
    ///
    /// `Storage` where it does not answer or refuses, `Config` for malformed properties.
    pub(in super::super) async fn connect(given: &BTreeMap<String, String>) -> Result<Self> {
        let uri = uri_of(given)?;
        let mut url = format!("{uri}/v1/config");
        if let Some(warehouse) = given.get("warehouse").filter(|name| !name.is_empty()) {
            url.push_str(&format!("?warehouse={}", encode(warehouse)));
        }
        let trust = Trust::try_new(given)?;
        let http = Http::try_new(given)?;
        let answer: ConfigAnswer = parse(&http.get(&url).await.map_err(Error::from)?, &url)?;
        let mut properties = of_answer(texts(answer.defaults));
        let overrides = of_answer(texts(answer.overrides));
        let mut said = properties.clone();
        said.retain(|name, _| !given.contains_key(name));
        said.extend(overrides.clone());
        trust.check_files(&said)?;
        properties.extend(given.clone());
        properties.extend(overrides);
        trust.check(&properties)?;
        let mut base = format!("{}/v1", uri_of(&properties)?);
        if let Some(prefix) = properties.get("prefix").filter(|prefix| !prefix.is_empty()) {
            base.push_str(&format!("/{}", prefix.trim_matches('/')));
        }
        let separator = match properties.get("namespace-separator") {
            Some(encoded) => percent_decode_str(encoded).decode_utf8_lossy().into_owned(),
            None => SEPARATOR.to_owned(),
        };
        // The token, the headers and the server of tokens may have been told now.
        let http = http.with_properties(&properties)?;
        let endpoints = answer.endpoints.unwrap_or_default();
        let given = given.clone();
        let inner = Inner { http, trust, given, properties, base, separator, endpoints };
        Ok(Self { inner: std::sync::Arc::new(inner) })
    }

    /// Properties from the user.
    pub(super) fn given(&self) -> &BTreeMap<String, String> {
        &self.inner.given
    }

    /// The merged properties from the user and the catalog.
    pub(super) fn properties(&self) -> &BTreeMap<String, String> {
        &self.inner.properties
    }

    /// Which servers the catalog's answers may name.
    pub(super) fn trust(&self) -> &Trust {
        &self.inner.trust
    }

    /// Returns true if the catalog says that it has the endpoint.
    pub(super) fn has_endpoint(&self, endpoint: &str) -> bool {
        self.inner.endpoints.iter().any(|known| known == endpoint)
    }

    pub(super) fn table_url(&self, namespace: &[String], name: &str) -> String {
        format!("{}/namespaces/{}/tables/{}", self.inner.base, self.path(namespace), encode(name))
    }

    /// A URL as a property of a table told it, which may be relative to the catalog's own.
    ///
    /// # Errors
    ///
    /// `Config`, for a URL of another origin that the user does not trust.
    pub(super) fn resolve(&self, property: &str, url: &str) -> Result<String> {
        let url = match url.starts_with("http://") || url.starts_with("https://") {
            true => url.to_owned(),
            false => {
                format!("{}/{}", uri_of(&self.inner.properties)?, url.trim_start_matches('/'))
            }
        };
        self.inner.trust.check_address(property, &url)?;
        Ok(url)
    }

    pub(super) async fn get(&self, url: &str) -> Result<Vec<u8>, Refusal> {
        self.inner.http.get(url).await
    }

    fn path(&self, namespace: &[String]) -> String {
        encode(&namespace.join(&self.inner.separator))
    }

    /// The page size to send with every page, if the user wants one.
    fn page_size(&self) -> Option<&str> {
        self.inner.properties.get("rest-page-size").map(String::as_str)
    }

    /// All pages of a listing.
    async fn pages<T: DeserializeOwned>(
        &self,
        url: &str,
        take: impl FnMut(T) -> Option<String>,
    ) -> Result<(), Refusal> {
        // A server that knows pages begins them with an empty token.
        let first = self.page_size().map(|_| String::new());
        let size = self.page_size().map(|size| format!("&pageSize={}", encode(size)));
        let size = size.unwrap_or_default();
        let page = |token: &str| format!("pageToken={}{size}", encode(token));
        all_pages(&self.inner.http, url, first, page, take).await
    }
}

/// All pages of a listing: `page` makes a part of the query from the token of a page, and `take` finds
/// the next one in an answer.
pub(in super::super) async fn all_pages<T: DeserializeOwned>(
    http: &Http,
    url: &str,
    first: Option<String>,
    page: impl Fn(&str) -> String,
    mut take: impl FnMut(T) -> Option<String>,
) -> Result<(), Refusal> {
    let mut token = first;
    let mut seen = HashSet::new();
    let mut bytes = 0;
    loop {
        // A server that pages without end is none to wait for.
        let checked = CATALOG_PAGES
            .check(seen.len() as u64 + 1, "the catalog's listing has")
            .and_then(|()| CATALOG_ANSWER.check(bytes, "the catalog's listing has"));
        checked.map_err(|error| error.with_context("url", plain(url)))?;
        let sign = if url.contains('?') { '&' } else { '?' };
        let asked = match &token {
            None => url.to_owned(),
            Some(token) => format!("{url}{sign}{}", page(token)),
        };
        let body = http.get(&asked).await?;
        bytes += body.len() as u64;
        let next = take(parse(&body, &asked)?);
        match next.filter(|next| !next.is_empty()) {
            None => return Ok(()),
            // A server that repeats a page would do so forever.
            Some(next) if !seen.insert(next.clone()) => {
                return Err(Error::storage("the catalog gave the same page twice")
                    .with_context("url", plain(url))
                    .into());
            }
            next => token = next,
        }
    }
}

#[async_trait]
impl Client for RestClient {
    async fn list_namespaces(&self, parent: &[String]) -> Result<Vec<Vec<String>>> {
        let mut url = format!("{}/namespaces", self.inner.base);
        if !parent.is_empty() {
            url.push_str(&format!("?parent={}", self.path(parent)));
        }
        let mut all = Vec::new();
        let listed = self.pages(&url, |answer: NamespacesAnswer| {
            all.extend(answer.namespaces);
            answer.next
        });
        match listed.await {
            Ok(()) => Ok(all),
            Err(Refusal::NotFound { .. }) if !parent.is_empty() => Err(no_namespace(parent)),
            Err(refusal) => Err(refusal.into()),
        }
    }

    async fn list_tables(&self, namespace: &[String]) -> Result<Vec<String>> {
        let url = format!("{}/namespaces/{}/tables", self.inner.base, self.path(namespace));
        let mut all = Vec::new();
        let listed = self.pages(&url, |answer: TablesAnswer| {
            all.extend(answer.identifiers.into_iter().map(|table| table.name));
            answer.next
        });
        match listed.await {
            Ok(()) => Ok(all),
            Err(Refusal::NotFound { .. }) => Err(no_namespace(namespace)),
            Err(refusal) => Err(refusal.into()),
        }
    }

    async fn load_table(&self, namespace: &[String], name: &str) -> Result<LoadedTable> {
        match super::table::load(self, namespace, name).await {
            Err(Refusal::NotFound { is_namespace: true }) => Err(no_namespace(namespace)),
            Err(Refusal::NotFound { is_namespace: false }) => Err(not_found(namespace, name)),
            Err(refusal) => Err(refusal.into()),
            Ok(table) => Ok(table),
        }
    }
}

/// Parses an answer.
pub(in super::super) fn parse<T: DeserializeOwned>(body: &[u8], url: &str) -> Result<T> {
    let parsed = check_json(body).map_err(|error| error.message().to_owned()).and_then(|()| {
        let parsed = serde_json::from_slice(body);
        parsed.map_err(|error| format!("the answer is none of a REST catalog: {error}"))
    });
    parsed.map_err(|what| Error::storage(what).with_context("url", plain(url)))
}

fn uri_of(properties: &BTreeMap<String, String>) -> Result<&str> {
    let uri = properties.get("uri").map(|uri| uri.trim_end_matches('/')).unwrap_or_default();
    match uri.starts_with("http://") || uri.starts_with("https://") {
        true => Ok(uri),
        false => {
            Err(Error::config("the uri of a REST catalog must start with http:// or https://"))
        }
    }
}

/// Properties as texts: some servers write flags and numbers as such, and null for unset ones.
pub(super) fn texts(values: BTreeMap<String, Value>) -> BTreeMap<String, String> {
    let text = |value: Value| match value {
        Value::Null => None,
        Value::String(text) => Some(text),
        other => Some(other.to_string()),
    };
    values.into_iter().filter_map(|(name, value)| Some((name, text(value)?))).collect()
}
