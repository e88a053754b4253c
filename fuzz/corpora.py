"""Fill fuzz/corpus: small files of every format, and what lies in public collections of bad files.

    python fuzz/corpora.py [FOLDER ...]

Each folder is searched for files by their endings: clones of apache/parquet-testing, apache/arrow-testing, and
`examples/` of apache/orc. What is kept in fuzz/seeds is copied too.
"""

from __future__ import annotations

import bz2
import datetime
import gzip
import hashlib
import io
import json
import lzma
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import fastavro
import pyarrow as pa
import pyarrow.csv
import pyarrow.orc
import pyarrow.parquet as pq

HERE = Path(__file__).parent
FILES = ("parquet", "orc", "avro", "csv", "json")
ENDINGS = {
    **{f".{name}": name for name in FILES},
    ".pq": "parquet",
    ".jsonl": "json",
    ".ndjson": "json",
}

# Larger ones are slow to read, and to mutate.
MOST_BYTES = 256 << 10

ROWS = 12


def table() -> pa.Table:
    """Some rows of most types, with nulls."""
    rows = range(ROWS)
    day = datetime.date(2024, 2, 29)
    columns = {
        "id": pa.array(rows, pa.int64()),
        "small": pa.array([None if row % 5 == 4 else row - 6 for row in rows], pa.int8()),
        "ratio": pa.array([row / 7 if row % 3 else None for row in rows], pa.float32()),
        "flag": pa.array([row % 2 == 0 for row in rows]),
        "text": pa.array(
            [None if row == 3 else f"a text of row {row % 4} " * (row % 3) for row in rows]
        ),
        "bytes": pa.array([bytes([row, 255]) for row in rows]),
        "day": pa.array([day + datetime.timedelta(days=row * 100) for row in rows]),
        "at": pa.array([row * 1_000_003 for row in rows], pa.timestamp("us")),
        "price": pa.array([Decimal(row * 125).scaleb(-2) for row in rows], pa.decimal128(9, 2)),
        "list": pa.array(
            [None if row == 2 else [float(item) for item in range(row % 4)] for row in rows]
        ),
        "record": pa.array([{"x": row, "y": None if row % 2 else str(row)} for row in rows]),
    }
    return pa.table(columns)


def parquet_files() -> Iterator[bytes]:
    """One per encoding, codec and version of pages."""
    whole = table()
    plain = {
        "write_page_index": True,
        "row_group_size": 5,
        "write_batch_size": 4,
        "data_page_size": 32,
    }
    for compression in ("none", "snappy", "gzip", "zstd", "lz4", "brotli"):
        yield parquet_file(whole, compression=compression, **plain)
    yield parquet_file(whole, data_page_version="2.0", compression="zstd", **plain)
    encodings = {
        "id": "DELTA_BINARY_PACKED",
        "text": "DELTA_BYTE_ARRAY",
        "bytes": "DELTA_LENGTH_BYTE_ARRAY",
        "ratio": "BYTE_STREAM_SPLIT",
    }
    flat = whole.select([*encodings])
    yield parquet_file(flat, use_dictionary=False, column_encoding=encodings)
    yield parquet_file(whole, store_schema=False, use_deprecated_int96_timestamps=True)
    yield parquet_file(whole.slice(0, 0))
    yield parquet_file(whole, bloom_filter_options={"id": {"ndv": 12, "fpp": 0.1}})
    nested = [[[1, None], []], None, [[2]], []]
    maps = pa.array([[("a", 1)], [], None, [("b", None)]], pa.map_(pa.string(), pa.int64()))
    yield parquet_file(pa.table({"nested": nested, "map": maps}))


def parquet_file(rows: pa.Table, **options: object) -> bytes:
    """The bytes of a file."""
    out = io.BytesIO()
    pq.write_table(rows, out, **options)
    return out.getvalue()


def orc_files() -> Iterator[bytes]:
    """One per codec."""
    for compression in ("uncompressed", "snappy", "zlib", "lz4", "zstd"):
        out = io.BytesIO()
        pa.orc.write_table(table(), out, compression=compression, stripe_size=64 << 10)
        yield out.getvalue()
    out = io.BytesIO()
    pa.orc.write_table(
        pa.table({"id": list(range(4000)), "text": [str(row % 3) for row in range(4000)]}), out
    )
    yield out.getvalue()


