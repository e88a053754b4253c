//! One job on a cluster: sent, followed to its end, and cancelled where nobody waits for it any
//! more.

use std::time::Duration;

use ballista_core::serde::protobuf::execute_query_failure_result::Failure;
use ballista_core::serde::protobuf::execute_query_params::Query as SentQuery;
use ballista_core::serde::protobuf::execute_query_result::Result as Accepted;
use ballista_core::serde::protobuf::job_status::Status;
use ballista_core::serde::protobuf::scheduler_grpc_client::SchedulerGrpcClient;
use ballista_core::serde::protobuf::{
    CancelJobParams, CleanJobDataParams, ExecuteQueryParams, GetJobStatusParams, KeyValuePair,
    RemoveSessionParams,
};
use ballista_core::utils::{GrpcClientConfig, create_grpc_client_endpoint};
use datafusion::common::runtime::SpawnedTask;
use tokio::runtime::Handle;

use super::Cluster;
use crate::runtime::Runtimes;
use crate::{Error, Result};

/// How often the scheduler is asked how far the job is.
const LOOK: Duration = Duration::from_millis(200);

/// Times in a row that it may leave that unanswered: a job of hours outlives a network that is down
/// for half a minute.
const UNANSWERED: usize = 5;

/// Bytes of a part of an upload. An object may have ten thousand of them: at most 625 GiB.
const PART_BYTES: usize = 64 << 20;

/// Runs an encoded plan to its end, in a session of its own. Dropping the future cancels the job.
///
/// # Errors
/// `Storage` where the scheduler does not answer; `Data` with its message where the job fails.
pub(super) async fn run(cluster: Cluster<'_>, session: &str, plan: Vec<u8>) -> Result<()> {
    let query = ExecuteQueryParams {
        session_id: session.to_owned(),
        settings: settings(cluster.partitions, session),
        operation_id: session.to_owned(),
        query: Some(SentQuery::LogicalPlan(plan)),
    };
    let runtimes = Runtimes::current()?;
    let io = runtimes.io().clone();
    let follow = follow(cluster.scheduler.to_owned(), query, io);
    let task = {
        // The clock and the sockets of the CPU runtime stand still while all its threads compute.
        let _io = runtimes.io().enter();
        SpawnedTask::spawn(follow)
    };
    let stopped = |error| Error::data("the process is ending").with_source(error);
    task.join_unwind().await.map_err(stopped)?
}

/// Scheduler settings. The first ones are needed for right answers; `session_config` has this
/// process's settings.
fn settings(partitions: usize, name: &str) -> Vec<KeyValuePair> {
    let partitions = partitions.to_string();
    let part_bytes = PART_BYTES.to_string();
    let name = format!("tensorquery stage {name}");
    let pairs = [
        ("datafusion.optimizer.enable_topk_aggregation", "false"),
        ("datafusion.optimizer.enable_dynamic_filter_pushdown", "false"),
        ("datafusion.optimizer.enable_join_dynamic_filter_pushdown", "false"),
        // One side of a join held by every task loses rows of outer joins
        // (apache/datafusion-ballista issue 1055).
        ("datafusion.optimizer.hash_join_single_partition_threshold", "0"),
        ("datafusion.optimizer.hash_join_single_partition_threshold_rows", "0"),
        ("ballista.optimizer.broadcast_join_threshold_bytes", "0"),
        // Experimental, and off unless somebody turns it on.
        ("ballista.planner.adaptive.enabled", "false"),
        // Joins that sort spill to disk.
        ("datafusion.optimizer.prefer_hash_join", "false"),
        ("datafusion.execution.parquet.schema_force_view_types", "false"),
        ("datafusion.execution.target_partitions", &partitions),
        ("datafusion.execution.objectstore_writer_buffer_size", &part_bytes),
        ("ballista.job.name", &name),
    ];
    let pair = |(key, value): (&str, &str)| KeyValuePair {
        key: key.to_owned(),
        value: Some(value.to_owned()),
    };
    pairs.into_iter().map(pair).collect()
}

