"""Promise: `shuffle=True` mixes. Over an epoch of data that is sorted by label, the labels of batches vary no more
than those of uniform samples. Where that is impossible, the plan says so, and its prediction matches the
measurement."""

import json
import math
import warnings

import numpy as np
import pyarrow as pa
import pytest
import torch

import support
import tensorquery as tq

LABELS, FILES = 10, 10
# The order depends on the paths of the files, so that every run draws anew: what mixes must fail once in a million runs,
# and not once in a hundred. What does not mix is far beyond both.
SURE = 1e-6


def chi_square_p(observed):
    """The p-value of Pearson's test that all rows of a contingency table have one distribution.

    `observed` has a row per batch. For batches of a uniform permutation the margins are fixed and the statistic
    has (batches - 1) × (labels - 1) degrees of freedom; only too large a statistic counts against it.
    """
    observed = torch.as_tensor(observed, dtype=torch.float64)
    expected = observed.sum(1, keepdim=True) * observed.sum(0) / observed.sum()
    statistic = ((observed - expected) ** 2 / expected).sum()
    freedom = torch.tensor(
        float((len(observed) - 1) * (observed.shape[1] - 1)), dtype=torch.float64
    )
    return float(torch.special.gammaincc(freedom / 2, statistic / 2))


def p_of(query, batch_size, epochs=1, **options):
    """The smallest p-value of some epochs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        loader, _ = tq.create_dataloader(query, batch_size=batch_size, **options)
    found = []
    for _ in range(epochs):
        counts = [torch.bincount(batch["label"], minlength=LABELS) for batch in loader]
        found.append(chi_square_p(torch.stack(counts[:-1])))  # the last batch is short
    return min(found)


def write_sorted(folder, rows, row_group, labels=None, files=FILES):
    """`rows` rows in the order of their label."""
    if labels is None:
        labels = np.arange(rows) * LABELS // rows
    table = pa.table({"id": np.arange(rows), "label": labels.astype(np.int64)})
    return support.write_parquet(folder, table, files=files, row_group=row_group)


def query_of(folder):
    session = tq.Session()
    session.register_parquet("t", folder)
    return session.table("t")


# Rows, rows of a row group: one window; many of them (65,536 to 262,144 rows), with one or many splits per file.
SIZES = {
    "one window": (50_000, 1_000),
    "a split per file": (600_000, 60_000),
    "many windows": (600_000, 10_000),
    "many small splits": (600_000, 2_000),
    "larger than any window": (3_000_000, 50_000),
}


@pytest.fixture(scope="module", params=SIZES)
def sorted_data(request, tmp_path_factory):
    rows, group = SIZES[request.param]
    folder = tmp_path_factory.mktemp("sorted")
    return query_of(write_sorted(folder, rows, group))


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [64, 1024])
def test_shuffle_samples_labels_uniformly(sorted_data, batch_size):
    for seed in (1, 2):
        assert p_of(sorted_data, batch_size, shuffle=True, shuffle_seed=seed) > SURE


@pytest.mark.slow
def test_a_permutation_of_all_rows_does(sorted_data):
    assert p_of(sorted_data, 1024, shuffle="global") > SURE


def test_split_order_alone_does_not(sorted_data):
    assert p_of(sorted_data, 1024) < 1e-9
    assert p_of(sorted_data, 1024, shuffle=True, shuffle_buffer_size=1) < 1e-9


def test_over_ranks_and_workers_every_shard_is_mixed(tmp_path):
    """A shard's labels are those of its splits; its batches are uniform samples of them."""
    query = query_of(write_sorted(tmp_path, 600_000, 2_000))
    for shard in support.read_shards(query, 2, 2, shuffle=True, batch_size=1024):
        counts = [np.bincount(batch["label"].to_numpy(), minlength=LABELS) for batch in shard[:-1]]
        assert chi_square_p(np.stack(counts)) > SURE


