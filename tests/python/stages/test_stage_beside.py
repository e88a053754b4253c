"""Stages together with other features of a query: Iceberg snapshots that move, the user's functions, and bad files."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import support
import tensorquery as tq
import udf_functions
from iceberg_lakes import lake_of, sample
from iceberg_servers import fresh

# ------------------------------------------------------------------------------------------------
# Iceberg: another snapshot is another stage.


@pytest.fixture
def lake(request):
    return lake_of("sqlite", request)


@pytest.fixture
def name(lake):
    name = f"{fresh()}.t"
    lake.make(name, sample(60), files=6)
    return name


def ids(batches):
    return [value for batch in batches for value in batch["id"].to_pylist()]


def loader_of(lake, name, place, **options):
    session = tq.Session()
    session.register_iceberg("lake", lake.properties)
    sql = f"SELECT id, row_number() OVER (ORDER BY id DESC) AS n FROM lake.{name}"
    return tq.create_dataloader(
        sql, session=session, stage_dir=place, batch_size=8, output_format="arrow", **options
    )


@pytest.mark.slow
def test_a_refresh_makes_another_stage_and_the_old_state_keeps_the_old_one(lake, name, tmp_path):
    loader, dataset = loader_of(lake, name, tmp_path)
    (old,) = dataset.stages
    batches = iter(loader)
    seen = ids([next(batches), next(batches)])
    state = json.loads(json.dumps(loader.state_dict()))
    seen_twice = seen + ids(batches)
    assert Counter(seen_twice) == Counter(range(60))
    lake.table(name).append(sample(20, start=60))
    # A commit moves nothing by itself.
    assert Counter(ids(loader)) == Counter(range(60))
    assert len(dataset.refresh()) == 1
    (new,) = dataset.stages
    assert (old.rows, new.rows) == (60, 80)
    assert new.path != old.path
    assert new.seconds is not None
    assert Counter(ids(loader)) == Counter(range(80))
    assert len(tq.list_stages(tmp_path)) == 2
    # A new run begins with the current snapshot and finds its stage; the state switches to the older stage.
    resumed, dataset = loader_of(lake, name, tmp_path)
    assert dataset.stages[0].seconds is None
    assert dataset.stages[0].digest == new.digest
    resumed.load_state_dict(state)
    assert dataset.stages[0].digest == old.digest
    assert dataset.stages[0].seconds is None
    assert Counter(seen + ids(resumed)) == Counter(range(60))


@pytest.mark.slow
def test_the_old_state_goes_on_where_its_stage_is_gone(lake, name, tmp_path):
    """The snapshot is still there, so that its rows can be computed again."""
    loader = loader_of(lake, name, tmp_path)[0]
    batches = iter(loader)
    seen = ids([next(batches)])
    state = loader.state_dict()
    del loader, batches
    lake.table(name).append(sample(20, start=60))
    tq.clear_stages(tmp_path)
    resumed, dataset = loader_of(lake, name, tmp_path)
    resumed.load_state_dict(state)
    assert dataset.stages[0].seconds is not None
    assert Counter(seen + ids(resumed)) == Counter(range(60))


# ------------------------------------------------------------------------------------------------
# Functions of the user's, below and above the cut.


@pytest.fixture
def session():
    session = tq.Session()
    session.register_table("t", pa.table({"id": np.arange(600), "k": np.arange(600) % 11}))
    return session


@pytest.mark.slow
def test_functions_below_and_above_a_stage_in_a_resumed_run(session, tmp_path):
    session.register_udf("twice", udf_functions.twice, ["int64"], "int64")
    sql = (
        "SELECT id, twice(m) AS y FROM (SELECT id, sum(twice(k)) OVER (PARTITION BY k) AS m FROM t)"
    )
    wanted = session.sql(sql).to_arrow().sort_by("id").to_pylist()

    def loader(made=session, workers=0):
        return tq.create_dataloader(
            sql,
            session=made,
            stage_dir=tmp_path,
            batch_size=32,
            shuffle=True,
            output_format="arrow",
            num_workers=workers,
        )

    first, dataset = loader()
    assert len(dataset.stages) == 1
    batches = iter(first)
    seen = [row for _ in range(4) for row in next(batches).to_pylist()]
    state = json.loads(json.dumps(first.state_dict()))
    resumed, dataset = loader(workers=2)
    assert dataset.stages[0].seconds is None
    resumed.load_state_dict(state)
    seen += [row for batch in resumed for row in batch.to_pylist()]
    assert sorted(seen, key=lambda row: row["id"]) == wanted
    # Another function of that name is another stage, and its state another run's.
    other = tq.Session()
    other.register_table("t", session.table("t"))
    other.register_udf("twice", lambda x: pa.compute.multiply(x, 3), ["int64"], "int64")
    changed, dataset = loader(other)
    assert dataset.stages[0].seconds is not None
    with pytest.raises(tq.CheckpointMismatchError, match="the Python function twice"):
        changed.load_state_dict(state)


# ------------------------------------------------------------------------------------------------
# Bad files: what `on_error="skip"` means for rows that run once.

STAGED = "SELECT k, count(*) AS n, sum(id) AS s FROM t GROUP BY k"


@pytest.fixture
def folder(tmp_path):
    table = pa.table({"id": np.arange(1000), "k": np.arange(1000) % 5})
    return Path(support.write_parquet(tmp_path / "t", table, files=4, row_group=50))


def spoil_footer(path):
    content = bytearray(path.read_bytes())
    content[-20:-8] = b"\xff" * 12
    path.write_bytes(content)


def spoil_row_group(path, group):
    """Overwrite the pages of a row group, whose footer stays good."""
    column = pq.ParquetFile(path).metadata.row_group(group).column(0)
    start = column.dictionary_page_offset or column.data_page_offset
    content = bytearray(path.read_bytes())
    content[start : start + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    path.write_bytes(content)


def staged(folder, place, **options):
    sql = STAGED.replace("FROM t", f"FROM '{folder}'")
    return tq.create_dataloader(
        sql, session=tq.Session(), stage_dir=place, output_format="arrow", **options
    )


def test_files_that_cannot_be_understood_are_left_out_of_a_staged_part(folder, tmp_path):
    bad = sorted(folder.glob("*.parquet"))[1]
    whole, _ = staged(folder, tmp_path / "stages")
    count = sum(sum(batch["n"].to_pylist()) for batch in whole)
    assert count == 1000
    spoil_footer(bad)
    with pytest.warns(UserWarning, match=bad.name):
        loader, dataset = staged(folder, tmp_path / "stages", on_error="skip")
    assert sum(sum(batch["n"].to_pylist()) for batch in loader) == 750
    assert [entry.path for entry in dataset.quarantined] == [str(bad)]
    assert len(dataset.stages) == 1


def test_a_bad_row_group_that_a_staged_part_reads_is_an_error_that_says_why(folder, tmp_path):
    """Its rows may be in any group: leaving them out would silently change other rows."""
    bad = sorted(folder.glob("*.parquet"))[2]
    spoil_row_group(bad, 1)
    with pytest.raises(tq.DataError) as refused:
        staged(folder, tmp_path / "stages", on_error="skip")
    told = str(refused.value)
    assert bad.name in told
    assert 'on_error="skip"' in told
    assert "staged" in told
    # Without it, the same place is named.
    with pytest.raises(tq.DataError, match=bad.name) as refused:
        staged(folder, tmp_path / "stages")
    assert "on_error" not in str(refused.value)
    assert tq.list_stages(tmp_path / "stages") == []


def test_beside_a_stage_raw_rows_are_skipped_as_ever(folder, tmp_path):
    other = support.write_parquet(
        tmp_path / "u",
        pa.table({"k": np.arange(10), "name": [f"n{i}" for i in range(10)]}),
        files=1,
    )
    bad = sorted(folder.glob("*.parquet"))[2]
    spoil_row_group(bad, 1)
    sql = f"SELECT k, id FROM '{folder}' UNION ALL SELECT k, count(*) FROM '{other}' GROUP BY k"
    loader, dataset = tq.create_dataloader(
        sql,
        session=tq.Session(),
        stage_dir=tmp_path / "stages",
        on_error="skip",
        output_format="arrow",
    )
    with pytest.warns(UserWarning, match=bad.name):
        rows = sum(batch.num_rows for batch in loader)
    assert len(dataset.stages) == 1
    assert rows == 1000 - 50 + 10
    assert [(entry.path, entry.rows) for entry in dataset.quarantined] == [(str(bad), 50)]
