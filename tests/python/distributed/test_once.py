"""A job lists files and reads footers once: one rank does it, and the others receive its findings."""

import contextlib
import multiprocessing
import os
import shutil
import threading
import time
import warnings

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch.distributed as dist

import ranks
import tensorquery as tq
from support import serve
from tensorquery.distributed import broadcast
from tensorquery.distributed.broadcast import Channel
from tensorquery.distributed.topology import Topology

FILES, GROUPS, ROWS = 6, 4, 30
ALL = [*range(FILES * GROUPS * ROWS)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("files")
    for number in range(FILES):
        first = number * GROUPS * ROWS
        ids = pa.array(range(first, first + GROUPS * ROWS), pa.int64())
        table = pa.table({"id": ids, "k": pa.array([number % 3] * len(ids), pa.int32())})
        pq.write_table(table, root / f"part-{number}.parquet", row_group_size=ROWS)
    return root


# ------------------------------------------------------------------------------------------------
# The channel, among threads.


def together(world_size, work):
    """Call ``work(channel, rank)`` on threads that share a store; returns what each returned or raised."""
    store, answers = dist.HashStore(), {}

    def run(rank):
        try:
            answers[rank] = work(Channel(store, Topology(rank, world_size)), rank)
        except Exception as error:
            answers[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    return [answers[rank] for rank in range(world_size)]


def test_one_finds_and_all_know():
    found = []

    def work(channel, rank):
        def find():
            found.append(rank)
            time.sleep(0.1)
            return {"a": b"x" * 20_000_000, "b": b""}

        return channel.once(
            ["numbers", 1],
            find,
            lambda parts: parts,
            lambda got: {name: got[name] for name in got.names},
        )

    answers = together(4, work)
    assert found == [0]
    assert all(answer == {"a": b"x" * 20_000_000, "b": b""} for answer in answers)


def test_the_next_does_it_where_rank_0_does_not_come(monkeypatch):
    monkeypatch.setattr(broadcast, "GRACE", 0.1)

    def work(channel, rank):
        if rank == 0:
            return None
        return channel.once(
            ["late"], lambda: rank, lambda n: {"n": b"%d" % n}, lambda got: int(got["n"])
        )

    answers = together(3, work)
    assert answers[1] == answers[2]
    assert answers[1] in (1, 2)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (tq.TableNotFoundError("no file"), tq.TableNotFoundError),
        (OSError("no disk"), tq.TensorQueryError),
    ],
)
def test_who_fails_says_so_to_all(error, kind):
    def work(channel, rank):
        def find():
            raise error

        return channel.once(["splits"], find, lambda _: {}, lambda _: None)

    first, *others = together(3, work)
    assert first is error
    for other in others:
        assert isinstance(other, kind)
        assert str(error) in str(other)
        assert "the rank that finds out the splits for all ranks failed" in str(other)


def test_nobody_waits_for_ever(monkeypatch):
    monkeypatch.setattr(broadcast, "PATIENCE", 0.3)
    monkeypatch.setattr(broadcast._Task, "alive", lambda self: contextlib.nullcontext())
    release = threading.Event()

    def work(channel, rank):
        if rank == 0:
            return channel.once(["splits"], lambda: release.wait(60), lambda _: {}, lambda _: None)
        try:
            return channel.once(["splits"], lambda: None, lambda _: {}, lambda _: None)
        finally:
            release.set()

    _, error = together(2, work)
    assert isinstance(error, tq.StorageError)
    assert "gave no sign of life for 0.3 seconds" in str(error)


# ------------------------------------------------------------------------------------------------
# Loaders, among processes.


