//! Schemas and batches as Arrow IPC bytes: for recipes, and to tell whether two tables are the
//! same.

use std::io::{self, Cursor, Write};

use arrow::datatypes::{Schema, SchemaRef};
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::StreamWriter;
use arrow::record_batch::RecordBatch;

use sha2::{Digest, Sha256};

use crate::Result;

/// A schema and batches as one IPC stream.
pub fn encode(schema: &Schema, batches: &[RecordBatch]) -> Result<Vec<u8>> {
    let mut writer = StreamWriter::try_new(Vec::new(), schema)?;
    for batch in batches {
        writer.write(batch)?;
    }
    Ok(writer.into_inner()?)
}

/// The schema and batches of one IPC stream.
pub fn decode(bytes: &[u8]) -> Result<(SchemaRef, Vec<RecordBatch>)> {
    let reader = StreamReader::try_new(Cursor::new(bytes), None)?;
    let schema = reader.schema();
    let batches = reader.collect::<Result<_, _>>()?;
    Ok((schema, batches))
}

/// SHA-256 over the IPC stream, and its length: the same for equal batches, wherever they lie in
/// memory.
pub fn digest(schema: &Schema, batches: &[RecordBatch]) -> Result<(String, u64)> {
    let mut writer = StreamWriter::try_new(Digester { hash: Sha256::new(), bytes: 0 }, schema)?;
    for batch in batches {
        writer.write(batch)?;
    }
    let written = writer.into_inner()?;
    Ok((hex(&written.hash.finalize()), written.bytes))
}

/// Hashes and counts the bytes written to it.
struct Digester {
    hash: Sha256,
    bytes: u64,
}

impl Write for Digester {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Bytes as lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
