//! Bounds of decoding: the most that data of unknown origin may make this process take. Every
//! format and protocol has its bounds here, and SECURITY.md lists them by the same names.
//!
//! A bound is checked before memory is taken. Where an outside crate would take it first, the bytes
//! are looked at before the crate gets them.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::{Error, ErrorKind, Result};

/// A unit may become so many times as large as it is stored, even beyond its bound: the ratio of
/// deflate. What exceeds it repeats itself throughout.
const TIMES: u64 = 1024;

/// No unit becomes larger than so many times its bound, or its stored bytes if they are more.
const BEYOND: u64 = 8;

/// The most of something that is read.
#[derive(Debug)]
pub struct Bound {
    name: &'static str,
    most: u64,
    unit: &'static str,
    /// What the owner of the data can do about it.
    remedy: &'static str,
    kind: ErrorKind,
    /// Tests lower it, so that small data can exceed it.
    lowered: AtomicU64,
}

impl Bound {
    const fn new(name: &'static str, most: u64, unit: &'static str, remedy: &'static str) -> Self {
        let lowered = AtomicU64::new(u64::MAX);
        Self { name, most, unit, remedy, kind: ErrorKind::Data, lowered }
    }

    /// A bound on what a server answers, which is no fault of a file.
    const fn of_server(
        name: &'static str,
        most: u64,
        unit: &'static str,
        remedy: &'static str,
    ) -> Self {
        Self { kind: ErrorKind::Storage, ..Self::new(name, most, unit, remedy) }
    }

