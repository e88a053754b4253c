"""Rows that readers are known to lose silently: those behind a NaN that statistics do not show, and those behind the
first stream of a compressed file."""

import bz2
import gzip
import json
import lzma
import math

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tensorquery as tq

NUMBERS = [math.nan, 1.0, 2.0, math.nan, 1.0, None]

PREDICATES = {
    "f > 5": 2,
    "NOT (f <= 5)": 2,
    "f <> 1": 3,
    "NOT (f = 1)": 3,
    "f NOT IN (1.0, 7.0)": 3,
    "NOT (f BETWEEN 0 AND 5)": 2,
    "CAST(f AS DOUBLE) > 5": 2,
    "f = CAST('NaN' AS DOUBLE)": 2,
    "f = 1": 2,
    "f < 2": 2,
    "f IS NULL": 1,
}


@pytest.mark.parametrize("predicate", PREDICATES)
@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()], ids=str)
@pytest.mark.parametrize("pages", [False, True])
def test_a_nan_is_found_whatever_its_row_group_says(tmp_path, predicate, kind, pages):
    """NaN compares greater than all numbers, and is in no minimum or maximum that a writer records."""
    pq.write_table(
        pa.table({"f": pa.array(NUMBERS, kind)}),
        tmp_path / "t.parquet",
        row_group_size=6 if pages else 2,
        data_page_size=1,
        write_batch_size=1,
        write_page_index=pages,
        use_dictionary=False,
    )
    session = tq.Session()
    session.register_parquet("t", tmp_path / "t.parquet")
    sql = f"SELECT f FROM t WHERE {predicate}"
    assert session.sql(sql).to_arrow().num_rows == PREDICATES[predicate]
    loader, _ = tq.create_dataloader(
        sql, session=session, rank=0, world_size=1, split_rows=1, nulls="mask", remainder="uneven"
    )
    assert sum(len(batch["f"]) for batch in loader) == PREDICATES[predicate]


def test_what_minima_exclude_is_not_read(tmp_path):
    table = pa.table({"f": [float(n) for n in range(100)]})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=10)
    session = tq.Session()
    session.register_parquet("t", tmp_path / "t.parquet")
    plan = session.sql("SELECT f FROM t WHERE f < 25").plan_shards(world_size=1, split_rows=10)
    assert (plan.row_groups_pruned, plan.num_splits) == (7, 3)


def zstd(data):
    return pa.compress(data, codec="zstd", asbytes=True)


PACKED = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zst": zstd}


@pytest.mark.slow
@pytest.mark.parametrize("ending", PACKED)
@pytest.mark.parametrize("kind", ["csv", "json", "array"])
def test_a_compressed_file_of_several_streams_is_read_to_its_end(tmp_path, ending, kind):
    """Several streams in one file, as pbzip2, pixz, pzstd and `cat a.gz b.gz` write them."""
    rows = [{"n": n, "s": f"row {n}"} for n in range(1000)]
    if kind == "csv":
        texts = ["n,s\n", *(f"{row['n']},{row['s']}\n" for row in rows)]
    elif kind == "json":
        texts = [json.dumps(row) + "\n" for row in rows]
    else:
        texts = ["[", *(json.dumps(row) + "," for row in rows[:-1]), json.dumps(rows[-1]), "]"]
    streams = [texts[:100], texts[100:101], texts[101:700], texts[700:]]
    path = tmp_path / f"t.{'csv' if kind == 'csv' else 'json'}.{ending}"
    path.write_bytes(b"".join(PACKED[ending]("".join(part).encode()) for part in streams))
    session = tq.Session()
    (session.register_csv if kind == "csv" else session.register_json)("t", path)
    assert session.table("t").to_arrow().to_pylist() == rows
    loader, _ = tq.create_dataloader(
        "SELECT n FROM t", session=session, rank=0, world_size=1, num_workers=1
    )
    assert [n for batch in loader for n in batch["n"].tolist()] == list(range(1000))


@pytest.mark.parametrize("ending", PACKED)
def test_a_stream_that_is_cut_short_is_an_error(tmp_path, ending):
    path = tmp_path / f"t.csv.{ending}"
    second = b"".join(b"%d\n" % (n * n) for n in range(20000))
    whole = PACKED[ending](b"n\n" + b"1\n" * 5000) + PACKED[ending](second)
    path.write_bytes(whole[:-40])
    session = tq.Session()
    session.register_csv("t", path)
    with pytest.raises(tq.DataError, match=r"t\.csv"):
        session.table("t").to_arrow()
