"""Promises 1, 4 and 5 (docs/promises.md): an epoch that is resumed a hundred times, each time on another topology, delivers each
row once. Its state has what is left, packed, and not its history; a forged one is refused, and a long deal ends with Ctrl-C."""

import base64
import copy
import itertools
import json
import random
import signal
import subprocess
import sys
import zlib
from collections import Counter

import pyarrow as pa
import pytest
from torch.utils.data import DataLoader

import stopping
import support
import tensorquery as tq
from stopping import SHUFFLES, loader_of, query_of, state_of, take
from synthetic import plan_of
from tensorquery.distributed.topology import Topology
from tensorquery.sharding.checkpoint import check_sum
from tensorquery.sharding.deal import Deal
from tensorquery.sharding.epochs import Epochs
from tensorquery.sharding.left import Left
from tensorquery.sharding.packed_cursors import pack_cursor, unpack_cursor

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

ROWS, SPLITS = 3000, 60
KIB = 1024


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return stopping.write_table(
        tmp_path_factory.mktemp("resumes") / "t", rows=ROWS, row_group=ROWS // SPLITS
    )


@pytest.fixture
def without_processes(monkeypatch):
    """Worker shards are read in this process, so that many topologies take little time."""
    monkeypatch.setattr(DataLoader, "__iter__", stopping.shards_in_turn)


CASES = {
    "shuffled": {"shuffle": True, "shuffle_buffer_size": 200},
    "unshuffled": {},
    "windows only": {"shuffle_buffer_size": 150},
    "global": {"shuffle": "global"},
    "partitions": {"shuffle": True, "shuffle_buffer_size": 100, "partitions": 6},
    "drop": {"shuffle": True, "shuffle_buffer_size": 90, "remainder": "drop"},
    "uneven": {"shuffle": True, "shuffle_buffer_size": 90, "remainder": "uneven"},
}


def topology_of(dice, options):
    """Ranks, workers and rows per batch of one run."""
    world, workers = dice.choice([1, 2, 3]), dice.choice([0, 0, 1, 2])
    if "partitions" in options:
        return world, 0, 6 * dice.randrange(1, 3)
    return world, workers, dice.randrange(5, 12)