    /// The name in SECURITY.md.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The unit of the number.
    pub fn unit(&self) -> &'static str {
        self.unit
    }

    /// The number.
    pub fn most(&self) -> u64 {
        self.most.min(self.lowered.load(Ordering::Relaxed))
    }

    /// Lowers it for this process; None gives the number of SECURITY.md back.
    pub fn lower(&self, most: Option<u64>) {
        self.lowered.store(most.unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Bytes that a unit of so many stored bytes may become: the bound, or 1,024 times the stored
    /// bytes up to eight times the larger of both.
    pub fn unpacked(&self, stored: u64) -> u64 {
        let most = self.most();
        stored.saturating_mul(TIMES).clamp(most, most.max(stored).saturating_mul(BEYOND))
    }

    /// Refuses more than the bound; `what` begins the message.
    ///
    /// # Errors
    /// `Data`, or `Storage` for a server's answer. The caller names the file.
    pub fn check(&self, found: u64, what: &str) -> Result<()> {
        if found <= self.most() { Ok(()) } else { Err(self.exceeded(what)) }
    }

    /// Refuses a unit of `stored` bytes that becomes more than it may: see [`unpacked`](Self::unpacked).
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub fn check_unpacked(&self, stored: u64, found: u64, what: &str) -> Result<()> {
        let most = self.unpacked(stored);
        if found <= most { Ok(()) } else { Err(self.error(what, most)) }
    }

    /// The error for more than the bound.
    pub fn exceeded(&self, what: &str) -> Error {
        self.error(what, self.most())
    }

    /// The error for more than `most`.
    pub fn error(&self, what: &str, most: u64) -> Error {
        Error::new(self.kind, self.message(what, most))
    }

    /// The text of that error.
    pub fn message(&self, what: &str, most: u64) -> String {
        let Self { name, unit, remedy, .. } = self;
        format!(
            "{what} more than {most} {unit}, the most that is read (bound {name:?} of SECURITY.md); {remedy}"
        )
    }
}

const SMALLER: &str = "if it is no damage, write it in smaller parts";
const FLATTER: &str = "if it is no damage, write it with fewer or flatter columns";

macro_rules! bounds {
    ($($(#[$doc:meta])* $item:ident = $make:ident($($part:expr),+);)+) => {
        $($(#[$doc])* pub static $item: Bound = Bound::$make($($part),+);)+

        /// All of them.
        pub static ALL: &[&Bound] = &[$(&$item),+];
    };
}

bounds! {
    /// Types of a file's schema, nested ones included.
    TYPES = new("types", 200_000, "types", FLATTER);
    /// Levels of a nested type, as the format counts them.
    LEVELS = new("levels", 200, "levels", FLATTER);
    /// Rows of a stripe, record batch or block: nothing in columns of NULLs proves that there are
    /// fewer.
    ROWS = new("rows", i32::MAX as u64, "rows", SMALLER);
    /// Entries of a footer of ORC: parts of its types and stripes, or streams of a stripe.
    ORC_PARTS = new("orc parts", 4_000_000, "entries", SMALLER);
    /// A footer, metadata section or stripe footer of ORC, decompressed.
    ORC_SECTION = new("orc section", 64 << 20, "bytes", SMALLER);
    /// A chunk of a compressed stream of ORC, decompressed: the format's own bound.
    ORC_CHUNK = new("orc chunk", 8 << 20, "bytes", "write it with a smaller orc.compress.size");
    /// The chunks of a stripe that are decompressed at the same time: one of each stream that is
    /// read.
    ORC_STRIPE = new("orc stripe", 1 << 30, "bytes", "read fewer columns, or write smaller chunks");
    /// Bytes of the texts of a column in a stripe, items of its lists, or entries of its dictionary,
    /// as its lengths declare them.
    ORC_VALUES = new("orc values", 128 << 20, "values", "write smaller stripes");
    /// The buffers of an Arrow record batch that are read, decompressed.
    IPC_BATCH = new("ipc batch", 1 << 30, "bytes", "write smaller record batches");
    /// The header of an Avro file.
    AVRO_HEADER = new("avro header", 64 << 20, "bytes", FLATTER);
    /// A block of an Avro file, decompressed.
    AVRO_BLOCK = new("avro block", 64 << 20, "bytes", "write smaller blocks");
    /// A page of Parquet, decompressed.
    PARQUET_PAGE = new("parquet page", 256 << 20, "bytes", "write smaller pages");
    /// A line of text, or an element of a JSON array, from which types are inferred.
    LINE = new("line", 64 << 20, "bytes", "write one record per line");
    /// Values of a JSON document that is parsed whole: each takes more memory than it has letters.
    JSON_VALUES = new("json values", 4_000_000, "values", "expire old snapshots");
    /// Metadata of an Iceberg table, decompressed.
    TABLE_METADATA = new("table metadata", 256 << 20, "bytes", "expire old snapshots");
    /// A manifest, manifest list or Avro delete file of Iceberg, decompressed.
    MANIFEST = new("manifest", 256 << 20, "bytes", "rewrite the table's manifests");
    /// Items of lists in a manifest or manifest list; an entry counts as sixteen.
    MANIFEST_ITEMS = new("manifest items", 16_000_000, "items", "rewrite the table's manifests");
    /// A deletion vector of Iceberg or Delta.
    DELETION_VECTOR = new("deletion vector", 256 << 20, "bytes", "compact the table");
    /// A commit of Delta's log, or a checkpoint in JSON.
    DELTA_COMMIT = new("delta commit", 256 << 20, "bytes", "write a checkpoint, or compact the table");
    /// An answer of a catalog, and all pages of one of its listings.
    CATALOG_ANSWER = of_server("catalog answer", 256 << 20, "bytes", "check the catalog's address");
    /// Pages of a catalog's listing.
    CATALOG_PAGES = of_server(
        "catalog pages",
        1_000,
        "pages",
        "for larger pages set the property \"rest-page-size\" of a REST catalog"
    );
    /// A token.
    TOKEN = of_server("token", 1 << 20, "bytes", "check the address of the server of tokens");
    /// A page of a store's listing, or another document of a store.
    STORE_DOCUMENT = of_server("store document", 64 << 20, "bytes", "check the store's address");
    /// Pages of a store's listing.
    STORE_PAGES = of_server("store pages", 10_000, "pages", "name directories below it");
    /// All pages of a store's listing.
    STORE_LISTING = of_server("store listing", 1 << 30, "bytes", "name directories below it");
}

/// Refuses JSON of more values than are parsed. What is no JSON passes: its parser says so.
///
/// # Errors
/// `Data` for too many values.
pub fn check_json(json: &[u8]) -> Result<()> {
    let most = JSON_VALUES.most();
    // Each value takes two bytes at least.
    if json.len() as u64 / 2 <= most {
        return Ok(());
    }
    let (mut values, mut in_text, mut is_escaped) = (1_u64, false, false);
    for byte in json {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = in_text,
            b'"' => in_text = !in_text,
            b',' | b'[' | b'{' if !in_text => values += 1,
            _ => {}
        }
    }
    JSON_VALUES.check(values, "the JSON has")
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_differ_and_numbers_are_what_they_were_made_with() {
        let names: HashSet<&str> = ALL.iter().map(|bound| bound.name()).collect();
        assert_eq!(names.len(), ALL.len());
        assert_eq!(ORC_CHUNK.most(), 8 << 20);
    }

    #[test]
    fn a_unit_may_become_the_bound_or_so_many_times_its_stored_bytes() {
        let bound = Bound::new("x", 4096, "bytes", "write less");
        assert!(bound.check_unpacked(0, 4096, "it has").is_ok());
        assert!(bound.check_unpacked(5, 5 << 10, "it has").is_ok());
        assert_eq!(bound.unpacked(100), 8 * 4096);
        assert_eq!(bound.unpacked(1 << 20), 8 << 20);
        let error = bound.check_unpacked(5, (5 << 10) + 1, "it has").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Data);
        assert_eq!(
            error.message(),
            "it has more than 5120 bytes, the most that is read (bound \"x\" of SECURITY.md); write less"
        );
        bound.lower(Some(7));
        assert!(bound.check(7, "it has").is_ok() && bound.check(8, "it has").is_err());
        bound.lower(None);
        assert!(bound.check(4096, "it has").is_ok());
    }
}
