"""Promise: only the bytes that the query needs are read. They are counted outside the process: by an HTTP server
that logs every range, and by the kernel for a fresh process."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet as pq
import pytest

import support
import tensorquery as tq
from stored_bytes import FOOTER, chunk_bytes, split_bytes

FILES, GROUPS, GROUP = 4, 10, 5000
ROWS = FILES * GROUPS * GROUP
COLUMNS = ["id", *(f"x{i}" for i in range(9))]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("served")
    rng = np.random.default_rng(5)
    data = {"id": np.arange(ROWS), **{name: rng.random(ROWS) for name in COLUMNS[1:]}}
    # Plain and uncompressed: a column chunk is its rows times eight bytes.
    support.write_parquet(
        root, pa.table(data), files=FILES, row_group=GROUP, use_dictionary=False, compression="none"
    )
    return root


@pytest.fixture(scope="module")
def server(root, tmp_path_factory):
    log = tmp_path_factory.mktemp("log") / "requests"
    with support.serve(root, log) as url:
        yield url, support.Traffic(log)


def names(url):
    return [f"{url}/{number:03}.parquet" for number in range(FILES)]


def run(sql, url, **options):
    session = tq.Session()
    session.register_parquet("t", names(url))
    loader, _ = tq.create_dataloader(sql, session=session, **options)
    return support.flat(support.ids_of(loader))


@pytest.mark.slow
def test_the_server_counts(root, server):
    """A full scan reads all chunks: otherwise the other tests would prove nothing."""
    url, traffic = server
    traffic.take()
    assert run("SELECT * FROM t", url) == list(range(ROWS))
    footers, data = split_bytes(root, traffic.take())
    everything = chunk_bytes(root, range(FILES), range(GROUPS), COLUMNS)
    assert everything > 8 * ROWS * len(COLUMNS)
    # The chunks near a file's end lie in what is counted as its footer.
    assert everything - FILES * FOOTER <= data <= everything * 1.01
    assert FILES * 1000 < footers <= 2 * FILES * FOOTER


@pytest.mark.slow
def test_a_one_percent_range_filter_reads_its_row_groups_only(root, server):
    """On sorted data, rows of two neighbouring row groups of 40."""
    url, traffic = server
    traffic.take()
    start = 13 * GROUP + GROUP // 2
    ids = run(f"SELECT * FROM t WHERE id >= {start} AND id < {start + ROWS // 100}", url)
    assert ids == list(range(start, start + ROWS // 100))
    ranges = traffic.take()
    footers, data = split_bytes(root, ranges)
    assert data <= chunk_bytes(root, [1], [3], COLUMNS) * 1.01
    assert data > 0
    assert {
        name for name, _, stop in ranges if stop <= os.path.getsize(f"{root}/{name}") - FOOTER
    } == {"001.parquet"}
    assert footers <= 2 * FILES * FOOTER


@pytest.mark.slow
def test_two_of_ten_columns_read_their_chunks_only(tmp_path):
    """Over a network, two ranges with less than 1 MiB between them are one request; these have more."""
    rows = 2 * 150_000
    folder = support.write_parquet(
        tmp_path / "wide", pa.table({name: np.arange(rows) for name in COLUMNS}), row_group=rows // 2,
        use_dictionary=False, compression="none",
    )  # fmt: skip
    log = tmp_path / "requests"
    with support.serve(folder, log) as url:
        session = tq.Session()
        session.register_parquet("t", [f"{url}/000.parquet"])
        loader, _ = tq.create_dataloader("SELECT id, x4 FROM t", session=session)
        assert support.flat(support.ids_of(loader)) == list(range(rows))
    _, data = split_bytes(folder, support.Traffic(log).take())
    wanted = chunk_bytes(folder, [0], range(2), ["id", "x4"])
    assert wanted <= data <= 1.01 * wanted
    assert data < chunk_bytes(folder, [0], range(2), COLUMNS) / 4


@pytest.mark.slow
def test_a_filter_that_keeps_nothing_reads_footers_only(root, server):
    url, traffic = server
    traffic.take()
    assert run("SELECT * FROM t WHERE id < 0", url) == []
    _, data = split_bytes(root, traffic.take())
    assert data == 0


@pytest.mark.slow
def test_counting_reads_footers_only(root, server):
    url, traffic = server
    traffic.take()
    session = tq.Session()
    session.register_parquet("t", names(url))
    assert session.table("t").count() == ROWS
    _, data = split_bytes(root, traffic.take())
    assert data == 0


@pytest.mark.slow
@pytest.mark.parametrize("where", ["", " WHERE id % 7 < 3"])
def test_ranks_together_read_what_one_rank_reads(root, server, where):
    url, traffic = server
    sql = f"SELECT id, x1, x2 FROM t{where}"
    traffic.take()
    one = run(sql, url)
    alone = split_bytes(root, traffic.take())[1]
    # Equal steps count the rows of a filtered query first, and cut splits between ranks.
    uneven = {"world_size": 4, "remainder": "uneven"}
    ids = [run(sql, url, rank=rank, **uneven) for rank in range(4)]
    together = split_bytes(root, traffic.take())[1]
    assert sorted(support.flat(ids)) == one
    assert all(ids)
    assert 0 < together <= 1.05 * alone


@pytest.mark.slow
def test_workers_read_every_chunk_once(root, server):
    """Two worker processes: each chunk once, and footers once more for those who read the file."""
    url, traffic = server
    traffic.take()
    assert sorted(run("SELECT id, x0 FROM t", url, num_workers=2)) == list(range(ROWS))
    footers, data = split_bytes(root, traffic.take())
    wanted = chunk_bytes(root, range(FILES), range(GROUPS), ["id", "x0"])
    assert data <= 1.05 * wanted
    assert footers <= 5 * FILES * FOOTER


def one_group_of_pages(folder, rows):
    """A file of one row group, whose columns have many pages and an index of them."""
    table = pa.table({"id": np.arange(rows), "x": np.random.default_rng(1).random(rows)})
    return support.write_parquet(
        folder, table, row_group=rows, use_dictionary=False, compression="none", write_page_index=True,
        data_page_size=16 << 10, write_batch_size=1024,
    )  # fmt: skip


@pytest.mark.slow
def test_the_page_index_narrows_reads_within_a_row_group(tmp_path):
    """One row group of many pages: a 1% range reads few pages of it."""
    folder = one_group_of_pages(tmp_path / "paged", 200_000)
    log = tmp_path / "requests"
    with support.serve(folder, log) as url:
        session = tq.Session()
        session.register_parquet("t", [f"{url}/000.parquet"])
        loader, _ = tq.create_dataloader(
            "SELECT id, x FROM t WHERE id BETWEEN 50000 AND 51999", session=session
        )
        assert support.flat(support.ids_of(loader)) == list(range(50_000, 52_000))
        loader, _ = tq.create_dataloader("SELECT id, x FROM t WHERE id > 10000000", session=session)
        assert list(loader) == []
    ranges = support.Traffic(log).take()
    _, data = split_bytes(folder, ranges)
    assert 0 < data < 0.1 * chunk_bytes(folder, [0], [0], ["id", "x"])


def test_of_the_pages_that_the_index_leaves_those_without_a_kept_row_are_not_read(tmp_path):
    """The index leaves half of the pages of both columns; the condition on one keeps a row of a single page."""
    folder = one_group_of_pages(tmp_path / "paged", 200_000)
    loader, dataset = tq.create_dataloader(
        path=folder, filters="id BETWEEN 50000 AND 149999 AND id % 100000 = 77"
    )
    assert support.flat(support.ids_of(loader)) == [100_077]
    half = chunk_bytes(folder, [0], [0], ["id"]) / 2
    assert half <= dataset.metrics()["bytes_read"] < 1.1 * half


@pytest.mark.slow
def test_a_piece_of_a_row_group_is_all_that_is_read_of_it(tmp_path):
    """A row group that four ranks share: neither the pages before a rank's rows are read, nor those after them."""
    rows, ranks = 800_000, 4
    folder = one_group_of_pages(tmp_path / "shared", rows)
    log = tmp_path / "requests"
    with support.serve(folder, log) as url:
        traffic, seen = support.Traffic(log), []
        for rank in range(ranks):
            session = tq.Session()
            session.register_parquet("t", [f"{url}/000.parquet"])
            loader, _ = tq.create_dataloader(
                "SELECT id, x FROM t", session=session, rank=rank, world_size=ranks
            )
            ids = support.flat(support.ids_of(loader))
            assert len(ids) == rows // ranks
            assert ids == list(range(ids[0], ids[-1] + 1))
            seen += ids
            _, data = split_bytes(folder, traffic.take())
            # A page more at either end; the file's last bytes count as its footer.
            share = chunk_bytes(folder, [0], [0], ["id", "x"]) / ranks
            assert share - FOOTER <= data <= share + 4 * (16 << 10)
        assert sorted(seen) == list(range(rows))


