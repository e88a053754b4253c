"""Promise: ranks without torch do together what ranks of torch.distributed do, over files of a folder or over TCP; a partner
that is missing, dies or is another's ends the waiting with an error that names it."""

import contextlib
import multiprocessing
import os
import signal
import socket
import textwrap
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tensorquery as tq
import torchless
from process_groups import KINDS, address_of, joined, together
from servers.process import free_port
from tensorquery.distributed import file_store, tcp_store
from tensorquery.distributed.broadcast import Channel
from tensorquery.distributed.file_store import FileStore
from tensorquery.distributed.rendezvous import Board, share
from tensorquery.distributed.topology import Topology


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
