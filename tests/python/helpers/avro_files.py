"""Avro files for the tests: written by fastavro, and taken apart and put together again block by block."""

import io
import zlib

import fastavro
import pyarrow as pa

MAGIC = b"Obj\x01"


def write(path, schema, rows, codec="null", block_bytes=1000):
    """Write rows with blocks of about `block_bytes`; fastavro lacks libraries for some codecs, which are added here."""
    buffer = io.BytesIO()
    fastavro.writer(buffer, schema, rows, sync_interval=block_bytes)
    with open(path, "wb") as file:
        file.write(recoded(buffer.getvalue(), codec) if codec != "null" else buffer.getvalue())


def number(value):
    """A number in zigzag encoding."""
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_number(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at


def header(schema, codec, sync):
    """The header of a file; `schema` and `codec` are bytes."""
    parts = [MAGIC, number(2)]
    for part in (b"avro.schema", schema, b"avro.codec", codec):
        parts += [number(len(part)), part]
    return b"".join([*parts, number(0), sync])


def blocks(data):
    """Schema, sync marker, and (rows, bytes) of each block of a file by fastavro without a codec."""
    at, meta = len(MAGIC), {}
    while True:
        count, at = _read_number(data, at)
        if count == 0:
            break
        for _ in range(count):
            pair = []
            for _ in range(2):
                length, at = _read_number(data, at)
                pair.append(data[at : at + length])
                at += length
            meta[pair[0]] = pair[1]
    sync, at = data[at : at + 16], at + 16
    found = []
    while at < len(data):
        rows, at = _read_number(data, at)
        length, at = _read_number(data, at)
        found.append((rows, data[at : at + length]))
        at += length + 16
    return meta[b"avro.schema"], sync, found


def joined(schema, sync, found, codec=b"null"):
    """A file of these blocks, as they are."""
    parts = [header(schema, codec, sync)]
    for rows, data in found:
        parts += [number(rows), number(len(data)), data, sync]
    return b"".join(parts)


def packed(data, codec):
    """The bytes of a block, compressed."""
    match codec:
        case "null":
            return data
        case "deflate":
            engine = zlib.compressobj(9, zlib.DEFLATED, -15)
            return engine.compress(data) + engine.flush()
        case "snappy":
            checksum = zlib.crc32(data).to_bytes(4, "big")
            return pa.compress(data, codec="snappy", asbytes=True) + checksum
        case "zstandard":
            sink = pa.BufferOutputStream()
            with pa.CompressedOutputStream(sink, "zstd") as stream:
                stream.write(data)
            return sink.getvalue().to_pybytes()
        case "bzip2":
            import bz2

            return bz2.compress(data)
        case _:
            import lzma

            return lzma.compress(data)


def recoded(data, codec):
    """A file without a codec, with its blocks compressed by `codec`."""
    schema, sync, found = blocks(data)
    compressed = [(rows, packed(block, codec)) for rows, block in found]
    return joined(schema, sync, compressed, codec.encode())
