"""Promises 8 and 9 (docs/promises.md): a state is small plain data without SQL, secrets or paths. The state of another run, or a
damaged one, is refused with an error that names the difference. It never resumes wrongly, panics or hangs."""

import copy
import json
import os
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

import stopping
import support
import tensorquery as tq
from stopping import SHUFFLES, ids, query_of, take
from tensorquery import _core
from tensorquery.sharding.checkpoint import check_sum

SECRET = "hunter2-token"


@pytest.fixture
def folder(tmp_path):
    return stopping.write_table(tmp_path / "private-folder" / "t")


# ------------------------------------------------------------------------------------------------
# The contents of a state.


@pytest.mark.parametrize("remainder", ["even", "uneven"])
@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_a_state_is_small_plain_data(tmp_path, shuffle, remainder):
    folder = stopping.write_table(tmp_path / "private-folder" / "t", files=100, row_group=2)
    session = tq.Session()
    session.register_parquet("t", folder)
    query = session.sql(f"SELECT id FROM t WHERE CAST(id AS varchar) <> '{SECRET}'")
    options = {"remainder": remainder, "world_size": 2, **SHUFFLES[shuffle]}
    _, state = take(stopping.loader_of(query, **options), 5)
    text = json.dumps(state)
    assert json.loads(text) == state
    assert len(text) < 4096
    for private in (SECRET, "SELECT", "varchar", "private-folder", ".parquet", str(tmp_path)):
        assert private.lower() not in text.lower()
    # A digest is no text of the query either: 16 letters of a hash.
    assert {len(state["parts"][part]) for part in ("query", "columns", "filters")} == {16}
    # The length of a state does not grow with the steps.
    _, later = take(stopping.loader_of(query, **options), 15)
    assert len(json.dumps(later)) < len(text) + 100


def test_no_credentials(folder):
    session = tq.Session(storage_options={"aws_secret_access_key": SECRET})
    session.register_parquet("t", folder)
    _, state = take(stopping.loader_of(session.sql("SELECT id FROM t")), 2)
    assert state["step"] == 2
    assert SECRET not in json.dumps(state)


def test_a_state_is_the_callers_to_change(folder):
    loader = stopping.loader_of(query_of(folder), world_size=2, **SHUFFLES["on"])
    _, state = take(loader, 2)
    mine = loader.state_dict()
    mine["layout"]["batch_size"] = 99
    mine["layout"]["mixing"]["window"] = 99
    mine["cursors"]["0"] = [[1]]
    assert loader.state_dict() == state


def test_thousands_of_files_stay_small():
    from tensorquery.sharding.checkpoint import file_digests

    files = [(f"file-{number}", "identity") for number in range(10_000)]
    digests = file_digests(files)
    assert len(digests) <= 1024
    assert digests != file_digests([*files[:-1], ("file-9999", "another")])


# ------------------------------------------------------------------------------------------------
# A state of another run.


def loader_from(folder, **options):
    options = {"batch_size": 7, "split_rows": 9, "shuffle": True, **options}
    sql = options.pop("sql", "SELECT id, k FROM t WHERE k <> 2")
    session = tq.Session()
    session.register_parquet("t", folder)
    return tq.create_dataloader(sql, session=session, rank=0, world_size=1, **options)[0]


DIFFERENCES = {
    "another query": ({"sql": "SELECT id, k FROM t WHERE k <> 3"}, "the query"),
    "columns": ({"columns": ["id"]}, "columns"),
    "filters": ({"filters": "id > 10"}, "filters"),
    "seed": ({"shuffle_seed": 43}, r"the seed \(42 then, 43 now\)"),
    "nulls": ({"nulls": "mask"}, "tensor options"),
    "format": ({"output_format": "numpy"}, "tensor options"),
    "stack": ({"stack": {"x": ["id", "k"]}}, "tensor options"),
    "exclude": ({"exclude": [(0, 0, 3)]}, "exclude"),
    "splits": ({"split_rows": 20}, "split_bytes or split_rows"),
    "strategy": ({"split_strategy": "round_robin"}, "split_strategy"),
}


