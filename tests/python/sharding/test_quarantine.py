"""Promise: with ``on_error="skip"`` what cannot be read is left out, and named; all else holds as ever: each good row
once, equal steps, one order, exact resuming. The default raises."""

import gzip
import json
import os
import shutil
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.orc
import pyarrow.parquet as pq
import pytest
from torch.utils.data import DataLoader

import ranks
import support
import tensorquery as tq
from pyiceberg_tables import SIMPLE, make_lake, simple
from tensorquery.sharding import bad_files

ROWS, GROUP = 3000, 100


def numbers(rows=ROWS):
    """Ids, and words that do not compress to nothing."""
    words = np.random.default_rng(5).integers(0, 10**9, rows)
    return pa.table({"id": np.arange(rows), "word": pa.array([f"w{word}" for word in words])})


def overwrite(path, start, length, byte=b"\xff"):
    data = bytearray(Path(path).read_bytes())
    data[start : start + length] = byte * length
    Path(path).write_bytes(data)


def spoil_group(path, group):
    """Damage the pages of a row group; returns the ids that are left, as pyarrow reads them."""
    chunk = pq.ParquetFile(path).metadata.row_group(group).column(0)
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    overwrite(path, start, chunk.total_compressed_size)
    return ids_of_groups(path, skip={group})


def ids_of_groups(path, skip=()):
    file = pq.ParquetFile(path)
    good = [group for group in range(file.num_row_groups) if group not in skip]
    return [row for group in good for row in file.read_row_group(group)["id"].to_pylist()]


def truncate(path, part=0.5):
    data = Path(path).read_bytes()
    Path(path).write_bytes(data[: int(len(data) * part)])


@pytest.fixture
def parquet(tmp_path):
    """Three files of ten row groups; in the second, row group 4 is damaged. The folder, and the ids that are left."""
    folder = support.write_parquet(tmp_path / "t", numbers(), files=3, row_group=GROUP)
    left = [
        *ids_of_groups(f"{folder}/000.parquet"),
        *spoil_group(f"{folder}/001.parquet", 4),
        *ids_of_groups(f"{folder}/002.parquet"),
    ]
    assert len(left) == ROWS - GROUP
    return folder, left


def query_of(folder, sql="SELECT id, word FROM t", **options):
    session = tq.Session()
    session.register_parquet("t", str(folder), **options)
    return session.sql(sql)


def dataset_of(query, rank=0, world_size=1, **options):
    options = {"batch_size": 64, "output_format": "arrow", "on_error": "skip", **options}
    return tq.QueryDataset(query, rank=rank, world_size=world_size, **options)


def read(query, world_size=1, **options):
    """Batches of ids of every rank, none of which knows of the others."""
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for rank in range(world_size):
            found.append(support.ids_of(dataset_of(query, rank, world_size, **options)))
    return found


def check_delivered(found, left):
    """Each id that is left once over all ranks, in as many steps on each."""
    assert sorted(support.flat(support.flat(found))) == sorted(left)
    assert len({len(rank) for rank in found}) == 1


# ------------------------------------------------------------------------------------------------
# What is left out, and what is not.