@pytest.mark.slow
def test_a_window_that_is_too_small_does_not_and_is_warned_of(tmp_path):
    """The warning is right on both sides: what it is silent about passes, what it warns of fails."""
    query = query_of(write_sorted(tmp_path, 400_000, 1_000))
    warned = []
    for buffer in (2_000, 20_000, 65_536, 400_000):
        options = {"shuffle": True, "shuffle_buffer_size": buffer}
        warning = query.plan_shards(**options).quality.warning
        warned.append(warning is not None)
        passes = p_of(query, 1024, **options) > SURE
        assert passes == (warning is None), (buffer, warning)
    assert warned == [True, True, False, False]


def test_the_test_itself():
    """p-values of true multinomial batches are uniform; a drift of a few percent is found."""
    rng = np.random.default_rng(5)
    labels = rng.permutation(np.arange(300_000) % LABELS)
    even = np.stack([np.bincount(part, minlength=LABELS) for part in labels.reshape(300, 1000)])
    assert 0.01 < chi_square_p(even) < 0.99
    drift = even.copy()
    drift[:150, 0] += 40
    assert chi_square_p(drift) < 1e-6
    assert math.isclose(chi_square_p(np.full((5, 4), 7)), 1.0)


# ------------------------------------------------------------------------------------------------
# The warning.


def warnings_of(query, **options):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tq.create_dataloader(query, **options)
    return [one for one in caught if issubclass(one.category, UserWarning)]


def test_a_loader_warns_once_and_names_the_column(tmp_path):
    query = query_of(write_sorted(tmp_path, 10_000, 100))
    (one,) = warnings_of(query, shuffle=True, shuffle_buffer_size=500)
    assert "sorted by id, label" in str(one.message)
    assert "a shuffle window of 500 rows" in str(one.message)
    assert 'shuffle="global"' in str(one.message)
    assert one.filename == __file__
    (one,) = warnings_of(query, shuffle_buffer_size=500)
    assert "sorted by id, label" in str(one.message)
    (one,) = warnings_of(query.select(["label"]), shuffle=True, shuffle_buffer_size=1)
    assert "sorted by label, and split order alone" in str(one.message)
    assert warnings_of(query) == []
    assert warnings_of(query, shuffle="global") == []
    assert warnings_of(query, shuffle=True) == []
    text = repr(query.plan_shards(shuffle=True, shuffle_buffer_size=500))
    assert "\nwarning: the data is sorted by id, label" in text


def sorted_by(tmp_path, columns, row_group=100, files=5, **options):
    folder = support.write_parquet(
        tmp_path / str(len(list(tmp_path.iterdir()))),
        pa.table(columns),
        files=files,
        row_group=row_group,
        **options,
    )
    return query_of(folder).plan_shards(shuffle=True, shuffle_buffer_size=10).quality.sorted_by