@pytest.mark.slow
@pytest.mark.parametrize("difference", DIFFERENCES)
@pytest.mark.parametrize("workers", [0, 2])
def test_what_differs_is_named(folder, difference, workers):
    options, name = DIFFERENCES[difference]
    _, state = take(loader_from(folder), 3)
    loader = loader_from(folder, num_workers=workers, **options)
    with pytest.raises(tq.CheckpointMismatchError, match=rf"what differs: {name}"):
        loader.load_state_dict(state)
    with pytest.raises(tq.CheckpointMismatchError, match=name):
        loader.dataset.load_state_dict(state)
    # The refused state left no trace.
    assert loader.dataset.epoch == 0
    assert loader.state_dict()["step"] == 0
    # A loader with the first options resumes.
    loader_from(folder).load_state_dict(state)


def test_all_differences_are_named(folder):
    _, state = take(loader_from(folder), 3)
    loader = loader_from(folder, columns=["id"], shuffle_seed=1, nulls="nan")
    with pytest.raises(tq.CheckpointMismatchError) as error:
        loader.load_state_dict(state)
    for name in ("the seed (42 then, 1 now)", "columns", "tensor options"):
        assert name in str(error.value)
    assert "exclude" not in str(error.value)


@pytest.mark.parametrize("change", ["added", "removed", "renamed"])
def test_another_list_of_files(folder, change):
    _, state = take(loader_from(folder), 3)
    if change == "added":
        support.write_parquet(f"{folder}/9", pa.table({"id": [7], "k": np.array([0])}))
    elif change == "removed":
        os.remove(f"{folder}/1/000.parquet")
    else:
        os.rename(f"{folder}/1/000.parquet", f"{folder}/1/001.parquet")
    now = {"added": 5, "removed": 3, "renamed": 4}[change]
    with pytest.raises(
        tq.CheckpointMismatchError, match=rf"the list of files \(4 then, {now} now\)"
    ):
        loader_from(folder).load_state_dict(state)


@pytest.mark.parametrize("how", ["other rows", "touched"])
def test_a_changed_file_is_named(folder, how):
    _, state = take(loader_from(folder), 3)
    path = f"{folder}/2/000.parquet"
    if how == "touched":
        os.utime(path, (1, 1))
    else:
        table = pa.table({"id": np.arange(50), "k": np.arange(50) % 5})
        support.write_parquet(f"{folder}/2", table, row_group=9)
    with pytest.raises(tq.CheckpointMismatchError, match=r"a changed file \(.*/2/000\.parquet\)"):
        loader_from(folder).load_state_dict(state)


def test_what_may_differ(folder):
    """Topology, batch size, transforms and the machine's side of loading are no part of a run's identity."""
    _, state = take(loader_from(folder, output_format="dict"), 3)
    received = Counter(support.flat(take(loader_from(folder, output_format="dict"), 3)[0]))
    loader = loader_from(
        folder,
        output_format="dict",
        batch_size=11,
        transform=dict,
        show_progress=False,
        nulls="error",
        shuffle_buffer_size=20,
    )
    loader.load_state_dict(state)
    received.update(support.flat(ids(loader)))
    assert received == Counter(query_of(folder, "k <> 2").to_arrow()["id"].to_pylist())


# ------------------------------------------------------------------------------------------------
# A damaged state.

GARBAGE = (None, "x", -1, 1.5, 2**70, [], {}, [1], {"a": 1}, True)


@pytest.fixture
def alarm():
    """A hang fails the test."""
    with support.alarm(600):
        yield