def test_a_bad_row_group_is_left_out_and_named(parquet):
    folder, left = parquet
    with pytest.raises(tq.DataError, match=r"001\.parquet"):
        list(dataset_of(query_of(folder), on_error="raise"))
    with pytest.raises(tq.DataError, match=r"001\.parquet"):
        list(tq.QueryDataset(query_of(folder)))
    dataset = dataset_of(query_of(folder))
    with pytest.warns(
        UserWarning, match=r"1 bad part of 1 file .* 100 rows .*001\.parquet, row group 4"
    ):
        [part] = dataset.quarantined
    assert (part.path, part.unit, part.rows) == (f"{folder}/001.parquet", "row group 4", 100)
    assert "001.parquet" in part.error
    # Once.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert support.flat(support.ids_of(dataset)) == left
        assert dataset.num_rows == len(left)
        assert len(dataset) == -(-len(left) // 64)
    assert dataset.metrics()["quarantined_splits"] == 1
    assert dataset.metrics()["quarantined_rows"] == 100
    assert "quarantined=1" in repr(dataset)
    assert "left out: 1 bad parts" in repr(dataset.shard_plan(2))
    assert dataset.shard_plan().to_dict()["quarantined"] == 1


@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"split_rows": 1000},
        {"shuffle": True},
        {"shuffle": True, "split_rows": 300, "shuffle_buffer_size": 70},
        {"shuffle": "global"},
        {"remainder": "uneven"},
        {"split_strategy": "round_robin"},
        {"split_strategy": support.LastFirst()},
    ],
)
@pytest.mark.parametrize("sql", ["SELECT id, word FROM t", "SELECT id FROM t WHERE id % 3 < 2"])
def test_the_good_rows_come_once_on_all_ranks(parquet, world_size, options, sql):
    folder, left = parquet
    if "WHERE" in sql:
        left = [row for row in left if row % 3 < 2]
    found = read(query_of(folder, sql), world_size, **options)
    if options.get("remainder") == "uneven":
        assert sorted(support.flat(support.flat(found))) == left
    else:
        check_delivered(found, left)
    assert read(query_of(folder, sql), world_size, **options) == found


def test_drop_pad_and_partitions(parquet):
    folder, left = parquet
    dropped = support.flat(support.flat(read(query_of(folder), 3, remainder="drop")))
    assert len(dropped) == len(left) // (3 * 64) * 3 * 64
    assert set(dropped) <= set(left)
    assert len(set(dropped)) == len(dropped)
    padded = read(query_of(folder), 3, remainder="pad")
    assert {len(batch) for rank in padded for batch in rank} == {64}
    assert set(support.flat(support.flat(padded))) == set(left)
    by_two = read(query_of(folder), 2, partitions=4, shuffle=True)
    by_four = read(query_of(folder), 4, partitions=4, shuffle=True, batch_size=32)
    check_delivered(by_two, left)
    for step, (one, other) in enumerate(
        zip(zip(*by_two, strict=True), zip(*by_four, strict=True), strict=True)
    ):
        assert sorted(support.flat(one)) == sorted(support.flat(other)), step


@pytest.mark.parametrize("context", ["fork", "spawn"])
@pytest.mark.parametrize("options", [{}, {"assignment": "dynamic", "remainder": "uneven"}])
def test_worker_processes_read_the_good_rows(parquet, context, options):
    folder, left = parquet
    loader, dataset = tq.create_dataloader(
        path=folder,
        on_error="skip",
        num_workers=2,
        batch_size=64,
        multiprocessing_context=context,
        columns=["id"],
        **options,
    )
    with pytest.warns(UserWarning, match="row group 4"):
        delivered = support.flat(support.ids_of(loader))
    assert sorted(delivered) == left
    assert [part.unit for part in dataset.quarantined] == ["row group 4"]


def test_traces_and_exclusions_are_of_the_good_splits(parquet):
    folder, left = parquet
    options = {"split_rows": 1000, "shuffle": True, "shuffle_buffer_size": 500}
    dataset = dataset_of(query_of(folder), **options)
    with pytest.warns(UserWarning, match="row group 4"):
        iterator = iter(dataset)
    [*_, batch] = support.ids_of(next(iterator) for _ in range(9))
    trace = dataset.trace()
    assert len(trace.ranges) > 1
    assert {part.path for part in trace.ranges} <= {f"{folder}/{n:03}.parquet" for n in range(3)}
    [rest] = read(query_of(folder), exclude=trace.ranges, **options)
    assert sorted(support.flat(rest)) == [row for row in left if row not in batch]


def test_a_plain_loader_says_what_to_do_first(parquet):
    folder, left = parquet
    dataset = dataset_of(query_of(folder), output_format="torch")
    loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context="fork")
    with pytest.raises(tq.ConfigError, match=r"dataset\.quarantined in the training process"):
        next(iter(loader))
    with pytest.warns(UserWarning, match="row group 4"):
        assert len(dataset.quarantined) == 1
    assert sorted(support.flat(support.ids_of(loader))) == left


