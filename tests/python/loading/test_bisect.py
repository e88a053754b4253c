"""`bisect` finds the rows to blame for a spike between two steps, and a predicate that says them, by few calls of a test."""

from datetime import date, datetime, timedelta
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import support
import tensorquery as tq
from tensorquery.sharding.delta_debugging import minimize
from tensorquery.sql.telling_apart import tell_apart

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

ROWS = 400


@pytest.fixture(scope="module")
def query(tmp_path_factory):
    table = pa.table(
        {
            "id": range(ROWS),
            "k": [n % 7 for n in range(ROWS)],
            "source": [f"crawl {n // 40}" for n in range(ROWS)],
            "tags": [[n] for n in range(ROWS)],
        }
    )
    folder = support.write_parquet(
        tmp_path_factory.mktemp("bisect") / "t", table, files=3, row_group=30
    )
    session = tq.Session()
    session.register_parquet("t", folder)
    return session.sql("SELECT id, k, source, tags FROM t WHERE id <> 5")


def received(query, steps=20, **options):
    """Receipts of two ranks, and the ids of each step."""
    receipts, ids = [], []
    for rank in range(2):
        loader, dataset = tq.create_dataloader(
            query,
            batch_size=8,
            rank=rank,
            world_size=2,
            split_rows=30,
            output_format="dict",
            **options,
        )
        batches = [batch["id"] for _, batch in zip(range(steps), loader, strict=False)]
        receipts.append(dataset.receipt())
        ids.append(batches)
    return receipts, [[*one, *other] for one, other in zip(*ids, strict=True)]


def ids_in(dataset):
    return [row for batch in dataset for row in batch["id"].tolist()]


def blamed(culprits):
    """Column id of the physical rows that the culprits name."""
    tables = {one.path: pq.read_table(one.path)["id"].to_pylist() for one in culprits.ranges}
    return sorted(
        tables[one.path][row]
        for one in culprits.ranges
        for run in one.physical_rows
        for row in range(*run)
    )


@pytest.mark.slow
@pytest.mark.parametrize("shuffle", [False, True, "global"])
def test_the_rows_to_blame_are_found(query, shuffle, monkeypatch, tmp_path):
    monkeypatch.setenv("TENSORQUERY_STAGES", str(tmp_path))
    receipts, ids = received(query, shuffle=shuffle)
    rows = {row for step in ids[4:10] for row in step}
    bad = {sorted(rows)[20], sorted(rows)[71]}
    calls = []

    def spikes(dataset):
        found = ids_in(dataset)
        assert set(found) <= rows
        assert len(set(found)) == len(found)
        assert dataset.batch_size == 8
        calls.append(found)
        return bad <= {*found}

    culprits = tq.bisect(receipts, query, 4, 9, spikes, columns=["id", "k", "source"])
    assert blamed(culprits) == sorted(bad)
    assert (culprits.rows, culprits.candidates, culprits.is_minimal) == (2, 96, True)
    assert culprits.calls == len(calls) < 80
    assert culprits.predicate == f'"id" IN ({min(bad)}, {max(bad)})'
    assert culprits.others == 0
    if shuffle is True:
        # The same calls once more.
        before, calls[:] = [*calls], []
        again = tq.bisect(receipts, query, 4, 9, spikes, columns=["id", "k", "source"])
        assert (again, calls) == (culprits, before)
    # What it found is left out of a later run.
    if shuffle != "global":
        _, without = tq.create_dataloader(
            query, split_rows=30, exclude=culprits.ranges, output_format="numpy"
        )
        assert {*range(ROWS)} - {5} - {*ids_in(without)} == bad


@pytest.mark.slow
def test_a_predicate_says_rows_of_one_kind(query):
    some = query.select(filters="id >= 240 AND id < 330")
    receipts, _ = received(some, shuffle=True)
    whole = []

    def spikes(dataset):
        rows = [
            row
            for batch in dataset
            for row in zip(batch["k"].tolist(), batch["source"], strict=True)
        ]
        whole.append(sum(k == 3 and source == "crawl 7" for k, source in rows))
        return whole[-1] == whole[0]

    culprits = tq.bisect(receipts, some, 0, 5, spikes, columns=["k", "source"])
    assert culprits.rows == whole[0] == 6
    assert culprits.predicate == '"k" = 3 AND "source" = \'crawl 7\''
    assert (culprits.candidates, culprits.others) == (90, 0)
    assert "Culprits: 6 of 90 rows" in repr(culprits)
    assert 'and of no other: "k" = 3 AND' in repr(culprits)


def test_calls_are_bounded(query):
    receipts, _ = received(query)
    calls = []

    def spikes(dataset):
        calls.append(len(ids_in(dataset)))
        return calls[-1] > 10

    culprits = tq.bisect(receipts, query, 0, 9, spikes, max_calls=6)
    assert (culprits.calls, culprits.is_minimal) == (len(calls), False) == (6, False)
    assert 10 < culprits.rows < culprits.candidates == 160
    assert culprits.predicate is None
    assert "there may be a smaller set" in repr(culprits)