def test_the_page_index_prunes_a_split_that_statistics_keep(tmp_path):
    """A gap between pages: the row group's min and max span it, no page holds it."""
    ids = np.concatenate([np.arange(50_000), np.arange(150_000, 200_000)])
    folder = support.write_parquet(
        tmp_path / "gap", pa.table({"id": ids}), row_group=200_000, write_page_index=True,
        data_page_size=8 << 10, write_batch_size=1000, use_dictionary=False,
    )  # fmt: skip
    session = tq.Session()
    session.register_parquet("t", folder)
    plan = session.sql("SELECT * FROM t WHERE id BETWEEN 90000 AND 99999").plan_shards()
    assert (plan.row_groups, plan.row_groups_pruned, plan.num_splits) == (1, 1, 0)


# ------------------------------------------------------------------------------------------------
# The kernel's count: /proc/self/io of a fresh process.

_PROGRAM = """
import sys
import tensorquery as tq, torch
from tensorquery.loading.create import create_dataloader
def read():
    return int(open("/proc/self/io").read().split()[1])
folder, sql = sys.argv[1:]
# Modules are imported at first use.
list(create_dataloader("SELECT 1 AS one", session=tq.Session(), output_format="numpy")[0])
before = read()
session = tq.Session()
session.register_parquet("t", folder)
registered = read()
loader, _ = create_dataloader(sql, session=session, output_format="numpy")
rows = sum(len(next(iter(batch.values()))) for batch in loader)
print(rows, registered - before, read() - registered)
"""


