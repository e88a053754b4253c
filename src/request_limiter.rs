//! How a process shares the network: one limit on concurrent requests, which gives way to stores
//! that throttle, and the measured latency and bandwidth of requests.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;

/// Concurrent requests of a process, unless a store's options say less.
pub const MOST_REQUESTS: usize = 128;

/// The longest pause for a store that throttles, even if it asks for more: retries have a time
/// limit, too.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(20);

/// By how many requests the limit grows in the time in which as many succeed as it allows at once.
const GROWTH: f64 = 4.0;

/// The part of a new measurement in a mean.
const NEWEST: f64 = 0.2;

/// Shorter bodies arrive with their headers, and say nothing of the bandwidth.
const SMALL_BODY: u64 = 64 << 10;

/// The network traffic of one process: its limit, its counts and its pace.
///
/// The limit follows AIMD (additive increase, multiplicative decrease, as TCP's congestion control:
/// Chiu and Jain 1989): a store that throttles halves it, once for all requests that were under way
/// by then, and successes let it grow again by [`GROWTH`] per round.
#[derive(Debug)]
pub struct RequestLimiter {
    permits: Semaphore,
    limit: Mutex<Limit>,
    pace: Mutex<Pace>,
    retries: AtomicU64,
    throttled: AtomicU64,
    wait_nanos: AtomicU64,
}

/// Counts of a process's requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests that failed, were throttled, or broke off in the middle: each is sent again, unless
    /// its retries are used up.
    pub retries: u64,
    /// Answers by which a store throttled.
    pub throttled: u64,
    /// Time that requests waited for their turn.
    pub waited: Duration,
}

impl Counts {
    /// The counts since `before`.
    pub fn since(self, before: Self) -> Self {
        Self {
            retries: self.retries.saturating_sub(before.retries),
            throttled: self.throttled.saturating_sub(before.throttled),
            waited: self.waited.saturating_sub(before.waited),
        }
    }
}

#[derive(Debug)]
struct Limit {
    /// The limit up to which it grows.
    most: usize,
    now: usize,
    /// Permits that are taken away as soon as they come back.
    debt: usize,
    /// Successes since it grew, as parts of one more request.
    grown: f64,
    last_cut: Option<Instant>,
    /// Hosts that asked for a pause, and when each may be asked again.
    pauses: HashMap<Arc<str>, Instant>,
}

#[derive(Debug, Default)]
struct Pace {
    /// Seconds from a request to its headers; None before the first.
    latency: Option<f64>,
    /// Bytes per second of one body: a peak that decays.
    bandwidth: f64,
}

impl Default for RequestLimiter {
    fn default() -> Self {
        let most = MOST_REQUESTS;
        let pauses = HashMap::new();
        let limit = Limit { most, now: most, debt: 0, grown: 0.0, last_cut: None, pauses };
        Self {
            permits: Semaphore::new(most),
            limit: Mutex::new(limit),
            pace: Mutex::default(),
            retries: AtomicU64::new(0),
            throttled: AtomicU64::new(0),
            wait_nanos: AtomicU64::new(0),
        }
    }
}

impl RequestLimiter {
    /// The counts so far.
    pub fn counts(&self) -> Counts {
        Counts {
            retries: self.retries.load(Ordering::Relaxed),
            throttled: self.throttled.load(Ordering::Relaxed),
            waited: Duration::from_nanos(self.wait_nanos.load(Ordering::Relaxed)),
        }
    }

    /// How many requests may be under way now.
    pub fn limit(&self) -> usize {
        self.limit_now().now
    }

    /// Lowers the limit for good, where it is higher.
    pub fn allow_at_most(&self, requests: usize) {
        let mut limit = self.limit_now();
        limit.most = limit.most.min(requests.max(1));
        let most = limit.most;
        self.cut_to(&mut limit, most);
    }

