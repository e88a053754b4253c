//! One pinned file as it must be: each answer of its store is compared with that, and a difference
//! told.

use std::error::Error as StdError;
use std::fs::{File, Metadata};
use std::ops::Range;
use std::sync::Arc;

use object_store::path::Path;
use object_store::{Error as StoreError, ObjectMeta, Result};

use super::io_counters::IoCounters;
use super::location::describe;
use super::pin::FilePin;
use super::pinned::STORE;
use super::requests::NO_RANGES;
use crate::Error;

/// The facts about one file that check each answer.
#[derive(Clone)]
pub(super) struct Guard {
    pub(super) root: Arc<str>,
    pub(super) location: Path,
    pub(super) pin: Option<Arc<FilePin>>,
    pub(super) counters: Arc<IoCounters>,
    pub(super) snapshot: Option<Arc<str>>,
}

impl Guard {
    pub(super) fn count_bytes(&self, bytes: usize) {
        self.counters.count_bytes(bytes as u64);
    }

    /// A local file has changed since it was opened.
    pub(super) fn changed_while_read(&self, size: u64) -> Result<()> {
        match &self.pin {
            None => Ok(()),
            Some(pin) if pin.size != size => {
                Err(self.changed(&format!("size {} -> {size}", pin.size)))
            }
            Some(_) => Err(self.changed("it was written to while it was read")),
        }
    }

    pub(super) fn read_error(&self, error: &std::io::Error) -> StoreError {
        let path = describe(&self.root, &self.location);
        self.fail(Error::storage(format!("cannot read {path}: {error}")))
    }

    /// A reader wants bytes behind the end: the file's own metadata is wrong.
    pub(super) fn check_end(&self, end: u64) -> Result<()> {
        self.pin.as_ref().map_or(Ok(()), |pin| self.check_end_of(end, pin.size))
    }

    /// Checks that a read ends within a file of known size.
    pub(super) fn check_end_of(&self, end: u64, size: u64) -> Result<()> {
        if end <= size {
            return Ok(());
        }
        Err(self.fail(Error::data(format!(
            "the file is cut short or damaged: it refers to byte {end} of {size}"
        ))))
    }

    /// A store sent other bytes than were asked for.
    pub(super) fn check_length(&self, range: &Range<u64>, length: usize) -> Result<()> {
        if range.end - range.start == length as u64 {
            return Ok(());
        }
        let path = describe(&self.root, &self.location);
        Err(self.fail(Error::storage(format!(
            "the store sent {length} bytes of {path}, where {} were asked for (bytes {} to {})",
            range.end - range.start,
            range.start,
            range.end
        ))))
    }

    pub(super) fn check(&self, now: &ObjectMeta) -> Result<()> {
        match self.pin.as_ref().and_then(|pin| pin.difference(now)) {
            Some(difference) => Err(self.changed(&difference)),
            None => Ok(()),
        }
    }

    /// Checks the change time of a local file that is open.
    pub(super) fn check_change_time(&self, file: &File) -> Result<()> {
        match self.pin.as_ref().is_some_and(|pin| pin.changed.is_some()) {
            true => self.check_changed(&file.metadata().map_err(|error| self.read_error(&error))?),
            false => Ok(()),
        }
    }

    pub(super) fn check_changed(&self, now: &Metadata) -> Result<()> {
        let pinned = self.pin.as_ref().and_then(|pin| pin.changed);
        match pinned.and_then(|changed| changed.difference(now)) {
            Some(difference) => Err(self.changed(&difference)),
            None => Ok(()),
        }
    }

    fn changed(&self, difference: &str) -> StoreError {
        self.other_file(&match &self.snapshot {
            None => {
                format!("changed after the query was planned ({difference}); register the table again")
            }
            // Nobody looked at the file before: what it was is what a manifest says.
            Some(snapshot) => format!(
                "is not as the metadata of {snapshot} describes it ({difference}): it was written again, or the metadata is \
                 wrong; choose another version, or repair the table"
            ),
        })
    }

    pub(super) fn vanished(&self) -> StoreError {
        let remedy = match &self.snapshot {
            None => "register the table again".to_owned(),
            Some(snapshot) => format!(
                "it belongs to {snapshot}, which may have expired or been vacuumed: choose another one, or refresh the query"
            ),
        };
        self.other_file(&format!("vanished after the query was planned; {remedy}"))
    }

    fn other_file(&self, what: &str) -> StoreError {
        let path = describe(&self.root, &self.location);
        self.fail(Error::data(format!("file {path} {what}")).of_other_file())
    }

    pub(super) fn no_ranges(&self, source: Box<dyn StdError + Send + Sync>) -> StoreError {
        let path = describe(&self.root, &self.location);
        let error = Error::storage(format!("cannot read {path}{NO_RANGES}")).with_source(source);
        StoreError::NotSupported { source: Box::new(error) }
    }

    fn fail(&self, error: Error) -> StoreError {
        StoreError::Generic { store: STORE, source: Box::new(error) }
    }
}