def places(value, path=()):
    """The path to every value of nested dicts and lists, containers included."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()  # fmt: skip
    for key, item in items:
        yield from places(item, (*path, key))


def edited(state, path, change):
    """A copy of `state` with `change(container, key)` applied at `path`."""
    state = copy.deepcopy(state)
    at = state
    for key in path[:-1]:
        at = at[key]
    change(at, path[-1])
    return state


def damaged(state):
    """Copies of `state`, each damaged at one place."""
    for path in places(state):
        yield path, "missing", edited(state, path, lambda at, key: at.pop(key))
        for value in GARBAGE:
            made = edited(state, path, lambda at, key, value=value: at.__setitem__(key, value))
            if json.dumps(made) != json.dumps(state):
                yield path, value, made


@pytest.fixture(params=["even", "uneven", "resumed"])
def sound(request, folder):
    """A sound state, and loaders for it."""
    query = query_of(folder, "k <> 2")
    options = {"world_size": 2, **SHUFFLES["on"]}
    if request.param == "uneven":
        options["remainder"] = "uneven"
    make = lambda **more: stopping.loader_of(query, **options, **more)  # noqa: E731
    _, state = take(make(), 3)
    if request.param == "resumed":
        _, state = take(stopping.resumed(query, state, world_size=3, **SHUFFLES["on"]), 2)
    return state, make


def test_any_damage_is_refused(sound, alarm):
    state, make = sound
    loader, cases = make(), 0
    for path, value, broken in damaged(state):
        with pytest.raises(tq.CheckpointMismatchError):
            loader.load_state_dict(broken)
            pytest.fail(f"accepted {path} = {value!r}")
        with pytest.raises(tq.CheckpointMismatchError):
            loader.load_state_dict(tq.merge_state_dicts([broken, broken]))
            pytest.fail(f"merged {path} = {value!r}")
        cases += 1
    assert cases > 300
    loader.load_state_dict(state)


@pytest.mark.slow
def test_damage_behind_a_valid_checksum_neither_panics_nor_hangs(sound, alarm):
    """Somebody edited the state and its checksum: if it still loads, it delivers only rows of the query, and no more."""
    state, make = sound
    accepted = refused = 0
    for path, value, broken in damaged(state):
        if path[0] not in ("layout", "step", "cursors", "turns", "left", "epoch"):
            continue
        if len(path) > 1 or value != "missing":
            broken["check"] = check_sum(broken)
        try:
            loader = make()
            loader.load_state_dict(broken)
            rows = support.flat(ids(loader))
        except (tq.CheckpointMismatchError, tq.ConfigError, tq.DataError):
            refused += 1
            continue
        accepted += 1
        assert set(rows) <= set(range(stopping.ROWS)), (path, value)
        assert len(rows) <= stopping.ROWS, (path, value)
    assert refused > 50
    assert accepted < refused


HUGE = (0, 1, 2**31, 2**32, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64)


@pytest.mark.slow
def test_huge_numbers_behind_a_valid_checksum(sound, alarm):
    state, make = sound
    cases = 0
    for path in places(state):
        if path[0] not in ("layout", "step", "cursors", "turns", "left", "epoch"):
            continue
        for number in HUGE:
            broken = edited(state, path, lambda at, key, number=number: at.__setitem__(key, number))
            broken["check"] = check_sum(broken)
            try:
                loader = make()
                loader.load_state_dict(broken)
                rows = support.flat(ids(loader))
            except (tq.CheckpointMismatchError, tq.ConfigError, tq.DataError):
                continue
            finally:
                cases += 1
            assert len(rows) <= stopping.ROWS, (path, number)
    assert cases > 100


@pytest.mark.parametrize(
    "state",
    [None, {}, [], "state", 7, {"format": "other"}, {"format": "tensorquery"}],
)
def test_what_is_no_state(folder, state):
    loader = stopping.loader_of(query_of(folder))
    for load in (loader.load_state_dict, loader.dataset.load_state_dict):
        with pytest.raises(tq.CheckpointMismatchError, match="state"):
            load(state)


def test_another_version_of_fingerprints_is_named(folder):
    _, state = take(stopping.loader_of(query_of(folder)), 1)
    version, _, digest = state["fingerprint"].partition("-")
    assert (int(version), len(digest)) == (_core.FINGERPRINT_VERSION, 64)
    loader = stopping.loader_of(query_of(folder))
    for other, fingerprint in ((0, digest), (int(version) + 1, f"{int(version) + 1}-{digest}")):
        older = {**state, "fingerprint": fingerprint}
        for load in (loader.load_state_dict, loader.dataset.load_state_dict):
            with pytest.raises(tq.CheckpointMismatchError, match=f"has version {other}, and this"):
                load(older)
        with pytest.raises(tq.CheckpointMismatchError, match="start a new run"):
            tq.merge_state_dicts([older])
    for fingerprint in (
        "",
        "x",
        f"{version}-",
        f"{version}-{digest[1:]}",
        f"-1-{digest}",
        f"{version}-{digest}0",
    ):
        with pytest.raises(
            tq.CheckpointMismatchError, match="the state is damaged: its 'fingerprint'"
        ):
            loader.load_state_dict({**state, "fingerprint": fingerprint})
    loader.load_state_dict(state)


def test_another_version_is_named(folder):
    _, state = take(stopping.loader_of(query_of(folder)), 1)
    for version in (0, 1, 3, "2", None):
        with pytest.raises(tq.CheckpointMismatchError, match="version"):
            stopping.loader_of(query_of(folder)).load_state_dict({**state, "version": version})
