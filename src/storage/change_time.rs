//! The change time of a local file: what its size and the time of its last write do not show.
//!
//! Programs set the time of the last write as they like, and a file that is written in place with
//! its old time looks unchanged. The system sets the change time by itself. It moves with links,
//! owners and permissions too, which do not touch the content, so a change time that moved
//! together with one of those is no change. File systems of other machines and of programs (NFS,
//! FUSE) make it up; it counts on others only.
//!
//! It is a fact about one file on one disk and no part of a fingerprint: a copy of a data set, or
//! the next run, has other change times and the same rows.

use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;

use chrono::{DateTime, SecondsFormat};
use serde::{Deserialize, Serialize};

use super::location::local_path;
use super::mapped::is_of_this_machine;
use super::pin::FilePin;
use super::uri::is_local_file;

/// A local file's change time, with all that moves it besides the content.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ChangeTime {
    seconds: i64,
    nanoseconds: i64,
    links: u64,
    mode: u32,
    owner: u32,
    group: u32,
}

impl ChangeTime {
    fn of(found: &Metadata) -> Self {
        Self {
            seconds: found.ctime(),
            nanoseconds: found.ctime_nsec(),
            links: found.nlink(),
            mode: found.mode(),
            owner: found.uid(),
            group: found.gid(),
        }
    }

    fn at(&self) -> (i64, i64) {
        (self.seconds, self.nanoseconds)
    }

    fn attributes(&self) -> (u64, u32, u32, u32) {
        (self.links, self.mode, self.owner, self.group)
    }

    /// Describes a change of the content that size and time of the last write do not show; None
    /// where there is none.
    pub(super) fn difference(&self, now: &Metadata) -> Option<String> {
        let now = Self::of(now);
        if self.at() == now.at() || self.attributes() != now.attributes() {
            return None;
        }
        let text = |time: &Self| {
            let nanoseconds = u32::try_from(time.nanoseconds).unwrap_or_default();
            DateTime::from_timestamp(time.seconds, nanoseconds)
                .map(|time| time.to_rfc3339_opts(SecondsFormat::Micros, true))
                .unwrap_or_default()
        };
        Some(format!(
            "same size and time of the last write, but its change time moved from {} to {}: it was written in place and \
             its old time set, or renamed",
            text(self),
            text(&now)
        ))
    }
}

/// Pins the change times of those files that lie on a disk of this machine. A file that cannot be
/// looked at has none: reading it finds out why.
pub fn pin_change_times<'a>(root: &str, pins: impl IntoIterator<Item = &'a mut FilePin>) {
    let mut known: HashMap<u64, bool> = HashMap::new();
    for pin in pins {
        if !is_local_file(root, &pin.location) {
            continue;
        }
        let names: Vec<String> =
            pin.location.parts().map(|name| name.as_ref().to_owned()).collect();
        let path = local_path(&names);
        let Ok(found) = std::fs::metadata(&path) else { continue };
        let counts = *known.entry(found.dev()).or_insert_with(|| {
            found.is_file() && File::open(&path).is_ok_and(|file| is_of_this_machine(&file))
        });
        pin.changed = counts.then(|| ChangeTime::of(&found));
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use super::*;

    #[test]
    fn only_what_touches_the_content_is_a_change() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        fs::write(&path, "one").unwrap();
        let look = || fs::metadata(&path).unwrap();
        let before = look();
        let pinned = ChangeTime::of(&before);
        assert!(pinned.difference(&look()).is_none());
        // The clock of files has steps.
        std::thread::sleep(Duration::from_millis(20));
        fs::hard_link(&path, folder.path().join("b")).unwrap();
        assert_ne!(ChangeTime::of(&look()).at(), pinned.at());
        assert!(pinned.difference(&look()).is_none());
        fs::remove_file(folder.path().join("b")).unwrap();
        let linked = ChangeTime::of(&look());
        std::thread::sleep(Duration::from_millis(20));
        fs::write(&path, "two").unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        file.set_modified(before.modified().unwrap()).unwrap();
        let difference = linked.difference(&look()).unwrap();
        assert!(difference.contains("written in place"), "{difference}");
    }
}
