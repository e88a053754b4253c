//! Answers that are read whole, and how large each may be: a server that sends without end fills no
//! memory.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt, stream};
use object_store::client::{HttpError, HttpErrorKind, HttpResponseBody};
use reqwest::Response;

use crate::bounds::Bound;
use crate::{Error, Result};

/// The beginning of an error's text: messages show less.
const ERROR_TEXT: u64 = 64 << 10;

/// The longest wait for an error's text: the status is there already.
const ERROR_PATIENCE: Duration = Duration::from_secs(5);

/// The answer to a request to a catalog, read whole.
///
/// # Errors
///
/// `Storage`, for more bytes than the bound; within, the client's own error.
pub(crate) async fn whole(
    response: Response,
    bound: &'static Bound,
) -> Result<reqwest::Result<Vec<u8>>> {
    let origin = response.url().origin().ascii_serialization();
    let most = bound.most();
    let too_large = || Error::storage(TooLarge::new(&origin, bound).to_string());
    // One that says so is not begun.
    if response.content_length().is_some_and(|length| length > most) {
        return Err(too_large());
    }
    match up_to(pieces(response), most).await {
        Ok((bytes, true)) => Ok(Ok(bytes)),
        Ok((_, false)) => Err(too_large()),
        Err(error) => Ok(Err(error)),
    }
}

/// The beginning of an error's text; as much as came before the connection broke.
pub(crate) async fn error_text(mut response: Response) -> String {
    let mut text = Vec::new();
    while (text.len() as u64) < ERROR_TEXT
        && let Ok(Some(bytes)) = response.chunk().await
    {
        text.extend_from_slice(&bytes);
    }
    text.truncate(ERROR_TEXT as usize);
    String::from_utf8_lossy(&text).into_owned()
}

fn pieces(response: Response) -> impl Stream<Item = reqwest::Result<Bytes>> {
    stream::unfold(response, |mut response| async {
        let piece = response.chunk().await.transpose()?;
        Some((piece, response))
    })
}

/// A document of a store, read whole.
///
/// # Errors
///
/// `Decode`, which is not sent again, for more bytes than the bound; and errors of reading.
pub(super) async fn document(
    body: HttpResponseBody,
    origin: String,
    bound: &'static Bound,
) -> Result<Bytes, HttpError> {
    match up_to(body.bytes_stream(), bound.most()).await? {
        (bytes, true) => Ok(bytes.into()),
        (_, false) => Err(HttpError::new(HttpErrorKind::Decode, TooLarge::new(&origin, bound))),
    }
}

/// The beginning of a store's error. The status says enough where the text does not arrive.
pub(super) async fn beginning(body: HttpResponseBody) -> Bytes {
    let read = tokio::time::timeout(ERROR_PATIENCE, up_to(body.bytes_stream(), ERROR_TEXT)).await;
    let Ok(Ok((mut bytes, _))) = read else { return Bytes::new() };
    // A character that is cut in two would make the text none.
    let valid = match std::str::from_utf8(&bytes) {
        Err(error) if error.error_len().is_none() => error.valid_up_to(),
        _ => bytes.len(),
    };
    bytes.truncate(valid);
    bytes.into()
}

/// The first `most` bytes of a body; whether that is all of it.
async fn up_to<E>(
    body: impl Stream<Item = Result<Bytes, E>>,
    most: u64,
) -> Result<(Vec<u8>, bool), E> {
    let mut body = std::pin::pin!(body);
    let mut read = Vec::new();
    while let Some(bytes) = body.next().await {
        let bytes = bytes?;
        let left = usize::try_from(most).unwrap_or(usize::MAX) - read.len();
        if bytes.len() > left {
            read.extend_from_slice(&bytes[..left]);
            return Ok((read, false));
        }
        read.extend_from_slice(&bytes);
    }
    Ok((read, true))
}

/// An answer that is larger than any that is right.
#[derive(Debug)]
struct TooLarge {
    message: String,
}

impl TooLarge {
    fn new(origin: &str, bound: &Bound) -> Self {
        let told = bound.exceeded(&format!("{origin} answers with"));
        let told = told.message();
        Self { message: format!("{told}, and what stands between here and the server (a proxy)") }
    }
}

impl fmt::Display for TooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for TooLarge {}

#[cfg(test)]
mod tests {
    use futures::executor::block_on;

    use super::*;
    use crate::bounds::TOKEN;

    #[test]
    fn no_more_than_the_bound_is_kept() {
        let read = |most: u64| {
            let parts = ["abc", "", "def"].map(|part| Ok::<_, HttpError>(Bytes::from(part)));
            block_on(up_to(stream::iter(parts), most)).unwrap()
        };
        assert_eq!(read(6), (b"abcdef".to_vec(), true));
        assert_eq!(read(5), (b"abcde".to_vec(), false));
        assert_eq!(read(3), (b"abc".to_vec(), false));
        assert_eq!(read(0), (Vec::new(), false));
    }

    #[test]
    fn a_document_over_the_bound_names_the_server_and_the_bound() {
        let read = |text: &str| {
            block_on(document(text.to_owned().into(), "https://a.test".into(), &TOKEN))
        };
        assert_eq!(read("abcde").unwrap(), "abcde");
        TOKEN.lower(Some(4));
        let error = read("abcde").unwrap_err();
        TOKEN.lower(None);
        assert_eq!(error.kind(), HttpErrorKind::Decode);
        let told = "https://a.test answers with more than 4 bytes, the most that is read (bound \"token\" of SECURITY.md)";
        assert!(error.to_string().contains(told), "{error}");
    }

    #[test]
    fn the_beginning_of_an_error_is_text() {
        let long = "ä".repeat(ERROR_TEXT as usize);
        let body = HttpResponseBody::from(format!("x{long}"));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let read = runtime.block_on(beginning(body));
        assert_eq!(read.len() as u64, ERROR_TEXT - 1);
        assert!(std::str::from_utf8(&read).is_ok());
    }
}
