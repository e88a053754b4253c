"""Absurd numbers in options, and text that no engine can take, cost no memory and no hours: a clear error, or the
right rows."""

import os

import numpy as np
import pyarrow as pa
import pytest

import support
import tensorquery as tq

ROWS = 1000

HUGE = (2**31, 2**40, 2**62, 2**63 - 1)
BEYOND = (2**63, 2**64, 10**30)


@pytest.fixture(autouse=True)
def alarm():
    """A hang fails the test."""
    with support.alarm(120):
        yield


@pytest.fixture
def session(tmp_path):
    session = tq.Session()
    table = pa.table({"id": range(ROWS), "v": np.arange(ROWS) / 3 + 1})
    session.register_parquet("t", support.write_parquet(tmp_path / "t", table, row_group=100))
    return session


def load(session, **options):
    """All rows of one rank."""
    options = {"rank": 0, "world_size": 1, **options}
    loader, _ = tq.create_dataloader("SELECT id, v FROM t", session=session, **options)
    return sum(len(batch["id"]) for batch in loader)


@pytest.mark.parametrize("number", HUGE)
@pytest.mark.parametrize("option", ["split_rows", "split_bytes", "shuffle_seed"])
def test_a_huge_number_that_is_only_a_bound_is_one(session, option, number):
    for more in ({}, {"shuffle": True}, {"remainder": "uneven"}):
        assert load(session, **{option: number}, **more) == ROWS


def test_batches_are_bounded_by_what_a_state_holds(session):
    assert load(session, batch_size=2**40) == ROWS
    for number in (2**40 + 1, 2**62, 2**63 - 1, 2**63):
        with pytest.raises(tq.ConfigError, match=f"batch_size={number} must be at most {2**40}"):
            load(session, batch_size=number)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{"batch_size": 2**40}, {"shuffle_seed": 2**63 - 1}, {"shuffle_seed": 2**63 - 1, "shuffle": True}],
    ids=str,
)  # fmt: skip
def test_states_with_the_largest_numbers_are_loaded(session, options):
    def make(**more):
        sql = "SELECT id FROM t WHERE id >= 50"
        more = {"rank": 0, "world_size": 1, "batch_size": 100, **options, **more}
        return tq.create_dataloader(sql, session=session, split_rows=100, **more)[0]

    loader = make(num_workers=2)
    batches = iter(loader)
    received = next(batches)["id"].tolist()
    state = loader.state_dict()
    assert state["epoch"] == 0
    for topology in ({"num_workers": 2}, {}, {"batch_size": 7}):
        loader = make(**topology)
        loader.load_state_dict(state)
        rest = [row for batch in loader for row in batch["id"].tolist()]
        assert sorted(received + rest) == list(range(50, ROWS))


@pytest.mark.parametrize("number", BEYOND)
@pytest.mark.parametrize(
    "option",
    [
        "batch_size",
        "split_rows",
        "split_bytes",
        "shuffle_seed",
        "shuffle_buffer_size",
        "world_size",
        "num_workers",
        "partitions",
    ],
)
def test_what_no_integer_of_64_bits_holds_is_refused(session, option, number):
    most = "1..=" if option == "split_bytes" else "must be at most"
    with pytest.raises(tq.ConfigError, match=f"{option}=.*{most}"):
        load(session, **{option: number})


@pytest.mark.slow
@pytest.mark.parametrize("number", HUGE)
@pytest.mark.parametrize(
    "options",
    [
        {"world_size": ...},
        {"num_workers": ...},
        {"partitions": ..., "batch_size": ...},
        {"batch_size": ..., "remainder": "pad"},
        {"num_samples": ..., "sample_weight": "v"},
        {"prefetch_factor": ..., "num_workers": 1},
    ],
    ids=lambda options: next(iter(options)),
)
def test_what_every_process_would_keep_numbers_of_is_bounded(session, options, number):
    """Each of these once allocated memory for that number, and one ended the process."""
    name = next(iter(options))
    options = {key: number if value is ... else value for key, value in options.items()}
    if name == "num_samples":
        # As many as the smallest of these are an epoch like any other.
        options["num_samples"] = max(number, 2**37)
    with pytest.raises(tq.ConfigError, match="at most"):
        load(session, **options)


