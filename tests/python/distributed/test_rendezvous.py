"""Promise: ranks share the counting of rows, and none waits for a rank that is absent, has failed or died."""

import multiprocessing
import os
import signal
import threading
import time

import numpy as np
import pyarrow as pa
import pytest

import support
import tensorquery as tq
from servers.process import free_port
from split_counting import count, executed, plan_of
from tensorquery.distributed import rendezvous
from tensorquery.distributed.topology import Topology, detect, group_store

# ------------------------------------------------------------------------------------------------
# The board, in threads over a store in memory.


class Store:
    """A store like torch's, within this process."""

    def __init__(self):
        self.values, self.lock, self.lost = {}, threading.Lock(), False

    def __getattribute__(self, name):
        if name in ("add", "set", "get", "check") and object.__getattribute__(self, "lost"):
            raise RuntimeError("connection refused")
        return object.__getattribute__(self, name)

    def add(self, key, amount):
        with self.lock:
            self.values[key] = self.values.get(key, 0) + amount
            return self.values[key]

    def set(self, key, value):
        self.values[key] = value.encode()

    def get(self, key):
        return self.values[key]

    def check(self, keys):
        return all(key in self.values for key in keys)


class Rank(threading.Thread):
    """Shares ten chunks; the result of chunk c is [c]."""

    def __init__(self, store, work=None, **options):
        super().__init__()
        self.board = rendezvous.Board(store, "test", 10)
        self.done, self.found, self.error = [], None, None
        # None takes over what another is slow with, unless a test asks for that.
        self._work, self._options = work, {"timeout": 60, **options}
        self.start()

    def run(self):
        def work(chunks):
            if self._work is not None:
                self._work(self, chunks)
            self.done.extend(chunks)
            return [[chunk] for chunk in chunks]

        def accept(chunk, value):
            return value == [chunk]

        try:
            self.found = rendezvous.share(self.board, work, accept, **self._options)
        except Exception as error:
            self.error = error

    def result(self):
        self.join(120)
        assert not self.is_alive()
        assert self.error is None
        assert self.found == [[chunk] for chunk in range(10)]
        return self.done


def slowly(rank, chunks):
    time.sleep(0.02)


class Together:
    """Work that continues once two ranks have some of it, however late the second one starts."""

    def __init__(self):
        self.begun, self.two = set(), threading.Event()

    def __call__(self, rank, chunks):
        self.begun.add(rank)
        if len(self.begun) >= 2:
            self.two.set()
        assert self.two.wait(60)


def test_one_alone_does_everything():
    assert Rank(Store()).result() == list(range(10))


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_share_without_doing_anything_twice(ranks):
    store = Store()
    both = Together()
    running = [Rank(store, both, take=2) for _ in range(ranks)]
    done = [rank.result() for rank in running]
    assert sorted(support.flat(done)) == list(range(10))
    # Others may find nothing left.
    assert sum(map(bool, done)) >= 2
    assert Rank(store).result() == []


@pytest.mark.slow
def test_chunks_of_a_rank_that_died_are_taken_over():
    store = Store()
    dead = rendezvous.Board(store, "test", 10)
    assert list(dead.claim(3)) == [0, 1, 2]
    done = [rank.result() for rank in [Rank(store, slowly, timeout=3) for _ in range(2)]]
    assert sorted(set(support.flat(done))) == list(range(10))
    assert len(support.flat(done)) == 10


def test_even_when_those_who_announce_die_too():
    store = Store()
    for board in [rendezvous.Board(store, "test", 10)] * 2:
        board.claim(1)
        for number in range(1, 9):
            board.announce(0, f"round {number}")
    assert sorted(Rank(store, timeout=0.05).result()) == list(range(10))


def test_an_error_of_one_rank_stays_its_own():
    def fail(rank, chunks):
        raise OSError("its network")

    store = Store()
    first = Rank(store, fail, take=4)
    first.join(120)
    assert str(first.error) == "its network"
    start = time.monotonic()
    assert sorted(Rank(store, timeout=60).result()) == list(range(10))
    assert time.monotonic() - start < 30


def test_an_interrupted_count_is_taken_up_in_large_portions():
    store = Store()
    board = rendezvous.Board(store, "test", 10)
    board.release(board.claim(10))
    portions = []
    Rank(store, lambda rank, chunks: portions.append(chunks), take=5, timeout=60).result()
    assert portions == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]


def test_an_error_of_the_data_is_every_ranks():
    def fail(rank, chunks):
        slowly(rank, chunks)
        if 7 in chunks:
            raise ValueError("chunk 7 is damaged")

    store = Store()
    for rank in [Rank(store, fail, timeout=60) for _ in range(4)]:
        rank.join(120)
        assert str(rank.error) == "chunk 7 is damaged"


def test_a_lost_store_costs_no_result(caplog):
    def lose(rank, chunks):
        store.lost = 3 in chunks

    store = Store()
    rank = Rank(store, lose)
    assert sorted(rank.result()) == list(range(10))
    assert "connection refused" in caplog.text


