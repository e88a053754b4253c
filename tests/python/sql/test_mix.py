"""Promise: a mixture delivers its queries' rows by weight, and is dealt, shuffled and resumed like one query."""

import collections
import itertools
import json
import random
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest

import support
import tensorquery as tq

SIZES = {"a": 1000, "b": 300, "c": 50}
WEIGHTS = {"a": 0.7, "b": 0.2, "c": 0.1}
FIRST = {"a": 0, "b": 10_000, "c": 20_000}


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    root = tmp_path_factory.mktemp("mix")
    session = tq.Session()
    for name, rows in SIZES.items():
        ids = np.arange(FIRST[name], FIRST[name] + rows)
        folder = support.write_parquet(root / name, pa.table({"id": ids}), files=3, row_group=20)
        session.register_parquet(name, folder)
    return session


def mixture(session, stop, where="id >= 0"):
    pairs = [(session.sql(f"SELECT id FROM {name} WHERE {where}"), WEIGHTS[name]) for name in SIZES]
    return tq.mix(pairs, stop=stop)


def loader(session, stop, where="id >= 0", **options):
    options = {"batch_size": 10, "output_format": "numpy", **options}
    return tq.create_dataloader(mixture(session, stop, where), **options)[0]


def batches(loader):
    return [batch["id"].tolist() for batch in loader]