@pytest.mark.slow
def test_shards_are_counted_over_ranks_and_workers(session):
    for plan in ({"world_size": 2**20, "num_workers": 2}, {"world_size": 1, "num_workers": 2**21}):
        with pytest.raises(tq.ConfigError, match="at most 1048576"):
            session.table("t").plan_shards(**plan)
    with pytest.raises(tq.ConfigError, match="2097152 shards"):
        load(session, world_size=2**19, num_workers=4, remainder="uneven")


@pytest.mark.slow
def test_a_huge_world_that_is_allowed(session):
    with pytest.raises(tq.ConfigError, match="cannot give each of 1048576 ranks"):
        load(session, world_size=2**20)
    # So many ranks are a second of planning each.
    assert load(session, world_size=2**20, rank=0, remainder="uneven") == ROWS // 10
    rows = sum(load(session, world_size=2**14, rank=rank, remainder="uneven") for rank in range(10))
    assert rows == ROWS
    assert load(session, world_size=2**20, rank=2**20 - 1, remainder="drop") == 0


def test_windows_and_epochs(session):
    with pytest.raises(tq.ConfigError, match="at most 4294967295 rows"):
        load(session, shuffle=True, shuffle_buffer_size=2**32)
    assert load(session, shuffle=True, shuffle_buffer_size=2**31) == ROWS
    loader, dataset = tq.create_dataloader(
        "SELECT id FROM t", session=session, rank=0, world_size=1, shuffle=True
    )
    dataset.set_epoch(2**62)
    assert sum(len(batch["id"]) for batch in loader) == ROWS
    assert sum(len(batch["id"]) for batch in loader) == ROWS
    for epoch in (2**62 + 1, 2**64, -1):
        with pytest.raises(tq.ConfigError, match="epoch="):
            dataset.set_epoch(epoch)


def test_padding_of_lists(tmp_path):
    session = tq.Session()
    session.register_table("t", pa.table({"l": [[1, 2], [3]]}))
    for length in (2**38, 2**62, 2**63 - 1):
        loader, _ = tq.create_dataloader(
            "SELECT l FROM t", session=session, rank=0, world_size=1, pad={"l": (0, length)}
        )
        with pytest.raises(
            tq.DataError, match="takes more memory than there is|exceeds the address"
        ):
            next(iter(loader))


@pytest.mark.parametrize("number", HUGE)
def test_ranges_that_nobody_has(session, number):
    for exclude in ([(0, 0, number)], [(number, 0, 1)]):
        with pytest.raises(tq.ConfigError, match="exclude has"):
            load(session, exclude=exclude)
    assert session.table("t").head(number).num_rows == ROWS


# ------------------------------------------------------------------------------------------------
# Text that is no UTF-8: Python says such bytes by surrogates.

NO_TEXT = os.fsdecode(b"data-\xff\xfe.parquet")


def test_text_that_is_no_utf_8_is_refused_by_name(session):
    attempts = [
        lambda: session.sql(f"SELECT * FROM '{NO_TEXT}'"),
        lambda: session.sql("SELECT '\udcff' AS x"),
        lambda: session.register_parquet("u", NO_TEXT),
        lambda: session.register_parquet("\udcff", "x.parquet"),
        lambda: session.register_view("u", "SELECT '\udcff' AS x"),
        lambda: session.table("\udcff"),
        lambda: session.table("t").select(filters="id = '\udcff'"),
        lambda: session.table("t").select(filters=[("id", "=", "\udcff")]),
        lambda: tq.create_dataloader(path=NO_TEXT),
    ]
    for attempt in attempts:
        with pytest.raises((tq.ConfigError, tq.QueryError)) as error:
            attempt()
        str(error.value).encode()
    with pytest.raises(tq.TensorQueryError):
        session.table("t").select(columns=["\udcff"])
