"""Rows drawn by weight follow the distribution of torch's WeightedRandomSampler, are the same draws for any
topology, and resume exactly."""

import collections
import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tensorquery as tq

ROWS = 1200
"""Rows of the table; those of a multiple of 5 weigh nothing."""


def weights_of(rows=ROWS):
    ids = np.arange(rows)
    return np.where(ids % 5 == 0, 0.0, 1.0 + ids % 4)


@pytest.fixture
def session(tmp_path):
    """A session whose table `t` has ids, weights, and a column besides, in two files."""
    ids = np.arange(ROWS)
    table = pa.table({"id": ids, "w": weights_of(), "x": ids.astype(np.float32)})
    pq.write_table(table.slice(0, 500), tmp_path / "a.parquet", row_group_size=64)
    pq.write_table(table.slice(500), tmp_path / "b.parquet", row_group_size=64)
    made = tq.Session()
    made.register_parquet("t", tmp_path)
    return made


@pytest.fixture(autouse=True)
def stages(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("TENSORQUERY_STAGES", str(tmp_path_factory.mktemp("stages")))


SQL = "SELECT id, w, x FROM t"


def loader_of(session, rank=0, world_size=1, sql=SQL, **options):
    defaults = {"batch_size": 32, "sample_weight": "w", "output_format": "numpy"}
    return tq.create_dataloader(
        sql, session=session, rank=rank, world_size=world_size, **{**defaults, **options}
    )


def drawn(session, epoch=0, **options):
    loader, dataset = loader_of(session, **options)
    dataset.set_epoch(epoch)
    return [row for batch in loader for row in batch["id"].tolist()]


def chi_square(counts, expected):
    return sum(
        (found - wanted) ** 2 / wanted for found, wanted in zip(counts, expected, strict=True)
    )


@pytest.mark.parametrize("kind", ["float64", "float32", "int32", "uint8"])
def test_rows_are_drawn_by_their_weight(session, kind):
    draws = 60_000
    sql = f"SELECT id, arrow_cast(w, '{kind.capitalize().replace('Uint', 'UInt')}') AS w FROM t"
    rows = drawn(session, sql=sql, num_samples=draws, batch_size=4096)
    assert len(rows) == draws
    weights = weights_of()
    counts = np.bincount(rows, minlength=ROWS)
    assert counts[weights == 0].sum() == 0
    alive = weights > 0
    expected = draws * weights[alive] / weights.sum()
    freedom = alive.sum() - 1
    off = chi_square(counts[alive], expected) - freedom
    assert abs(off) < 4 * math.sqrt(2 * freedom)
    # As draws of a class: its rows together.
    for weight in (1, 2, 3, 4):
        share = weights[weights == weight].sum() / weights.sum()
        sigma = math.sqrt(draws * share * (1 - share))
        assert abs(counts[weights == weight].sum() - draws * share) < 4 * sigma


def test_the_column_stays_and_rows_are_whole(session):
    loader, _ = loader_of(session)
    weights = weights_of()
    seen = 0
    for batch in loader:
        assert set(batch) == {"id", "w", "x"}
        assert (batch["w"] == weights[batch["id"]]).all()
        assert (batch["x"] == batch["id"]).all()
        seen += len(batch["id"])
    assert seen == ROWS


def test_draws_are_independent_of_each_other(session):
    rows = drawn(session, num_samples=40_000, batch_size=4096)
    weights = weights_of()
    heavy = weights[rows] == 4
    share = weights[weights == 4].sum() / weights.sum()
    pairs = np.count_nonzero(heavy[:-1] & heavy[1:])
    assert abs(pairs - 40_000 * share**2) < 4 * math.sqrt(40_000 * share**2)


@pytest.mark.slow
@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize("num_samples", [None, 777, 50])
def test_the_draws_do_not_depend_on_the_topology(session, replacement, num_samples):
    if num_samples is None and not replacement:
        num_samples = int(np.count_nonzero(weights_of()))
    options = {"sample_replacement": replacement, "num_samples": num_samples}
    alone = drawn(session, **options)
    assert len(alone) == (ROWS if num_samples is None else num_samples)
    if not replacement:
        assert len(set(alone)) == len(alone)
    for world_size, workers in ((1, 2), (2, 0), (3, 0), (3, 2)):
        together, steps = [], set()
        for rank in range(world_size):
            loader, dataset = loader_of(
                session, rank, world_size, num_workers=workers, batch_size=16, **options
            )
            steps.add(len(loader))
            mine = [row for batch in loader for row in batch["id"].tolist()]
            assert dataset.num_rows == len(mine)
            together += mine
        assert len(steps) == 1
        assert collections.Counter(together) == collections.Counter(alone)
    # A second call, and splits cut at other rows: the rows have the numbers that they had.
    assert drawn(session, **options) == alone


def test_epochs_and_seeds_draw_anew(session):
    first = drawn(session)
    assert drawn(session, epoch=1) != first
    assert drawn(session, shuffle_seed=43) != first
    assert drawn(session, shuffle="global") == first
    apart = {"sample_replacement": False, "num_samples": 300}
    assert set(drawn(session, **apart)) != set(drawn(session, epoch=1, **apart))


@pytest.mark.slow
@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize(
    ("before", "after"), [((1, 0), (1, 0)), ((2, 0), (2, 0)), ((2, 0), (3, 0)), ((1, 2), (2, 1))]
)
def test_a_resumed_epoch_delivers_the_rest_of_the_draws(session, replacement, before, after):
    options = {"sample_replacement": replacement, "num_samples": 600, "batch_size": 16}
    whole = collections.Counter(drawn(session, **options))
    consumed, states = [], []
    for rank in range(before[0]):
        loader, _ = loader_of(session, rank, before[0], num_workers=before[1], **options)
        for step, batch in enumerate(loader):
            consumed += batch["id"].tolist()
            if step == 6:
                states.append(loader.state_dict())
                break
    rest = []
    for rank in range(after[0]):
        loader, _ = loader_of(session, rank, after[0], num_workers=after[1], **options)
        loader.load_state_dict(tq.merge_state_dicts(states))
        for batch in loader:
            rest += batch["id"].tolist()
    assert len(consumed) == 7 * 16 * before[0]
    assert collections.Counter(consumed + rest) == whole


@pytest.mark.slow
def test_without_replacement_the_first_draw_follows_the_weights():
    session = tq.Session()
    session.register_table(
        "t", pa.table({"id": [0, 1, 2, 3], "w": [1.0, 2.0, 0.0, 5.0], "x": [0.0] * 4})
    )
    loader, dataset = loader_of(session, sample_replacement=False, num_samples=3, batch_size=3)
    epochs, firsts = 2000, collections.Counter()
    for epoch in range(epochs):
        dataset.set_epoch(epoch)
        [batch] = loader
        assert sorted(batch["id"].tolist()) == [0, 1, 3]
        firsts[int(batch["id"][0])] += 1
    for row, share in ((0, 1 / 8), (1, 2 / 8), (3, 5 / 8)):
        assert abs(firsts[row] - epochs * share) < 4 * math.sqrt(epochs * share * (1 - share))


def test_a_trace_names_the_rows_that_were_drawn(session):
    for replacement in (True, False):
        loader, dataset = loader_of(
            session, sample_replacement=replacement, num_samples=200, split_rows=64
        )
        for batch in loader:
            trace = dataset.trace()
            starts = {
                one.split: 500 if one.path.endswith("b.parquet") else 0 for one in trace.ranges
            }
            behind = [
                starts[split] + row
                for (split, _), row in zip(trace.positions, trace.physical_rows, strict=True)
            ]
            assert behind == batch["id"].tolist()


def test_a_state_of_other_draws_is_refused(session):
    loader, _ = loader_of(session)
    next(iter(loader))
    state = loader.state_dict()
    for options in (
        {"num_samples": 300},
        {"sample_weight": "x"},
        {"sample_weight": None, "shuffle": "global"},
        {"num_samples": 900, "sample_replacement": False},
    ):
        other, _ = loader_of(session, **options)
        with pytest.raises(
            tq.CheckpointMismatchError, match="sample_weight, sample_replacement or num_samples"
        ):
            other.load_state_dict(state)


def test_no_rows_are_no_draws(session):
    assert drawn(session, sql="SELECT id, w, x FROM t WHERE id < 0") == []
    with pytest.raises(tq.DataError, match="10 rows cannot be drawn, because the query has none"):
        drawn(session, sql="SELECT id, w, x FROM t WHERE id < 0", num_samples=10)


@pytest.mark.parametrize(
    "kind",
    [
        "Int8",
        "UInt64",
        "Float16",
        "Float32",
        "Decimal32(9, 2)",
        "Decimal64(18, 4)",
        "Decimal128(20, 6)",
        "Decimal128(12, 0)",
        "Decimal256(70, 30)",
        "Dictionary(Int16, Float64)",
        "Dictionary(Int8, Decimal128(10, 3))",
    ],
)
def test_weights_of_any_number_type(session, kind):
    """The weights are small whole numbers, which each of these types holds exactly; those of 0 are never drawn."""
    values = kind.split(", ", 1)[1][:-1] if kind.startswith("Dictionary") else kind
    sql = f"SELECT id, arrow_cast(arrow_cast(w, '{values}'), '{kind}') AS w FROM t"
    loader, _ = loader_of(
        session, sql=sql, output_format="arrow", sample_replacement=False, num_samples=960
    )
    found = [row for batch in loader for row in batch["id"].to_pylist()]
    alive = [row for row in range(ROWS) if row % 5]
    assert sorted(found) == alive
    # The heavy ones come first.
    weights = weights_of()
    assert weights[found[:240]].mean() > weights[found[-240:]].mean() + 0.5


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("CASE WHEN id = 17 THEN -0.5 ELSE 1 END", '"w" is -0.5 in row 17 of the query'),
        ("CASE WHEN id = 701 THEN NULL ELSE 1 END", '"w" is null in row 701 of the query'),
        (
            "CASE WHEN id = 3 THEN CAST('NaN' AS DOUBLE) ELSE 1 END",
            '"w" is NaN in row 3 of the query',
        ),
        (
            "CASE WHEN id = 3 THEN CAST('inf' AS DOUBLE) ELSE 1 END",
            '"w" is inf in row 3 of the query',
        ),
        (
            "CAST(CASE WHEN id = 17 THEN -0.25 ELSE 1 END AS DECIMAL(9, 4))",
            '"w" is -0.25 in row 17 of the query',
        ),
        (
            "arrow_cast(CASE WHEN id = 5 THEN NULL ELSE 1 END, 'Dictionary(Int32, Int64)')",
            '"w" is null in row 5 of the query',
        ),
        ("CAST(0 AS INT)", "all 1200 weights are 0"),
        ("1e308", "the sum of the weights is not finite"),
    ],
)
def test_what_is_no_weight_is_named(session, expression, words):
    with pytest.raises(tq.DataError) as error:
        drawn(session, sql=f"SELECT id, {expression} AS w FROM t")
    assert words in str(error.value)
    assert "w" in str(error.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sample_weight": "ww"}, 'sample_weight="ww" is no column of the query; did you mean "w"'),
        ({"sample_weight": 3}, "must be the name of an output column"),
        (
            {"sql": "SELECT id, CAST(w AS VARCHAR) AS w FROM t"},
            'sample_weight="w" has the type Utf8',
        ),
        ({"shuffle": True}, "draws come in random order anyway"),
        ({"num_samples": 0}, "num_samples=0 must be an integer of at least 1"),
        ({"sample_replacement": "no"}, "sample_replacement='no' must be True or False"),
        ({"sample_weight": None, "num_samples": 5}, "num_samples=5 goes with sample_weight="),
        (
            {"sample_weight": None, "sample_replacement": False},
            "sample_replacement=False goes with sample_weight=",
        ),
        ({"shuffle_buffer_size": 10}, "shuffle_buffer_size does not go with sample_weight"),
        ({"exclude": [(0, 0, 1)]}, "exclude does not go with sample_weight"),
        ({"assignment": "dynamic"}, "sample_weight, which draws rows and not splits, does not go"),
    ],
)
def test_options_that_cannot_be_are_refused_at_once(session, options, words):
    with pytest.raises(tq.ConfigError) as error:
        loader_of(session, **options)
    assert words in str(error.value)


def test_more_draws_than_rows_with_a_weight_are_refused(session):
    positive = int(np.count_nonzero(weights_of()))
    for wanted in (None, positive + 1):
        loader, _ = loader_of(session, sample_replacement=False, num_samples=wanted)
        with pytest.raises(
            tq.ConfigError, match=f"only {positive} of {ROWS} rows have a weight above 0"
        ):
            list(loader)


def test_a_rare_class_is_balanced_by_a_window(session):
    """The way that the page shows: the weight of a row is one over the rows of its class."""
    query = (
        "SELECT t.id, CASE WHEN t.id % 20 = 0 THEN 1 ELSE 0 END AS label, "
        "CASE WHEN t.id % 20 = 0 THEN 1.0 / 60 ELSE 1.0 / 1140 END AS w FROM t"
    )
    loader, _ = loader_of(session, sql=query, num_samples=10_000, batch_size=1000)
    labels = np.concatenate([batch["label"] for batch in loader])
    assert abs(labels.sum() - 5000) < 4 * 50