def plan_and_read(rank, world_size, how, url, log, options):
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    paths = [f"{url}/part-{number}.parquet" for number in range(FILES)]
    plain = {"allow_http": "true"}
    if how == "path":
        loader, dataset = tq.create_dataloader(path=paths, storage_options=plain, **options)
    elif how == "sql":
        sql = f"SELECT id FROM '{paths[0]}'"
        loader, dataset = tq.create_dataloader(sql, storage_options=plain, **options)
    else:
        session = tq.Session(process_group=dist.group.WORLD)
        session.register_parquet("t", paths, storage_options=plain)
        loader, dataset = tq.create_dataloader("SELECT id FROM t", session=session, **options)
    length = len(loader)
    dist.barrier()
    # All requests until here were for planning.
    planned = log.read_text() if rank == 0 else None
    dist.barrier()
    ids = [value for batch in loader for value in batch["id"].tolist()]
    held = dataset._plan.core is not None and dataset._plan.epochs.is_part
    shards = dataset.shard_plan().to_dict()
    trace = dataset.trace(rank=(rank + 1) % world_size, step=0).rows
    # The whole plan comes from the store, which rank 0 serves.
    dist.barrier()
    return length, ids, held, shards, trace, planned


@pytest.mark.slow
@pytest.mark.parametrize("how", ["path", "sql", "session"])
@pytest.mark.parametrize("workers", [0, 2])
def test_footers_are_read_once(folder, tmp_path, how, workers):
    log = tmp_path / "log"
    log.touch()
    with serve(folder, log) as url:
        options = {"batch_size": 7, "shuffle": True, "split_rows": 20, "num_workers": workers}
        found = ranks.run(plan_and_read, 3, how, url, log, options)
    lengths, ids, held, shards, traced, planned = zip(*found, strict=True)
    wanted = ALL[: GROUPS * ROWS] if how == "sql" else ALL
    assert sorted(value for own in ids for value in own) == wanted
    assert len(set(lengths)) == 1
    assert held == (False, True, True)
    assert shards[0] == shards[1] == shards[2]
    assert all(rows > 0 for rows in traced)
    asked = {}
    for line in planned[0].splitlines():
        asked[line.split()[1]] = asked.get(line.split()[1], 0) + 1
    # A listing and a footer of each file, and no more of them for three ranks than for one.
    assert len(asked) == (1 if how == "sql" else FILES)
    assert set(asked.values()) <= {1, 2}, asked


def plan_a_filter(rank, world_size, url, log, source):
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    one, other = (f"{url}/part-{number}.parquet" for number in range(2))
    plain = {"allow_http": "true"}
    loader, _ = tq.create_dataloader(
        **{source: one if source == "path" else f"SELECT id FROM '{one}'"},
        filters=f"id IN (SELECT id - 7 FROM '{other}')",
        session=tq.Session(storage_options=plain),
        storage_options=plain if source == "path" else None,
        batch_size=7,
        remainder="uneven",
    )
    dist.barrier()
    planned = log.read_text()
    dist.barrier()
    return planned, [value for batch in loader for value in batch["id"].tolist()]


@pytest.mark.slow
@pytest.mark.parametrize("source", ["path", "query"])
def test_files_that_only_a_filter_names_are_listed_once(folder, tmp_path, source):
    log = tmp_path / "log"
    log.touch()
    with serve(folder, log) as url:
        planned, ids = zip(*ranks.run(plan_a_filter, 3, url, log, source), strict=True)
    assert sorted(value for own in ids for value in own) == ALL[GROUPS * ROWS - 7 : GROUPS * ROWS]
    asked = [line.split()[1] for line in planned[0].splitlines()]
    assert {name: asked.count(name) for name in asked} == {"part-0.parquet": 2, "part-1.parquet": 2}


def missing(rank, world_size, folder):
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    try:
        tq.create_dataloader(path=f"{folder}/nothing-*.parquet", batch_size=4)
    except tq.TableNotFoundError as error:
        return str(error)
    finally:
        # Rank 0 serves the store, and stays until all have read it.
        dist.barrier()
    return None


@pytest.mark.slow
def test_a_path_without_files_fails_everywhere(folder):
    messages = ranks.run(missing, 3, folder)
    assert all("nothing-" in message for message in messages)
    assert "for all ranks failed" in messages[1]


