//! The one rule for redirects, for every client of this crate.
//!
//! Credentials, cookies, headers and bodies are for the origin (scheme, host and port) that the
//! user or a catalog named. A redirect within it is followed with all of them. Another origin gets
//! a bare request: the method, the range and the conditions. Where the address or the body itself
//! holds credentials, a redirect to another origin is an error. No request has a `Referer`.

use std::error::Error;
use std::fmt;

use http::header::{
    ACCEPT, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, IF_MATCH, IF_MODIFIED_SINCE,
    IF_NONE_MATCH, IF_UNMODIFIED_SINCE, LOCATION, RANGE, TRANSFER_ENCODING, USER_AGENT,
};
use http::{HeaderMap, HeaderName, Method, StatusCode};
use url::Url;

use crate::storage::options::is_secret;
use crate::storage::secrets::scrub;

/// How many redirects one request follows at most.
const MOST: usize = 10;

/// The headers that go to another origin: they say what is asked for, and nothing of who asks.
const BARE: &[HeaderName] =
    &[ACCEPT, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_UNMODIFIED_SINCE, RANGE, USER_AGENT];

/// The header in which S3 tells where a bucket lies.
const REGION: &str = "x-amz-bucket-region";

/// Names in a query that sound like secrets and are places in a listing.
const PLACES: &[&str] = &["continuation-token", "pagetoken", "page_token"];

/// Shorter values are words, more likely than secrets.
const SHORTEST: usize = 8;

/// The redirects of one request.
#[derive(Debug, Default)]
pub(crate) struct Redirects {
    followed: usize,
    /// Set once a redirect led to another origin.
    left: Option<Left>,
}

/// The way from the user's origin to another one.
#[derive(Clone, Debug)]
pub(crate) struct Left {
    from: String,
    to: String,
    region: Option<String>,
}

/// The request to send next.
pub(crate) struct Next {
    pub(crate) url: Url,
    pub(crate) method: Method,
    pub(crate) keeps_body: bool,
    leaves_origin: bool,
}

