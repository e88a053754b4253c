//! Whole Avro files for the `apache-avro` crate, which takes memory for what lengths declare, and
//! decompresses blocks without an end.

use bytes::Bytes;

use super::head::{CODEC, Header, MAGIC, SYNC, parse, unreadable};
use super::normal::normalized;
use super::schema::Shape;
use super::walk::{BlockHead, cut_short, wrong_marker};
use super::wire::put_long;
use crate::bounds::{MANIFEST, MANIFEST_ITEMS, check_json};
use crate::formats::guard::guarded;
use crate::{Error, Result};

/// A file of the same rows whose blocks are not compressed. Their bytes are those of the rows that
/// they declare, and every length in them is there.
///
/// # Arguments
/// `row_items`: items of lists as which a row counts.
///
/// # Errors
/// `Data` where the file is damaged, or has more than it may; the caller names it.
pub fn vetted(file: &Bytes, row_items: u64) -> Result<Bytes> {
    let header = parse(file)?.ok_or_else(|| unreadable("it ends within its header"))?;
    header.pairs.iter().try_for_each(|(_, value)| check_json(value))?;
    let shape = Shape::of_any(&normalized(header.schema()?)?)?;
    if shape.takes_nothing() {
        return Err(unreadable("its rows take no bytes"));
    }
    let codec = header.codec()?;
    let mut plain = Plain::begin(&header);
    let mut blocks = Blocks { rest: file.slice(header.length as usize..), sync: header.sync };
    let mut number = 0_usize;
    while let Some((rows, stored)) = blocks.next().map_err(|error| at(error, number))? {
        // The crate takes a block without rows for the end.
        if rows > 0 {
            let block = guarded("Avro", || codec.decompress(&stored));
            let added = block.and_then(|block| plain.add(&shape, rows, &block, row_items));
            added.map_err(|error| at(error, number))?;
        }
        number += 1;
    }
    Ok(plain.file.into())
}

/// The file that is written.
struct Plain {
    file: Vec<u8>,
    sync: [u8; SYNC],
    bytes: u64,
    items: u64,
}

impl Plain {
    /// The header without the codec.
    fn begin(header: &Header) -> Self {
        let mut file = MAGIC.to_vec();
        let kept = header.pairs.iter().filter(|(key, _)| key != CODEC);
        put_long(&mut file, kept.clone().count() as i64);
        for part in kept.flat_map(|(key, value)| [key, value]) {
            put_long(&mut file, part.len() as i64);
            file.extend_from_slice(part);
        }
        put_long(&mut file, 0);
        file.extend_from_slice(&header.sync);
        Self { file, sync: header.sync, bytes: 0, items: 0 }
    }

    fn add(&mut self, shape: &Shape, rows: u64, block: &[u8], row_items: u64) -> Result<()> {
        self.bytes += block.len() as u64;
        MANIFEST.check(self.bytes, "the rows of this Avro file become")?;
        self.items += shape.check(block, rows)? + rows * row_items;
        MANIFEST_ITEMS.check(self.items, "this Avro file has")?;
        put_long(&mut self.file, rows as i64);
        put_long(&mut self.file, block.len() as i64);
        self.file.extend_from_slice(block);
        self.file.extend_from_slice(&self.sync);
        Ok(())
    }
}

fn at(error: Error, block: usize) -> Error {
    error.with_context("block", block)
}

/// The blocks of a file.
struct Blocks {
    rest: Bytes,
    sync: [u8; SYNC],
}

impl Blocks {
    /// Rows and stored bytes of the next block.
    fn next(&mut self) -> Result<Option<(u64, Bytes)>> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let head = BlockHead::parse(&self.rest)?;
        let total = head.total().filter(|total| *total <= self.rest.len() as u64);
        let mut block = self.rest.split_to(total.ok_or_else(cut_short)? as usize);
        if block.split_off(block.len() - SYNC) != self.sync[..] {
            return Err(wrong_marker());
        }
        Ok(Some((head.rows, block.slice(head.length as usize..))))
    }
}
