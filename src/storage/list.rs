//! From a location to the files it names, pinned and in a fixed order.

use std::collections::HashSet;
use std::error::Error as StdError;
use std::path::Path as LocalPath;
use std::sync::Arc;

use futures::stream::{self, StreamExt, TryStreamExt};
use object_store::client::HttpError;
use object_store::path::Path;
use object_store::{Error as StoreError, GetOptions, ObjectMeta, ObjectStore, ObjectStoreExt};

use super::change_time::pin_change_times;
use super::glob::{Glob, Segment, is_hidden, matches};
use super::location::{Location, Scheme, local_path};
use super::pin::FilePin;
use super::requests::NO_RANGES;
use super::table_folders::TableFolders;
use super::walk::list_below;
use crate::{Error, ErrorKind, Result, suggestion};

/// Directories of one level of a pattern that are listed at the same time.
const LISTINGS: usize = 16;

/// The files of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// The files, location by location as given, each location's sorted by path.
    pub pins: Vec<FilePin>,
    /// For each file the directory below which its hive partitions lie; as long as `pins`.
    pub roots: Vec<Path>,
}

/// The files of one location, sorted by path: the file itself, all files below a directory, or
/// those a pattern matches.
///
/// Below a directory or a `**`, names that start with `_` or `.` are skipped, and so are the
/// zero-byte objects with which stores mark directories. Symbolic links are followed; broken ones
/// are skipped, and a loop is an error. Names that end in `#` and digits are skipped, too: the
/// local store of `object_store` writes its temporary files under such names.
///
/// # Errors
///
/// `TableNotFound`, where there is no such path, no file in the directory, or no match; `Storage`,
/// where the store fails, or a local name is not UTF-8; `Data`, where the files lie in the folder
/// of a table whose log or metadata says which of them count.
pub async fn list_files(store: &Arc<dyn ObjectStore>, location: &Location) -> Result<Vec<FilePin>> {
    list_one(store, location, &mut TableFolders::default()).await
}

async fn list_one(
    store: &Arc<dyn ObjectStore>,
    location: &Location,
    folders: &mut TableFolders,
) -> Result<Vec<FilePin>> {
    let named = match location.glob() {
        Some(_) => None,
        None => find_file(store, location).await?,
    };
    let is_named = named.is_some();
    let mut pins: Vec<FilePin> = match (named, location.glob()) {
        (Some(file), _) => vec![file],
        (None, Some(glob)) => list_pattern(store, location, glob, folders).await?,
        (None, None) => list_directory(store, location, folders).await?,
    };
    folders.refuse(store, location, &pins, is_named).await?;
    pins.sort_unstable_by(|a, b| a.location.cmp(&b.location));
    pin_change_times(location.store_root(), &mut pins);
    Ok(pins)
}

/// The files of several locations of one store: the list's order is kept, and the files of each
/// location are sorted.
///
/// # Errors
///
/// Errors of [`list_files`], and `Config` for an empty list, for locations in different stores, and
/// for a file that is named twice.
pub async fn list_all(store: &Arc<dyn ObjectStore>, locations: &[Location]) -> Result<Listing> {
    list_within(store, locations, Vec::new()).await
}

/// Lists files where these directories have keys of their own: nothing above them is asked for.
///
/// # Errors
///
/// Errors of [`list_all`].
pub async fn list_within(
    store: &Arc<dyn ObjectStore>,
    locations: &[Location],
    own: Vec<Path>,
) -> Result<Listing> {
    let Some(first) = locations.first() else {
        return Err(Error::config("the list of paths is empty; name at least one"));
    };
    let mut listing = Listing::default();
    let mut folders = TableFolders::within(own);
    let mut seen = HashSet::new();
    for location in locations {
        if location.store_root() != first.store_root() {
            return Err(Error::config(format!(
                "the paths of one table must lie in one store, but {first} and {location} do not; \
                 register two tables and join them by UNION ALL"
            )));
        }
        let root = location.hive_root();
        for pin in list_one(store, location, &mut folders).await? {
            if !seen.insert(pin.location.clone()) {
                return Err(Error::config(format!(
                    "the file {} is named twice, the second time by {location}",
                    location.describe(&pin.location)
                )));
            }
            listing.pins.push(pin);
            listing.roots.push(root.clone());
        }
    }
    Ok(listing)
}

