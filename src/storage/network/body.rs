//! A response's body that knows how long it must be, and does not wait forever.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use object_store::client::{HttpError, HttpErrorKind, HttpResponseBody};
use tokio::time::Sleep;

use crate::request_limiter::Permit;

/// A body as it arrives. `object_store` asks for the rest of one that fails, by range and under the
/// same etag, so one that is shorter or longer than it must be has to fail.
pub(super) struct WatchedBody {
    inner: HttpResponseBody,
    /// Held until the last byte; None after it.
    permit: Option<Permit>,
    patience: Duration,
    idle: Pin<Box<Sleep>>,
    began: Instant,
    seen: u64,
    /// Bytes that the headers promise.
    promised: Option<u64>,
    ended: bool,
}

impl WatchedBody {
    pub(super) fn new(
        inner: HttpResponseBody,
        permit: Permit,
        patience: Duration,
        promised: Option<u64>,
    ) -> Self {
        let idle = Box::pin(tokio::time::sleep(patience));
        let began = Instant::now();
        Self { inner, permit: Some(permit), patience, idle, began, seen: 0, promised, ended: false }
    }

    fn fail(&mut self, error: HttpError) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        self.ended = true;
        if let Some(permit) = self.permit.take() {
            permit.count_retry();
        }
        Poll::Ready(Some(Err(error)))
    }

    fn finish(&mut self) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        self.ended = true;
        if let Some(permit) = self.permit.take() {
            permit.completed(self.seen, self.began.elapsed());
        }
        Poll::Ready(None)
    }
}

impl Body for WatchedBody {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        // What was promised has come: a server that says more, or holds the connection, is not
        // waited for.
        if self.promised == Some(self.seen) {
            return self.finish();
        }
        match Pin::new(&mut self.inner).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                let deadline = tokio::time::Instant::now() + self.patience;
                self.idle.as_mut().reset(deadline);
                let arrived = frame.data_ref().map_or(0, |data| data.len() as u64);
                match self.promised {
                    Some(promised) if self.seen + arrived > promised => {
                        let seen = self.seen + arrived;
                        self.fail(broken(BrokenBody::Long { seen, promised }))
                    }
                    _ => {
                        self.seen += arrived;
                        Poll::Ready(Some(Ok(frame)))
                    }
                }
            }
            Poll::Ready(Some(Err(error))) => self.fail(error),
            Poll::Ready(None) => match self.promised {
                Some(promised) => {
                    let seen = self.seen;
                    self.fail(broken(BrokenBody::Short { seen, promised }))
                }
                None => self.finish(),
            },
            Poll::Pending => match self.idle.as_mut().poll(cx) {
                Poll::Ready(()) => {
                    let patience = self.patience;
                    self.fail(silent(patience))
                }
                Poll::Pending => Poll::Pending,
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        self.ended
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// No byte came for so long.
pub(super) fn silent(patience: Duration) -> HttpError {
    HttpError::new(HttpErrorKind::Timeout, BrokenBody::Silent(patience))
}

fn broken(error: BrokenBody) -> HttpError {
    HttpError::new(HttpErrorKind::Interrupted, error)
}

/// The fault of a body.
#[derive(Debug)]
enum BrokenBody {
    Short { seen: u64, promised: u64 },
    Long { seen: u64, promised: u64 },
    Silent(Duration),
}

impl fmt::Display for BrokenBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short { seen, promised } => {
                write!(f, "the body ended after {seen} of {promised} bytes")
            }
            Self::Long { seen, promised } => {
                write!(f, "the body has {seen} bytes or more, where {promised} were promised")
            }
            Self::Silent(patience) => {
                let time = humantime::format_duration(*patience);
                write!(f, "no byte came within {time} (the storage option timeout)")
            }
        }
    }
}

impl Error for BrokenBody {}
