"""Promise: ranks without torch do together what ranks of torch.distributed do, over files of a folder or over TCP; a partner
that is missing, dies or is another's ends the waiting with an error that names it."""

import contextlib
import json
import multiprocessing
import os
import signal
import socket
import textwrap
import threading

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import support
import tensorquery as tq
import torchless
from servers.process import free_port
from tensorquery.distributed import file_store, tcp_store
from tensorquery.distributed.broadcast import Channel
from tensorquery.distributed.file_store import FileStore
from tensorquery.distributed.rendezvous import Board, share
from tensorquery.distributed.topology import Topology, detect, group_store

KINDS = ["files", "tcp"]


def address_of(kind, folder):
    return folder / "meet" if kind == "files" else f"tcp://127.0.0.1:{free_port()}"


def together(world_size, work, *, seconds=60):
    """Call ``work(rank)`` on a thread per rank; returns what each returned or raised."""
    answers = {}

    def run(rank):
        try:
            answers[rank] = work(rank)
        except Exception as error:
            answers[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)
        assert not thread.is_alive(), "a rank hangs"
    return [answers[rank] for rank in range(world_size)]


def joined(kind, folder, world_size, **options):
    """The groups of ranks that met."""
    address = address_of(kind, folder)
    place = {"world_size": world_size, "timeout": 20, **options}
    found = together(world_size, lambda rank: tq.ProcessGroup(address, rank=rank, **place))
    assert all(isinstance(group, tq.ProcessGroup) for group in found), found
    return found


@pytest.fixture(params=KINDS)
def groups(request, tmp_path):
    found = joined(request.param, tmp_path, 3)
    yield found
    for group in reversed(found):
        group.close()


# ------------------------------------------------------------------------------------------------
# The store.


def test_values_and_counters(groups):
    one, other, third = (group.store for group in groups)
    assert not one.check(["a"])
    one.set("a", b"\x00\xff" * 100_000)
    other.set("b/with ü and / and " + "x" * 300, "text")
    assert other.check(["a", "b/with ü and / and " + "x" * 300])
    assert third.get("a") == b"\x00\xff" * 100_000
    assert one.get("b/with ü and / and " + "x" * 300) == b"text"
    one.set("a", b"")
    assert other.get("a") == b""
    assert [one.add("n", 0), other.add("n", 5), third.add("n", 1), one.add("n", 0)] == [0, 5, 6, 6]
    # A counter and a value of one name do not meet, as torch's do not need to.
    assert not one.check(["n"])


def test_no_two_ranks_get_the_same_number(groups):
    def count(rank):
        return [groups[rank].store.add("many", 1) for _ in range(100)]

    found = [number for own in together(3, count) for number in own]
    assert sorted(found) == [*range(1, 301)]


def add(folder, times, answers):
    store = FileStore(folder)
    answers.put([store.add("n", 1 + number % 3) for number in range(times)])


@pytest.mark.slow
def test_processes_count_together_in_files(tmp_path):
    context = multiprocessing.get_context("forkserver")
    answers = context.Queue()
    processes = [context.Process(target=add, args=(tmp_path, 60, answers)) for _ in range(4)]
    for process in processes:
        process.start()
    found = [number for _ in processes for number in answers.get(timeout=120)]
    for process in processes:
        process.join(60)
    assert len({*found}) == 240
    assert max(found) == FileStore(tmp_path).add("n", 0) == 4 * 60 * 2
    # One file is left of all that, and no lock.
    [counter] = tmp_path.iterdir()
    assert [each.name for each in counter.iterdir()] == ["480"]


def test_one_rank_works_for_all(groups):
    worked = []

    def work(rank):
        channel = Channel(groups[rank].store, Topology(rank, 3))

        def find():
            worked.append(rank)
            return {"a": b"x" * 9_000_000, "b": b""}

        return channel.once(
            ["numbers"],
            find,
            lambda parts: parts,
            lambda got: {name: got[name] for name in got.names},
        )

    assert together(3, work) == [{"a": b"x" * 9_000_000, "b": b""}] * 3
    assert worked == [0]


def test_ranks_share_chunks(groups):
    done = []

    def work(rank):
        def do(chunks):
            done.extend(chunks)
            return [[chunk] for chunk in chunks]

        return share(Board(groups[rank].store, "chunks", 20), do, lambda chunk, got: got == [chunk])

    assert together(3, work) == [[[chunk] for chunk in range(20)]] * 3
    assert sorted(done) == [*range(20)]


# ------------------------------------------------------------------------------------------------
# Meeting.