def going_on(rank, world_size, folder, options):
    """Break off, resume, save before the next batch, and resume again: each needs more than one rank's share."""
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    options = {"path": str(folder), "batch_size": 7, "split_rows": 20, "remainder": "uneven"} | options  # fmt: skip

    def all_states(loader):
        states = [None] * world_size
        dist.all_gather_object(states, loader.state_dict())
        return tq.merge_state_dicts(states)

    first, _ = tq.create_dataloader(**options)
    iterator = iter(first)
    ids = [value for _ in range(3) for value in next(iterator)["id"].tolist()]
    state = all_states(first)
    del iterator
    second, dataset = tq.create_dataloader(**options)
    held = dataset._plan.epochs.is_part
    second.load_state_dict(state)
    again = iter(second)
    state = all_states(second)
    del again
    third, _ = tq.create_dataloader(**options)
    third.load_state_dict(state)
    ids += [value for batch in third for value in batch["id"].tolist()]
    dist.barrier()
    return ids, held


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("assignment", ["static", "dynamic"])
def test_a_rank_with_a_share_goes_on_from_a_state(folder, assignment, workers):
    options = {"assignment": assignment, "num_workers": workers, "shuffle": True}
    found = ranks.run(going_on, 3, folder, options)
    assert sorted(value for own, _ in found for value in own) == ALL
    assert [held for _, held in found] == [False, True, True]


def differing(rank, world_size, folder, what):
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    paths = sorted(str(path) for path in folder.iterdir())
    session = tq.Session()
    session.register_parquet("t", paths[: FILES - rank] if what == "files" else paths)
    options = {"batch_size": 4 + rank} if what == "options" else {"batch_size": 4}
    if what == "sizes":
        options["split_rows"] = 20 + rank
    try:
        tq.create_dataloader("SELECT id FROM t", session=session, **options)
    except (tq.DataError, tq.ConfigError) as error:
        return type(error).__name__, str(error)
    finally:
        dist.barrier()
    return None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "kind", "words"),
    [
        ("files", "DataError", "the list of files (6 then, 5 now)"),
        ("options", "ConfigError", "batch_size (4 there, 5 here)"),
        ("sizes", "ConfigError", "split_bytes or split_rows"),
    ],
)
def test_ranks_that_differ_are_told_what_differs(folder, what, kind, words):
    first, second = ranks.run(differing, 2, folder, what)
    assert first is None
    assert second[0] == kind
    assert words in second[1]


def filtered(rank, world_size, folder):
    """Rows that must be counted: all ranks count, so all get the whole plan."""
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    loader, _ = tq.create_dataloader(
        path=str(folder), filters="id % 3 = 1", batch_size=7, num_workers=0
    )
    ids = [value for batch in loader for value in batch["id"].tolist()]
    dist.barrier()
    return ids