def avro_files() -> Iterator[bytes]:
    """One per codec that fastavro has without more libraries."""
    nullable = ["null", "string"]
    fields = [
        {"name": "id", "type": "long"},
        {"name": "ratio", "type": "float"},
        {"name": "text", "type": nullable, "default": None},
        {"name": "list", "type": {"type": "array", "items": "double"}},
        {"name": "map", "type": {"type": "map", "values": "int"}},
        {"name": "kind", "type": {"type": "enum", "name": "kind", "symbols": ["a", "b"]}},
        {"name": "fixed", "type": {"type": "fixed", "name": "four", "size": 4}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {
            "name": "record",
            "type": {
                "type": "record",
                "name": "inner",
                "fields": [{"name": "x", "type": "boolean"}],
            },
        },
    ]
    schema = {"type": "record", "name": "row", "fields": fields}
    rows = [
        {
            "id": row,
            "ratio": row / 3,
            "text": None if row % 3 == 0 else "text" * row,
            "list": [row / 2] * (row % 3),
            "map": {str(row): row},
            "kind": "ab"[row % 2],
            "fixed": bytes([row] * 4),
            "at": row * 1_000_003,
            "record": {"x": row % 2 == 0},
        }
        for row in range(ROWS)
    ]
    for codec in ("null", "deflate", "bzip2", "xz"):
        out = io.BytesIO()
        fastavro.writer(out, schema, rows, codec=codec, sync_interval=100)
        yield out.getvalue()


def csv_files() -> Iterator[bytes]:
    """Quotes, newlines in them, and compressed files."""
    text = b'id,name,day,ratio\n1,"a, b",2024-02-29,0.5\n2,"two\nlines",,nan\n3,"a ""word""",1999-12-31,-1e300\n4,\xc3\x9f,,\n'
    yield text
    yield text.replace(b"\n", b"\r\n")
    yield b"\xef\xbb\xbf" + text
    yield from compressed(text)
    out = io.BytesIO()
    pa.csv.write_csv(table().drop_columns(["list", "record", "bytes"]), out)
    yield out.getvalue()


def json_files() -> Iterator[bytes]:
    """Lines, arrays, and compressed files."""
    rows = [
        {"id": 1, "text": 'a "word"\n', "list": [1, 2.5, None], "record": {"x": True}},
        {"id": None, "text": "\u20ac", "list": [], "record": None},
        {"id": -(2**63), "ratio": 1e300, "extra": [{"y": [["deep"]]}]},
    ]
    lines = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    yield lines
    yield json.dumps(rows).encode()
    yield json.dumps(rows, indent=1).encode()
    yield from compressed(lines)
    yield from compressed(json.dumps(rows).encode())


def compressed(text: bytes) -> Iterator[bytes]:
    """In each way that a whole file may be."""
    yield gzip.compress(text, mtime=0)
    yield bz2.compress(text)
    yield lzma.compress(text)
    yield pa.Codec("zstd").compress(text, asbytes=True)


def found(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Files of a collection by the target that reads them; those of fuzzers may have no ending, but say it in their path."""
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or ".git" in path.parts or path.stat().st_size > MOST_BYTES:
            continue
        below = path.relative_to(folder)
        target = ENDINGS.get(path.suffix)
        if target is None and "fuzz" in str(below):
            target = next((name for name in FILES if name in below.parts), None)
        if target is not None:
            yield target, path.read_bytes()


def main(folders: list[Path]) -> None:
    """Write each input under the digest of its bytes, as libFuzzer does."""
    inputs = [
        *(("parquet", data) for data in parquet_files()),
        *(("orc", data) for data in orc_files()),
        *(("avro", data) for data in avro_files()),
        *(("csv", data) for data in csv_files()),
        *(("json", data) for data in json_files()),
    ]
    for seed in sorted(HERE.glob("seeds/*/*")):
        inputs.append((seed.parent.name, seed.read_bytes()))
    for folder in folders:
        inputs.extend(found(folder))
    counts: dict[str, int] = {}
    for target, data in inputs:
        corpus = HERE / "corpus" / target
        corpus.mkdir(parents=True, exist_ok=True)
        (corpus / hashlib.sha1(data, usedforsecurity=False).hexdigest()).write_bytes(data)
        counts[target] = counts.get(target, 0) + 1
    print(", ".join(f"{target}: {count}" for target, count in sorted(counts.items())))


if __name__ == "__main__":
    main([Path(argument) for argument in sys.argv[1:]])
