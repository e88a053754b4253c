//! Files that this program writes for itself (stages, caches, locks) in places where others may
//! have put something else.
//!
//! Links are never followed: whoever may write the place could lead elsewhere with them. Only
//! regular files under known names are removed, one by one, and a folder only when it is empty, so
//! that nothing of the user's can go.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Opening waits for nobody: a pipe in the place of a file is refused, not read.
const FLAGS: i32 = libc::O_NOFOLLOW | libc::O_NONBLOCK;

/// Opens a file to read it.
///
/// # Errors
/// Where there is none, or where it is a link or anything else than a regular file.
pub(crate) fn open_own(path: &Path) -> io::Result<File> {
    opened(path, OpenOptions::new().read(true))
}

/// Reads a file in whole; errors as for [`open_own`].
pub(crate) fn read_own(path: &Path) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    io::Read::read_to_end(&mut open_own(path)?, &mut content)?;
    Ok(content)
}

/// Writes a file in whole, in place of what it had; errors as for [`open_own`].
pub(crate) fn write_own(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = opened(path, OpenOptions::new().create(true).truncate(false).write(true))?;
    file.set_len(0)?;
    io::Write::write_all(&mut file, content)
}

/// Opens a file to append to it; errors as for [`open_own`].
pub(crate) fn append_own(path: &Path) -> io::Result<File> {
    opened(path, OpenOptions::new().append(true))
}

/// Opens a file to lock it, and makes it where it is missing; errors as for [`open_own`].
pub(crate) fn open_lock(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    opened(path, options.create(true).truncate(false).read(true).write(true).mode(0o600))
}

fn opened(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let file = options.custom_flags(FLAGS).open(path).map_err(|error| {
        match error.raw_os_error() {
            // Linux and BSD name a link that is not followed differently.
            Some(libc::ELOOP | libc::EMLINK) => foreign("a link, and links are not followed here"),
            _ => error,
        }
    })?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(foreign("no regular file")),
    }
}

fn foreign(what: &str) -> io::Error {
    io::Error::other(format!("it is {what}: tensorquery has not made it"))
}

/// Returns true if there is a folder, and false if there is nothing.
///
/// # Errors
/// Where it is a link or anything else than a folder.
pub(crate) fn is_own_folder(path: &Path) -> io::Result<bool> {
    match path.symlink_metadata() {
        Ok(found) if found.is_dir() => Ok(true),
        Ok(found) if found.is_symlink() => Err(foreign("a link, and links are not followed here")),
        Ok(_) => Err(foreign("no folder")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Refuses the folder that tensorquery makes for a user in the temporary directory,
/// `tensorquery-UID`, where it is another's: every user may make a folder of that name there, and
/// then read and replace what is written into it. Folders of other names are the caller's choice.
///
/// # Errors
/// Where it is there, and is a link, belongs to another user, or may be written by others.
pub(crate) fn check_private(folder: &Path) -> io::Result<()> {
    // SAFETY: the calls have no conditions.
    let (real, user) = unsafe { (libc::getuid(), libc::geteuid()) };
    let is_default = folder.file_name().and_then(|name| name.to_str())
        == Some(format!("tensorquery-{real}").as_str());
    if !is_default || !is_own_folder(folder)? {
        return Ok(());
    }
    let found = folder.symlink_metadata()?;
    if found.uid() != user {
        let owner = found.uid();
        return Err(io::Error::other(format!(
            "it belongs to user {owner}, and this is user {user}"
        )));
    }
    match found.mode() & 0o022 {
        0 => Ok(()),
        _ => Err(io::Error::other(format!(
            "other users may write to it (its mode is {:o})",
            found.mode() & 0o7777
        ))),
    }
}

/// Removes the regular files of a folder whose names are ours, and the folder if nothing else is in
/// it. What is gone already is no error. Returns true if the folder is gone.
///
/// # Errors
/// Errors of the file system, and as for [`is_own_folder`].
pub(crate) fn remove_own(folder: &Path, is_ours: impl Fn(&str) -> bool) -> io::Result<bool> {
    let gone = |removed: io::Result<()>| match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    };
    if !is_own_folder(folder)? {
        return Ok(true);
    }
    let mut others = 0;
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        // The kind of the entry itself: a link under one of our names is somebody else's.
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        match is_file && entry.file_name().to_str().is_some_and(&is_ours) {
            true => gone(fs::remove_file(entry.path()))?,
            false => others += 1,
        }
    }
    if others > 0 {
        return Ok(false);
    }
    match gone(fs::remove_dir(folder)) {
        // Something was put there meanwhile.
        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(false),
        other => other.map(|()| true),
    }
}

/// Returns true for a digest as the names of stages and entries are: 64 lower-case hexadecimal
/// digits.
pub(crate) fn is_digest(name: &str) -> bool {
    name.len() == 64 && is_hexadecimal(name)
}

/// Returns true for decimal digits, at least one.
pub(crate) fn is_decimal(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns true for lower-case hexadecimal digits, at least one.
pub(crate) fn is_hexadecimal(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_and_pipes_are_neither_opened_nor_locked_nor_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("theirs"), "content").unwrap();
        symlink(path("theirs"), path("link")).unwrap();
        symlink(path("nothing"), path("broken")).unwrap();
        symlink(folder.path(), path("folder-link")).unwrap();
        let pipe = std::ffi::CString::new(path("pipe").to_str().unwrap()).unwrap();
        // SAFETY: the name ends in a zero byte.
        assert_eq!(unsafe { libc::mkfifo(pipe.as_ptr(), 0o600) }, 0);
        for name in ["link", "broken", "folder-link", "pipe"] {
            for error in [open_own(&path(name)), append_own(&path(name)), open_lock(&path(name))] {
                let error = error.unwrap_err();
                assert!(
                    error.to_string().contains("has not made it") || name == "pipe",
                    "{name}: {error}"
                );
            }
            assert!(is_own_folder(&path(name)).is_err(), "{name}");
            assert!(remove_own(&path(name), |_| true).is_err(), "{name}");
        }
        assert!(!path("nothing").exists());
        assert!(!remove_own(folder.path(), |name| name != "theirs").unwrap());
        for name in ["theirs", "link", "broken", "folder-link", "pipe"] {
            assert!(path(name).symlink_metadata().is_ok(), "{name}");
        }
    }

    #[test]
    fn a_folder_of_own_files_goes() {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join("own");
        fs::create_dir(&own).unwrap();
        fs::write(own.join("a"), "").unwrap();
        fs::write(own.join("b"), "").unwrap();
        assert!(!remove_own(&own, |name| name == "a").unwrap());
        assert!(own.join("b").exists() && !own.join("a").exists());
        assert!(remove_own(&own, |name| name == "b").unwrap());
        assert!(!own.exists());
        assert!(remove_own(&own, |_| false).unwrap());
    }
}
