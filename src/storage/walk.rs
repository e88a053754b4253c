//! Listing a large directory by its subdirectories, side by side: stores answer in pages of a
//! thousand, each of which names where the next one begins.

use std::collections::HashSet;
use std::sync::Arc;

use futures::future::BoxFuture;
use futures::stream::{self, StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, Result};

use super::list::names_below;

/// Subdirectories that are listed at the same time.
const LISTINGS: usize = 32;

/// Objects of two pages: a directory that has no more is listed at once.
const FEW: usize = 2000;

/// Where subdirectories have fewer objects each, a request for each of them costs more than the
/// pages.
const WORTHWHILE: usize = 32;

/// All objects below a directory, in no particular order.
///
/// # Errors
///
/// Errors of the store.
pub(super) fn list_below(
    store: Arc<dyn ObjectStore>,
    directory: Path,
) -> BoxFuture<'static, Result<Vec<ObjectMeta>>> {
    Box::pin(async move {
        let mut listing = store.list(Some(&directory));
        let mut found = Vec::new();
        while let Some(meta) = listing.try_next().await? {
            found.push(meta);
            if found.len() == FEW && is_worthwhile(&found, &directory) {
                drop(listing);
                return by_subdirectories(store, directory).await;
            }
        }
        Ok(found)
    })
}

async fn by_subdirectories(
    store: Arc<dyn ObjectStore>,
    directory: Path,
) -> Result<Vec<ObjectMeta>> {
    let level = store.list_with_delimiter(Some(&directory)).await?;
    let mut found = level.objects;
    let mut listed = stream::iter(level.common_prefixes)
        .map(move |subdirectory| list_below(Arc::clone(&store), subdirectory))
        .buffer_unordered(LISTINGS);
    while let Some(below) = listed.try_next().await? {
        found.extend(below);
    }
    Ok(found)
}

/// Returns true if the first objects of a directory lie in few subdirectories, but in more than
/// none.
fn is_worthwhile(found: &[ObjectMeta], directory: &Path) -> bool {
    let mut subdirectories = HashSet::new();
    let mut files = 0;
    for meta in found {
        match names_below(&meta.location, directory).as_slice() {
            [first, _, ..] => {
                subdirectories.insert(*first);
            }
            _ => files += 1,
        }
    }
    // Files that lie beside the subdirectories are listed page by page in any case.
    files < found.len() / 2 && found.len() / subdirectories.len().max(1) >= WORTHWHILE
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;
    use object_store::{ObjectStoreExt, PutPayload};

    use super::*;

    async fn store_of(paths: &[String]) -> Arc<dyn ObjectStore> {
        let store = InMemory::new();
        for path in paths {
            store.put(&Path::from(path.as_str()), PutPayload::new()).await.unwrap();
        }
        Arc::new(store)
    }

    #[test]
    fn every_object_is_listed_once_however_they_lie() {
        futures::executor::block_on(check());
    }

    async fn check() {
        let deep = |i: usize| format!("t/year={}/month={}/{i}.parquet", i % 3, i % 7);
        let tiny = |i: usize| format!("t/{i}/x");
        let flat = |i: usize| format!("t/{i}");
        let mixed = |i: usize| if i.is_multiple_of(5) { flat(i) } else { deep(i) };
        for count in [0, 1, FEW - 1, FEW, 3 * FEW] {
            for shape in [&deep as &dyn Fn(usize) -> String, &tiny, &flat, &mixed] {
                let mut paths: Vec<String> = (0..count).map(shape).collect();
                let mut all = paths.clone();
                all.extend(["u/other".to_owned(), "t0".to_owned()]);
                let store = store_of(&all).await;
                let listed = list_below(store, Path::from("t")).await.unwrap();
                let mut listed: Vec<String> =
                    listed.iter().map(|meta| meta.location.to_string()).collect();
                listed.sort();
                paths.sort();
                assert_eq!(listed, paths);
            }
        }
    }
}