    /// Waits for a turn at `host`: for a pause that it asked for `longest_pause` at most. The
    /// request is under way until the permit is dropped.
    pub async fn admit(self: &Arc<Self>, host: &str, longest_pause: Duration) -> Permit {
        let asked = Instant::now();
        loop {
            let resume_at = self.limit_now().pauses.get(host).copied();
            match resume_at.map(|at| at.min(asked + longest_pause)) {
                Some(at) if at > Instant::now() => tokio::time::sleep_until(at.into()).await,
                _ => break,
            }
        }
        // The semaphore is never closed; were it, requests would go unlimited.
        if let Ok(permit) = self.permits.acquire().await {
            permit.forget();
        }
        let waited = asked.elapsed().as_nanos() as u64;
        self.wait_nanos.fetch_add(waited, Ordering::Relaxed);
        Permit { limiter: Arc::clone(self), host: host.into(), sent: Instant::now() }
    }

    /// A request failed, or its body did, and is sent again unless its retries are used up.
    pub fn count_retry(&self) {
        self.retries.fetch_add(1, Ordering::Relaxed);
    }

    /// Bytes that should be under way to keep the network busy: latency × bandwidth, the product
    /// that TCP's windows go by. 0 before anything was measured.
    pub fn bytes_in_flight(&self) -> u64 {
        let pace = self.pace.lock().unwrap_or_else(PoisonError::into_inner);
        (pace.latency.unwrap_or(0.0) * pace.bandwidth) as u64
    }

    /// The mean time from a request to its headers.
    pub fn latency(&self) -> Duration {
        let pace = self.pace.lock().unwrap_or_else(PoisonError::into_inner);
        Duration::from_secs_f64(pace.latency.unwrap_or(0.0))
    }

    fn limit_now(&self) -> MutexGuard<'_, Limit> {
        self.limit.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cut_to(&self, limit: &mut Limit, requests: usize) {
        let cut = limit.now.saturating_sub(requests);
        limit.now -= cut;
        limit.debt += cut - self.permits.forget_permits(cut);
    }
}

/// One request under way.
#[derive(Debug)]
pub struct Permit {
    limiter: Arc<RequestLimiter>,
    host: Arc<str>,
    sent: Instant,
}

impl Permit {
    /// The store answered by 429, 503 or an error that says to slow down.
    pub fn throttled(&self, retry_after: Option<Duration>) {
        let limiter = &self.limiter;
        limiter.throttled.fetch_add(1, Ordering::Relaxed);
        let mut limit = limiter.limit_now();
        let now = Instant::now();
        if let Some(pause) = retry_after {
            let until = now + pause.min(LONGEST_PAUSE);
            limit.pauses.retain(|_, at| *at > now);
            let at = limit.pauses.entry(Arc::clone(&self.host)).or_insert(until);
            *at = until.max(*at);
        }
        // Those sent before the last cut tell of the time before it.
        if limit.last_cut.is_none_or(|cut| self.sent > cut) {
            limit.last_cut = Some(now);
            limit.grown = 0.0;
            let half = (limit.now / 2).max(1);
            limiter.cut_to(&mut limit, half);
        }
    }

    /// The request failed, or its body did.
    pub fn count_retry(&self) {
        self.limiter.count_retry();
    }

    /// Headers came, after the time since the request was sent.
    pub fn answered(&self) {
        let seconds = self.sent.elapsed().as_secs_f64();
        let mut pace = self.limiter.pace.lock().unwrap_or_else(PoisonError::into_inner);
        pace.latency = Some(match pace.latency {
            Some(mean) => mean + NEWEST * (seconds - mean),
            None => seconds,
        });
    }