def kernel_count(folder, sql):
    """Rows, and the bytes that a fresh process read to register the table and to iterate the query."""
    command = [sys.executable, "-c", _PROGRAM, str(folder), sql]
    out = subprocess.run(command, check=True, capture_output=True, text=True, timeout=240).stdout
    return map(int, out.split())


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="needs Linux")
def test_the_kernel_counts_the_same(root):
    columns = ["id", "x3"]
    rows, footers, data = kernel_count(
        root, "SELECT id, x3 FROM t WHERE id BETWEEN 70000 AND 71999"
    )
    assert rows == 2000
    # 70000 to 71999 lie in row group 4 of file 1.
    wanted = chunk_bytes(root, [1], [4], columns)
    slack = FILES * FOOTER + (32 << 10)
    assert 0 < footers <= slack
    assert wanted <= data <= wanted + slack
    assert data < chunk_bytes(root, range(FILES), range(GROUPS), COLUMNS) / 20


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="needs Linux")
def test_two_of_ten_columns_of_local_files(root):
    """On a disk, no byte between two chunks is read, however small they are."""
    rows, _, data = kernel_count(root, "SELECT x1, x7 FROM t")
    assert rows == ROWS
    wanted = chunk_bytes(root, range(FILES), range(GROUPS), ["x1", "x7"])
    assert wanted <= data <= 1.02 * wanted + (32 << 10)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="needs Linux")
def test_hive_filters_never_open_other_files(tmp_path):
    """Files of other partitions are damaged: whoever opened one would fail, or read them."""
    rng = np.random.default_rng(3)
    for part in range(8):
        table = pa.table({"id": np.arange(20_000), "x": rng.random(20_000)})
        support.write_parquet(
            tmp_path / f"hive/part={part}", table, compression="none", use_dictionary=False
        )
    folder = tmp_path / "hive"
    size = os.path.getsize(folder / "part=3/000.parquet")
    rows, footers, data = kernel_count(folder, "SELECT id, x FROM t WHERE part = 3")
    assert rows == 20_000
    assert footers <= 8 * FOOTER * 2
    assert data <= size + (32 << 10)
    session = tq.Session()
    session.register_parquet("t", str(folder))
    for part in range(8):
        if part != 3:
            (folder / f"part={part}/000.parquet").write_bytes(b"damaged")
    query = session.sql("SELECT id FROM t WHERE part = 3")
    loader, _ = tq.create_dataloader(query)
    assert len(support.flat(support.ids_of(loader))) == 20_000
    plan = query.plan_shards()
    assert (plan.files, plan.files_pruned) == (8, 7)


@pytest.mark.parametrize("kind", ["parquet", "orc"])
@pytest.mark.parametrize(
    "predicate", ["CAST(ts AS TIME) = TIME '12:00:00'", "CAST(x AS BOOLEAN) = false"]
)
def test_casts_that_lose_the_order_prune_nothing(tmp_path, kind, predicate):
    """The engine would cast the bounds of a row group as if every cast kept their order."""
    moments = [np.datetime64(f"2024-01-{when}", "us") for when in ("01T23", "02T12", "02T13")]
    table = pa.table({"ts": pa.array(moments), "x": pa.array([-1, 0, 1], pa.int32())})
    if kind == "parquet":
        pq.write_table(table, tmp_path / "t.parquet")
    else:
        pa.orc.write_table(table, tmp_path / "t.orc")
    query = tq.Session().sql(f"SELECT x FROM '{tmp_path}/t.{kind}' WHERE x < 9 AND {predicate}")
    assert query.to_arrow()["x"].to_pylist() == [0]
    loader, _ = tq.create_dataloader(query)
    assert [value for batch in loader for value in batch["x"].tolist()] == [0]
