"""Promises 2 and 3 (docs/promises.md): every rank takes the same number of steps in exact batches, and each row is delivered once,
for any world size, worker count, batch size, shuffle mode, filter and remainder.

The expected sizes are computed here from the promise's own words, never by the code under test.
"""

import itertools
import math
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

import support
import tensorquery as tq
from effort import LONG

# Not about the machine that runs the tests.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

ROWS = 193
"""192 + 1: one row more than most world sizes and batch sizes divide, so the exception of promise 3 is common."""

FILTERS = {"0 %": "id < 0", "1 %": "id % 100 = 7", "50 %": "id % 2 = 0", "100 %": None}
SHUFFLES = {
    "off": {"shuffle": False},
    "on": {"shuffle": True, "shuffle_buffer_size": 24},
    "buffer only": {"shuffle": False, "shuffle_buffer_size": 10},
    "global": {"shuffle": "global"},
}
WORLD_SIZES = range(1, 9)
WORKERS = range(4) if LONG else (0, 1, 3)
SOME_WORLD_SIZES = WORLD_SIZES if LONG else (1, 2, 3, 5, 8)
BATCH_SIZES = (1, 4, 16)


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    """Table t: column id, 0 to 192, in three files of several row groups."""
    folder = support.write_parquet(
        tmp_path_factory.mktemp("equal") / "t", pa.table({"id": np.arange(ROWS)}), files=3, row_group=13
    )  # fmt: skip
    session = tq.Session()
    session.register_parquet("t", folder)
    return session


def query_of(session, where):
    return session.sql("SELECT id FROM t" + (f" WHERE {where}" if where else ""))


def dataset_of(query, rank, world_size, **options):
    return tq.QueryDataset(
        query, rank=rank, world_size=world_size, split_rows=13, output_format="numpy", **options
    )


def steps_of(rows, world_size, batch_size):
    """S = ceil(ceil(N/W)/B)."""
    return math.ceil(math.ceil(rows / world_size) / batch_size)