def opened(query, state=None, **options):
    """A loader of splits of 50 rows, which goes on from a state where there is one."""
    loader = loader_of(query, **{"split_rows": ROWS // SPLITS, **options})
    if state is not None:
        loader.load_state_dict(state)
    return loader


def run_of_ranks(query, state, topology, steps, **options):
    """The rows of all ranks of one run in `steps` steps (None: to the end), and the state that they save then."""
    world, workers, batch_size = topology
    found, states = [], []
    for rank in range(world):
        of_rank = {"rank": rank, "world_size": world, "num_workers": workers}
        loader = opened(query, state, **options, **of_rank, batch_size=batch_size)
        for batch in itertools.islice(iter(loader), steps):
            found += batch["id"]
        states.append(state_of(loader))
    return found, tq.merge_state_dicts(states)


def resume_again_and_again(query, resumes, options, seed=5):
    """Deliver an epoch in runs of few steps; returns its rows, and the length of what was left before each run."""
    dice, state, received, lengths = random.Random(seed), None, [], []
    for _ in range(resumes):
        topology, steps = topology_of(dice, options), dice.randrange(0, 3)
        found, state = run_of_ranks(query, state, topology, steps, **options)
        received += found
        assert state["epoch"] == 0, "too many rows a run: the epoch ended before its last resume"
        lengths.append(0 if state["left"] is None else len(state["left"]["rows"]))
    # One rank: it has no step more than others.
    rest, state = run_of_ranks(query, state, (1, 0, 12), None, **options)
    assert state["epoch"] == 1
    return received + rest, lengths


def check_resumes(folder, name, resumes):
    options = CASES[name]
    query = query_of(folder, "k <> 2")
    received, lengths = resume_again_and_again(query, resumes, options)
    wanted = Counter(query.to_arrow()["id"].to_pylist())
    if options.get("remainder") == "drop":
        assert set(Counter(received).values()) == {1}
        assert len(received) > wanted.total() - 12
    else:
        assert Counter(received) == wanted
    assert lengths[0] == 0 < lengths[-1]
    # 60 splits and a handful of windows; a history would have a layout of 400 letters for every run.
    assert max(lengths) < 2 * KIB, lengths


@pytest.mark.parametrize("name", ["shuffled", "partitions", "uneven"])
def test_ten_resumes_deliver_each_row_once(folder, without_processes, name):
    check_resumes(folder, name, 10)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_hundred_resumes_deliver_each_row_once(folder, without_processes, name):
    check_resumes(folder, name, 100)


@pytest.mark.slow
@pytest.mark.parametrize("assignment", ["static", "dynamic"])
def test_worker_processes_resume_again_and_again(folder, assignment):
    """Each run has other workers, real ones. With dynamic assignment they take splits, and are dealt the rests of windows."""
    query = query_of(folder, "k <> 2")
    options = {"assignment": assignment, "shuffle": True, "shuffle_buffer_size": 70}
    state, received, lengths = None, [], []
    for workers, batch_size in itertools.islice(
        itertools.cycle([(2, 9), (3, 8), (1, 7), (0, 11)]), 13
    ):
        loader = opened(query, state, **options, num_workers=workers, batch_size=batch_size)
        batches, state = take(loader, 9)
        received += support.flat(batches)
        assert state["epoch"] == 0
        lengths.append(0 if state["left"] is None else len(state["left"]["rows"]))
    received += support.flat(stopping.ids(opened(query, state, **options, num_workers=2)))
    assert Counter(received) == Counter(query.to_arrow()["id"].to_pylist())
    assert max(lengths) < 3 * KIB, lengths


@pytest.mark.slow
@pytest.mark.parametrize("stop", ["first", "all"])
def test_a_mixture_resumes_again_and_again(folder, stop):
    session = tq.Session()
    session.register_parquet("t", folder)
    parts = [session.sql(f"SELECT id FROM t WHERE k = {k}") for k in (0, 1)]
    mixture = tq.mix(list(zip(parts, [1, 3], strict=True)), stop=stop)
    options = {"shuffle": True, "shuffle_buffer_size": 60}
    wanted = len(support.flat(stopping.ids(opened(mixture, **options))))
    state, received, dice = None, [], random.Random(3)
    for _ in range(12):
        loader = opened(mixture, state, **options, batch_size=dice.randrange(5, 12))
        batches, state = take(loader, 3)
        received += support.flat(batches)
    received += support.flat(stopping.ids(opened(mixture, state, **options)))
    assert set(Counter(received).values()) == {1}
    assert len(received) == wanted
    assert {row % 5 for row in received} == {0, 1}


def test_the_order_after_a_resume_follows_from_the_state(folder):
    query, topology = query_of(folder), (2, 0, 7)
    _, state = run_of_ranks(query, None, (3, 0, 9), 4, **CASES["shuffled"])
    found, state = run_of_ranks(query, state, (1, 0, 8), 3, **CASES["shuffled"])
    rests = [run_of_ranks(query, state, topology, None, **CASES["shuffled"]) for _ in range(2)]
    assert rests[0] == rests[1]
    assert len(rests[0][0]) + len(found) + 3 * 4 * 9 == ROWS


# ------------------------------------------------------------------------------------------------
# Size.


def sizes_of(plan, resumes, mixing):
    """Lengths of what is left of a plan after each of many runs on changing topologies, of 32 shards at most."""
    counts, dice, left, found = plan.known_counts(), random.Random(1), None, []
    for _ in range(resumes):
        world, workers = dice.choice([1, 2, 3, 4, 8, 16]), dice.choice([0, 1, 2])
        deal = Deal(dice.choice([256, 1000, 1024]), 42, True, None, "even", None, "lpt")
        epochs = Epochs(plan, deal, Topology(0, world), list, counts)
        epochs._mixing = mixing
        share = sum(counts) // (2 * resumes) // (world * deal.batch_size)
        run = {"layout": epochs.layout(workers), "step": dice.randrange(2 * share), "cursors": {}}
        left = epochs.left_after(0, left, run)
        found.append(len(left.rows))
    return found


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """10,000 splits that were never written."""
    return plan_of(1_000, tmp_path_factory.mktemp("template"))


def check_sizes(large, resumes):
    assert large.num_splits == 10_000
    # As many splits are open as may be, and all windows have rows of 512.
    widest = {"width": 512, "chunk": 128, "window": 65536}
    found = sizes_of(large, resumes, widest)
    assert max(found) < 60 * KIB, found
    assert max(sizes_of(large, resumes, None)) < 12 * KIB


@pytest.mark.slow
def test_what_is_left_of_10_000_splits_is_small(large):
    check_sizes(large, 8)


@pytest.mark.slow
def test_what_is_left_of_10_000_splits_is_small_after_a_hundred_resumes(large):
    check_sizes(large, 100)


@pytest.mark.slow
def test_a_whole_state_with_hundreds_of_open_splits_is_small():
    """Nobody has counted, so the cursors of all open splits are in it; and the epoch was begun with other batches."""
    session = tq.Session()
    session.register_table("t", pa.table({"id": range(200_000)}))
    query, state, received = session.sql("SELECT id FROM t WHERE id % 7 <> 3"), None, []
    for batch_size in (1000, 999, 998, 997):
        options = {"shuffle": True, "batch_size": batch_size, "split_rows": 20}
        loader = opened(query, state, **options)
        batches, state = take(loader, 9)
        received += support.flat(batches)
        assert loader.dataset.shard_plan(0).num_splits == 10_000
        assert state["layout"]["mixing"]["width"] == 512
        # Rests of windows come first, and there a cursor is short.
        assert isinstance(state["cursors"]["0"][0], str) == (batch_size == 1000)
        assert len(json.dumps(state)) < 16 * KIB
    received += support.flat(stopping.ids(opened(query, state, **options)))
    assert sorted(received) == [row for row in range(200_000) if row % 7 != 3]


@pytest.mark.parametrize("length", [0, 64, 65, 5000])
def test_long_cursors_are_packed(length):
    dice = random.Random(length)
    numbers = [dice.choice([0, 7, 2**40, 2**64 - 1]) for _ in range(length)]
    packed = json.loads(json.dumps(pack_cursor(numbers)))
    assert isinstance(packed, str) == (length > 64)
    assert unpack_cursor(packed) == numbers
    bomb = zlib.compress(b"[" + b"0," * (3 << 20) + b"0]")
    text = [zlib.compress(steps) for steps in (b"[0.5]", b"{}", b"[-1]", b"[" * 10_000, b"[1e9]")]
    for wrong in [
        *(base64.b85encode(one).decode() for one in (bomb, *text)),
        "x",
        "é",
        "~" * (2 << 20),
    ]:
        with pytest.raises(ValueError, match=r"."):
            unpack_cursor(wrong)


# ------------------------------------------------------------------------------------------------
# Forged states: refused by what they say, before anything is dealt.


def repacked(state, change):
    """The state with other bytes in 'left', and its checksum."""
    state = copy.deepcopy(state)
    found = bytearray(Left.read(state["left"]).packed())
    state["left"]["rows"] = base64.b85encode(zlib.compress(bytes(change(found)), 9)).decode()
    return signed(state)


def signed(state):
    return {**state, "check": check_sum(state)}


def number(value):
    """A number as the core packs it."""
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


@pytest.fixture
def sound(folder):
    """A state in the second run of an epoch, and a loader that does not go on with its layout."""
    query = query_of(folder)
    _, state = run_of_ranks(query, None, (3, 0, 9), 4, **CASES["shuffled"])
    _, state = run_of_ranks(query, state, (1, 0, 8), 3, **CASES["shuffled"])
    assert state["left"] is not None
    with support.alarm(60):
        yield state, query


HISTORIES = {
    "more ranges than bytes": lambda found: number(1) + number(2**40),
    "more whole splits than there are": lambda found: b"".join(map(number, (1, 1, 2, 2**40, 0))),
    "a split far behind the last": lambda found: b"".join(map(number, (1, 1, 2**50, 1, 0))),
    "rows behind the end of a split": lambda found: b"".join(map(number, (1, 1, 3, 2**40, 0, 0))),
    "a window of more rows than there are": lambda found: b"".join(
        map(number, (1, 1, 2, 60, 1, 7, 2**31, 0, 1, 9, 0, 0, 0, 1, 0, 0, 0, 1, 0, 2**31))
    ),
    "the same rows in a window and a range": lambda found: b"".join(
        map(number, (1, 1, 2, 60, 1, 7, 20, 0, 1, 9, 0, 0, 0, 1, 0, 0, 0, 1, 0, 20))
    ),
    "windows without end": lambda found: b"".join(map(number, (1, 0, 2**30))) + b"\1" * 1000,
    "no run before": lambda found: number(0) + found[1:],
    "bytes after the end": lambda found: found + b"\0",
    "cut off": lambda found: found[: len(found) // 2],
    "nothing": lambda found: b"",
}


@pytest.mark.parametrize("name", HISTORIES)
def test_a_forged_history_is_refused(sound, name):
    state, query = sound
    forged = repacked(state, HISTORIES[name])
    with pytest.raises(tq.CheckpointMismatchError, match="what it says is left of its epoch"):
        next(iter(opened(query, forged, **CASES["shuffled"])))


@pytest.mark.slow
def test_a_forged_text_is_refused(sound):
    state, query = sound
    bomb = base64.b85encode(zlib.compress(bytes(200 << 20), 9)).decode()
    for rows in (bomb, "x" * (17 << 20), "é", "\0", "", state["left"]["rows"][:-5]):
        forged = signed({**state, "left": {**state["left"], "rows": rows}})
        with pytest.raises(tq.CheckpointMismatchError, match="its 'left'"):
            next(iter(opened(query, forged, **CASES["shuffled"])))
    for left in ({}, {"rows": 1, "after": 2}, {**state["left"], "more": 1}, [], "x", 7):
        with pytest.raises(tq.CheckpointMismatchError, match="damaged"):
            opened(query, signed({**state, "left": left}), **CASES["shuffled"])


def test_a_state_of_the_first_version_is_refused(sound):
    state, query = sound
    older = {key: value for key, value in state.items() if key != "left"}
    older = {**older, "version": 1, "parents": [{"layout": state["layout"]}] * 10_000}
    with pytest.raises(tq.CheckpointMismatchError, match="has version 1, and this .* version 2"):
        opened(query, older)


def test_rows_and_permuted_rows_are_not_mixed_up(folder):
    """Positions of a permutation of all rows are no rows of splits."""
    query = query_of(folder)
    for first, second in itertools.permutations(["global", "on"]):
        _, state = take(opened(query, **SHUFFLES[first]), 3)
        with pytest.raises(tq.CheckpointMismatchError, match='shuffle="global"'):
            next(iter(opened(query, state, **SHUFFLES[second])))
        _, state = run_of_ranks(query, None, (1, 0, 9), 4, **SHUFFLES[first])
        _, state = run_of_ranks(query, state, (2, 0, 9), 0, **SHUFFLES[first])
        assert (state["step"], state["left"] is None) == (0, False)
        with pytest.raises(tq.CheckpointMismatchError, match='shuffle="global"'):
            next(iter(opened(query, state, **SHUFFLES[second])))


# ------------------------------------------------------------------------------------------------
# A deal that takes long.

DEAL = """
import os, pathlib, signal, sys, tempfile, threading, time
sys.path.insert(0, {helpers!r})
from synthetic import plan_of
from tensorquery.distributed.topology import Topology
from tensorquery.sharding.deal import Deal
from tensorquery.sharding.epochs import Epochs

plan = plan_of(2_000, pathlib.Path(tempfile.mkdtemp()))
deal = Deal(2, 42, True, None, "even", None, "lpt")
epochs = Epochs(plan, deal, Topology(0, 1_000_000), list, plan.known_counts())
epochs.layout(0)

def strike():
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=strike).start()
try:
    epochs.all_shards(0, 0)
except KeyboardInterrupt:
    print("interrupted")
else:
    print("dealt")
"""


@pytest.mark.slow
def test_a_long_deal_ends_with_ctrl_c():
    helpers = str(next(path for path in sys.path if path.endswith("helpers")))
    process = subprocess.Popen(
        [sys.executable, "-c", DEAL.format(helpers=helpers)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    out, errors = process.communicate(timeout=300)
    assert (out.strip(), process.returncode) == ("interrupted", 0), errors
