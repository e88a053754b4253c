//! Where the rows of a stage are computed: in this process, or on a cluster.

use arrow::datatypes::SchemaRef;
use object_store::path::Path;

use super::query::Query;
use crate::materialize::{Attempt, Made, StagePlace};
use crate::query::Cut;
use crate::{Error, Result};

/// The port of a scheduler that is started without saying one.
const DEFAULT_PORT: u16 = 50050;

/// Partitions where the user does not say how many.
const DEFAULT_PARTITIONS: usize = 16;

const MOST_PARTITIONS: usize = 10_000;

/// The engine that computes a stage's rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum StageEngine {
    /// DataFusion in this process.
    #[default]
    Local,
    /// A Ballista cluster.
    Ballista {
        /// Host and port of its scheduler.
        scheduler: String,
        /// Into how many partitions joins and aggregates divide their rows.
        partitions: usize,
    },
}

impl StageEngine {
    /// The engine at a URL: `ballista://host:port`, or `ballista://host:port?partitions=64`.
    ///
    /// # Errors
    /// `Config` for any other text.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = |why: &str| {
            Error::config(format!(
                "stage_engine={text:?} {why}; it is \"ballista://host:port\", or \"ballista://host:port?partitions=64\""
            ))
        };
        let rest = text.strip_prefix("ballista://").ok_or_else(|| wrong("names no engine"))?;
        let (address, options) = rest.split_once('?').unwrap_or((rest, ""));
        let address = address.strip_suffix('/').unwrap_or(address);
        // As part of a URL that hosts are known by; a path or a password has no meaning here.
        let url = url::Url::parse(&format!("http://{address}"))
            .map_err(|error| wrong(&format!("has no valid address ({error})")))?;
        let plain = url.path() == "/" && url.username().is_empty() && url.password().is_none();
        let host = url.host_str().filter(|_| plain && !address.contains('#'));
        let host = host.ok_or_else(|| wrong("must name a host and a port, and nothing else"))?;
        // A URL does not tell its default port from none.
        let port = match address.ends_with(":80") {
            true => 80,
            false => url.port().unwrap_or(DEFAULT_PORT),
        };
        let partitions = match options.split_once('=') {
            None if options.is_empty() => DEFAULT_PARTITIONS,
            Some(("partitions", number)) => number
                .parse()
                .ok()
                .filter(|number| (1..=MOST_PARTITIONS).contains(number))
                .ok_or_else(|| {
                    wrong(&format!("needs a number of partitions from 1 to {MOST_PARTITIONS}"))
                })?,
            _ => return Err(wrong(&format!("has the unknown option {options:?}"))),
        };
        Ok(Self::Ballista { scheduler: format!("{host}:{port}"), partitions })
    }

    /// The engine's part of a stage's name: a cluster gives the same rows in another order.
    pub(super) fn name(&self) -> Option<&'static str> {
        match self {
            Self::Local => None,
            Self::Ballista { .. } => Some("ballista"),
        }
    }
}

/// Where the files of one build go.
#[derive(Clone, Copy)]
#[cfg_attr(not(feature = "ballista"), expect(dead_code, reason = "only an engine writes files"))]
pub(super) struct Target<'a> {
    pub place: &'a StagePlace,
    pub folder: &'a Path,
    pub schema: &'a SchemaRef,
}

impl Query {
    /// The rows of a part, or the files that an engine has written.
    pub(super) async fn make(
        &self,
        cut: &Cut,
        engine: &StageEngine,
        attempt: Attempt,
        target: Target<'_>,
    ) -> Result<Made> {
        match engine {
            StageEngine::Local => Ok(Made::Rows(self.rows_of(cut, attempt).await?)),
            StageEngine::Ballista { scheduler, partitions } => {
                on_cluster(scheduler, *partitions, cut, target).await
            }
        }
    }
}

#[cfg(feature = "ballista")]
async fn on_cluster(
    scheduler: &str,
    partitions: usize,
    cut: &Cut,
    target: Target<'_>,
) -> Result<Made> {
    use crate::ballista::{Cluster, Order, stage};
    let Target { place, folder, schema } = target;
    let order = Order { part: &cut.plan, schema, place, folder };
    let (files, digest) = stage(Cluster { scheduler, partitions }, order).await?;
    Ok(Made::Files(files, digest))
}

#[cfg(not(feature = "ballista"))]
async fn on_cluster(scheduler: &str, _: usize, _: &Cut, _: Target<'_>) -> Result<Made> {
    Err(Error::config(format!(
        "stage_engine=\"ballista://{scheduler}\": this build of tensorquery has no Ballista client; build one that has: \
         maturin build --release --features python,ballista (a stage that such a build has made is found without it)"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ballista(scheduler: &str, partitions: usize) -> StageEngine {
        StageEngine::Ballista { scheduler: scheduler.to_owned(), partitions }
    }

    #[test]
    fn an_engine_is_a_url_of_its_scheduler() {
        let cases = [
            ("ballista://host:1234", "host:1234", 16),
            ("ballista://host", "host:50050", 16),
            ("ballista://host:80/", "host:80", 16),
            ("ballista://127.0.0.1:50051?partitions=64", "127.0.0.1:50051", 64),
            ("ballista://[::1]:50051", "[::1]:50051", 16),
        ];
        for (text, scheduler, partitions) in cases {
            assert_eq!(
                StageEngine::parse(text).unwrap(),
                ballista(scheduler, partitions),
                "{text}"
            );
        }
    }

    #[test]
    fn what_is_no_such_url_is_an_error_that_shows_one() {
        let cases = [
            "",
            "host:50050",
            "spark://host:7077",
            "ballista://",
            "ballista://user:password@host:50050",
            "ballista://host:50050/path",
            "ballista://host:99999",
            "ballista://host:50050?partitions=0",
            "ballista://host:50050?partitions=many",
            "ballista://host:50050?threads=4",
            "ballista://host:50050#part",
        ];
        for text in cases {
            let error = StageEngine::parse(text).unwrap_err();
            assert_eq!(error.kind(), crate::ErrorKind::Config, "{text}");
            assert!(error.message().contains("ballista://host:port"), "{text}: {error}");
        }
    }
}
