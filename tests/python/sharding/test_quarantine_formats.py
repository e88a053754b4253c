"""Promise: with ``on_error="skip"`` bad parts of files of every format are left out, and registration names the files."""

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.orc
import pyarrow.parquet as pq
import pytest

import support
import tensorquery as tq
from damaged_tables import (
    CASES,
    check_delivered,
    cut_case,
    dataset_of,
    empty_case,
    footer_case,
    numbers,
    overwrite,
    read,
    spoil_group,
    spoil_line,
    truncate,
)
from pyiceberg_tables import SIMPLE, make_lake, simple


def test_an_empty_file_is_bad_data_and_not_a_failing_store(tmp_path):
    folder = str(tmp_path / "t")
    empty_case(folder)
    with pytest.raises(tq.DataError, match=r"001\.parquet"):
        tq.create_dataloader(path=folder)


@pytest.mark.parametrize("case", CASES)
def test_every_format_leaves_out_what_is_bad(tmp_path, case):
    folder = str(tmp_path / "t")
    left, unit = case(folder)

    def run(rank, world_size, **options):
        loader, dataset = tq.create_dataloader(
            path=folder, columns=["id"], batch_size=64, rank=rank, world_size=world_size, **options
        )
        return support.ids_of(loader), dataset

    with pytest.raises((tq.DataError, tq.ConfigError), match=r"00[01]|first"):
        run(0, 1)
    for world_size in (1, 3):
        found = []
        for rank in range(world_size):
            with pytest.warns(UserWarning, match="bad part"):
                batches, dataset = run(rank, world_size, on_error="skip")
            found.append(batches)
            [part] = dataset.quarantined
            assert unit in part.unit
            assert "001" in part.path or "first" in part.path
            assert part.error
            assert dataset.metrics()["quarantined_splits"] == 1
        check_delivered(found, left)


def test_only_the_bad_bytes_of_a_text_file_are_left_out(tmp_path):
    path = Path(support.write_csv(tmp_path / "t", numbers())) / "000.csv"
    spoil_line(path, 1700, "7,seven,eight")
    loader, dataset = tq.create_dataloader(path=str(path), split_bytes=4000, on_error="skip")
    with pytest.warns(UserWarning, match="bytes"):
        [part] = dataset.quarantined
    words = part.unit.split()
    start, stop = int(words[1]), int(words[3])
    data = path.read_bytes()
    assert b"7,seven,eight" in data[start:stop]
    assert stop - start < 5000
    rest = pa.csv.read_csv(pa.BufferReader(data[:start] + data[stop:]))["id"].to_pylist()
    assert len(rest) > 2700
    delivered = support.flat(support.ids_of(loader))
    assert delivered == rest


def test_a_bad_line_among_those_that_types_come_from(tmp_path):
    path = Path(support.write_json(tmp_path / "t", numbers())) / "000.json"
    spoil_line(path, 30, '{"id": 7, "wo')
    loader, dataset = tq.create_dataloader(
        path=str(path), split_bytes=4000, on_error="skip", output_format="arrow"
    )
    with pytest.warns(UserWarning, match="bytes"):
        [part] = dataset.quarantined
    stop = int(part.unit.split()[3])
    assert part.unit.startswith("bytes 0 to")
    rest = pa.json.read_json(pa.BufferReader(path.read_bytes()[stop:]))["id"].to_pylist()
    assert support.flat(support.ids_of(loader)) == rest


@pytest.mark.slow
def test_data_files_of_iceberg_tables(tmp_path):
    lake = make_lake(tmp_path)
    table = lake.create_table("ns.t", SIMPLE, properties={"write.parquet.row-group-limit": "100"})
    for start in (0, 1000, 2000, 3000):
        table.append(simple(start, start + 1000))
    paths = sorted(
        (task.file.record_count, task.file.file_path.removeprefix("file://"))
        for task in table.scan().plan_files()
    )
    files = {pq.read_table(path)["id"][0].as_py(): path for _, path in paths}
    overwrite(files[1000], os.path.getsize(files[1000]) - 60, 40)
    left = [*range(1000), *range(3000, 4000), *spoil_group(files[2000], 3)]

    def query():
        session = tq.Session()
        session.register_iceberg_table("t", table.metadata_location)
        return session.sql("SELECT id, k FROM t")

    with pytest.raises(tq.DataError):
        list(dataset_of(query(), on_error="raise"))
    for world_size in (1, 3):
        check_delivered(read(query(), world_size), left)
        check_delivered(read(query(), world_size, split_rows=5000, shuffle=True), left)
    dataset = dataset_of(query())
    with pytest.warns(UserWarning, match="2 bad parts of 2 files"):
        units = {part.path.rsplit("/", 1)[1]: part.unit for part in dataset.quarantined}
    assert units == {
        Path(files[1000]).name: "whole file",
        Path(files[2000]).name: "row group 3",
    }


# ------------------------------------------------------------------------------------------------
# Registration.


def test_tables_say_what_they_were_registered_without(tmp_path):
    folder = str(tmp_path / "t")
    left, _ = cut_case(folder)
    session = tq.Session()
    with pytest.raises(tq.DataError, match=r"001\.parquet"):
        session.register_parquet("t", folder)
    with pytest.warns(UserWarning, match=r"out of table t: .*001\.parquet, whole file"):
        session.register_parquet("t", folder, on_error="skip")
    [table] = session.tables
    assert (table.files, table.rows) == (2, 2000)
    assert [file.path for file in table.quarantined] == [f"{folder}/001.parquet"]
    assert "1 quarantined" in repr(session)
    query = session.sql("SELECT id FROM t").select(["id"])
    assert query.to_arrow()["id"].to_pylist() == left
    assert query.quarantined == list(table.quarantined)
    # Rows of these files were never part of the query, so that any run may go on from the state.
    dataset = dataset_of(query, on_error="raise")
    assert dataset.quarantined == query.quarantined
    assert dataset.metrics()["quarantined_splits"] == 1
    state = dataset.state_dict()
    assert len(state["parts"]["quarantine"]["files"]) == 1
    dataset_of(query).load_state_dict(state)
    with pytest.warns(UserWarning, match="out of the query"):
        literal = tq.Session().sql(f"SELECT id FROM '{folder}'", on_error="skip")
    assert literal.to_arrow()["id"].to_pylist() == left
    truncate(f"{folder}/000.parquet")
    truncate(f"{folder}/002.parquet")
    with pytest.raises(tq.DataError, match=r"000\.parquet"):
        session.register_parquet("t", folder, on_error="skip")


def test_a_literal_of_a_loader(tmp_path):
    folder = str(tmp_path / "t")
    left, _ = footer_case(folder)
    with pytest.warns(UserWarning, match=r"001\.parquet"):
        loader, dataset = tq.create_dataloader(f"SELECT id FROM '{folder}'", on_error="skip")
    assert support.flat(support.ids_of(loader)) == left
    assert [part.unit for part in dataset.quarantined] == ["whole file"]