def test_a_mixture_is_replayed_without_its_weights(query):
    other = query.session.sql("SELECT id, k, source, tags FROM t WHERE k = 2")
    mixture = tq.mix([(query, 3), (other, 1)])
    receipts, ids = received(mixture, 6, shuffle=True)
    bad = ids[3][-1]
    culprits = tq.bisect(receipts, mixture, 2, 4, lambda dataset: bad in ids_in(dataset))
    assert {*blamed(culprits)} == {bad}


@pytest.mark.parametrize("seed", range(20))
def test_what_is_found_is_minimal(seed):
    """Promise of ddmin: no single item can be left out; and the bound of its calls."""
    rng = np.random.default_rng(seed)
    items = np.sort(rng.choice(1000, int(rng.integers(1, 60)), replace=False))
    bad = set(
        rng.choice(items, int(rng.integers(1, 1 + min(6, len(items)))), replace=False).tolist()
    )
    asked = []

    def test(some):
        assert sorted({*some.tolist()}) == some.tolist()
        asked.append(some.tobytes())
        return bad <= {*some.tolist()}

    found = minimize(items, test, 10**6)
    assert {*found.items.tolist()} == bad
    assert found.is_minimal
    assert found.calls == len(asked) == len({*asked}) <= len(items) ** 2 + 3 * len(items)


def test_predicates_over_every_type():
    rows = 60
    moments = [datetime(2026, 1, 1) + timedelta(hours=n) for n in range(rows)]
    table = pa.table(
        {
            "text": [f"it's {n % 4}" for n in range(rows)],
            "f": pa.array([float("nan") if n == 9 else n / 10 for n in range(rows)], pa.float32()),
            "big": pa.array([2**64 - 1 - n for n in range(rows)], pa.uint64()),
            "flag": [n % 2 == 0 for n in range(rows)],
            "null": [None if n % 20 == 9 else n for n in range(rows)],
            "day": [date(2026, 1, 1) + timedelta(n) for n in range(rows)],
            "moment": pa.array(moments, pa.timestamp("ms")),
            "zoned": pa.array(moments, pa.timestamp("us", tz="UTC")),
            "price": pa.array([Decimal(n) / 100 for n in range(rows)], pa.decimal128(9, 2)),
            "code": pa.array([f"c{n % 3}" for n in range(rows)]).dictionary_encode(),
            "end": [float("inf") if n > 50 else -1.5 * n for n in range(rows)],
        }
    )
    cases = {
        "text": (lambda n: n % 4 == 1, "text = 'it''s 1'"),
        "f": (lambda n: n == 9, "isnan(f)"),
        "big": (lambda n: n < 12, "big >= 18446744073709551604"),
        "flag": (lambda n: n % 2 == 1, "flag = FALSE"),
        "null": (lambda n: n % 20 == 9, "null"),
        "day": (lambda n: n == 4, "day = arrow_cast('2026-01-05', 'Date32')"),
        "moment": (lambda n: n < 3, "moment <= "),
        "zoned": (lambda n: 20 <= n < 40, "zoned BETWEEN "),
        "price": (lambda n: n in (3, 50), "price IN (arrow_cast('0.03', 'Decimal128(9, 2)'), "),
        "code": (lambda n: n % 3 != 0, "code >= 'c1'"),
        "end": (lambda n: n > 50, "end = CAST('inf' AS DOUBLE)"),
    }
    for name, (is_wanted, words) in cases.items():
        wanted = [is_wanted(n) for n in range(rows)]
        told = tell_apart(table.select([name]), wanted)
        assert told is not None
        assert words in told.predicate.replace(f'"{name}"', name), told
        session = tq.Session()
        session.register_table("rows", table)
        number = table.append_column("n", pa.array(range(rows)))
        session.register_table("rows", number)
        kept = session.table("rows").select(["n"], told.predicate).to_arrow()["n"].to_pylist()
        assert kept == [n for n in range(rows) if wanted[n]]
    # No term leaves out any other row.
    assert tell_apart(table.select(["flag"]), [n < 2 for n in range(rows)]) is None


def test_hostile_arguments(query):
    receipts, _ = received(query, 5)

    def ask(first=0, last=4, test=lambda dataset: True, **options):
        return tq.bisect(receipts, query, first, last, test, **options)

    for given, words in (
        ({"first": 3, "last": 2}, "last=2 must be at least first=3"),
        ({"first": -1}, "first"),
        ({"test": 3}, "test=3"),
        ({"max_calls": 0}, "max_calls=0"),
        ({"epoch": 1}, "no step 0 to 4 of epoch 1"),
        ({"first": 5, "last": 9}, "no step 5 to 9 of epoch 0"),
        ({"last": 5}, "no step 5 of epoch 0: the last is 4"),
        ({"test": lambda dataset: None}, "test returned NoneType 'None'; it must return True"),
        ({"test": lambda dataset: False}, "test is False for all 80 rows"),
        ({"columns": "id"}, "must be a list of names"),
        ({"columns": ["tags"]}, "column 'tags' has type list"),
    ):
        with pytest.raises(tq.ConfigError, match=words):
            pytest.fail(f"{given}: {ask(**given)}")
    with pytest.raises(tq.QueryError, match=r"columns= has 'sourc'.*did you mean 'source'"):
        ask(columns=["sourc"])
    with pytest.raises(ZeroDivisionError):
        ask(test=lambda dataset: 1 / 0)