def test_a_pruned_or_unread_part_is_not_bad(parquet):
    folder, _ = parquet
    for sql in ("SELECT id, word FROM t WHERE id < 1000", "SELECT word FROM t"):
        dataset = dataset_of(query_of(folder, sql))
        assert dataset.quarantined == []
        rows = sum(batch.num_rows for batch in dataset)
        assert rows == (1000 if "WHERE" in sql else ROWS)


def test_nothing_bad_is_the_same_run(tmp_path):
    folder = support.write_parquet(tmp_path / "t", numbers(), files=3, row_group=GROUP)
    careful, plain = dataset_of(query_of(folder)), dataset_of(query_of(folder), on_error="raise")
    iterator = iter(careful)
    support.ids_of([next(iterator), next(iterator)])
    state = careful.state_dict()
    assert state["fingerprint"] == plain.state_dict()["fingerprint"]
    assert "quarantine" not in state["parts"]
    rest = support.flat(support.ids_of(iterator))
    plain.load_state_dict(json.loads(json.dumps(state)))
    assert support.flat(support.ids_of(plain)) == rest
    begun = dataset_of(query_of(folder), on_error="raise")
    iterator = iter(begun)
    support.ids_of([next(iterator), next(iterator)])
    again = dataset_of(query_of(folder))
    again.load_state_dict(begun.state_dict())
    assert support.flat(support.ids_of(again)) == rest


def test_what_the_query_does_is_not_the_files_fault(tmp_path):
    folder = support.write_parquet(tmp_path / "t", numbers(), files=2, row_group=GROUP)
    for sql in (
        "SELECT id, 1 / (id - 150) AS x FROM t",
        "SELECT id, CAST(word AS INT) AS x FROM t",
    ):
        with pytest.raises(tq.DataError):
            list(dataset_of(query_of(folder, sql)))
    with pytest.raises(tq.ConfigError, match="on_error"):
        dataset_of(query_of(folder), on_error="ignore")
    with pytest.raises(tq.ConfigError, match="on_error"):
        tq.create_dataloader(path=folder, on_error=True)


def test_null_policies_still_raise(tmp_path):
    table = numbers(300).append_column(
        "x", pa.array([None if row == 5 else row for row in range(300)])
    )
    folder = support.write_parquet(tmp_path / "t", table)
    dataset = dataset_of(query_of(folder, "SELECT id, x FROM t"), output_format="torch")
    assert dataset.quarantined == []
    with pytest.raises(tq.DataError, match="null"):
        list(dataset)


def test_mixtures(parquet, tmp_path):
    folder, left = parquet
    other = support.write_parquet(tmp_path / "u", numbers(), row_group=GROUP)
    others = spoil_group(f"{other}/000.parquet", 0)
    queries = []
    for name, path in (("t", folder), ("u", other)):
        session = tq.Session()
        session.register_parquet(name, path)
        queries.append(session.sql(f"SELECT id FROM {name}"))
    mixture = tq.mix([(query, 0.5) for query in queries], stop="all")
    found = support.flat(support.flat(read(mixture, 2)))
    assert sorted(found) == sorted([*left, *others])


def test_a_build_side_is_not_left_out(parquet, tmp_path):
    folder, _ = parquet
    good = support.write_parquet(tmp_path / "good", numbers(5 * ROWS), files=2, row_group=GROUP)
    session = tq.Session()
    session.register_parquet("t", folder)
    session.register_parquet("good", good)
    query = session.sql("SELECT good.id FROM good JOIN t ON good.id = t.id")
    with pytest.raises(tq.DataError, match="Parquet error"):
        list(dataset_of(query))


def test_storage_and_changes_still_raise(parquet):
    folder, _ = parquet
    query = query_of(folder)
    path = Path(folder) / "001.parquet"
    kept = path.with_name("kept")
    path.rename(kept)
    with pytest.raises((tq.DataError, tq.StorageError), match="vanished"):
        list(dataset_of(query))
    kept.rename(path)
    shutil.copy(Path(folder) / "002.parquet", path)
    with pytest.raises(tq.DataError, match="changed"):
        list(dataset_of(query))


