"""Joins that do not fit into the memory limit sort and spill in a stage, and give the rows and the order that they have without one."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tensorquery as tq

NUMBERED = "SELECT k, q, row_number() OVER (ORDER BY q) AS n FROM b"

SPILLED = {
    "join": "SELECT a.k, a.p, b.q FROM a JOIN b ON a.k = b.k",
    "limit": "SELECT a.k, a.p, b.q FROM a JOIN b ON a.k = b.k LIMIT 1000",
    "in the order of one side": f"SELECT a.p, b.q, n FROM a JOIN ({NUMBERED}) AS b ON a.k = b.k ORDER BY n",
    "in groups of one side": f"SELECT n, max(p) AS p FROM a JOIN ({NUMBERED}) AS b ON a.k = b.k GROUP BY n",
    "one side": """
        SELECT k, p FROM a WHERE EXISTS (SELECT 1 FROM b WHERE a.k = b.k AND length(b.q) > a.k - 100000)
    """,
    "the rows of one side without a match": """
        SELECT k, p FROM a WHERE NOT EXISTS (SELECT 1 FROM b WHERE a.k = b.k AND length(b.q) > a.k - 100000)
    """,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SPILLED)
def test_joins_that_do_not_fit_spill(tmp_path, name):
    rng = np.random.default_rng(1)
    rows = 500_000
    a = pa.table({"k": rng.permutation(rows), "p": [f"{i:060d}" for i in range(rows)]})
    b = pa.table({"k": rng.permutation(rows), "q": [f"{i:060d}" for i in range(rows)]})
    pq.write_table(a, tmp_path / "a.parquet")
    pq.write_table(b, tmp_path / "b.parquet")
    # Too little for the join itself, but enough for the sorts' shares; groups need one share more.
    limit = "36MiB" if name == "in groups of one side" else "34MiB"
    whole, session = tq.Session(), tq.Session(memory_limit=limit)
    for each in (whole, session):
        each.register_parquet("a", tmp_path / "a.parquet")
        each.register_parquet("b", tmp_path / "b.parquet")
    sql = SPILLED[name]
    wanted = whole.sql(sql).to_arrow()
    loader, _ = tq.create_dataloader(
        sql,
        session=session,
        stage="always",
        stage_dir=tmp_path / "stages",
        output_format="arrow",
        batch_size=8192,
    )
    query = session.sql(sql)
    # A whole result takes the same second way.
    found = [pa.Table.from_batches(list(loader)), query.to_arrow()]
    if name == "join":
        found.append(pa.RecordBatchReader.from_stream(query).read_all())
        assert query.count() == wanted.num_rows
        assert query.head(3).num_rows == 3
        assert "SortMergeJoin" in query.explain(analyze=True)
        assert "SortMergeJoin" not in whole.sql(sql).explain(analyze=True)
    for got in found:
        if name == "limit":
            # Which rows is open.
            assert got.num_rows == 1000
            assert len(set(got["k"].to_pylist())) == 1000
        elif name == "in the order of one side":
            assert got.equals(wanted)
        else:
            key = got.column_names[0]
            assert got.sort_by(key).equals(wanted.sort_by(key))
