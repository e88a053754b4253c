//! Long answers of a store, asked for a step at a time: bytes that a slow reader has not taken yet
//! stay in the store. A whole answer would wait in this process, since bodies are read as fast as
//! they come, for the next request to have its turn.

use std::collections::VecDeque;
use std::ops::Range;

use bytes::Bytes;
use datafusion::common::runtime::SpawnedTask;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use object_store::{Error as StoreError, Result};

/// The bytes of one request.
pub(super) const STEP: u64 = 8 << 20;

/// Requests that are sent ahead of the reader: with one, nothing would be under way between two.
const AHEAD: usize = 2;

/// The first step of a range; whole where it is not longer than one.
pub(super) fn first_step(range: &Range<u64>) -> Range<u64> {
    range.start..range.end.min(range.start.saturating_add(STEP))
}

/// The bytes of `first`, the answer to the [`first_step`] of `range`, and then of the others, which
/// `fetch` reads: each in a task of its own, so that a request that fails is repeated at once,
/// however slow the reader is.
pub(super) fn in_steps<F, Fut>(
    range: &Range<u64>,
    first: BoxStream<'static, Result<Bytes>>,
    fetch: F,
) -> BoxStream<'static, Result<Bytes>>
where
    F: Fn(Range<u64>) -> Fut + Send + 'static,
    Fut: Future<Output = Result<Vec<Bytes>>> + Send + 'static,
{
    let step = first_step(range);
    let steps = Steps {
        left: (step.end - step.start) / 2,
        current: first,
        ahead: VecDeque::new(),
        rest: step.end..range.end,
        fetch,
    };
    stream::try_unfold(steps, |mut steps| async {
        Ok(steps.next().await?.map(|bytes| (bytes, steps)))
    })
    .boxed()
}

struct Steps<F> {
    current: BoxStream<'static, Result<Bytes>>,
    /// Bytes that pass before the first request ahead: who looks for the end of a line wants no
    /// more than some.
    left: u64,
    ahead: VecDeque<SpawnedTask<Result<Vec<Bytes>>>>,
    /// The range not asked for yet.
    rest: Range<u64>,
    fetch: F,
}

impl<F, Fut> Steps<F>
where
    F: Fn(Range<u64>) -> Fut,
    Fut: Future<Output = Result<Vec<Bytes>>> + Send + 'static,
{
    async fn next(&mut self) -> Result<Option<Bytes>> {
        loop {
            if let Some(bytes) = self.current.try_next().await? {
                self.left = self.left.saturating_sub(bytes.len() as u64);
                if self.left == 0 {
                    self.ask_ahead();
                }
                return Ok(Some(bytes));
            }
            self.left = 0;
            self.ask_ahead();
            let Some(task) = self.ahead.pop_front() else { return Ok(None) };
            let pieces =
                task.join_unwind().await.map_err(|source| StoreError::JoinError { source })??;
            self.current = stream::iter(pieces.into_iter().map(Ok)).boxed();
        }
    }

    fn ask_ahead(&mut self) {
        while self.ahead.len() < AHEAD && !self.rest.is_empty() {
            let step = first_step(&self.rest);
            self.rest.start = step.end;
            self.ahead.push_back(SpawnedTask::spawn((self.fetch)(step)));
        }
    }
}