async fn follow(scheduler: String, query: ExecuteQueryParams, io: Handle) -> Result<()> {
    let lost = |what: &str, why: &dyn std::fmt::Display| {
        Error::storage(format!(
            "the Ballista scheduler at {scheduler} {what}: {why}; it must be of version 53 and reachable from here \
             (stage_engine=\"ballista://host:port\" names its host and its gRPC port)"
        ))
    };
    let config = GrpcClientConfig::default();
    let endpoint = create_grpc_client_endpoint(format!("http://{scheduler}"), Some(&config))
        .map_err(|error| lost("has no valid address", &error))?;
    let channel =
        endpoint.connect().await.map_err(|error| lost("cannot be reached", &root_of(&error)))?;
    let mut client = SchedulerGrpcClient::new(channel)
        .max_encoding_message_size(config.max_message_size)
        .max_decoding_message_size(config.max_message_size);
    let session = query.session_id.clone();
    let accepted = client.execute_query(query).await;
    let accepted = accepted.map_err(|status| lost("refused the query", &status.message()))?;
    let id = match accepted.into_inner().result {
        Some(Accepted::Success(accepted)) => accepted.job_id,
        Some(Accepted::Failure(failure)) => {
            return Err(refusal(&scheduler, failure.failure));
        }
        None => return Err(lost("gave no answer", &"neither a job nor a failure")),
    };
    // From here on the job runs, whoever waits for it.
    let (mut other, job_id) = (client.clone(), id.clone());
    let cancel = move || {
        // Whether that arrives nobody is there to hear.
        io.spawn(async move { other.cancel_job(CancelJobParams { job_id }).await.is_ok() });
    };
    let mut running = Running { cancel: Some(Box::new(cancel)) };
    let mut unanswered = 0;
    let ended = loop {
        let asked = client.get_job_status(GetJobStatusParams { job_id: id.clone() }).await;
        let status = match asked {
            Ok(answer) => {
                unanswered = 0;
                answer.into_inner().status.and_then(|job| job.status)
            }
            Err(status) => {
                unanswered += 1;
                if unanswered >= UNANSWERED {
                    let why = status.message().to_owned();
                    break Err(lost("does not answer any more", &why));
                }
                None
            }
        };
        match status {
            Some(Status::Successful(_)) => break Ok(()),
            Some(Status::Failed(failed)) => {
                break Err(Error::data(format!(
                    "the Ballista cluster at {scheduler} could not compute the stage (job {id}): {}",
                    failed.error
                )));
            }
            Some(Status::Queued(_) | Status::Running(_)) | None => tokio::time::sleep(LOOK).await,
        }
    };
    if unanswered == 0 {
        running.cancel = None;
        // What they leave behind goes by itself some time; the job's outcome is the one to tell.
        let _ = client.clean_job_data(CleanJobDataParams { job_id: id }).await;
        let _ = client.remove_session(RemoveSessionParams { session_id: session }).await;
    }
    ended
}

fn refusal(scheduler: &str, failure: Option<Failure>) -> Error {
    let why = match failure {
        Some(
            Failure::PlanParsingFailure(why)
            | Failure::SessionNotFound(why)
            | Failure::SqlParsingFailure(why),
        ) => why,
        None => "it does not say why".to_owned(),
    };
    Error::query(format!(
        "the Ballista scheduler at {scheduler} cannot take the query: {}; it must be of version 53",
        why
    ))
}

/// The innermost reason of an error: tonic's own text is "transport error".
fn root_of(error: &dyn std::error::Error) -> String {
    let mut inner = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    inner.to_string()
}

/// A job that is cancelled unless it has ended.
struct Running {
    cancel: Option<Box<dyn FnOnce() + Send>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(cancel) = self.cancel.take() {
            cancel();
        }
    }
}
