//! The identity of a file, fixed when a query is planned.

use std::ops::Index;

use chrono::{DateTime, SecondsFormat, Utc};
use object_store::ObjectMeta;
use object_store::path::Path;
use serde::{Deserialize, Serialize};

use super::change_time::ChangeTime;
use crate::fingerprint::Form;

/// One file as it was when the query was planned.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(try_from = "PinText", into = "PinText")]
pub struct FilePin {
    /// The path in its store.
    pub location: Path,
    /// The file's size in bytes.
    pub size: u64,
    /// When the file was last written, as the store told it; None where the file was never asked
    /// for.
    pub last_modified: Option<DateTime<Utc>>,
    /// The store's name for the content; a local file has one of inode, time and size.
    pub e_tag: Option<String>,
    /// The store's version of the object, where it keeps versions.
    pub version: Option<String>,
    /// The change time of a file on a disk of this machine, which is compared when it is read. It
    /// is no part of the identity.
    pub changed: Option<ChangeTime>,
}

impl FilePin {
    /// A file of a table format, which never writes one twice: its size alone is pinned.
    pub fn of_size(location: Path, size: u64) -> Self {
        Self { location, size, last_modified: None, e_tag: None, version: None, changed: None }
    }
}

/// Pins are the same where they name the same content; see [`ChangeTime`].
impl PartialEq for FilePin {
    fn eq(&self, other: &Self) -> bool {
        self.location == other.location
            && self.size == other.size
            && self.last_modified == other.last_modified
            && self.e_tag == other.e_tag
            && self.version == other.version
    }
}

impl Eq for FilePin {}

impl FilePin {
    /// Writes the identity of the content into a form.
    pub fn write_content(&self, form: &mut Form) {
        form.number("size", self.size).optional_text("etag", self.e_tag.as_deref());
        match self.last_modified {
            Some(time) => {
                form.signed("modified", time.timestamp());
                form.number("nanoseconds", u64::from(time.timestamp_subsec_nanos()));
            }
            None => {
                form.absent("modified");
            }
        }
    }

    /// A name for the content: another one where size, entity tag or the time of the last write are
    /// others.
    pub fn content_name(&self) -> String {
        let mut form = Form::new("file");
        self.write_content(&mut form);
        form.name()
    }

    /// Describes the difference between the pin and `now`, the file asked for again; None if it is
    /// unchanged.
    pub(super) fn difference(&self, now: &ObjectMeta) -> Option<String> {
        if self.size != now.size {
            return Some(format!("size {} -> {}", self.size, now.size));
        }
        if let (Some(was), Some(is)) = (&self.e_tag, &now.e_tag) {
            return (bare(was) != bare(is)).then(|| {
                format!("same size of {}, etag {} -> {}", self.size, bare(was), bare(is))
            });
        }
        let last_modified = self.last_modified.as_ref()?;
        // Listings tell milliseconds where the header of a read tells seconds.
        let (was, is) = (last_modified.timestamp(), now.last_modified.timestamp());
        (was != is).then(|| {
            let text = |time: &DateTime<Utc>| time.to_rfc3339_opts(SecondsFormat::Secs, true);
            let (was, is) = (text(last_modified), text(&now.last_modified));
            format!("same size of {}, modified {was} -> {is}", self.size)
        })
    }

    /// The etag in the one spelling that all answers of a store share.
    pub(super) fn bare_e_tag(&self) -> Option<&str> {
        self.e_tag.as_deref().map(bare)
    }

    /// The etag to demand in a request. A weak one never matches in `If-Match` (RFC 9110, section
    /// 13.1.1), so it is only compared with the answer's. Azure lists etags without their quotes.
    pub(super) fn strong_e_tag(&self) -> Option<String> {
        let e_tag = self.e_tag.as_deref().filter(|e_tag| !e_tag.starts_with("W/"))?;
        match e_tag.starts_with("0x") {
            true => Some(format!("\"{e_tag}\"")),
            false => Some(e_tag.to_owned()),
        }
    }
}

