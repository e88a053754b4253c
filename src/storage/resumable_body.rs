//! Bodies that break off, and go on. `object_store` asks for the rest of one under its etag; where
//! the server sends none, the rest is asked for here, and has to be of the same size and time.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use object_store::{
    Error, GetOptions, GetResult, GetResultPayload, ObjectMeta, ObjectStore, Result, RetryConfig,
};

use super::layer::Layer;

/// Bodies without an etag go on where they break off.
pub(super) struct Resumed {
    /// How often, and for how long.
    pub(super) retry: RetryConfig,
}

impl Layer for Resumed {
    fn answer(
        &self,
        store: &Arc<dyn ObjectStore>,
        options: GetOptions,
        answer: GetResult,
    ) -> GetResult {
        let GetResult { payload, meta, range, attributes } = answer;
        let payload = match payload {
            GetResultPayload::Stream(body) if meta.e_tag.is_none() => {
                let (store, retry) = (Arc::clone(store), self.retry.clone());
                let (left, meta, began) = (range.clone(), meta.clone(), Instant::now());
                let body =
                    ResumableBody { store, options, retry, meta, body, left, repeats: 0, began };
                let bytes = stream::try_unfold(body, |mut body| async {
                    Ok(body.next().await?.map(|bytes| (bytes, body)))
                });
                GetResultPayload::Stream(bytes.boxed())
            }
            payload => payload,
        };
        GetResult { payload, meta, range, attributes }
    }
}

struct ResumableBody {
    store: Arc<dyn ObjectStore>,
    options: GetOptions,
    retry: RetryConfig,
    meta: ObjectMeta,
    body: BoxStream<'static, Result<Bytes>>,
    /// The range that did not arrive yet.
    left: Range<u64>,
    repeats: usize,
    began: Instant,
}

impl ResumableBody {
    async fn next(&mut self) -> Result<Option<Bytes>> {
        loop {
            match self.body.try_next().await {
                Ok(Some(bytes)) => {
                    self.left.start += bytes.len() as u64;
                    return Ok(Some(bytes));
                }
                Ok(None) => return Ok(None),
                Err(broken) => self.ask_for_rest(broken).await?,
            }
        }
    }

    /// Asks for the remaining range.
    ///
    /// # Errors
    ///
    /// `broken`, where the retries are used up, or the rest is not to be had of this file.
    async fn ask_for_rest(&mut self, broken: Error) -> Result<()> {
        let exhausted = self.repeats >= self.retry.max_retries
            || self.began.elapsed() > self.retry.retry_timeout;
        if exhausted || self.left.is_empty() {
            return Err(broken);
        }
        self.repeats += 1;
        tokio::time::sleep(self.retry.backoff.init_backoff).await;
        let range = Some(self.left.clone().into());
        let options = GetOptions { range, ..self.options.clone() };
        match self.store.get_opts(&self.meta.location, options).await {
            Ok(answer) if is_same(&answer.meta, &self.meta) => {
                self.body = answer.into_stream();
                Ok(())
            }
            _ => Err(broken),
        }
    }
}

fn is_same(now: &ObjectMeta, before: &ObjectMeta) -> bool {
    (now.size, now.last_modified, &now.e_tag) == (before.size, before.last_modified, &before.e_tag)
}