def test_nonsense_from_others_is_done_again():
    store = Store()
    board = rendezvous.Board(store, "test", 10)
    board.put(3, "nonsense")
    board.put(4, [4])
    store.set("tensorquery/test/10/result/5", "{")
    assert Rank(store).result() == [0, 1, 2, 3, 5, 6, 7, 8, 9]


# ------------------------------------------------------------------------------------------------
# Real process groups.

SPLITS = 64


def _join(rank, world_size, folder):
    import torch.distributed as dist

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    # No cache that another rank could have written a moment ago.
    os.environ["TENSORQUERY_CACHE"] = f"{folder}/cache{rank}"
    # torchrun's stores are served over TCP by rank 0.
    port = folder / "port"
    store = f"tcp://127.0.0.1:{port.read_text()}" if port.exists() else f"file://{folder}/init"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world_size)
    return dist


def _plan(folder, modulus=2):
    session = tq.Session()
    session.register_parquet("t", f"{folder}/t")
    return plan_of(session.sql(f"SELECT x FROM t WHERE x % {modulus} = 0"), 100)


def _share(rank, world_size, folder, results):
    dist = _join(rank, world_size, folder)
    dist.barrier()
    found = {"all": count(_plan(folder), topology=detect(), timeout=30)}
    # Rank 0 alone: nobody else ever comes.
    if rank == 0:
        found["alone"] = count(_plan(folder, 3), topology=detect(), timeout=30)
    dist.barrier()
    # Others may come later, for the same plan: it is known by now.
    found["late"] = count(_plan(folder, 3), topology=detect(), timeout=30)
    if world_size == 4:
        groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
        own = groups[rank % 2]
        dist.barrier()
        found["group"] = count(
            _plan(folder, 5), topology=detect(process_group=own), process_group=own, timeout=30
        )
        # A world that is not the global group has no store.
        found["no store"] = group_store(Topology(rank, 8))
    results.put((rank, found))
    dist.barrier()
    dist.destroy_process_group()


def _die(rank, world_size, folder, results):
    dist = _join(rank, world_size, folder)
    plan, topology = _plan(folder, 7), detect()
    board = rendezvous.Board(group_store(topology), f"counts/{plan.fingerprint}", 32)
    if rank == 1:
        board.claim(3)
        dist.barrier()
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()
    results.put((rank, count(plan, topology=topology, timeout=1)))
    results.close()
    results.join_thread()
    os._exit(0)  # a group whose member died cannot be left in order


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shared")
    support.write_parquet(
        folder / "t", pa.table({"x": np.arange(SPLITS * 100)}), files=4, row_group=100
    )
    return folder


def spawn(target, world_size, folder, tmp_path, answers):
    """Run ranks; return the answers that they put into the queue, by rank, and their exit codes."""
    (tmp_path / "t").symlink_to(folder / "t")
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    ranks = [
        context.Process(target=target, args=(rank, world_size, tmp_path, results))
        for rank in range(world_size)
    ]
    for rank in ranks:
        rank.start()
    try:
        found = dict(results.get(timeout=240) for _ in range(answers))
    finally:
        for rank in ranks:
            rank.join(timeout=60)
            rank.kill()
    return found, [rank.exitcode for rank in ranks]


@pytest.mark.slow
@pytest.mark.parametrize(("world_size", "store"), [(2, "file"), (2, "tcp"), (4, "tcp")])
def test_ranks_of_a_process_group_share_the_counting(folder, tmp_path, world_size, store):
    if store == "tcp":
        (tmp_path / "port").write_text(str(free_port()))
    found, codes = spawn(_share, world_size, folder, tmp_path, world_size)
    assert codes == [0] * world_size
    rows = executed(_plan(folder))
    together = [found[rank]["all"] for rank in range(world_size)]
    assert all(one.rows == rows for one in together)
    assert sum(one.read for one in together) == SPLITS
    assert all(one.read + one.received == SPLITS for one in together)
    assert found[0]["alone"].read == SPLITS
    late = [found[rank]["late"] for rank in range(world_size)]
    assert [one.source for one in late] == ["cache"] + ["counted"] * (world_size - 1)
    assert all(one.rows == executed(_plan(folder, 3)) for one in late)
    assert all(one.read == 0 for one in late)
    if world_size == 4:
        for pair in ([0, 2], [1, 3]):
            halves = [found[rank]["group"] for rank in pair]
            assert all(one.rows == executed(_plan(folder, 5)) for one in halves)
            assert sum(one.read for one in halves) == SPLITS
        assert all(found[rank]["no store"] is None for rank in range(4))


@pytest.mark.slow
def test_a_rank_killed_after_it_took_work_blocks_nobody(folder, tmp_path):
    found, codes = spawn(_die, 2, folder, tmp_path, 1)
    assert codes == [0, -signal.SIGKILL]
    assert found[0].rows == executed(_plan(folder, 7))
    assert found[0].read == SPLITS
