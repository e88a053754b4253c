//! How patient a store's client is: retries, time limits, and how much it asks for at once.

use std::collections::BTreeMap;
use std::time::Duration;

use object_store::{BackoffConfig, RetryConfig};

use crate::{Error, Result};

/// The options that every remote store takes, and that this crate answers itself. Those with
/// `backoff_config.` are the names of delta-rs, those with `_ms` and `retry_base_multiplier` the
/// names of polars.
pub(in crate::storage) const NETWORK_OPTIONS: &[&str] = &[
    "backoff_base",
    "backoff_config.base",
    "backoff_config.init_backoff",
    "backoff_config.max_backoff",
    "init_backoff",
    "max_backoff",
    "max_concurrent_requests",
    "max_retries",
    "retry_base_multiplier",
    "retry_init_backoff_ms",
    "retry_max_backoff_ms",
    "retry_timeout",
    "retry_timeout_ms",
    "timeout",
];

/// A request without a byte for so long is broken off, and sent again.
const PATIENCE: Duration = Duration::from_secs(30);

/// Longer times are slips, such as milliseconds taken for seconds.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// The user's choices among [`NETWORK_OPTIONS`].
#[derive(Clone, Debug)]
pub(in crate::storage) struct NetworkOptions {
    /// How failed requests are repeated: exponential back-off with jitter.
    pub(in crate::storage) retry: RetryConfig,
    /// How long a request may go without a byte.
    pub(in crate::storage) patience: Duration,
    /// Concurrent requests of the process, where less than usual.
    pub(in crate::storage) most_requests: Option<usize>,
}

impl NetworkOptions {
    /// Takes them, under whichever name, out of `options`.
    ///
    /// # Errors
    ///
    /// `Config`, for a value that is no number or time, and for two names of one option.
    pub(in crate::storage) fn take(options: &mut BTreeMap<String, String>) -> Result<Self> {
        let mut take = |names: &[&str]| take(options, names);
        let mut retry = RetryConfig::default();
        let mut patience = PATIENCE;
        if let Some((name, value)) = take(&["max_retries"])? {
            retry.max_retries = whole(&name, &value, 0)?;
        }
        if let Some((name, value)) = take(&["retry_timeout", "retry_timeout_ms"])? {
            retry.retry_timeout = duration(&name, &value)?;
        }
        if let Some((name, value)) =
            take(&["init_backoff", "backoff_config.init_backoff", "retry_init_backoff_ms"])?
        {
            retry.backoff.init_backoff = duration(&name, &value)?;
        }
        if let Some((name, value)) =
            take(&["max_backoff", "backoff_config.max_backoff", "retry_max_backoff_ms"])?
        {
            retry.backoff.max_backoff = duration(&name, &value)?;
        }
        if let Some((name, value)) =
            take(&["backoff_base", "backoff_config.base", "retry_base_multiplier"])?
        {
            let base = value.parse::<f64>().ok().filter(|base| (1.0..=100.0).contains(base));
            retry.backoff.base =
                base.ok_or_else(|| malformed(&name, &value, "a number from 1 to 100, such as 2"))?;
        }
        if let Some((name, value)) = take(&["timeout"])? {
            patience = duration(&name, &value)?;
        }
        let most_requests = match take(&["max_concurrent_requests"])? {
            Some((name, value)) => Some(whole(&name, &value, 1)?),
            None => None,
        };
        retry.backoff = ordered(retry.backoff);
        Ok(Self { retry, patience, most_requests })
    }
}

/// A longest back-off below the first one shortens that, too: jitter is drawn between both.
fn ordered(backoff: BackoffConfig) -> BackoffConfig {
    BackoffConfig { init_backoff: backoff.init_backoff.min(backoff.max_backoff), ..backoff }
}

/// The option that goes by one of `names`, in any case.
fn take(
    options: &mut BTreeMap<String, String>,
    names: &[&str],
) -> Result<Option<(String, String)>> {
    let is_one = |name: &&String| names.contains(&name.to_ascii_lowercase().as_str());
    let given: Vec<String> = options.keys().filter(is_one).cloned().collect();
    if let [one, other, ..] = given.as_slice() {
        return Err(Error::config(format!(
            "the storage options {one:?} and {other:?} are two names of one; give one of them"
        )));
    }
    Ok(given.into_iter().next().and_then(|name| options.remove_entry(&name)))
}

fn whole(name: &str, value: &str, least: usize) -> Result<usize> {
    let number = value.parse::<usize>().ok().filter(|number| *number >= least);
    number.ok_or_else(|| malformed(name, value, &format!("a whole number of at least {least}")))
}

/// A number is seconds, or milliseconds for a name that says so.
fn duration(name: &str, value: &str) -> Result<Duration> {
    let in_ms = name.to_ascii_lowercase().ends_with("_ms");
    let unit = if in_ms { 1e-3 } else { 1.0 };
    let time = match value.trim().parse::<f64>() {
        Ok(number) => Duration::try_from_secs_f64(number * unit).ok(),
        Err(_) => humantime::parse_duration(value).ok(),
    };
    time.filter(|time| !time.is_zero() && *time <= LONGEST).ok_or_else(|| {
        let example =
            if in_ms { "milliseconds, such as 500" } else { "a time, such as 30 or \"500ms\"" };
        malformed(name, value, &format!("{example}, above zero and at most a day"))
    })
}

fn malformed(name: &str, value: &str, wanted: &str) -> Error {
    Error::config(format!("the storage option {name:?} must be {wanted}; got {value:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(options: &[(&str, &str)]) -> Result<NetworkOptions> {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let mut options: BTreeMap<String, String> = options.iter().map(own).collect();
        let found = NetworkOptions::take(&mut options);
        assert!(found.is_err() || options.keys().all(|name| name == "aws_region"), "{options:?}");
        found
    }

    #[test]
    fn every_name_is_known_and_taken() {
        for name in NETWORK_OPTIONS {
            let upper = name.to_uppercase();
            parse(&[(name, "7"), ("aws_region", "x")]).unwrap();
            parse(&[(&upper, "7")]).unwrap();
        }
    }

    #[test]
    fn times_are_seconds_or_have_a_unit() {
        let seconds = |value| parse(&[("timeout", value)]).unwrap().patience.as_secs_f64();
        assert_eq!(seconds("2"), 2.0);
        assert_eq!(seconds("0.5"), 0.5);
        assert_eq!(seconds("500ms"), 0.5);
        assert_eq!(seconds("1m 30s"), 90.0);
        let options = parse(&[("retry_timeout_ms", "1500"), ("max_backoff", "10ms")]).unwrap();
        assert_eq!(options.retry.retry_timeout, Duration::from_millis(1500));
        assert_eq!(options.retry.backoff.init_backoff, Duration::from_millis(10));
    }

    #[test]
    fn what_cannot_be_is_named() {
        for (options, part) in [
            (&[("max_retries", "many")][..], "\"max_retries\" must be a whole number"),
            (&[("timeout", "0")], "\"timeout\" must be a time"),
            (&[("timeout", "-1")], "above zero"),
            (&[("retry_timeout", "NaN")], "must be a time"),
            (&[("backoff_base", "0.5")], "from 1 to 100"),
            (&[("max_concurrent_requests", "0")], "at least 1"),
            (&[("init_backoff", "1"), ("retry_init_backoff_ms", "1")], "two names of one"),
        ] {
            let error = parse(options).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