def test_what_was_good_and_fails_later_raises(parquet):
    folder, _ = parquet
    dataset = dataset_of(query_of(folder))
    with pytest.warns(UserWarning, match="bad part"):
        assert len(dataset.quarantined) == 1
    path = Path(folder) / "002.parquet"
    stamp = path.stat()
    spoil_group(path, 7)
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    with pytest.raises(tq.DataError, match=r"002\.parquet"):
        list(dataset)


def test_where_all_is_bad_nothing_is_delivered(tmp_path):
    folder = support.write_parquet(tmp_path / "t", numbers(GROUP), row_group=GROUP)
    spoil_group(f"{folder}/000.parquet", 0)
    with pytest.raises(tq.DataError, match="every split of the query is bad"):
        list(dataset_of(query_of(folder)))


# ------------------------------------------------------------------------------------------------
# Every format. Each case writes three files of ids, spoils the second, and says which ids are left.


def orc_case(folder):
    os.makedirs(folder)
    for number, part in enumerate(support.cut(numbers(), 3)):
        path = f"{folder}/{number:03}.orc"
        pa.orc.write_table(
            part,
            path,
            batch_size=100,
            stripe_size=1,
            compression="zlib",
            dictionary_key_size_threshold=1.0,
        )
    path = f"{folder}/001.orc"
    file = pa.orc.ORCFile(path)
    assert file.nstripes > 3
    # The file begins with three letters, and then with its first stripe.
    overwrite(path, 3, 200)
    left = list(range(1000))
    for stripe in range(1, file.nstripes):
        left += pa.orc.ORCFile(path).read_stripe(stripe)["id"].to_pylist()
    return left + list(range(2000, 3000)), "stripe 0"


def csv_case(folder):
    support.write_csv(folder, numbers(), files=3)
    spoil_line(f"{folder}/001.csv", 900, "7,seven,eight")
    return without_the_second(), "bytes 0 to"


def json_case(folder):
    support.write_json(folder, numbers(), files=3)
    spoil_line(f"{folder}/001.json", 500, '{"id": 7, "wo')
    return without_the_second(), "bytes 0 to"


def array_case(folder):
    support.write_json(folder, numbers(), files=3, array=True)
    truncate(f"{folder}/001.json")
    return without_the_second(), "whole file"


def gzip_case(folder):
    support.write_csv(folder, numbers(), files=3, compress="gz")
    truncate(f"{folder}/001.csv.gz", 0.9)
    with pytest.raises(EOFError):
        gzip.decompress(Path(f"{folder}/001.csv.gz").read_bytes())
    return without_the_second(), "whole file"


def arrow_case(folder):
    support.write_arrow(folder, numbers(), files=3)
    truncate(f"{folder}/001.arrow")
    return without_the_second(), "whole file"


def footer_case(folder):
    support.write_parquet(folder, numbers(), files=3, row_group=GROUP)
    overwrite(f"{folder}/001.parquet", os.path.getsize(f"{folder}/001.parquet") - 60, 40)
    return without_the_second(), "whole file"


def cut_case(folder):
    support.write_parquet(folder, numbers(), files=3, row_group=GROUP)
    truncate(f"{folder}/001.parquet")
    return without_the_second(), "whole file"


def empty_case(folder):
    support.write_parquet(folder, numbers(), files=3, row_group=GROUP)
    Path(f"{folder}/001.parquet").write_bytes(b"")
    return without_the_second(), "whole file"


def schema_case(folder):
    support.write_parquet(folder, numbers(), files=3)
    odd = pa.table({"id": [["a"], ["b"]], "word": ["x", "y"]})
    pq.write_table(odd, f"{folder}/001.parquet")
    return without_the_second(), "whole file"


def first_schema_case(folder):
    """The odd one comes first; what most files have is right."""
    support.write_parquet(folder, numbers(), files=3)
    odd = pa.table({"id": [["a"], ["b"]], "word": ["x", "y"]})
    Path(f"{folder}/001.parquet").unlink()
    pq.write_table(odd, f"{folder}/aaa.parquet")
    os.rename(f"{folder}/aaa.parquet", f"{folder}/!first.parquet")
    return without_the_second(), "whole file"


