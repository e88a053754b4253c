//! Whether the files of a stage in a folder are still as they were written.
//!
//! Readers compare checksums as they read; what they find damaged they say in a file beside the
//! stage's. Here is what shows before anything is read: that word, and files that were touched
//! since the stage was complete or was verified last. These are read once in whole.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::manifest::Manifest;
use crate::formats::ipc::{SUSPECT, is_intact};

/// The file whose time says when all files of a stage were read and found whole.
pub(crate) const VERIFIED: &str = "verified";

/// Returns false where a file of the stage in `dir` is known to be damaged.
pub(super) fn is_as_written(dir: &Path, manifest: &Manifest) -> bool {
    let build = dir.join(&manifest.build);
    if build.join(SUSPECT).symlink_metadata().is_ok() {
        return false;
    }
    // Parquet files of a cluster carry no checksums.
    if manifest.is_parquet() {
        return true;
    }
    let paths: Vec<_> = manifest.files.iter().map(|file| build.join(&file.name)).collect();
    let since = latest_write(dir, &["manifest.json", VERIFIED]);
    if paths.iter().all(|path| !was_touched(path, since)) {
        return true;
    }
    // A file that cannot be read is told when it is read.
    let whole = paths.iter().all(|path| is_intact(path).unwrap_or(true));
    if whole {
        // Where it cannot be noted, the next one looks again.
        let _ = note_verified(dir);
    }
    whole
}

/// Notes that all files of a stage were found whole.
pub(crate) fn note_verified(dir: &Path) -> std::io::Result<()> {
    let path = dir.join(VERIFIED);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    fs::File::create_new(path).map(drop)
}

/// The latest write to some files of a folder, in seconds and nanoseconds since 1970; those that
/// are not there do not count.
pub(crate) fn latest_write(dir: &Path, names: &[&str]) -> Option<(i64, i64)> {
    let time = |found: Metadata| (found.mtime(), found.mtime_nsec());
    names.iter().filter_map(|name| dir.join(name).symlink_metadata().ok().map(time)).max()
}

/// Returns true if a file may have been touched since a moment, by its change time.
pub(crate) fn was_touched(path: &Path, since: Option<(i64, i64)>) -> bool {
    let Ok(found) = path.symlink_metadata() else { return true };
    // The clock of files has steps: in the same one, it may have been touched later.
    since.is_none_or(|since| (found.ctime(), found.ctime_nsec()) >= since)
}