    /// The whole body came, in `time` after its headers.
    pub fn completed(&self, bytes: u64, time: Duration) {
        {
            let mut limit = self.limiter.limit_now();
            // Sent before the last cut, or cut itself: an answer that throttles has a body, too.
            if limit.last_cut.is_none_or(|cut| self.sent > cut) {
                limit.grown += GROWTH / limit.now as f64;
            }
            if limit.grown >= 1.0 {
                limit.grown -= 1.0;
                if limit.now < limit.most {
                    limit.now += 1;
                    match limit.debt {
                        0 => self.limiter.permits.add_permits(1),
                        _ => limit.debt -= 1,
                    }
                }
            }
        }
        if bytes >= SMALL_BODY {
            let rate = bytes as f64 / time.as_secs_f64().max(1e-6);
            let mut pace = self.limiter.pace.lock().unwrap_or_else(PoisonError::into_inner);
            pace.bandwidth = rate.max(pace.bandwidth + NEWEST * (rate - pace.bandwidth));
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut limit = self.limiter.limit_now();
        match limit.debt {
            0 => self.limiter.permits.add_permits(1),
            _ => limit.debt -= 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
    }

    async fn admit(limiter: &Arc<RequestLimiter>) -> Permit {
        limiter.admit("store", LONGEST_PAUSE).await
    }

    #[test]
    fn throttling_halves_the_limit_once_for_what_was_under_way() {
        let limiter = Arc::new(RequestLimiter::default());
        runtime().block_on(async {
            let permits = [admit(&limiter).await, admit(&limiter).await, admit(&limiter).await];
            permits.iter().for_each(|permit| permit.throttled(None));
            assert_eq!(limiter.limit(), MOST_REQUESTS / 2);
            assert_eq!(limiter.counts().throttled, 3);
            // Their bodies came whole; that is no success.
            permits.iter().for_each(|permit| {
                (0..MOST_REQUESTS).for_each(|_| permit.completed(100, Duration::from_millis(1)));
            });
            assert_eq!(limiter.limit(), MOST_REQUESTS / 2);
            admit(&limiter).await.throttled(None);
            assert_eq!(limiter.limit(), MOST_REQUESTS / 4);
        });
    }

    #[test]
    fn the_limit_recovers_by_successes_and_never_beyond_its_start() {
        let limiter = Arc::new(RequestLimiter::default());
        limiter.allow_at_most(8);
        runtime().block_on(async {
            admit(&limiter).await.throttled(None);
            assert_eq!(limiter.limit(), 4);
            for _ in 0..100 {
                admit(&limiter).await.completed(10, Duration::from_millis(1));
            }
            assert_eq!(limiter.limit(), 8);
            let _held: Vec<Permit> =
                futures::future::join_all((0..8).map(|_| admit(&limiter))).await;
            let ninth = tokio::time::timeout(Duration::from_millis(20), admit(&limiter)).await;
            assert!(ninth.is_err());
        });
    }

    #[test]
    fn permits_that_are_out_when_the_limit_is_cut_are_not_given_again() {
        let limiter = Arc::new(RequestLimiter::default());
        limiter.allow_at_most(4);
        runtime().block_on(async {
            let mut held: Vec<Permit> =
                futures::future::join_all((0..4).map(|_| admit(&limiter))).await;
            held[0].throttled(None);
            assert_eq!(limiter.limit(), 2);
            held.truncate(2);
            let third = tokio::time::timeout(Duration::from_millis(20), admit(&limiter)).await;
            assert!(third.is_err());
            held.truncate(1);
            let second = tokio::time::timeout(Duration::from_secs(5), admit(&limiter)).await;
            assert!(second.is_ok());
        });
    }

    #[test]
    fn a_pause_that_a_store_asks_for_is_kept() {
        let limiter = Arc::new(RequestLimiter::default());
        runtime().block_on(async {
            let pause = Duration::from_secs(1);
            let before = Instant::now();
            admit(&limiter).await.throttled(Some(pause));
            drop(admit(&limiter).await);
            assert!(before.elapsed() >= pause);
            assert!(limiter.counts().waited >= pause / 2);
        });
    }

    #[test]
    fn a_pause_is_of_one_host_and_no_longer_than_a_request_may_take() {
        let limiter = Arc::new(RequestLimiter::default());
        runtime().block_on(async {
            let before = Instant::now();
            admit(&limiter).await.throttled(Some(LONGEST_PAUSE));
            drop(limiter.admit("another", LONGEST_PAUSE).await);
            let longest = Duration::from_millis(50);
            drop(limiter.admit("store", longest).await);
            assert!((longest..LONGEST_PAUSE / 2).contains(&before.elapsed()));
        });
    }

    #[test]
    fn latency_times_bandwidth_is_what_should_be_under_way() {
        let limiter = Arc::new(RequestLimiter::default());
        assert_eq!(limiter.bytes_in_flight(), 0);
        runtime().block_on(async {
            let permit = admit(&limiter).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
            permit.answered();
            permit.completed(1 << 20, Duration::from_millis(10));
        });
        assert!(limiter.latency() >= Duration::from_millis(20));
        assert!(limiter.bytes_in_flight() >= 2 << 20);
    }
}