@pytest.mark.slow
def test_a_filtered_query_is_counted_and_delivered_once(folder, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = ranks.run(filtered, 3, folder)
    assert sorted(value for own in found for value in own) == [
        number for number in ALL if number % 3 == 1
    ]


def skipping(rank, world_size, url, log, cache):
    os.environ["TENSORQUERY_CACHE"] = f"{cache}/{rank}"
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    paths = [f"{url}/part-{number}.parquet" for number in range(FILES)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        loader, dataset = tq.create_dataloader(
            path=paths, storage_options={"allow_http": "true"}, on_error="skip", batch_size=7
        )
        ids = [value for batch in loader for value in batch["id"].tolist()]
    dist.barrier()
    listed = [(part.path.rpartition("/")[2], part.unit) for part in dataset.quarantined]
    return ids, len(loader), listed, dataset._plan.epochs.is_part


@pytest.mark.slow
def test_bad_files_are_left_out_by_all_as_one_rank_found_them(folder, tmp_path):
    spoilt = tmp_path / "spoilt"
    shutil.copytree(folder, spoilt)
    (spoilt / "part-1.parquet").write_bytes(b"PAR1 and nothing else")
    group = pq.ParquetFile(spoilt / "part-4.parquet").metadata.row_group(2).column(0)
    content = bytearray((spoilt / "part-4.parquet").read_bytes())
    start = group.dictionary_page_offset or group.data_page_offset
    content[start : start + group.total_compressed_size] = b"\xff" * group.total_compressed_size
    (spoilt / "part-4.parquet").write_bytes(content)
    asked = []
    for world_size in (1, 3):
        log = tmp_path / f"log-{world_size}"
        log.touch()
        with serve(spoilt, log) as url:
            found = ranks.run(skipping, world_size, url, log, tmp_path / f"cache-{world_size}")
        ids, lengths, listed, held = zip(*found, strict=True)
        first = 4 * GROUPS * ROWS + 2 * ROWS
        bad = {*range(GROUPS * ROWS, 2 * GROUPS * ROWS), *range(first, first + ROWS)}
        assert sorted(value for own in ids for value in own) == [n for n in ALL if n not in bad]
        assert len(set(lengths)) == 1
        assert set(map(tuple, listed)) == {
            (("part-1.parquet", "whole file"), ("part-4.parquet", "row group 2"))
        }
        # Dealt after verification: each rank has all good splits.
        assert not any(held)
        asked.append(sum("part-1.parquet" in line for line in log.read_text().splitlines()))
    assert asked[0] == asked[1] > 0


def from_file_system(rank, world_size, folder, how):
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    if how == "filesystem":
        options = {"path": str(folder), "filesystem": fsspec.filesystem("file")}
    else:
        options = {"query": f"SELECT id FROM 'local://{folder}'"}
    loader, dataset = tq.create_dataloader(**options, batch_size=7)
    ids = [value for batch in loader for value in batch["id"].tolist()]
    dist.barrier()
    return ids, dataset._plan.epochs.is_part


@pytest.mark.slow
@pytest.mark.parametrize("how", ["filesystem", "url"])
def test_each_rank_has_a_file_system_of_its_own(folder, how):
    found = ranks.run(from_file_system, 2, folder, how)
    assert sorted(value for ids, _ in found for value in ids) == ALL
    assert [held for _, held in found] == [False, True]


def with_secrets(rank, world_size, folder, log):
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    put = Channel.once

    def spy(self, what, find, pack, take):
        def packed(found):
            parts = pack(found)
            with open(log, "ab") as file:
                file.write(repr(what).encode() + b"".join(parts.values()))
            return parts

        return put(self, what, find, packed, take)

    Channel.once = spy
    paths = [f"{folder}/part-{number}.parquet" for number in range(FILES)]
    options = {"allow_http": "true", "user_agent": f"planted-secret-{rank}"}
    loader, _ = tq.create_dataloader(path=paths, batch_size=50, storage_options=options)
    rows = sum(len(batch["id"]) for batch in loader)
    dist.barrier()
    return rows


@pytest.mark.slow
def test_options_and_credentials_are_not_sent(folder, tmp_path):
    log, sent = tmp_path / "log", tmp_path / "sent"
    log.touch()
    with serve(folder, log) as url:
        assert sum(ranks.run(with_secrets, 2, url.rstrip("/"), sent)) == len(ALL)
    assert b"part-3" in sent.read_bytes()
    assert b"planted-secret" not in sent.read_bytes()


def dies(rank, port, folder, answers):
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    # A rank that dies while gloo still connects it with the other fails that one, inside gloo.
    dist.barrier()
    broadcast.PATIENCE = 2.0
    if rank == 0:
        import tensorquery.loading.shared_plan

        tensorquery.loading.shared_plan.plan_splits = lambda *_, **__: os._exit(3)
    try:
        tq.create_dataloader(path=str(folder), batch_size=4)
    except tq.StorageError as error:
        answers.put(str(error))
    os._exit(0)


@pytest.mark.slow
def test_a_rank_that_dies_does_not_hang_the_others(folder):
    # The store outlives the rank, as one that a launcher serves. Not a file: who dies while it writes half a record there
    # leaves torch's readers in an endless loop.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context = multiprocessing.get_context("spawn")
    answers = context.SimpleQueue()
    processes = [
        context.Process(target=dies, args=(rank, store.port, folder, answers)) for rank in range(2)
    ]
    for process in processes:
        process.start()
    try:
        for process in processes:
            process.join(240)
            assert process.exitcode is not None, "a rank hangs"
    finally:
        for process in processes:
            process.kill()
    assert processes[0].exitcode == 3
    assert not answers.empty(), "the other rank was not told"
    assert "gave no sign of life for 2 seconds" in answers.get()
