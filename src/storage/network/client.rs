//! The HTTP clients below all stores and catalogs. None follows a redirect by itself, and none
//! sends a `Referer`: [`Redirects`] says what another origin gets.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::net::ToSocketAddrs;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use object_store::{ClientConfigKey, ClientOptions};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::redirect::Policy;
use reqwest::{Client, ClientBuilder, NoProxy, Proxy, Request, Response};
use tokio::task::JoinSet;

use super::redirects::Redirects;
use crate::{Error, Result};

/// Begins a client: the only place where one is made.
pub(crate) fn client_builder() -> ClientBuilder {
    Client::builder()
        .redirect(Policy::none())
        .referer(false)
        .user_agent(concat!("tensorquery/", env!("CARGO_PKG_VERSION")))
}

/// Sends a request, and those that redirects ask for.
///
/// # Errors
///
/// `Storage`, for a redirect that may not be followed; within, the client's own error.
pub(crate) async fn send(
    client: &Client,
    mut request: Request,
) -> Result<reqwest::Result<Response>> {
    let mut redirects = Redirects::default();
    loop {
        // Bodies here are texts, which can be sent twice.
        let again = request.try_clone();
        let response = match client.execute(request).await {
            Ok(response) => response,
            Err(error) => return Ok(Err(error)),
        };
        let Some(mut again) = again else { return Ok(Ok(response)) };
        let judged =
            redirects.judge(again.url(), again.method(), response.status(), response.headers());
        let Some(next) = judged.map_err(|error| Error::storage(error.to_string()))? else {
            return Ok(Ok(response));
        };
        next.clean(again.headers_mut());
        if !next.keeps_body {
            *again.body_mut() = None;
        }
        *again.url_mut() = next.url;
        *again.method_mut() = next.method;
        request = again;
    }
}

/// The client of a store. `object_store` makes one of the same options that follows redirects with
/// what it was given for the first server. Default headers are not in it: they are not for every
/// server.
///
/// # Errors
///
/// For a malformed option.
pub(super) fn store_client(options: &ClientOptions) -> object_store::Result<Client> {
    let given = Given(options);
    let mut builder = client_builder().no_gzip().no_brotli().no_zstd().no_deflate();
    if let Some(agent) = options.get_config_value(&ClientConfigKey::UserAgent) {
        builder = builder.user_agent(agent);
    }
    if let Some(url) = options.get_config_value(&ClientConfigKey::ProxyUrl) {
        let mut proxy = Proxy::all(url).map_err(failed)?;
        if let Some(pem) = options.get_config_value(&ClientConfigKey::ProxyCaCertificate) {
            let certificate = reqwest::Certificate::from_pem(pem.as_bytes()).map_err(failed)?;
            builder = builder.add_root_certificate(certificate);
        }
        if let Some(hosts) = options.get_config_value(&ClientConfigKey::ProxyExcludes) {
            proxy = proxy.no_proxy(NoProxy::from_string(&hosts));
        }
        builder = builder.proxy(proxy);
    }
    if let Some(time) = given.time(ClientConfigKey::ConnectTimeout)? {
        builder = builder.connect_timeout(time);
    }
    if let Some(time) = given.time(ClientConfigKey::PoolIdleTimeout)? {
        builder = builder.pool_idle_timeout(time);
    }
    if let Some(most) = given.number(ClientConfigKey::PoolMaxIdlePerHost)? {
        builder = builder.pool_max_idle_per_host(most);
    }
    if let Some(time) = given.time(ClientConfigKey::Http2KeepAliveInterval)? {
        builder = builder.http2_keep_alive_interval(time);
    }
    if let Some(time) = given.time(ClientConfigKey::Http2KeepAliveTimeout)? {
        builder = builder.http2_keep_alive_timeout(time);
    }
    if let Some(size) = given.number::<u32>(ClientConfigKey::Http2MaxFrameSize)? {
        builder = builder.http2_max_frame_size(size);
    }
    if given.flag(ClientConfigKey::Http2KeepAliveWhileIdle)? {
        builder = builder.http2_keep_alive_while_idle(true);
    }
    if given.flag(ClientConfigKey::Http1Only)? {
        builder = builder.http1_only();
    }
    if given.flag(ClientConfigKey::Http2Only)? {
        builder = builder.http2_prior_knowledge();
    }
    if given.flag(ClientConfigKey::AllowInvalidCertificates)? {
        builder = builder.danger_accept_invalid_certs(true);
    }
    if given.flag(ClientConfigKey::RandomizeAddresses)? {
        builder = builder.dns_resolver(Arc::new(AnyAddress));
    }
    let https_only = !given.flag(ClientConfigKey::AllowHttp)?;
    builder.https_only(https_only).build().map_err(failed)
}

/// Options that are parsed when they are used.
struct Given<'a>(&'a ClientOptions);

impl Given<'_> {
    fn flag(&self, key: ClientConfigKey) -> object_store::Result<bool> {
        let Some(value) = self.0.get_config_value(&key) else { return Ok(false) };
        match value.to_ascii_lowercase().as_str() {
            "1" | "true" | "on" | "yes" | "y" => Ok(true),
            "0" | "false" | "off" | "no" | "n" => Ok(false),
            _ => Err(malformed(&key, &value, "true or false")),
        }
    }

    fn time(&self, key: ClientConfigKey) -> object_store::Result<Option<Duration>> {
        let value = self.0.get_config_value(&key);
        let parsed = value.map(|value| {
            humantime::parse_duration(&value)
                .map_err(|_| malformed(&key, &value, "a time, such as \"5s\" or \"500ms\""))
        });
        parsed.transpose()
    }

    fn number<T: FromStr>(&self, key: ClientConfigKey) -> object_store::Result<Option<T>> {
        let value = self.0.get_config_value(&key);
        let parsed =
            value.map(|value| value.parse().map_err(|_| malformed(&key, &value, "a whole number")));
        parsed.transpose()
    }
}

fn malformed(key: &ClientConfigKey, value: &str, wanted: &str) -> object_store::Error {
    let name = key.as_ref();
    let source = format!("the storage option {name:?} must be {wanted}; got {value:?}").into();
    object_store::Error::Generic { store: "HTTP", source }
}

fn failed(error: reqwest::Error) -> object_store::Error {
    // The root cause: the client's own text is that it could not be built.
    let root = std::iter::successors(Some(&error as &dyn std::error::Error), |e| e.source()).last();
    let source = root.map_or_else(|| error.to_string(), ToString::to_string).into();
    object_store::Error::Generic { store: "HTTP", source }
}

/// Resolves a name, and begins at any of its addresses, so that many clients spread over all of
/// them.
struct AnyAddress;

impl fmt::Debug for AnyAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AnyAddress")
    }
}

impl Resolve for AnyAddress {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            // A set, so that a request that is broken off ends a look-up that did not begin.
            let mut tasks = JoinSet::new();
            tasks.spawn_blocking(move || {
                let mut found: Vec<_> = (name.as_str(), 0).to_socket_addrs()?.collect();
                if !found.is_empty() {
                    let random = RandomState::new().hash_one(found.len()) as usize;
                    let first = random % found.len();
                    found.rotate_left(first);
                }
                Ok::<Addrs, std::io::Error>(Box::new(found.into_iter()))
            });
            match tasks.join_next().await {
                Some(Ok(found)) => Ok(found?),
                Some(Err(stopped)) => Err(stopped.into()),
                None => Err("a name was not looked up".into()),
            }
        })
    }
}
