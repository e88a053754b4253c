"""Writes tests/golden/inputs, which are committed: libraries of another version would write other bytes.

Run it only to add an input, and commit what is new: ``python tests/golden/make_inputs.py NAME …``.
"""

import bz2
import gzip
import json
import sys
from datetime import date, datetime, timedelta
from pathlib import Path

import fastavro
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.orc
import pyarrow.parquet as pq

INPUTS = Path(__file__).parent / "inputs"
ROWS = 60
WORDS = ["", "a", "b,c", 'say "hi"', "größe", "NULL", "zz"]


def events(start=0, stop=ROWS):
    """Rows of id, k, v, word, day and at: plain types, NULLs, NaN and zeros of both signs."""
    ids = range(start, stop)
    zero = datetime(2026, 1, 1)
    floats = [None, float("nan"), -0.0, 0.0]
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "k": pa.array([i * 7 % 5 for i in ids], pa.int32()),
            "v": pa.array([floats[i % 11] if i % 11 < 4 else i / 8 for i in ids], pa.float64()),
            "word": pa.array([None if i % 9 == 4 else WORDS[i % 7] for i in ids], pa.string()),
            "day": pa.array([date(2026, 1, 1) + timedelta(i // 4) for i in ids], pa.date32()),
            "at": pa.array([zero + timedelta(hours=i) for i in ids], pa.timestamp("us")),
        }
    )


def parquet(folder):
    """Three files of several row groups, one of another order of columns."""
    pq.write_table(events(0, 26), folder / "a.parquet", row_group_size=7)
    pq.write_table(events(26, 30), folder / "b.parquet")
    columns = ["at", "day", "word", "v", "k", "id"]
    pq.write_table(events(30).select(columns), folder / "c.parquet", row_group_size=10)


def names(folder):
    """A small table for joins: no key 4, and one that no event has."""
    table = pa.table(
        {
            "k": pa.array([0, 1, 2, 3, 9], pa.int32()),
            "name": ["zero", "one", "two", "three", "nine"],
        }
    )
    pq.write_table(table, folder / "names.parquet")


def vectors(folder):
    """Nested columns."""
    table = pa.table(
        {
            "id": pa.array(range(24), pa.int64()),
            "vector": pa.array([[i, i / 2, -i] for i in range(24)], pa.list_(pa.float32(), 3)),
            "tokens": pa.array([list(range(i % 4)) for i in range(24)], pa.list_(pa.int32())),
            "pair": pa.array([{"x": i, "y": str(i)} for i in range(24)]),
            "weight": pa.array([float(i % 3) for i in range(24)]),
        }
    )
    pq.write_table(table, folder / "vectors.parquet", row_group_size=6)


def hive(folder):
    """Folders by year and kind; one is NULL."""
    for number, part in enumerate(
        ["year=2024/kind=a", "year=2025/kind=a", "year=2025/kind=__HIVE_DEFAULT_PARTITION__"]
    ):
        (folder / part).mkdir(parents=True)
        pq.write_table(
            events(number * 10, number * 10 + 10).select(["id", "v"]), folder / part / "0.parquet"
        )


def _csv(start, stop):
    sink = pa.BufferOutputStream()
    pa.csv.write_csv(events(start, stop).select(["id", "k", "word"]), sink)
    return sink.getvalue().to_pybytes()


def csv(folder):
    """One file."""
    (folder / "a.csv").write_bytes(_csv(0, 40))


def csv_gz(folder):
    """One compressed file, which no one can split."""
    (folder / "b.csv.gz").write_bytes(gzip.compress(_csv(40, ROWS), mtime=0))


def tsv(folder):
    """One file."""
    lines = ["id\tk\tword", *(f"{i}\t{i % 3}\tw{i}" for i in range(20))]
    (folder / "a.tsv").write_text("\n".join(lines) + "\n")


def _json_rows(start, stop):
    return [{"id": i, "k": i % 3, "tags": ["x"] * (i % 3)} for i in range(start, stop)]


def jsonl(folder):
    """One object per line."""
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in _json_rows(0, 18)))


def jsonl_bz2(folder):
    """One compressed file."""
    lines = "".join(json.dumps(row) + "\n" for row in _json_rows(18, 30))
    (folder / "b.jsonl.bz2").write_bytes(bz2.compress(lines.encode()))


def json_array(folder):
    """One array."""
    (folder / "a.json").write_text(json.dumps(_json_rows(0, 20), indent=1))


def arrow(folder):
    """A file of several record batches."""
    table = events(0, 36).select(["id", "k", "v", "word"])
    pa.feather.write_feather(table, folder / "a.arrow", compression="uncompressed", chunksize=8)


def arrow_stream(folder):
    """A stream of several record batches."""
    table = events(36).select(["id", "k", "v", "word"])
    with pa.ipc.new_stream(folder / "b.arrows", table.schema) as stream:
        stream.write_table(table, max_chunksize=8)


def avro(folder):
    """Two files of several blocks."""
    kinds = {"id": "long", "k": "int", "word": ["null", "string"]}
    schema = {
        "type": "record",
        "name": "Event",
        "fields": [{"name": n, "type": t} for n, t in kinds.items()],
    }
    rows = events().select(list(kinds)).to_pylist()
    for name, part, codec in (("a.avro", rows[:36], "null"), ("b.avro", rows[36:], "deflate")):
        with (folder / name).open("wb") as file:
            fastavro.writer(
                file, schema, part, codec=codec, sync_interval=80, sync_marker=b"sixteen bytes ok"
            )


def orc(folder):
    """Two files; of several stripes, as far as the writer lets."""
    table = events().select(["id", "k", "v", "word"])
    for name, part in (("a.orc", table.slice(0, 36)), ("b.orc", table.slice(36))):
        pa.orc.write_table(part, folder / name, batch_size=10, stripe_size=1, compression="zlib")


def damaged(folder):
    """A file with its footer cut off, and one with a page cut off."""
    whole = [(INPUTS / "parquet" / name).read_bytes() for name in ("b.parquet", "c.parquet")]
    (folder / "footer.parquet").write_bytes(whole[0][:900])
    at = pq.read_metadata(INPUTS / "parquet" / "c.parquet").row_group(1).column(5).data_page_offset
    (folder / "page.parquet").write_bytes(whole[1][:at] + b"\xff" * 24 + whole[1][at + 24 :])


if __name__ == "__main__":
    for wanted in sys.argv[1:]:
        made = INPUTS / wanted
        made.mkdir(parents=True)
        globals()[wanted](made)