@pytest.mark.parametrize("kind", KINDS)
def test_who_does_not_come_is_named(kind, tmp_path):
    address = address_of(kind, tmp_path)

    def come(rank):
        if rank == 2:
            return None
        return tq.ProcessGroup(address, rank=rank, world_size=4, timeout=1) if rank < 2 else None

    first, second, *_ = together(4, come)
    assert isinstance(first, tq.StorageError)
    assert "[2, 3] did not come" in str(first)
    assert isinstance(second, tq.StorageError)
    # Nothing is left that a next run could take for its own.
    if kind == "files":
        assert list((tmp_path / "meet").iterdir()) == []


@pytest.mark.parametrize("kind", KINDS)
def test_without_rank_0_nobody_waits_for_ever(kind, tmp_path):
    with pytest.raises(tq.StorageError, match=r"rank 1 of 2 (met|reached) no rank 0"):
        tq.ProcessGroup(address_of(kind, tmp_path), rank=1, world_size=2, timeout=0.5)


@given(st.lists(st.integers(2, 4), min_size=1, max_size=3), st.data())
def test_files_of_earlier_runs_are_no_ones_partner(tmp_path_factory, sizes, data):
    """Runs that ended in any state leave their files; the next one, in the same folder, finds its own ranks and no old values."""
    folder = tmp_path_factory.mktemp("runs")
    for number, size in enumerate(sizes):
        groups = joined("files", folder, size, timeout=5)
        stores = [group.store for group in groups]
        assert {store.folder for store in stores} == {stores[0].folder}
        assert not stores[-1].check(["plan"])
        assert stores[0].add("turn", 0) == 0
        stores[0].set("plan", str(number))
        stores[-1].add("turn", 1)
        assert stores[-1].get("plan") == str(number).encode()
        # Some leave as they should; others are killed.
        for group in groups:
            if data.draw(st.booleans()):
                group.close()
            else:
                group._store = None


def test_the_last_to_leave_removes_the_files(tmp_path):
    groups = joined("files", tmp_path, 3)
    for group in groups[:2]:
        group.close()
        group.close()
    assert len(list((tmp_path / "meet").iterdir())) == 1
    assert groups[2].store.add("n", 2) == 2
    groups[2].close()
    assert list((tmp_path / "meet").iterdir()) == []
    assert groups[2].store is None


def test_a_second_job_at_the_same_port_is_refused():
    port = free_port()
    address = f"tcp://127.0.0.1:{port}"
    groups = together(2, lambda rank: tq.ProcessGroup(address, rank=rank, world_size=2))
    with pytest.raises(tq.StorageError, match=f"cannot listen at {address}"):
        tq.ProcessGroup(address, rank=0, world_size=2, timeout=1)
    with pytest.raises(tq.StorageError, match="there is a rank 1 already"):
        tq.ProcessGroup(address, rank=1, world_size=2, timeout=1)
    with pytest.raises(tq.StorageError, match="rank 0 has world_size=2, and rank 1 world_size=3"):
        tq.ProcessGroup(address, rank=1, world_size=3, timeout=1)
    # Nobody was disturbed.
    assert groups[0].store.add("n", 1) == 1
    for group in reversed(groups):
        group.close()
    # The port is free again.
    with socket.create_server(("127.0.0.1", port)):
        pass


def test_what_is_no_rank_does_no_harm():
    port = free_port()
    groups = together(
        2, lambda rank: tq.ProcessGroup(f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    )
    huge = tcp_store._HEAD.pack(b"S", 5, 1 << 62)
    for junk in (
        b"",
        b"GET / HTTP/1.1\r\n\r\n" * 3,
        huge + b"hello to you",
        tcp_store._HEAD.pack(b"H", 1, 1) + b"xy",
    ):
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(junk)
            # What announces more than a rank sends is not waited for.
            if len(junk) < 20:
                stranger.shutdown(socket.SHUT_WR)
            stranger.settimeout(5)
            # What it sent may be left unread.
            with contextlib.suppress(ConnectionResetError):
                assert stranger.recv(100) == b""
    assert groups[1].store.add("n", 3) == 3
    for group in reversed(groups):
        group.close()


def test_what_is_no_store_is_told():
    def answer(server):
        connection, _ = server.accept()
        connection.sendall(b"SSH-2.0-OpenSSH_9.9\r\n")
        connection.close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer, args=(server,))
        thread.start()
        with pytest.raises(tq.StorageError, match="is no rank 0"):
            tq.ProcessGroup(f"tcp://127.0.0.1:{server.getsockname()[1]}", rank=1, world_size=2)
        thread.join()


