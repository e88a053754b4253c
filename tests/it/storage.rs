//! Storage: a path names exactly its files, a pinned file is read unchanged or not at all, and the
//! ranges of a text file hold each record once.

mod cache;
mod foreign;
mod hive;
mod list;
mod location;
mod pinned;
mod store;
mod text;

use std::path::Path;
use std::sync::Arc;

use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use tensorquery::storage::Location;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn local() -> Arc<dyn ObjectStore> {
    Arc::new(LocalFileSystem::new())
}

/// Writes `content` to `name` below `directory`, with the directories above it.
fn write(directory: &Path, name: &str, content: impl AsRef<[u8]>) {
    let path = directory.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, content).unwrap();
}

fn location(directory: &Path, name: &str) -> Location {
    Location::parse(&format!("{}/{name}", directory.display())).unwrap()
}