def expected_sizes(rows, world_size, rank, batch_size, remainder):
    """Sizes of a rank's batches by promises 2 and 3; None where equal steps are impossible."""
    share = rows // world_size + (rank < rows % world_size)
    steps = steps_of(rows, world_size, batch_size)
    if remainder == "drop":
        return [batch_size] * (rows // world_size // batch_size)
    if remainder == "pad":
        return [batch_size] * steps
    if rows == 0:
        return []
    if rows < world_size or (batch_size == 1 and rows % world_size):
        return None
    full, rest = divmod(share, batch_size)
    if full + (rest > 0) == steps:
        return [batch_size] * full + [rest] * (rest > 0)
    # The exception: this rank has no additional row, and all its batches are full.
    assert 0 < rows % (world_size * batch_size) < world_size
    assert rank >= rows % world_size
    return [batch_size] * (full - 1) + [batch_size - batch_size // 2, batch_size // 2]


def assert_names(error, rows, world_size, batch_size):
    """The error says N, W and B."""
    text = str(error.value)
    assert f"{rows} rows (N)" in text
    assert f"{world_size} ranks (W)" in text
    assert f"batches of {batch_size} (B)" in text or ("(B = 1)" in text and batch_size == 1)


def check(datasets, wanted, batch_size, workers, remainder, counted):
    """One combination: the batches of every rank and worker against the promise."""
    world_size, rows = len(datasets), len(wanted)
    seen = Counter()
    for rank, dataset in enumerate(datasets):
        sizes = expected_sizes(rows, world_size, rank, batch_size, remainder)
        steps = 0
        for worker in range(max(1, workers)):
            batches = [batch["id"] for batch in dataset._iterate(worker, workers)]
            found = [len(batch) for batch in batches]
            steps += len(found)
            if remainder == "uneven" or not counted:
                assert all(size == batch_size for size in found[:-1]), found
                assert all(0 < size <= batch_size for size in found[-1:]), found
            else:
                assert found == sizes[worker :: max(1, workers)]
            for batch in batches:
                seen.update(batch.tolist())
        if remainder != "uneven" and counted:
            assert steps == len(sizes)
    assert_rows(seen, wanted, world_size, batch_size, remainder)


def assert_rows(seen, wanted, world_size, batch_size, remainder):
    """Each row once; "drop" may lack some, "pad" may repeat some."""
    missing, added = Counter(wanted) - seen, seen - Counter(wanted)
    if remainder == "drop":
        assert missing.total() < world_size * batch_size
    else:
        assert not missing
    if remainder == "pad":
        assert set(added) <= set(wanted)
        # Each rank fills its last batch, and no other.
        steps = steps_of(len(wanted), world_size, batch_size)
        assert added.total() == world_size * steps * batch_size - len(wanted)
        assert added.total() <= world_size * batch_size
    else:
        assert not added


@pytest.mark.slow
@pytest.mark.parametrize("shuffle", SHUFFLES)
@pytest.mark.parametrize("remainder", ["even", "drop", "pad", "uneven"])
def test_every_topology(session, remainder, shuffle):
    checked = impossible = 0
    for kept, where in FILTERS.items():
        query = query_of(session, where)
        wanted = query.to_arrow()["id"].to_pylist()
        for world_size, batch_size in itertools.product(SOME_WORLD_SIZES, BATCH_SIZES):
            options = {"batch_size": batch_size, "remainder": remainder, **SHUFFLES[shuffle]}
            if (
                remainder == "even"
                and expected_sizes(len(wanted), world_size, 0, batch_size, "even") is None
            ):
                with pytest.raises(tq.ConfigError) as error:
                    list(dataset_of(query, 0, world_size, **options)._iterate(0, 0))
                assert_names(error, len(wanted), world_size, batch_size)
                impossible += 1
                continue
            datasets = [dataset_of(query, rank, world_size, **options) for rank in range(world_size)]  # fmt: skip
            for workers in WORKERS:
                # One rank need not count a filtered query: its workers may then each have a short batch.
                counted = (
                    world_size > 1
                    or workers <= 1
                    or where is None
                    or remainder in ("drop", "pad")
                    or shuffle == "global"
                )
                try:
                    check(datasets, wanted, batch_size, workers, remainder, counted)
                except (AssertionError, tq.TensorQueryError) as error:
                    raise AssertionError(
                        f"{kept} kept, W={world_size}, B={batch_size}, workers={workers}: {error}"
                    ) from error
                checked += 1
    combinations = len(FILTERS) * len(SOME_WORLD_SIZES) * len(BATCH_SIZES) * len(WORKERS)
    assert checked + impossible * len(WORKERS) == combinations
    assert (impossible > 0) == (remainder == "even")


def test_the_exception_is_met():
    """The matrix holds cases of the exception, of a short last batch, and of neither."""
    kinds = Counter()
    for rows, world_size, batch_size in itertools.product((97, ROWS), WORLD_SIZES, BATCH_SIZES):
        all_sizes = [
            expected_sizes(rows, world_size, rank, batch_size, "even") for rank in range(world_size)
        ]
        if all_sizes[0] is None:
            kinds["impossible"] += 1
            continue
        assert len({len(sizes) for sizes in all_sizes}) == 1
        assert sum(map(sum, all_sizes)) == rows
        halved = any(sizes[-2:-1] not in ([], [batch_size]) for sizes in all_sizes)
        kinds["halved" if halved else "plain"] += 1
    assert min(kinds["halved"], kinds["plain"], kinds["impossible"]) >= 5


@pytest.mark.parametrize(
    ("rows", "world_size", "batch_size"),
    # N mod (W·B) from 0 to W: below W a rank without the additional row halves its last batch.
    [(rows, 3, 5) for rows in range(29, 37)] + [(16 * 8 + extra, 8, 2) for extra in range(9)],
)
def test_around_the_exception(session, rows, world_size, batch_size):
    """Real batches, not only the formula, on both sides of its border, with a filter that is counted."""
    query = session.sql(f"SELECT id FROM t WHERE id >= {ROWS - rows}")
    found = []
    for rank in range(world_size):
        dataset = dataset_of(query, rank, world_size, batch_size=batch_size)
        sizes = [len(batch["id"]) for batch in dataset]
        assert sizes == expected_sizes(rows, world_size, rank, batch_size, "even")
        found.append(sizes)
    assert {len(sizes) for sizes in found} == {steps_of(rows, world_size, batch_size)}
    totals = [sum(sizes) for sizes in found]
    assert max(totals) - min(totals) <= 1
    halved = [sizes[-2:] == [batch_size - batch_size // 2, batch_size // 2] for sizes in found]
    extra = rows % (world_size * batch_size)
    assert any(halved) == (0 < extra < world_size)


# ------------------------------------------------------------------------------------------------
# Real worker processes, and what loader and dataset say of their sizes.


def loader_of(query, rank=0, world_size=1, **options):
    return tq.create_dataloader(query, rank=rank, world_size=world_size, split_rows=13, **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "world_size", "workers", "batch_size", "options"),
    [
        ("id % 2 = 0", 3, 2, 4, {}),
        (None, 2, 3, 16, {"shuffle": True, "shuffle_buffer_size": 24}),
        ("id % 2 = 0", 2, 2, 5, {"remainder": "pad", "shuffle": "global"}),
        ("id % 2 = 0", 2, 3, 5, {"remainder": "drop", "shuffle_buffer_size": 10}),
        ("id % 100 = 7", 2, 3, 4, {"remainder": "uneven"}),
        ("id % 2 = 0", 1, 3, 4, {}),
        ("id < 0", 2, 2, 4, {}),
    ],
)
def test_real_worker_processes(session, where, world_size, workers, batch_size, options):
    query = query_of(session, where)
    wanted = query.to_arrow()["id"].to_pylist()
    remainder = options.get("remainder", "even")
    seen = Counter()
    for rank in range(world_size):
        loader, dataset = loader_of(
            query, rank, world_size, batch_size=batch_size, num_workers=workers, **options
        )
        found = [batch["id"].tolist() for batch in loader]
        seen.update(support.flat(found))
        sizes = [len(batch) for batch in found]
        assert dataset.num_rows == sum(sizes)
        if remainder == "uneven":
            continue
        assert len(loader) == len(dataset) == len(found)
        if world_size > 1:
            assert sizes == expected_sizes(len(wanted), world_size, rank, batch_size, remainder)
    assert_rows(seen, wanted, world_size, batch_size, remainder)


@pytest.mark.slow
@pytest.mark.parametrize("where", [None, "id % 2 = 0", "id < 0"])
@pytest.mark.parametrize("workers", [0, 2])
def test_len_and_num_rows_do_not_change_on_resume(session, where, workers):
    query = query_of(session, where)
    for rank, (world_size, remainder) in itertools.product(
        range(2), [(2, "even"), (3, "drop"), (2, "pad")]
    ):
        options = {"batch_size": 4, "num_workers": workers, "remainder": remainder}
        loader, dataset = loader_of(query, rank, world_size, **options)
        before = (len(loader), len(dataset), dataset.num_rows)
        sizes = expected_sizes(query.count(), world_size, rank, 4, remainder)
        assert before == (len(sizes), len(sizes), sum(sizes))
        iterator = iter(loader)
        for _ in itertools.islice(iterator, 3):
            assert (len(loader), len(dataset), dataset.num_rows) == before
        state = loader.state_dict()
        resumed, again = loader_of(query, rank, world_size, **options)
        resumed.load_state_dict(state)
        assert (len(resumed), len(again), again.num_rows) == before
        assert len(list(resumed)) == max(0, len(sizes) - 3)
        assert (len(resumed), len(again), again.num_rows) == before


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_one_rank_counts_for_len_only(session, workers):
    """A filtered query on one rank delivers equal batches, whether len() was asked before or not."""
    query = query_of(session, "id % 2 = 0")
    plain, _ = loader_of(query, batch_size=5, num_workers=workers)
    batches = support.ids_of(plain)
    asked, dataset = loader_of(query, batch_size=5, num_workers=workers)
    assert len(asked) == len(batches)
    assert dataset.num_rows == 97
    assert support.ids_of(asked) == batches


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_uneven_has_no_len_but_a_list(session, workers):
    query = query_of(session, "id % 2 = 0")
    rows = []
    for rank in range(2):
        loader, dataset = loader_of(
            query, rank, 2, batch_size=5, num_workers=workers, remainder="uneven"
        )
        for sized in (loader, dataset):
            with pytest.raises(TypeError, match='remainder="uneven".*num_rows'):
                len(sized)
        batches = list(loader)
        rows += support.flat(support.ids_of(batches))
        assert dataset.num_rows == sum(len(batch["id"]) for batch in batches)
    assert sorted(rows) == list(range(0, ROWS, 2))


def test_one_rank_alone_may_ask_for_the_length(session):
    """No collective is behind it: `if rank == 0: len(loader)` returns."""
    query = query_of(session, "id % 2 = 0")
    loaders = [loader_of(query, rank, 2, batch_size=5)[0] for rank in range(2)]
    assert len(loaders[0]) == 10
    found = [support.ids_of(loader) for loader in loaders]
    assert [len(batches) for batches in found] == [10, 10]


@pytest.mark.parametrize("remainder", ["even", "drop", "pad", "uneven"])
def test_an_unknown_remainder_names_the_known_ones(session, remainder):
    with pytest.raises(tq.ConfigError, match=f"remainder='evn'.*'{remainder}'"):
        loader_of(query_of(session, None), remainder="evn")


# ------------------------------------------------------------------------------------------------
# A fixed number of partitions: the rows of a step do not depend on the number of ranks.


def global_batches(query, world_size, batch, **options):
    """Per step, the rows of all ranks."""
    ranks = []
    for rank in range(world_size):
        dataset = dataset_of(query, rank, world_size, batch_size=batch // world_size, **options)
        ranks.append([step["id"].tolist() for step in dataset])
    assert len({len(steps) for steps in ranks}) == 1
    return [Counter(support.flat(step)) for step in zip(*ranks, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize("shuffle", SHUFFLES)
@pytest.mark.parametrize(
    ("where", "partitions", "batch"),
    # 193 rows in batches of 16 leave one row: the exception. 136 leave 8, 96 none.
    [(None, 8, 16), ("id >= 57", 8, 16), ("id % 2 = 1", 4, 8), ("id >= 57", 4, 24)],
)
def test_a_step_holds_the_same_rows_for_every_world_size(
    session, shuffle, where, partitions, batch
):
    query = query_of(session, where)
    wanted = query.to_arrow()["id"].to_pylist()
    rows = len(wanted)
    sizes = [size for size in WORLD_SIZES if partitions % size == 0 and batch % size == 0]
    assert len(sizes) >= 3
    for remainder in ("even", "drop", "pad"):
        options = {"partitions": partitions, "remainder": remainder, **SHUFFLES[shuffle]}
        found = {size: global_batches(query, size, batch, **options) for size in sizes}
        one = found[1]
        for size, steps in found.items():
            assert_rows(sum(steps, Counter()), wanted, size, batch // size, remainder)
            exception = remainder == "even" and 0 < rows % batch < size
            sure = len(one) - 2 if exception else len(one)
            if remainder == "pad":
                # Which rows are repeated is each rank's own.
                sure = rows // batch
            assert len(steps) == len(one)
            assert steps[:sure] == one[:sure], (remainder, size)
            assert all(step.total() == batch for step in steps[: rows // batch - 1])


def test_partitions_follow_seed_and_epoch(session):
    query = query_of(session, None)
    options = {"partitions": 4, "shuffle": True}
    first = global_batches(query, 2, 16, **options)
    assert global_batches(query, 2, 16, **options) == first
    other = global_batches(query, 2, 16, shuffle_seed=1, **options)
    assert other != first
    assert sum(other, Counter()) == sum(first, Counter())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world_size", "options", "names"),
    [
        (1, {"partitions": 4, "num_workers": 2}, ["partitions=4", "num_workers=0", "got 2"]),
        (2, {"partitions": 4, "remainder": "uneven"}, ["partitions=4", 'remainder="uneven"']),
        (2, {"partitions": 4, "split_strategy": "round_robin"}, ["partitions=4", "split_strategy"]),
        (3, {"partitions": 4, "batch_size": 4}, ["partitions=4", "3"]),
        (2, {"partitions": 4, "batch_size": 3}, ["partitions=4", "6"]),
        (1, {"partitions": 0}, ["partitions=0"]),
        (1, {"partitions": "4"}, ["partitions='4'"]),
    ],
)
def test_what_does_not_go_with_partitions(session, world_size, options, names):
    with pytest.raises(tq.ConfigError) as error:
        loader_of(query_of(session, None), 0, world_size, **{"batch_size": 8, **options})
    for name in names:
        assert name in str(error.value)
