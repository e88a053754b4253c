//! A disk without room for a stage: which one, the free space on it, and a remedy.

use std::error::Error as StdError;
use std::ffi::CString;
use std::io::{self, ErrorKind as IoKind};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::place::StagePlace;
use crate::Error;

/// Rewords an error of writing a stage if the device was full; returns other errors unchanged.
pub(super) fn no_room_for_stage(error: Error, place: &StagePlace, written: u64) -> Error {
    match place.folder() {
        Some(folder) if is_full(&error) => Error::storage(format!(
            "there is no room for a stage in {}: {} there, and the stage took {written} bytes so far; nothing of it was \
             kept. Make room (tensorquery.clear_stages removes stages), or give stage_dir= a place with more of it",
            folder.display(),
            free(folder)
        ))
        .with_source(error),
        _ => error,
    }
}

/// Rewords an error of computing a stage if there was no room to spill; returns other errors
/// unchanged.
pub(super) fn no_room_to_spill(error: Error) -> Error {
    if !is_full(&error) {
        return error;
    }
    let folder = std::env::temp_dir();
    Error::storage(format!(
        "there is no room to compute the rows of a stage, which are more than memory_limit holds and spill to {}: {} \
         there. Make room, set TMPDIR to a folder with more of it, or raise memory_limit",
        folder.display(),
        free(&folder)
    ))
    .with_source(error)
}

/// Returns true if a disk, a quota or the size that a file may have is behind an error.
fn is_full(error: &Error) -> bool {
    let mut next: Option<&(dyn StdError + 'static)> = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<io::Error>()
            && matches!(
                error.kind(),
                IoKind::StorageFull | IoKind::QuotaExceeded | IoKind::FileTooLarge
            )
        {
            return true;
        }
        next = error.source();
    }
    false
}

/// The free bytes of a folder's file system, in words.
fn free(folder: &Path) -> String {
    let Ok(path) = CString::new(folder.as_os_str().as_bytes()) else {
        return "unknown bytes are free".to_owned();
    };
    // SAFETY: all fields are numbers, for which zero is a value.
    let mut found: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are valid for the call.
    match unsafe { libc::statvfs(path.as_ptr(), &raw mut found) } {
        0 => format!("{} bytes are free", found.f_bavail as u64 * found.f_frsize as u64),
        _ => "unknown bytes are free".to_owned(),
    }
}