def columns_case(folder):
    support.write_csv(folder, numbers(), files=3)
    Path(f"{folder}/001.csv").write_text("word,id\nx,1\n")
    return without_the_second(), "whole file"


def without_the_second():
    return [*range(1000), *range(2000, 3000)]


def spoil_line(path, line, text):
    lines = Path(path).read_text().splitlines()
    lines[line] = text
    Path(path).write_text("\n".join(lines) + "\n")


CASES = [
    orc_case, csv_case, json_case, array_case, gzip_case, arrow_case, footer_case, cut_case, empty_case, schema_case,
    first_schema_case, columns_case,
]  # fmt: skip


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


# ------------------------------------------------------------------------------------------------
# States.


def no_verification(monkeypatch):
    """From now on, to verify is an error."""

    def refuse(*_):
        raise AssertionError("verified again")

    monkeypatch.setattr(bad_files, "_verdicts", refuse)


@pytest.mark.parametrize("sql", ["SELECT id, word FROM t", "SELECT id FROM t WHERE id % 3 < 2"])
@pytest.mark.parametrize(
    ("before", "after"), [((1, 0), (1, 0)), ((1, 0), (3, 0)), ((3, 0), (2, 0)), ((1, 2), (2, 0))]
)
def test_a_state_names_what_is_left_out(parquet, monkeypatch, tmp_path, before, after, sql):
    folder, left = parquet
    if "WHERE" in sql:
        left = [row for row in left if row % 3 < 2]

    def loaders(topology):
        world_size, workers = topology
        for rank in range(world_size):
            loader, _ = tq.create_dataloader(
                query_of(folder, sql), on_error="skip", shuffle=True, batch_size=64, num_workers=workers,
                split_rows=300, rank=rank, world_size=world_size,
            )  # fmt: skip
            yield loader

    delivered, states = [], []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for loader in loaders(before):
            iterator = iter(loader)
            delivered += support.flat(support.ids_of(next(iterator) for _ in range(5)))
            states.append(json.loads(json.dumps(loader.state_dict())))
            del iterator
    state = tq.merge_state_dicts(states)
    named = state["parts"]["quarantine"]
    assert [len(bad) for _, bad in named["splits"]] == [1]
    # Another machine: nothing was kept there.
    monkeypatch.setenv("TENSORQUERY_CACHE", str(tmp_path / "elsewhere"))
    no_verification(monkeypatch)
    for loader in loaders(after):
        with pytest.warns(UserWarning, match="row group 4"):
            loader.load_state_dict(state)
        delivered += support.flat(support.ids_of(loader))
        [part] = loader.dataset.quarantined
        assert (part.path, part.unit, part.rows) == (f"{folder}/001.parquet", "row group 4", 100)
    assert sorted(delivered) == left


def test_a_resumed_epoch_is_the_same_bit_for_bit(parquet):
    folder, _ = parquet
    first = dataset_of(query_of(folder), shuffle=True)
    with pytest.warns(UserWarning, match="bad part"):
        iterator = iter(first)
    support.ids_of([next(iterator) for _ in range(7)])
    state = first.state_dict()
    rest = support.ids_of(iterator)
    second = dataset_of(query_of(folder), shuffle=True)
    with pytest.warns(UserWarning, match="bad part"):
        second.load_state_dict(state)
    assert support.ids_of(second) == rest
    # The next epoch leaves out the same.
    assert support.ids_of(second) == support.ids_of(first)


def test_states_of_other_runs_are_refused(parquet, monkeypatch):
    folder, left = parquet
    with pytest.warns(UserWarning, match="bad part"):
        skipping = dataset_of(query_of(folder)).state_dict()
    with pytest.raises(tq.CheckpointMismatchError, match='on_error="skip"'):
        dataset_of(query_of(folder), on_error="raise").load_state_dict(skipping)
    raising = dataset_of(query_of(folder), on_error="raise").state_dict()
    dataset = dataset_of(query_of(folder))
    with (
        pytest.warns(UserWarning, match="bad part"),
        pytest.raises(tq.CheckpointMismatchError, match=r'on_error="raise".*row group 4'),
    ):
        dataset.load_state_dict(raising)
    assert support.flat(support.ids_of(dataset)) == left
    # Of another query: nothing of it is taken over.
    with pytest.warns(UserWarning, match="bad part"):
        other = dataset_of(query_of(folder, "SELECT word, id FROM t")).state_dict()
    fresh = dataset_of(query_of(folder, "SELECT id, word FROM t WHERE id < 1700"))
    with pytest.raises(tq.CheckpointMismatchError, match="the query"):
        fresh.load_state_dict(other)
    assert not fresh._plan.quarantine.is_settled
    damaged = json.loads(json.dumps(skipping))
    damaged["parts"]["quarantine"]["splits"] = [[0, [0]]]
    with pytest.raises(tq.CheckpointMismatchError, match="damaged"):
        dataset_of(query_of(folder)).load_state_dict(damaged)