/// The pins of a store's files, in the order of their locations: millions take no memory but their
/// own, and tables list their files so.
#[derive(Debug, Default)]
pub(super) struct Pins(Vec<FilePin>);

impl Pins {
    /// The pin of a file.
    pub(super) fn get(&self, location: &Path) -> Option<&FilePin> {
        // Of a file that is named twice the last pin holds.
        let behind = self.0.partition_point(|pin| pin.location <= *location);
        self.0[..behind].last().filter(|pin| pin.location == *location)
    }

    /// How many files have one.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

/// The pin of a file that has one.
impl Index<&Path> for Pins {
    type Output = FilePin;

    fn index(&self, location: &Path) -> &FilePin {
        match self.get(location) {
            Some(pin) => pin,
            None => panic!("no pin of {location}"),
        }
    }
}

impl FromIterator<FilePin> for Pins {
    fn from_iter<I: IntoIterator<Item = FilePin>>(pins: I) -> Self {
        let mut pins: Vec<FilePin> = pins.into_iter().collect();
        pins.sort_by(|a, b| a.location.cmp(&b.location));
        Self(pins)
    }
}

/// An etag without the quotes and the mark of weakness, which stores add and drop at will.
fn bare(e_tag: &str) -> &str {
    e_tag.strip_prefix("W/").unwrap_or(e_tag).trim_matches('"')
}

impl From<ObjectMeta> for FilePin {
    fn from(meta: ObjectMeta) -> Self {
        let ObjectMeta { location, last_modified, size, e_tag, version } = meta;
        let last_modified = Some(last_modified);
        Self { location, size, last_modified, e_tag, version, changed: None }
    }
}

impl From<FilePin> for ObjectMeta {
    fn from(pin: FilePin) -> Self {
        let FilePin { location, size, last_modified, e_tag, version, .. } = pin;
        let last_modified = last_modified.unwrap_or_default();
        Self { location, last_modified, size, e_tag, version }
    }
}

/// The serialised form: the path as it stands, neither encoded nor decoded.
#[derive(Serialize, Deserialize)]
struct PinText {
    path: String,
    size: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last_modified: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    e_tag: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    changed: Option<ChangeTime>,
}

impl From<FilePin> for PinText {
    fn from(pin: FilePin) -> Self {
        Self {
            path: pin.location.into(),
            size: pin.size,
            last_modified: pin
                .last_modified
                .map(|time| time.to_rfc3339_opts(SecondsFormat::AutoSi, true)),
            e_tag: pin.e_tag,
            version: pin.version,
            changed: pin.changed,
        }
    }
}

impl TryFrom<PinText> for FilePin {
    type Error = String;

    fn try_from(text: PinText) -> Result<Self, String> {
        let location = Path::parse(&text.path).map_err(|error| error.to_string())?;
        let time = |text: String| match DateTime::parse_from_rfc3339(&text) {
            Ok(time) => Ok(time.with_timezone(&Utc)),
            Err(error) => Err(format!("{text:?}: {error}")),
        };
        let last_modified = text.last_modified.map(time).transpose()?;
        Ok(Self {
            location,
            size: text.size,
            last_modified,
            e_tag: text.e_tag,
            version: text.version,
            changed: text.changed,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pin_is_found_by_its_location_and_the_last_one_holds() {
        let pin = |name: &str, size| FilePin::of_size(Path::from(name), size);
        let pins: Pins =
            [pin("b", 1), pin("a/b", 2), pin("b", 3), pin("a", 4)].into_iter().collect();
        let size = |name: &str| pins.get(&Path::from(name)).map(|pin| pin.size);
        assert_eq!([size("a"), size("a/b"), size("b")], [Some(4), Some(2), Some(3)]);
        assert_eq!([size(""), size("a/c"), size("c")], [None, None, None]);
        assert!(Pins::default().get(&Path::from("a")).is_none());
    }
}
