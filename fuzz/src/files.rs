//! Files: registered, planned, and read through the whole stream.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tensorquery::catalog::TableOptions;
use tensorquery::session::{Plan, PlanOptions, Session, SessionOptions};
use tensorquery::sharding::{
    Builtin, Layout, Mixing, OrderKey, Remainder, Shard, ShardInput, resume, weight,
};
use tensorquery::stream::{Next, Output, RowSource, ShardStream};
use tensorquery::tensor::{Converter, NullPolicy, Nulls, TensorOptions};
use tensorquery::{Error, Result};

use crate::panics::answer;

/// Longer inputs are not read: they take long, and show no more.
const MOST_BYTES: usize = 1 << 20;

/// The first bytes of compressed text files, and the endings of their names.
const COMPRESSED: &[(&[u8], &str)] = &[
    (b"\x1f\x8b", ".gz"),
    (b"BZh", ".bz2"),
    (b"\xfd7zXZ\0", ".xz"),
    (b"\x28\xb5\x2f\xfd", ".zst"),
];

/// Reads a file whose name ends with `ending` and which holds `bytes`, by large splits, and by the smallest.
///
/// # Panics
/// If both ways reach the end with different numbers of rows.
pub fn read_file(ending: &str, bytes: &[u8]) {
    if bytes.len() > MOST_BYTES {
        return;
    }
    let file = Input::write(ending, bytes);
    answer(async {
        let session = Session::try_new(SessionOptions::default())?;
        let paths = [file.path.display().to_string()];
        session.register_files("t", &paths, TableOptions::default()).await?;
        let whole = rows(&session, "SELECT * FROM t", &PlanOptions::default()).await?;
        let finest =
            PlanOptions { split_bytes: 1, split_rows: Some(1), explicit: true, without: None };
        let cut = rows(&session, "SELECT * FROM t", &finest).await?;
        assert_eq!(whole, cut, "rows by large and by small splits");
        let columns = session.query("SELECT * FROM t").await?.schema();
        if let Some(column) = columns.fields().first() {
            let name = tensorquery::query::quote_identifier(column.name());
            let filtered = format!("SELECT * FROM t WHERE {name} IS NOT NULL");
            let some = rows(&session, &filtered, &PlanOptions::default()).await?;
            assert!(some <= whole, "{some} rows of {whole} pass a filter");
        }
        Ok(())
    });
}

/// Counts the rows of a query, read as tensors, or as Arrow if a column has no tensor type.
pub(crate) async fn rows(session: &Arc<Session>, sql: &str, options: &PlanOptions) -> Result<u64> {
    let plan = session.query(sql).await?.plan_splits(options).await?;
    tokio::task::spawn_blocking(move || read(&plan))
        .await
        .map_err(|error| Error::data(error.to_string()))?
}

fn read(plan: &Plan) -> Result<u64> {
    let shard = only_shard(plan)?;
    let nulls = Nulls::All(NullPolicy::Mask);
    let options = TensorOptions { nulls, ..TensorOptions::default() };
    let output = match Converter::try_new(&plan.schema(), &options) {
        Ok(converter) => Output::Tensors(converter).lending(),
        Err(_) => Output::Arrow(plan.schema()),
    };
    let source = RowSource::Plan(plan.epoch()?).in_long_batches();
    let mut stream = ShardStream::start(source, &shard, &shard.start(), 2, Arc::new(output))?;
    let mut rows = 0;
    loop {
        match stream.next(Duration::from_secs(60))? {
            Next::Batches(group) => {
                rows += group.iter().map(|delivered| delivered.batch.rows() as u64).sum::<u64>();
            }
            Next::End => return Ok(rows),
            // Ends up in libFuzzer's limit of time.
            Next::Pending => (),
        }
    }
}

/// The shard of one rank without workers.
fn only_shard(plan: &Plan) -> Result<Shard> {
    let weights = plan.whole()?.iter().map(weight).collect();
    let stock = ShardInput { weights, counts: plan.known_counts()?, ..ShardInput::default() };
    let layout = Layout {
        world_size: 1,
        num_workers: 0,
        batch_size: 64,
        remainder: Remainder::Uneven,
        dynamic: false,
        counted: false,
        partitions: None,
        strategy: Some(Builtin::Lpt),
        shuffle: false,
        permuted: None,
        refills: false,
        mixing: Mixing::NONE,
    };
    let key = OrderKey { seed: 0, epoch: 0, fingerprint: plan.fingerprint().as_bytes() };
    let shards = resume(&stock, None, &layout, None, key)?;
    shards.into_iter().next().ok_or_else(|| Error::config("one rank has no shard"))
}

/// A file that is removed on drop.
struct Input {
    path: PathBuf,
}

impl Input {
    /// A new name for each input: files are known by path, size and time of the last write, and the clock of a file system
    /// is coarse.
    fn write(ending: &str, bytes: &[u8]) -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let memory = Path::new("/dev/shm");
        let folder = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let compressed = match ending {
            "csv" | "json" => COMPRESSED.iter().find(|(head, _)| bytes.starts_with(head)),
            _ => None,
        };
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let packed = compressed.map_or("", |(_, ending)| ending);
        let name = format!("tensorquery-fuzz-{}-{number}.{ending}{packed}", std::process::id());
        let path = folder.join(name);
        std::fs::write(&path, bytes).expect("the input can be written");
        Self { path }
    }
}

impl Drop for Input {
    fn drop(&mut self) {
        std::fs::remove_file(&self.path).expect("the input can be removed");
    }
}
