//! Pages of listings, checked before `object_store` reads them: it accepts any document as a page,
//! and missing parts as the end of the listing.

use std::collections::HashMap;
use std::error::Error;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, PoisonError};

use http::Method;
use object_store::client::{HttpError, HttpErrorKind, HttpRequest};

use crate::bounds::{Bound, STORE_LISTING, STORE_PAGES};

/// Characters of a strange answer that an error shows.
const SHOWN: usize = 200;

/// Listings whose pages are counted, before all are forgotten.
const MOST_LISTINGS: usize = 1 << 16;

/// Parameters that say where a page begins.
const PLACES: [&str; 2] = ["continuation-token=", "marker="];

/// The pages of the listings of a store, and their bytes: a server that lists without an end is
/// none to wait for. Listings of one place that run at the same time count together.
#[derive(Debug, Default)]
pub(super) struct Pages(Mutex<HashMap<u64, (u64, u64)>>);

impl Pages {
    /// Counts the page that a request asks for; the first one of a listing begins anew. Returns the
    /// key of the listing.
    ///
    /// # Errors
    ///
    /// `Decode`, which is not sent again, for more pages than are read.
    pub(super) fn count(&self, request: &HttpRequest) -> Result<u64, HttpError> {
        let (mut listing, mut goes_on) = (DefaultHasher::new(), false);
        request.uri().authority().hash(&mut listing);
        request.uri().path().hash(&mut listing);
        for pair in request.uri().query().unwrap_or_default().split('&') {
            match PLACES.iter().any(|place| pair.starts_with(place)) {
                true => goes_on = true,
                false => pair.hash(&mut listing),
            }
        }
        let key = listing.finish();
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match goes_on {
            false => drop(known.remove(&key)),
            true => {
                if known.len() >= MOST_LISTINGS {
                    known.clear();
                }
                let (pages, bytes) = known.entry(key).or_insert((1, 0));
                *pages += 1;
                bounded(&STORE_PAGES, *pages, request)?;
                bounded(&STORE_LISTING, *bytes, request)?;
            }
        }
        Ok(key)
    }

    /// Adds the bytes of a page.
    pub(super) fn add(&self, listing: u64, bytes: u64) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, sum)) = known.get_mut(&listing) {
            *sum += bytes;
        }
    }
}

fn bounded(bound: &Bound, found: u64, request: &HttpRequest) -> Result<(), HttpError> {
    let host = request.uri().host().unwrap_or_default();
    bound
        .check(found, &format!("a listing of the store at {host} has"))
        .map_err(|error| HttpError::new(HttpErrorKind::Decode, error))
}

/// Returns true if a page of a listing is asked for: of S3 and Google, or of Azure.
pub(super) fn is_listing(request: &HttpRequest) -> bool {
    let query = request.uri().query().unwrap_or_default();
    request.method() == Method::GET
        && query.split('&').any(|pair| matches!(pair, "list-type=2" | "comp=list"))
}

/// Whether an answer of status 200 is a page of a listing.
///
/// # Errors
///
/// `Interrupted`, which is sent again, for an error under that status; `Decode` for all that is no
/// page, or one that does not say where the next one begins.
pub(super) fn check_page(body: &[u8]) -> Result<(), HttpError> {
    let text = String::from_utf8_lossy(body);
    match root_of(&text) {
        Some("EnumerationResults") => Ok(()),
        Some("ListBucketResult") => match has_no_next(&text) {
            true => Err(HttpError::new(HttpErrorKind::Decode, WrongPage::NoNext)),
            false => Ok(()),
        },
        Some("Error") => {
            let part = |name| element(&text, name).unwrap_or_default();
            let told = format!("{}: {}", part("Code"), part("Message"));
            Err(HttpError::new(HttpErrorKind::Interrupted, WrongPage::Error(told)))
        }
        _ => {
            let begin = text.trim_start().chars().take(SHOWN).collect();
            Err(HttpError::new(HttpErrorKind::Decode, WrongPage::Other(begin)))
        }
    }
}

/// Returns true if a page that is not the last one has no token for the next.
fn has_no_next(text: &str) -> bool {
    element(text, "IsTruncated") == Some("true")
        && element(text, "NextContinuationToken").is_none_or(str::is_empty)
}

/// The name of a document's first element, without its namespace.
fn root_of(text: &str) -> Option<&str> {
    let mut rest = text.trim_start_matches('\u{feff}').trim_start();
    // Declarations, comments and a document type come before it.
    while let Some((open, close)) = [("<?", "?>"), ("<!--", "-->"), ("<!", ">")]
        .into_iter()
        .find(|(open, _)| rest.starts_with(open))
    {
        rest = rest[open.len()..].split_once(close)?.1.trim_start();
    }
    let rest = rest.strip_prefix('<')?;
    let name = rest.split(|c: char| c.is_whitespace() || matches!(c, '>' | '/')).next()?;
    name.rsplit(':').next()
}

/// The text of the first element of a name. Keys cannot hold one: their `<` is escaped.
fn element<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    Some(rest.split_once("</")?.0.trim())
}

/// An answer that is not a page of a listing.
#[derive(Debug)]
enum WrongPage {
    /// An error, by its code and message.
    Error(String),
    /// Something else, by how it begins.
    Other(String),
    /// A page without the token for the next one.
    NoNext,
}

impl fmt::Display for WrongPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Error(told) => write!(f, "the store answered by an error with status 200: {told}"),
            Self::Other(begin) => write!(
                f,
                "the answer is no listing of a store, it begins with {begin:?}; check the endpoint, and what stands \
                 between here and it (a proxy, a page to log in)"
            ),
            Self::NoNext => f.write_str(
                "the listing goes on, but the server does not say where (no NextContinuationToken): it does not \
                 serve version 2 of S3's listings; name the files one by one",
            ),
        }
    }
}

impl Error for WrongPage {}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind_of(body: &str) -> Option<HttpErrorKind> {
        check_page(body.as_bytes()).err().map(|error| error.kind())
    }

    #[test]
    fn pages_are_known_by_their_first_element() {
        for page in [
            "<ListBucketResult></ListBucketResult>",
            "<ListBucketResult/>",
            "\u{feff}<?xml version=\"1.0\"?>\n<!-- a > b -->\n<ListBucketResult xmlns=\"x\">…",
            "<s3:ListBucketResult xmlns:s3=\"x\">",
            "<?xml version=\"1.0\"?><EnumerationResults ServiceEndpoint=\"x\"><Blobs/>",
            "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>3</NextContinuationToken>",
            "<ListBucketResult><IsTruncated>false</IsTruncated><Key>&lt;IsTruncated>true</Key>",
        ] {
            assert_eq!(kind_of(page), None, "{page}");
        }
        for other in [
            "",
            "{}",
            "<!",
            "<?xml",
            "<!DOCTYPE html>\n<html><body>ListBucketResult</body></html>",
            "<ListAllMyBucketsResult></ListAllMyBucketsResult>",
            "<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>",
            "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken></NextContinuationToken>",
            "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken/>",
        ] {
            assert_eq!(kind_of(other), Some(HttpErrorKind::Decode), "{other}");
        }
    }

    #[test]
    fn an_error_is_told_and_sent_again() {
        let body =
            "<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Please</Message></Error>";
        let error = check_page(body.as_bytes()).unwrap_err();
        assert_eq!(error.kind(), HttpErrorKind::Interrupted);
        assert!(error.to_string().ends_with("status 200: SlowDown: Please"), "{error}");
    }
}