/// The file of this name; None where it may be a directory.
async fn find_file(store: &Arc<dyn ObjectStore>, location: &Location) -> Result<Option<FilePin>> {
    let prefix = location.prefix();
    if location.is_local() && is_special(prefix) {
        return Err(Error::data(
            "this is no regular file but a pipe, a socket or a device; write what comes from it to a file",
        )
        .with_context("path", location));
    }
    if !location.is_directory() && !prefix.is_root() {
        match store.head(prefix).await {
            Ok(meta) => return Ok(Some(meta.into())),
            Err(error) if location.scheme() == Scheme::Http && is_answer(&error) => {
                return ask_for_a_byte(store, location).await.map(Some);
            }
            Err(StoreError::NotFound { .. }) => {}
            Err(_) if location.is_local() && is_below_file(prefix) => {
                return Err(not_found(location, "there is no file or directory"));
            }
            Err(error) => return Err(storage_error(location, error)),
        }
    }
    match location.scheme() {
        Scheme::Http => Err(not_found(location, "there is no file")),
        _ => Ok(None),
    }
}

async fn list_directory(
    store: &Arc<dyn ObjectStore>,
    location: &Location,
    folders: &mut TableFolders,
) -> Result<Vec<FilePin>> {
    let prefix = location.prefix();
    let found = list_below(Arc::clone(store), prefix.clone())
        .await
        .map_err(|error| storage_error(location, error))?;
    found.iter().for_each(|meta| folders.see_file(&meta.location));
    let pins: Vec<FilePin> = drop_markers(found, location)
        .into_iter()
        .filter(|meta| !names_below(&meta.location, prefix).iter().any(|name| is_hidden(name)))
        .map(FilePin::from)
        .collect();
    if !pins.is_empty() {
        return Ok(pins);
    }
    let directory = location.is_local() && to_local(prefix).is_dir();
    Err(match (directory, location.is_local()) {
        (true, _) => not_found(
            location,
            "the directory holds no files (names that start with _ or . are skipped):",
        ),
        (false, true) if to_local(prefix).exists() => {
            not_found(location, "a path that ends in / must be a directory, not a file:")
        }
        (false, true) => not_found(location, "there is no file or directory"),
        (false, false) => not_found(location, "there is no object with the key or prefix"),
    })
}

/// The one file of an address for which HEAD fails: some servers do not know it, refuse it, or give
/// no length.
async fn ask_for_a_byte(store: &Arc<dyn ObjectStore>, location: &Location) -> Result<FilePin> {
    let options = GetOptions::new().with_range(Some(0..1));
    match store.get_opts(location.prefix(), options).await {
        Ok(answer) => Ok(answer.meta.into()),
        Err(StoreError::NotFound { .. }) => Err(not_found(location, "there is no file")),
        Err(error) => Err(storage_error(location, error)),
    }
}