def sources(ids):
    return collections.Counter("abc"[row // 10_000] for row in ids)


@pytest.mark.slow
@pytest.mark.parametrize("shuffle", [{}, {"shuffle": True, "shuffle_buffer_size": 30}])
@pytest.mark.parametrize(("world_size", "workers", "batch"), [(1, 0, 10), (3, 0, 16), (2, 3, 7)])
def test_all_delivers_each_row_once_in_equal_steps(session, shuffle, world_size, workers, batch):
    found, steps = [], []
    for rank in range(world_size):
        options = {"rank": rank, "world_size": world_size, "batch_size": batch, **shuffle}
        dataset = tq.QueryDataset(mixture(session, "all"), output_format="numpy", **options)
        dataset._state.workers = workers
        own = [batches(dataset._iterate(worker, workers)) for worker in range(max(1, workers))]
        steps.append(sum(map(len, own)))
        assert steps[-1] == len(dataset)
        found += support.flat(support.flat(own))
    assert sorted(found) == sorted(
        row for name, rows in SIZES.items() for row in range(FIRST[name], FIRST[name] + rows)
    )
    assert len(set(steps)) == 1


@pytest.mark.parametrize("where", ["id >= 0", "id % 3 = 0"])
def test_first_ends_with_the_first_that_runs_out(session, where):
    rows = {
        name: sum(
            1 for row in range(FIRST[name], FIRST[name] + rows) if "%" not in where or row % 3 == 0
        )
        for name, rows in SIZES.items()
    }
    wanted = min(rows[name] / WEIGHTS[name] for name in SIZES)
    found = support.flat(batches(loader(session, "first", where)))
    assert len(found) == len(set(found))
    assert abs(wanted - len(found)) <= 1
    for name, count in sources(found).items():
        assert abs(count - WEIGHTS[name] * len(found)) <= 2


def test_every_batch_has_its_share_of_each(session):
    for batch in batches(loader(session, "first", batch_size=20)):
        assert sources(batch) == {"a": 14, "b": 4, "c": 2}
    # Batches of fewer rows than sources are right on average.
    single = support.flat(batches(loader(session, "first", batch_size=1)))
    assert abs(sources(single[:100])["a"] - 70) <= 2


def test_first_delivers_other_rows_of_the_larger_query_in_every_epoch(session):
    both = loader(session, "first", shuffle=True, shuffle_buffer_size=30)
    one, two = (set(support.flat(batches(both))) for _ in range(2))
    assert {row for row in one if row >= 20_000} == {row for row in two if row >= 20_000}
    assert {row for row in one if row < 10_000} != {row for row in two if row < 10_000}


@pytest.mark.slow
@pytest.mark.parametrize("stop", ["first", "all"])
def test_a_stopped_mixture_goes_on(session, stop):
    options = {"shuffle": True, "shuffle_buffer_size": 30}
    whole = batches(loader(session, stop, **options))
    everything = sorted(support.flat(whole))
    for step in random.Random(3).sample(range(1, len(whole)), 6):
        first = loader(session, stop, **options)
        running = iter(first)
        seen = [next(running)["id"].tolist() for _ in range(step)]
        state = json.loads(json.dumps(first.state_dict()))
        again = loader(session, stop, **options)
        again.load_state_dict(state)
        assert seen + batches(again) == whole
        rest = []
        for rank in range(2):
            other = loader(session, stop, rank=rank, world_size=2, batch_size=8, **options)
            other.load_state_dict(state)
            rest += support.flat(batches(other))
        together = support.flat(seen) + rest
        assert len(together) == len(set(together)) == len(everything)
        if stop == "all":
            assert sorted(together) == everything


def test_other_weights_are_another_run(session):
    state = loader(session, "all").state_dict()
    pairs = [(session.sql(f"SELECT id FROM {name} WHERE id >= 0"), 1) for name in SIZES]
    other, _ = tq.create_dataloader(tq.mix(pairs, stop="all"), batch_size=10, output_format="numpy")
    with pytest.raises(tq.CheckpointMismatchError, match="the weights or stop= of the mixture"):
        other.load_state_dict(state)


def test_a_query_without_rows(session):
    none = session.sql("SELECT id FROM a WHERE id < 0")
    never = session.sql("SELECT id FROM b WHERE false")
    some = session.sql("SELECT id FROM c")
    for empty in (none, never):
        mixed = tq.mix([(empty, 1), (some, 1)], stop="all")
        found, _ = tq.create_dataloader(mixed, output_format="numpy")
        assert sorted(support.flat(batches(found))) == list(range(20_000, 20_050))
        mixed = tq.mix([(empty, 1), (some, 1)])
        assert batches(tq.create_dataloader(mixed, output_format="numpy")[0]) == []


@pytest.mark.parametrize("where", ["day = 3", "false", "day = 3 AND id < 0"])
def test_a_query_whose_files_are_all_left_out(tmp_path, where):
    """Its scan is planned and has no files. A query known to be empty from its SQL alone has no scan."""
    for day in (1, 2):
        ids = np.arange(day * 100, day * 100 + 50)
        support.write_parquet(tmp_path / "t" / f"day={day}", pa.table({"id": ids}))
    session = tq.Session()
    session.register_parquet("t", tmp_path / "t")
    days = {f"day = {day}": list(range(day * 100, day * 100 + 50)) for day in (1, 2)}
    for order in itertools.permutations([where, *days]):
        pairs = [(session.sql(f"SELECT id FROM t WHERE {part}"), 1) for part in order]
        found, _ = tq.create_dataloader(
            tq.mix(pairs, stop="all"), batch_size=20, output_format="numpy"
        )
        for batch in batches(found):
            first = [row for row in batch if row // 100 == int(order[order[0] == where][-1])]
            assert (len(batch), first) == (20, batch[:10])
        assert sorted(support.flat(batches(found))) == sorted(support.flat(days.values()))


def test_columns_and_filters_narrow_all_of_them(session):
    mixed = mixture(session, "all")
    found, _ = tq.create_dataloader(
        mixed, columns=["id"], filters="id % 2 = 0", output_format="numpy"
    )
    assert len(support.flat(batches(found))) == sum(SIZES.values()) // 2


@pytest.mark.parametrize(
    ("weights", "shares"),
    [
        ([np.float32(1), np.int64(3)], [0.25, 0.75]),
        ([Fraction(1, 3), 1], [0.25, 0.75]),
        ([1e308, 1e308], [0.5, 0.5]),
        ([5e-324, 5e-324], [0.5, 0.5]),
        ([0.7, 0.3], [0.7, 0.3]),
    ],
)
def test_weights_are_any_numbers_and_their_ratio_counts(session, weights, shares):
    query = session.sql("SELECT id FROM a")
    assert tq.mix([(query, weight) for weight in weights]).weights == shares


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda a, b: tq.mix([]), tq.ConfigError, "no query"),
        (lambda a, b: tq.mix([a, b]), tq.ConfigError, r"pairs .*, \[\(query, 0\.5\), …\]$"),
        (lambda a, b: tq.mix(a), tq.ConfigError, "pairs"),
        (lambda a, b: tq.mix([(a, 1, 2)]), tq.ConfigError, "pairs"),
        (lambda a, b: tq.mix({a: 0.5}), tq.ConfigError, "pairs"),
        (lambda a, b: tq.mix([(a, 0)]), tq.ConfigError, "above 0"),
        (lambda a, b: tq.mix([(a, float("nan"))]), tq.ConfigError, "above 0"),
        (lambda a, b: tq.mix([(a, True)]), tq.ConfigError, "above 0"),
        (lambda a, b: tq.mix([(a, "1")]), tq.ConfigError, "above 0"),
        (lambda a, b: tq.mix([(a, 10**400)]), tq.ConfigError, "more than a float holds"),
        (lambda a, b: tq.mix([("SELECT 1", 1)]), tq.ConfigError, "takes queries, got str"),
        (lambda a, b: tq.mix([(a, 1)], stop="last"), tq.ConfigError, "'first', 'all'"),
        (lambda a, b: tq.mix([(a, 1), (b, 1)]), tq.QueryError, "same columns"),
        (
            lambda a, b: tq.create_dataloader(tq.mix([(a, 1)]), remainder="uneven"),
            tq.ConfigError,
            "uneven",
        ),
        (
            lambda a, b: tq.create_dataloader(tq.mix([(a, 1)]), partitions=2),
            tq.ConfigError,
            "mixture",
        ),
        (
            lambda a, b: tq.create_dataloader(tq.mix([(a, 1)]), shuffle="global"),
            tq.ConfigError,
            "a mixture does not go with",
        ),
    ],
)
def test_what_is_no_mixture_is_refused(session, make, error, words):
    a, b = session.sql("SELECT id FROM a"), session.sql("SELECT id AS other FROM b")
    with pytest.raises(error, match=words):
        make(a, b)


def test_one_name_for_two_tables_is_refused():
    pairs = []
    for start in (0, 10):
        session = tq.Session()
        session.register_table("t", pa.table({"id": range(start, start + 5)}))
        pairs.append((session.sql("SELECT id FROM t"), 1))
    with pytest.raises(tq.ConfigError, match='different tables of the name "t"'):
        tq.mix(pairs)