def test_a_state_wins_over_what_was_found(tmp_path):
    """What a run left out when it began stays out, though the file is whole again, and nothing else goes."""
    folder = support.write_parquet(tmp_path / "t", numbers(), files=3, row_group=GROUP)
    path = Path(folder) / "001.parquet"
    whole, stamp = path.read_bytes(), path.stat()
    left = [row for row in range(ROWS) if not 1400 <= row < 1500]

    def stamped():
        os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))

    spoil_group(path, 4)
    stamped()
    with pytest.warns(UserWarning, match="bad part"):
        state = dataset_of(query_of(folder)).state_dict()
    path.write_bytes(whole)
    stamped()
    dataset = dataset_of(query_of(folder))
    with pytest.warns(UserWarning, match="left out by the run whose state was loaded"):
        dataset.load_state_dict(state)
    assert support.flat(support.ids_of(dataset)) == left


# ------------------------------------------------------------------------------------------------
# Verification is shared and kept.


def test_verdicts_are_kept_on_disk(parquet, monkeypatch):
    folder, left = parquet
    [found] = read(query_of(folder, "SELECT id FROM t WHERE id >= 0 AND word <> ''"))
    assert support.flat(found) == left

    class Refusing:
        def __init__(self, *_):
            raise AssertionError("verified again")

    monkeypatch.setattr(bad_files, "_Verifying", Refusing)
    [again] = read(query_of(folder, "SELECT id FROM t WHERE id >= 0 AND word <> ''"))
    assert again == found


def test_progress_is_shown_where_asked_for(parquet, capsys):
    folder, _ = parquet
    with pytest.warns(UserWarning, match="bad part"):
        assert dataset_of(query_of(folder), show_progress=True).quarantined
    shown = capsys.readouterr().err.split("\r")[-1]
    assert shown.startswith("verifying: 100%")
    assert "30/30" in shown
    assert "2.9 k rows" in shown


def _train(rank, world_size, folder, cache, sql):
    """What a rank of a process group delivers, and how many splits it verified."""
    import torch.distributed as dist

    os.environ["TENSORQUERY_CACHE"] = f"{cache}/{rank}"
    dist.init_process_group("gloo")
    verified = []
    count = bad_files._Verifying.count
    bad_files._Verifying.count = lambda self, ids: (verified.extend(ids), count(self, ids))[1]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            loader, dataset = tq.create_dataloader(
                query_of(folder, sql), on_error="skip", batch_size=64, shuffle=True
            )
            ids = [batch["id"].tolist() for batch in loader]
        listed = [(part.path, part.unit, part.rows) for part in dataset.quarantined]
        dist.barrier()
        return ids, listed, sorted(verified)
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("sql", ["SELECT id, word FROM t", "SELECT id FROM t WHERE id % 3 < 2"])
def test_the_ranks_of_a_process_group_verify_together(parquet, tmp_path, sql):
    folder, left = parquet
    if "WHERE" in sql:
        left = [row for row in left if row % 3 < 2]
    found = ranks.run(_train, 3, folder, str(tmp_path / "cache"), sql)
    check_delivered([ids for ids, _, _ in found], left)
    assert {tuple(listed) for _, listed, _ in found} == {
        ((f"{folder}/001.parquet", "row group 4", 100),)
    }
    # Each split by one rank.
    assert sorted(support.flat([verified for _, _, verified in found])) == list(range(30))