/// Returns true if the server answered at all.
fn is_answer(error: &StoreError) -> bool {
    let causes =
        std::iter::successors(Some(error as &(dyn StdError + 'static)), |&cause| cause.source());
    !causes.into_iter().any(|cause| cause.is::<HttpError>())
}

/// Returns true if there is something that is neither a file nor a directory: to open a pipe waits
/// for who writes into it.
fn is_special(path: &Path) -> bool {
    let found = std::fs::metadata(to_local(path));
    found.is_ok_and(|meta| !meta.is_file() && !meta.is_dir())
}

/// Walks down the parts of a pattern, listing only directories that fit so far.
async fn list_pattern(
    store: &Arc<dyn ObjectStore>,
    location: &Location,
    glob: &Glob,
    folders: &mut TableFolders,
) -> Result<Vec<FilePin>> {
    let mut directories = vec![location.prefix().clone()];
    let mut found = Vec::new();
    let mut matched_directories = false;
    for (at, part) in glob.parts().iter().enumerate() {
        let rest = &glob.parts()[at..];
        if *part == Segment::Directories {
            found = list_matching(store, location, &directories, rest, folders).await?;
            break;
        }
        let levels: Vec<_> = stream::iter(&directories)
            .map(|directory| store.list_with_delimiter(Some(directory)))
            .buffered(LISTINGS)
            .try_collect()
            .await
            .map_err(|error| storage_error(location, error))?;
        let fits = |path: &Path| path.filename().is_some_and(|name| part.matches(name));
        directories = Vec::new();
        for level in levels {
            level.common_prefixes.iter().for_each(|path| folders.see_directory(path));
            level.objects.iter().for_each(|meta| folders.see_file(&meta.location));
            directories.extend(level.common_prefixes.into_iter().filter(|path| fits(path)));
            if rest.len() == 1 {
                found.extend(level.objects.into_iter().filter(|meta| fits(&meta.location)));
            }
        }
        matched_directories = rest.len() == 1 && !directories.is_empty();
    }
    let pins: Vec<FilePin> = drop_markers(found, location).into_iter().map(FilePin::from).collect();
    match (pins.is_empty(), matched_directories) {
        (false, _) => Ok(pins),
        (true, true) => Err(not_found(
            location,
            "the pattern matches directories and no file; end it with / to read the files in them:",
        )),
        (true, false) => Err(not_found(location, "no file matches the pattern")),
    }
}

/// The files below `directories` that fit `parts`, which start with `**`.
async fn list_matching(
    store: &Arc<dyn ObjectStore>,
    location: &Location,
    directories: &[Path],
    parts: &[Segment],
    folders: &mut TableFolders,
) -> Result<Vec<ObjectMeta>> {
    let listed: Vec<(&Path, Vec<ObjectMeta>)> = stream::iter(directories)
        .map(|directory| async move {
            Ok::<_, StoreError>((
                directory,
                list_below(Arc::clone(store), directory.clone()).await?,
            ))
        })
        .buffered(LISTINGS)
        .try_collect()
        .await
        .map_err(|error| storage_error(location, error))?;
    let mut found = Vec::new();
    for (directory, listed) in listed {
        listed.iter().for_each(|meta| folders.see_file(&meta.location));
        found.extend(listed.into_iter().filter(|meta| {
            let names = names_below(&meta.location, directory);
            !names.is_empty() && matches(parts, &names)
        }));
    }
    Ok(found)
}

/// Drops the zero-byte objects that stand for directories in stores that have none: other keys lie
/// below them, they are Hadoop's `x_$folder$`, or they have no extension. A local file is a file.
fn drop_markers(found: Vec<ObjectMeta>, location: &Location) -> Vec<ObjectMeta> {
    if location.is_local() {
        return found;
    }
    let parents: HashSet<Path> = found
        .iter()
        .flat_map(|meta| std::iter::successors(meta.location.parent(), Path::parent))
        .collect();
    found
        .into_iter()
        .filter(|meta| {
            let name = meta.location.filename().unwrap_or_default();
            let is_marker = meta.location == *location.prefix()
                || parents.contains(&meta.location)
                || name.ends_with("_$folder$")
                || !name.contains('.');
            meta.size > 0 || !is_marker
        })
        .collect()
}

/// The names of `path` below `directory`; empty where it lies elsewhere.
pub(super) fn names_below<'a>(path: &'a Path, directory: &Path) -> Vec<&'a str> {
    let below = match directory.as_ref() {
        "" => Some(path.as_ref()),
        directory => path.as_ref().strip_prefix(directory).and_then(|rest| rest.strip_prefix('/')),
    };
    below.filter(|rest| !rest.is_empty()).map(|rest| rest.split('/').collect()).unwrap_or_default()
}

fn storage_error(location: &Location, error: StoreError) -> Error {
    let hint = match &error {
        StoreError::InvalidPath { .. } if location.is_local() => {
            "; rename files whose names are not UTF-8 or hold control characters"
        }
        StoreError::InvalidPath { .. } => {
            "; no part of a key between two slashes may be empty, . or .., or hold control characters: rename or remove \
             that key, or name the other files one by one"
        }
        StoreError::NotSupported { .. } => NO_RANGES,
        _ => "",
    };
    Error::storage(format!("cannot list {location}{hint}")).with_source(error)
}

fn not_found(location: &Location, reason: &str) -> Error {
    let near = match location.is_local() {
        true => nearest_name(location.prefix()),
        false => String::new(),
    };
    Error::new(ErrorKind::TableNotFound, format!("{reason} {location}{near}"))
}

/// The name nearest to the first one of a local path that does not exist.
fn nearest_name(path: &Path) -> String {
    let mut parent = Vec::new();
    for name in path.parts() {
        let directory = local_path(&parent);
        let name = name.as_ref().to_owned();
        if directory.join(&name).symlink_metadata().is_ok() {
            parent.push(name);
            continue;
        }
        let names: Vec<String> = std::fs::read_dir(&directory)
            .into_iter()
            .flatten()
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        return suggestion(&name, names.iter().map(String::as_str));
    }
    String::new()
}

/// Returns true if one of the directories of a local path is a file.
fn is_below_file(path: &Path) -> bool {
    let found = to_local(path).symlink_metadata();
    found.is_err_and(|error| error.kind() == std::io::ErrorKind::NotADirectory)
}

fn to_local(path: &Path) -> std::path::PathBuf {
    LocalPath::new("/").join(path.as_ref())
}