def test_what_counts_as_sorted(tmp_path):
    rows = np.arange(5000)
    up, down = {"x": rows}, {"x": -rows}
    assert sorted_by(tmp_path, up) == ("x",)
    assert sorted_by(tmp_path, down) == ("x (descending)",)
    assert sorted_by(tmp_path, {"x": [f"{i:05}" for i in rows]}) == ("x",)
    assert sorted_by(tmp_path, {"x": rows * 0.5, "y": rows % 7}) == ("x",)
    # Few values, in runs: row groups meet at their borders.
    assert sorted_by(tmp_path, {"x": rows // 1000}) == ("x",)
    # One value everywhere, seven row groups, no statistics, up and down, sorted inside row groups only.
    assert sorted_by(tmp_path, {"x": rows * 0}) == ()
    assert sorted_by(tmp_path, {"x": rows[:700]}, files=1) == ()
    assert sorted_by(tmp_path, up, write_statistics=False) == ()
    assert sorted_by(tmp_path, {"x": abs(rows - 2500)}) == ()
    assert sorted_by(tmp_path, {"x": rows % 100}) == ()
    # Row groups without any value say nothing.
    values = [None if 1000 <= i < 1200 else int(i) for i in rows]
    assert sorted_by(tmp_path, {"x": pa.array(values)}) == ()


def test_hive_columns_and_pruned_row_groups(tmp_path):
    rng = np.random.default_rng(3)
    for label in range(LABELS):
        support.write_parquet(tmp_path / f"label={label}", pa.table({"x": rng.random(100)}))
    quality = query_of(tmp_path).plan_shards(shuffle=True, shuffle_buffer_size=10).quality
    assert quality.sorted_by == ("label",)


@pytest.mark.slow
def test_no_footer_is_read_again_and_nothing_of_other_formats(tmp_path):
    table = pa.table({"id": np.arange(3000)})
    support.write_parquet(tmp_path / "parquet", table, files=3, row_group=100)
    support.write_csv(tmp_path / "csv", table, files=10)
    log = tmp_path / "log"
    with support.serve(tmp_path, log) as url:
        session = tq.Session()
        names = [f"{url}/parquet/{number:03}.parquet" for number in range(3)]
        session.register_parquet("t", names)
        session.table("t").plan_shards()
        traffic = support.Traffic(log)
        traffic.take()
        assert session.table("t").plan_shards(shuffle=True).quality.sorted_by == ("id",)
        assert traffic.take() == []
    session.register_csv("c", tmp_path / "csv")
    quality = session.table("c").plan_shards(shuffle=True, shuffle_buffer_size=10).quality
    assert (quality.sorted_by, quality.warning) == ((), None)


# ------------------------------------------------------------------------------------------------
# Predictions of a plan.

MODES = {
    "default": {"shuffle": True},
    "small window": {"shuffle": True, "shuffle_buffer_size": 3_000},
    "window alone": {"shuffle_buffer_size": 5_000},
    "split order": {"shuffle": True, "shuffle_buffer_size": 1},
    "partitions": {"shuffle": True, "partitions": 4, "shuffle_buffer_size": 20_000},
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("files", [3, 40])
def test_predicted_and_measured_share_of_a_split_agree(tmp_path, mode, files):
    rng = np.random.default_rng(11)
    table = pa.table({"id": rng.permutation(120_000)})
    folder = support.write_parquet(tmp_path, table, files=files, rng=rng, row_group=2_000)
    query = query_of(folder)
    options = {"batch_size": 1000, **MODES[mode]}
    loader, dataset = tq.create_dataloader(query, **options)
    assert sum(len(batch["id"]) for batch in loader) == 120_000
    measured = dataset.metrics()["split_share"]
    predicted = dataset.shard_plan().quality.split_share
    assert predicted == query.plan_shards(**options).quality.split_share
    assert measured / 1.5 <= predicted <= measured * 1.5


def test_a_plan_says_what_partitions_cost(tmp_path):
    query = query_of(write_sorted(tmp_path, 10_000, 100))
    quality = query.plan_shards(
        world_size=2, batch_size=64, shuffle=True, partitions=8, shuffle_buffer_size=800
    ).quality
    assert (quality.open_splits, quality.open_windows, quality.window_rows) == (4, 4, 100)
    several = query.plan_shards(world_size=2, num_workers=3, shuffle=True).quality
    assert several.open_windows == 3
    with pytest.raises(tq.ConfigError, match="multiple"):
        query.plan_shards(world_size=3, batch_size=64, shuffle=True, partitions=8)


def test_a_plan_says_rows_and_steps_of_every_rank(tmp_path):
    query = query_of(write_sorted(tmp_path, 10_000, 100))
    plan = query.plan_shards(world_size=3, num_workers=2, batch_size=100)
    assert [(rank.rank, rank.rows, rank.steps) for rank in plan.ranks] == [
        (0, 3334, 34), (1, 3333, 34), (2, 3333, 34),
    ]  # fmt: skip
    assert "every rank delivers 3,333 to 3,334 rows in 34 steps" in repr(plan)
    assert plan.quality is None
    data = json.loads(json.dumps(plan.to_dict()))
    assert data["ranks"][1] == {"rank": 1, "rows": 3333, "steps": 34}
    dropped = query.plan_shards(world_size=3, batch_size=100, remainder="drop")
    assert [(rank.rows, rank.steps) for rank in dropped.ranks] == [(3300, 33)] * 3
    # Unknown without a count, or without a batch size.
    filtered = query.select(filters="id % 2 = 0").plan_shards(world_size=3, batch_size=100)
    assert filtered.ranks == []
    assert query.plan_shards(world_size=3).ranks == []
    with pytest.raises(tq.ConfigError, match="remainder"):
        query.plan_shards(remainder="most")