impl Redirects {
    /// Judges the answer to a request: Some names the request to send next, None says that the
    /// answer is the last one.
    ///
    /// # Errors
    ///
    /// Where a redirect may not be followed, and where another origin refuses the bare request.
    pub(crate) fn judge(
        &mut self,
        url: &Url,
        method: &Method,
        status: StatusCode,
        headers: &HeaderMap,
    ) -> Result<Option<Next>, RedirectError> {
        if !is_redirect(status) {
            return match (&self.left, status) {
                (Some(left), StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => {
                    Err(RedirectError::Refused { left: left.clone(), status })
                }
                _ => Ok(None),
            };
        }
        let from = origin(url);
        let region = headers.get(REGION).and_then(|region| region.to_str().ok());
        let region = region.map(str::to_owned);
        let Some(location) = headers.get(LOCATION) else {
            // S3 answers so for a bucket of another region; `object_store` knows no more to say.
            return match region {
                Some(region) => Err(RedirectError::Region { region }),
                None => Ok(None),
            };
        };
        if self.followed == MOST {
            return Err(RedirectError::TooMany { from });
        }
        self.followed += 1;
        let next = location.to_str().ok().and_then(|location| url.join(location).ok());
        let next = next.filter(|next| matches!(next.scheme(), "http" | "https"));
        let Some(mut next) = next.filter(Url::has_host) else {
            return Err(RedirectError::NoAddress { from });
        };
        // A server may not choose a user's name and password either.
        if next.set_username("").is_err() || next.set_password(None).is_err() {
            return Err(RedirectError::NoAddress { from });
        }
        next.set_fragment(None);
        let is_read = matches!(*method, Method::GET | Method::HEAD);
        let leaves_origin = next.origin() != url.origin();
        if leaves_origin {
            let to = origin(&next);
            let left = Left { from, to, region };
            if url.scheme() == "https" && next.scheme() == "http" {
                return Err(RedirectError::Unencrypted { left });
            }
            if !is_read {
                return Err(RedirectError::Secret { left, place: "body" });
            }
            if has_credentials(url) {
                return Err(RedirectError::Secret { left, place: "address" });
            }
            let from = self.left.take().map_or(left.from, |first| first.from);
            self.left = Some(Left { from, ..left });
        }
        // As browsers do it (RFC 9110, section 15.4).
        let becomes_get = match status {
            StatusCode::SEE_OTHER => !is_read,
            StatusCode::MOVED_PERMANENTLY | StatusCode::FOUND => *method == Method::POST,
            _ => false,
        };
        let method = if becomes_get { Method::GET } else { method.clone() };
        Ok(Some(Next { url: next, method, keeps_body: !becomes_get, leaves_origin }))
    }
}

impl Next {
    /// Takes out the headers that do not go along.
    pub(crate) fn clean(&self, headers: &mut HeaderMap) {
        if self.leaves_origin {
            let others: Vec<HeaderName> =
                headers.keys().filter(|name| !BARE.contains(name)).cloned().collect();
            for name in others {
                headers.remove(name);
            }
        }
        if !self.keeps_body {
            for name in [CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, TRANSFER_ENCODING] {
                headers.remove(name);
            }
        }
    }
}

/// A redirect that was not followed, or that led nowhere.
#[derive(Debug)]
pub(crate) enum RedirectError {
    /// The address or the body holds credentials, which stay with the origin.
    Secret {
        left: Left,
        place: &'static str,
    },
    /// From https to http.
    Unencrypted {
        left: Left,
    },
    /// Another origin wants to know who asks.
    Refused {
        left: Left,
        status: StatusCode,
    },
    /// S3's answer for a bucket of another region.
    Region {
        region: String,
    },
    TooMany {
        from: String,
    },
    NoAddress {
        from: String,
    },
}

impl fmt::Display for RedirectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Secret { left: Left { from, to, region }, place } => {
                write!(
                    f,
                    "{from} redirects to {to}, and the {place} of this request holds credentials, which are for {from} \
                     alone; nothing was sent to {to}"
                )?;
                remedy(f, to, region.as_deref())
            }
            Self::Unencrypted { left: Left { from, to, .. } } => write!(
                f,
                "{from} redirects to {to}, which is not encrypted; such a redirect is not followed: name the server's own \
                 address"
            ),
            Self::Refused { left: Left { from, to, region }, status } => {
                write!(
                    f,
                    "{from} redirects to {to}, which answered {status}: credentials and headers are for {from} alone, and \
                     were not sent to {to}"
                )?;
                remedy(f, to, region.as_deref())
            }
            Self::Region { region } => {
                write!(f, "the bucket lies in another region")?;
                region_hint(f, region)
            }
            Self::TooMany { from } => {
                write!(f, "{from} redirects more than {MOST} times in a row; check the address")
            }
            Self::NoAddress { from } => write!(
                f,
                "{from} redirects to no address of http or https; check what stands between here and the server (a proxy)"
            ),
        }
    }
}

impl Error for RedirectError {}

impl RedirectError {
    /// A redirect whose address nothing can be sent to.
    pub(super) fn no_address(from: &Url) -> Self {
        Self::NoAddress { from: origin(from) }
    }
}

fn remedy(f: &mut fmt::Formatter<'_>, to: &str, region: Option<&str>) -> fmt::Result {
    match region {
        Some(region) => region_hint(f, region),
        None => {
            write!(f, "; if {to} is the right server, give its address (the path, endpoint or uri)")
        }
    }
}

fn region_hint(f: &mut fmt::Formatter<'_>, region: &str) -> fmt::Result {
    write!(
        f,
        "; the server says that the bucket lies in the region {region:?}: pass it as the storage option \"region\", or set \
         AWS_REGION"
    )
}

fn is_redirect(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::MOVED_PERMANENTLY
            | StatusCode::FOUND
            | StatusCode::SEE_OTHER
            | StatusCode::TEMPORARY_REDIRECT
            | StatusCode::PERMANENT_REDIRECT
    )
}

/// Scheme, host and port, as errors show them.
fn origin(url: &Url) -> String {
    url.origin().ascii_serialization()
}