@pytest.mark.parametrize(
    ("address", "options", "message"),
    [
        ("", {}, "must be a folder"),
        (7, {}, "must be a folder"),
        ("tcp://host", {}, "tcp://10.0.0.1:29400"),
        ("tcp://:29400", {}, "tcp://host:port"),
        ("tcp://host:port", {}, "tcp://host:port"),
        ("tcp://host:99999", {}, "tcp://host:port"),
        ("tcp://me:secret@host:80", {}, "tcp://host:port"),
        ("http://host:80", {}, "tcp://host:port"),
        ("file://host/place", {}, "tcp://host:port"),
        ("place", {"rank": 2, "world_size": 2}, "rank 2 must be in 0..2"),
        ("place", {"rank": 0}, "come together"),
        ("place", {"timeout": 0}, "timeout=0 must be a number of seconds"),
        ("place", {"timeout": "1"}, "timeout='1' must be a number of seconds"),
        ("place", {"timeout": float("nan")}, "timeout=nan"),
    ],
)
def test_malformed_arguments(address, options, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(tq.ConfigError, match=message.replace(".", r"\.")):
        tq.ProcessGroup(
            address,
            **{"rank": 0, "world_size": 2, **options} if options != {"rank": 0} else options,
        )
    assert list(tmp_path.iterdir()) == []


def test_a_secret_in_an_address_is_not_shown():
    with pytest.raises(tq.ConfigError) as caught:
        tq.ProcessGroup("tcp://me:hunter2@host:80", rank=0, world_size=2)
    assert "hunter2" not in str(caught.value)


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(tq.StorageError, match="cannot meet the other ranks in"):
        tq.ProcessGroup(tmp_path / "file", rank=0, world_size=2)


def test_a_single_rank_needs_nobody(tmp_path):
    group = tq.ProcessGroup(tmp_path / "nowhere", rank=0, world_size=1)
    assert group.store is None
    assert repr(group) == "ProcessGroup(rank 0 of 1)"
    assert not (tmp_path / "nowhere").exists()
    loader, dataset = tq.create_dataloader(query(tmp_path), process_group=group)
    assert (dataset.rank, dataset.world_size, len(loader)) == (0, 1, 1)


# ------------------------------------------------------------------------------------------------
# Loaders.


def query(folder, rows=403, sql="SELECT id FROM t WHERE k <> 1", **options):
    if not (folder / "t").exists():
        ids = np.arange(rows)
        table = pa.table({"id": ids, "k": ids % 3})
        support.write_parquet(folder / "t", table, files=5, row_group=17)
    session = tq.Session(**options)
    session.register_parquet("t", folder / "t")
    return session.sql(sql)


def test_the_place_is_that_of_the_group(groups, tmp_path):
    for rank, group in enumerate(groups):
        place = detect(process_group=group)
        assert (place.rank, place.world_size, place.source) == (rank, 3, "process_group")
        assert group_store(place, group) is group.store
    with pytest.raises(tq.ConfigError, match="rank=1, world_size=3 contradict process_group"):
        tq.create_dataloader(query(tmp_path), process_group=groups[0], rank=1, world_size=3)
    assert group_store(Topology(0, 2), groups[0]) is None


@pytest.mark.slow
@given(
    kind=st.sampled_from(KINDS),
    world_size=st.integers(2, 4),
    batch_size=st.integers(2, 60),
    shuffle=st.sampled_from([False, True, "global"]),
    stop=st.integers(0, 3),
    after=st.integers(1, 3),
)
def test_each_row_once_before_and_after_a_resume(
    tmp_path_factory, kind, world_size, batch_size, shuffle, stop, after
):
    folder = tmp_path_factory.mktemp("jobs")
    wanted = [number for number in range(403) if number % 3 != 1]
    query(folder)

    def load(groups, state):
        def work(rank):
            own = query(folder, process_group=groups[rank])
            loader, _ = tq.create_dataloader(
                own,
                process_group=groups[rank],
                batch_size=batch_size,
                shuffle=shuffle,
                output_format="numpy",
            )
            length = len(loader)
            if state is not None:
                loader.load_state_dict(state)
            ids, batches = [], iter(loader)
            for step, batch in enumerate(batches):
                ids += batch["id"].tolist()
                if state is None and step + 1 == stop:
                    break
            return ids, length, loader.state_dict()

        found = together(len(groups), work)
        for answer in found:
            assert isinstance(answer, tuple), answer
        assert len({length for _, length, _ in found}) == 1
        return [number for ids, _, _ in found for number in ids], found[0][2]

    groups = joined(kind, folder, world_size)
    ids, state = load(groups, None)
    for group in reversed(groups):
        group.close()
    if state["epoch"] == 0:
        groups = (
            joined(kind, folder, after)
            if after > 1
            else [tq.ProcessGroup(folder / "one", rank=0, world_size=1)]
        )
        more, _ = load(groups, state)
        ids += more
        for group in reversed(groups):
            group.close()
    assert sorted(ids) == wanted


def test_bad_files_are_found_together(groups, tmp_path):
    query(tmp_path)
    bad = sorted((tmp_path / "t").glob("*.parquet"))[1]
    content = bytearray(bad.read_bytes())
    content[40:60] = b"\xff" * 20
    bad.write_bytes(content)

    def work(rank):
        loader, dataset = tq.create_dataloader(
            query(tmp_path),
            process_group=groups[rank],
            on_error="skip",
            output_format="numpy",
            batch_size=10,
        )
        return len(loader), [each.path for each in dataset.quarantined]

    first, *others = together(3, work)
    assert all(other == first for other in others)
    assert len(first[1]) >= 1


JOB = """
import importlib.util, json, sys, time
import tensorquery as tq
assert importlib.util.find_spec("torch") is None
address, how = sys.argv[1:3]
group = tq.ProcessGroup(address)
session = tq.Session(process_group=group)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_footers_are_read_once_without_torch(kind, tmp_path):
    """Three processes that have no torch: one lists and reads footers for all, and each row comes once."""
    query(tmp_path)
    log = tmp_path / "log"
    log.touch()
    code = JOB + textwrap.dedent("""
    session.register_parquet("t", [f"{how}/{name}" for name in sys.argv[3:]], storage_options={"allow_http": "true"})
    loader, dataset = tq.create_dataloader(
        "SELECT id FROM t", session=session, process_group=group, output_format="numpy", batch_size=7, shuffle=True
    )
    steps = len(loader)
    group.store.add("planned", 1)
    while group.store.add("planned", 0) < group.world_size:
        time.sleep(0.01)
    planned = open("log").read()
    group.store.add("read", 1)
    while group.store.add("read", 0) < group.world_size:
        time.sleep(0.01)
    ids = [number for batch in loader for number in batch["id"].tolist()]
    print(json.dumps([group.rank, steps, ids, planned]))
    """)
    names = sorted(path.name for path in (tmp_path / "t").glob("*.parquet"))
    with support.serve(tmp_path / "t", log) as url:
        out = torchless.run_ranks(
            tmp_path, code, 3, address_of(kind, tmp_path), url, *names, packages=torchless.NUMPY
        )
    ranks, steps, ids, planned = zip(*map(json.loads, out), strict=True)
    assert ranks == (0, 1, 2)
    assert len({*steps}) == 1
    assert sorted(number for own in ids for number in own) == [*range(403)]
    asked = [line.split()[1] for line in planned[0].splitlines()]
    assert {*asked} == {*names}
    # A listing and a footer of each file, for three ranks as for one.
    assert max(asked.count(name) for name in names) <= 2


def test_moments_that_nobody_can_agree_on_are_refused(tmp_path):
    alone = query(tmp_path, sql="SELECT id, now() AS at FROM t")
    with pytest.raises(tq.NotShardableError, match=r"process_group=tensorquery\.ProcessGroup"):
        tq.create_dataloader(alone, rank=0, world_size=3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_counting_is_shared_and_moments_are_one(kind, tmp_path):
    """Ranks count each split once together, and agree on the `now()` of the first to come."""
    query(tmp_path)
    code = JOB + textwrap.dedent("""
    import os
    from tensorquery.sharding import row_counts
    # A cache on this machine's disk would be shared, too.
    os.environ["TENSORQUERY_CACHE"] = f"cache-{group.rank}"
    counted, real = [], row_counts._Counting.count

    def count(self, ids):
        counted.extend(ids)
        return real(self, ids)

    row_counts._Counting.count = count
    session = tq.Session()
    session.register_parquet("t", "t")
    time.sleep(group.rank * 0.01)
    query = session.sql("SELECT id, CAST(now() AS VARCHAR) AS at FROM t WHERE k <> 1")
    loader, _ = tq.create_dataloader(query, process_group=group, batch_size=50, output_format="numpy", split_rows=40)
    # The others count meanwhile, and the store goes with rank 0.
    steps = len(loader)
    group.store.add("counted", 1)
    while group.store.add("counted", 0) < group.world_size:
        time.sleep(0.01)
    print(json.dumps([query.moment, steps, sorted({text for batch in loader for text in batch["at"]}), counted]))
    """)
    out = torchless.run_ranks(tmp_path, code, 3, address_of(kind, tmp_path), "")
    own, steps, delivered, counted = zip(*map(json.loads, out), strict=True)
    assert len({*own}) == 3
    assert {*steps} == {2}
    assert delivered[0] == delivered[1] == delivered[2]
    assert len(delivered[0]) == 1
    every = [split for one in counted for split in one]
    assert len(every) == len({*every}) > 3


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_who_is_killed_ends_the_waiting(kind, tmp_path):
    """Rank 0 is killed before it plans: the others plan themselves, or end with an error; none hangs."""
    query(tmp_path)
    code = JOB + textwrap.dedent("""
    session = tq.Session()
    session.register_parquet("t", "t")
    if group.rank == 0:
        print("met", flush=True)
        time.sleep(600)
    time.sleep(1)
    try:
        loader, _ = tq.create_dataloader(
            "SELECT id FROM t WHERE k <> 1", session=session, process_group=group, output_format="numpy", batch_size=7
        )
        print(len(loader))
    except tq.StorageError as error:
        print(error)
    """)
    address = address_of(kind, tmp_path)
    processes = [
        torchless.start(
            tmp_path, code, address, "", variables={"RANK": str(rank), "WORLD_SIZE": "3"}
        )
        for rank in range(3)
    ]
    try:
        assert processes[0].stdout.readline() == "met\n"
        os.kill(processes[0].pid, signal.SIGKILL)
        answers = [torchless.finish(process, 120) for process in processes[1:]]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    if kind == "files":
        # The next rank works for both.
        assert answers[0] == answers[1]
        assert int(answers[0]) == 13  # 90 rows of 269 in batches of 7
    else:
        assert all("store does not answer" in answer for answer in answers)


@pytest.mark.slow
def test_a_fork_does_not_keep_the_port_open(tmp_path):
    """A child of rank 0 that outlives it must not leave the others waiting behind a port where nobody answers."""
    code = """
    import os, signal, sys, time
    import tensorquery as tq
    group = tq.ProcessGroup(sys.argv[1])
    if group.rank == 1:
        group.store.add("met", 1)
        time.sleep(1)
        begun = time.monotonic()
        try:
            while True:
                group.store.add("n", 1)
                time.sleep(0.05)
        except OSError:
            print(time.monotonic() - begun)
        sys.exit()
    while not group.store.add("met", 0):
        time.sleep(0.01)
    if not (child := os.fork()):
        time.sleep(60)
        os._exit(0)
    print(child, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    """
    port = free_port()
    processes = [
        torchless.start(
            tmp_path,
            textwrap.dedent(code),
            f"tcp://127.0.0.1:{port}",
            variables={"RANK": str(rank), "WORLD_SIZE": "2"},
        )
        for rank in range(2)
    ]
    child = int(processes[0].stdout.readline())
    try:
        processes[0].wait(60)
        # Not after the time that a silent server may take.
        assert float(torchless.finish(processes[1], 50)) < 20
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", port), timeout=5)
        os.kill(child, 0)
    finally:
        os.kill(child, signal.SIGKILL)
        for process in processes:
            process.kill()
            process.wait()


def test_a_store_is_not_used_after_a_fork(monkeypatch):
    port = free_port()
    groups = together(
        2, lambda rank: tq.ProcessGroup(f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    )
    store = groups[1].store
    with monkeypatch.context() as patch:
        patch.setattr(store, "_process", -1)
        with pytest.raises(OSError, match="before a fork"):
            store.add("n", 1)
    assert store.add("n", 1) == 1
    for group in reversed(groups):
        group.close()


def test_a_question_that_broke_off_is_not_answered_by_the_next(monkeypatch):
    """An exception of a signal between a question and its answer: the connection is of no use any more."""
    port = free_port()
    groups = together(
        2, lambda rank: tq.ProcessGroup(f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    )
    store = groups[1].store
    receive = tcp_store._receive

    def broken_off(connection):
        # The thread that serves rank 0's store receives, too.
        if connection is store._connection:
            raise KeyboardInterrupt
        return receive(connection)

    with monkeypatch.context() as patch:
        patch.setattr(tcp_store, "_receive", broken_off)
        with pytest.raises(KeyboardInterrupt):
            store.add("n", 1)
    with pytest.raises(OSError):
        store.add("n", 1)
    for group in reversed(groups):
        group.close()


def test_random_numbers_of_the_program_are_untouched(tmp_path):
    import random

    random.seed(3)
    before = random.getstate()
    for _ in file_store._looks(0.01):
        pass
    assert random.getstate() == before