/// Returns true if an address holds credentials: a user's name, a signature (Azure's SAS, signed
/// URLs of S3 and Google), or a secret of an option.
fn has_credentials(url: &Url) -> bool {
    let is_secret = |(name, value): (std::borrow::Cow<'_, str>, std::borrow::Cow<'_, str>)| {
        let name = name.to_ascii_lowercase();
        let is_named = is_secret(&name) || name == "sig" || name.ends_with("signature");
        let is_noted = value.len() >= SHORTEST && scrub(&value) != *value;
        (is_named || is_noted) && !PLACES.contains(&name.as_str())
    };
    !url.username().is_empty() || url.password().is_some() || url.query_pairs().any(is_secret)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    const HOST: &str = "https://one.test/a?x=1";

    fn judge(url: &str, method: &Method, status: u16, location: &str) -> Result<Next, String> {
        let mut headers = HeaderMap::new();
        headers.insert(LOCATION, HeaderValue::from_str(location).unwrap());
        let (url, status) = (Url::parse(url).unwrap(), StatusCode::from_u16(status).unwrap());
        let next = Redirects::default().judge(&url, method, status, &headers);
        next.map(Option::unwrap).map_err(|error| error.to_string())
    }

    fn left(location: &str) -> Vec<String> {
        let mut headers = HeaderMap::new();
        for name in ["authorization", "cookie", "range", "x-amz-security-token", "x-own", "host"] {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static("v"));
        }
        judge(HOST, &Method::GET, 302, location).unwrap().clean(&mut headers);
        headers.keys().map(|name| name.as_str().to_owned()).collect()
    }

    #[test]
    fn another_origin_gets_a_bare_request() {
        assert_eq!(left("/b").len(), 6);
        assert_eq!(left("https://one.test:443/b").len(), 6);
        assert_eq!(left("https://one.test:8443/b"), ["range"]);
        assert_eq!(left("https://two.test/b"), ["range"]);
        assert_eq!(left("https://sub.one.test/b"), ["range"]);
        let next = judge(HOST, &Method::GET, 302, "https://me:pw@two.test/b#c").unwrap();
        assert_eq!(next.url.as_str(), "https://two.test/b");
    }

    #[test]
    fn credentials_in_address_or_body_stay() {
        for query in ["sv=1&sig=x", "X-Amz-Signature=x", "Signature=x", "token=x", "api_key=x"] {
            let url = format!("https://one.test/a?{query}");
            let error = judge(&url, &Method::GET, 307, "https://two.test/b?sig=x").err().unwrap();
            assert!(
                error.contains("https://one.test redirects to https://two.test, and"),
                "{error}"
            );
            assert!(error.contains("address of this request") && !error.contains('='), "{error}");
            assert!(judge(&url, &Method::GET, 307, "/b").is_ok());
        }
        let url = "https://one.test/a?continuation-token=x&list-type=2";
        assert!(judge(url, &Method::GET, 307, "https://two.test/b").is_ok());
        for status in [301, 302, 303, 307, 308] {
            let error = judge(HOST, &Method::POST, status, "https://two.test/b").err().unwrap();
            assert!(error.contains("the body of this request"), "{error}");
        }
        assert!(judge("https://u:p@one.test/", &Method::GET, 302, "https://two.test/").is_err());
        assert!(judge(HOST, &Method::GET, 302, "http://one.test/b").is_err());
    }

    #[test]
    fn a_method_changes_as_in_browsers() {
        let method = |method: Method, status| judge(HOST, &method, status, "/b").unwrap().method;
        assert_eq!(method(Method::HEAD, 303), Method::HEAD);
        assert_eq!(method(Method::POST, 303), Method::GET);
        assert_eq!(method(Method::POST, 302), Method::GET);
        assert_eq!(method(Method::POST, 307), Method::POST);
        assert_eq!(method(Method::PUT, 301), Method::PUT);
    }

    #[test]
    fn what_leads_nowhere_is_an_error() {
        for location in ["ftp://two.test/", "data:x", "http://", "file:///etc/passwd"] {
            let error = judge("http://one.test/", &Method::GET, 302, location).err().unwrap();
            assert!(error.starts_with("http://one.test redirects to no address"), "{error}");
        }
        let (mut redirects, url) = (Redirects::default(), Url::parse("http://one.test/").unwrap());
        let headers = HeaderMap::from_iter([(LOCATION, HeaderValue::from_static("/"))]);
        for _ in 0..MOST {
            let next = redirects.judge(&url, &Method::GET, StatusCode::FOUND, &headers).unwrap();
            assert_eq!(next.unwrap().url, url);
        }
        let error = redirects.judge(&url, &Method::GET, StatusCode::FOUND, &headers).err().unwrap();
        assert!(error.to_string().contains("more than 10 times"), "{error}");
    }

    #[test]
    fn the_region_of_a_bucket_is_told() {
        let headers = HeaderMap::from_iter([(
            HeaderName::from_static(REGION),
            HeaderValue::from_static("eu-west-1"),
        )]);
        let (url, status) = (Url::parse(HOST).unwrap(), StatusCode::MOVED_PERMANENTLY);
        let error = Redirects::default().judge(&url, &Method::GET, status, &headers).err().unwrap();
        assert!(error.to_string().contains("\"eu-west-1\": pass it as"), "{error}");
    }
}
