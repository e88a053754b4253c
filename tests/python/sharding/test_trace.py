"""`dataset.trace` names the physical rows behind every step of every rank: read from the named file, they are the
batch. Leaving a traced range out leaves out exactly its rows."""

import itertools
import json
from bisect import bisect_right
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import support
import tensorquery as tq

ROWS = 300

QUERIES = {
    "all": "SELECT id, k FROM t",
    "pushed down": "SELECT id FROM t WHERE k < 3",
    "null and nan": "SELECT id, v FROM t WHERE v > 0",
    "not null": "SELECT id FROM t WHERE v IS NOT NULL AND NOT isnan(v)",
    "expression": "SELECT id, k + 1 AS next FROM t WHERE id % 7 = 3 OR k = 0",
    "not pushed down": "SELECT id FROM t WHERE array_length(list) > 1",
    "both": "SELECT id FROM t WHERE array_length(list) > 1 AND k > 1",
    "nothing": "SELECT id FROM t WHERE k > 99",
    "inner join": "SELECT id, name FROM t JOIN d ON t.k = d.k WHERE id > 20",
    "left join": "SELECT id, name FROM t LEFT JOIN d ON t.k = d.k WHERE v IS NOT NULL",
    "left join on more": "SELECT id, name FROM t LEFT JOIN d ON t.k = d.k AND d.number < t.id % 9",
    "right join": "SELECT id, name FROM d RIGHT JOIN t ON t.k = d.k",
    "semi join": "SELECT id FROM t WHERE k IN (SELECT k FROM d WHERE number > 2)",
    "anti join": "SELECT id FROM t WHERE NOT EXISTS (SELECT 1 FROM d WHERE d.k = t.k)",
    "mark join": "SELECT id FROM t WHERE id < 30 OR EXISTS (SELECT 1 FROM d WHERE d.k = t.k)",
    "by inequality": "SELECT id, name FROM t JOIN d ON t.k < d.number WHERE id > 9 AND t.k <> 5",
    "left by inequality": "SELECT id, name FROM t LEFT JOIN d ON t.k < d.number - 2 WHERE t.k <> 5",
    "cross join": "SELECT id, name FROM t CROSS JOIN d WHERE t.k = 2",
    "unnest": "SELECT id, unnest(list) AS item FROM t WHERE k <> 4",
    "unnest and filter": "SELECT * FROM (SELECT id, unnest(list) AS item FROM t) WHERE item > 0",
    "union": "SELECT id FROM t WHERE k = 1 UNION ALL SELECT id FROM t WHERE k > 3",
    "union of a join": "SELECT id FROM t JOIN d ON t.k = d.k UNION ALL SELECT id FROM t WHERE v < 0",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    rng = np.random.default_rng(5)
    table = support.random_table(rng, ROWS, ["list", "s"])
    return support.write_parquet(tmp_path_factory.mktemp("t"), table, files=3, rng=rng)


@pytest.fixture(scope="module")
def session(folder):
    session = tq.Session()
    session.register_parquet("t", folder)
    d = pa.table({"k": [1, 1, 2, 4, 9], "number": [1, 2, 3, 4, 5], "name": list("abcde")})
    session.register_table("d", d)
    return session


@pytest.fixture(autouse=True)
def stages(monkeypatch, tmp_path):
    monkeypatch.setenv("TENSORQUERY_STAGES", str(tmp_path / "stages"))


def group_ends(path):
    """One past the last row of each row group."""
    metadata = pq.ParquetFile(path).metadata
    sizes = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
    return [*itertools.accumulate(sizes)]


def ids_behind(trace):
    """Column id of the physical rows that a trace names, in the order of the batch, read by pyarrow."""
    files = {one.split: one.path for one in trace.ranges}
    tables = {
        path: pq.read_table(path, columns=["id"])["id"].to_pylist() for path in files.values()
    }
    ends = {path: group_ends(path) for path in tables}
    for one in trace.ranges:
        assert one.counted_from == "file"
        rows = support.flat([range(*run) for run in one.physical_rows])
        assert one.row_groups == tuple(sorted({bisect_right(ends[one.path], row) for row in rows}))
    return [
        tables[files[split]][row]
        for (split, _), row in zip(trace.positions, trace.physical_rows, strict=True)
    ]


def epoch_of(dataset, workers):
    """The batches of this rank in the order in which a loader with `workers` workers delivers them."""
    lists = [list(dataset._iterate(worker, workers)) for worker in range(max(1, workers))]
    rounds = itertools.zip_longest(*lists)
    return [batch for batches in rounds for batch in batches if batch is not None]


def make(query, rank=0, world_size=1, **options):
    options = {"output_format": "arrow", "split_rows": 40, **options}
    return tq.QueryDataset(query, rank=rank, world_size=world_size, **options)


def check_epoch(query, world_size, workers, **options):
    """Every step of every rank, traced from rank 0, is what that rank delivers; returns the batches checked."""
    tracer = make(query, 0, world_size, **options)
    tracer._state.workers = workers
    checked = 0
    for rank in range(world_size):
        batches = epoch_of(make(query, rank, world_size, **options), workers)
        for step, batch in enumerate(batches):
            trace = tracer.trace(rank, step)
            assert trace.rows == batch.num_rows == len(trace.positions)
            assert ids_behind(trace) == batch["id"].to_pylist(), (rank, step)
            covered = Counter(
                (one.split, row) for one in trace.ranges for row in range(one.start, one.end)
            )
            assert set(covered) == set(trace.positions)
            checked += 1
        with pytest.raises(tq.ConfigError, match=rf"step {len(batches)} must be"):
            tracer.trace(rank, len(batches))
    return checked


@pytest.mark.parametrize("name", QUERIES)
def test_the_physical_rows_of_any_query_are_the_batch(session, name):
    query = session.sql(QUERIES[name])
    checked = check_epoch(query, 1, 0, batch_size=64)
    assert (checked == 0) == (name == "nothing")
    check_epoch(query, 1, 0, batch_size=37, shuffle=True, shuffle_buffer_size=50)


@pytest.mark.parametrize("seed", range(12))
def test_any_topology(session, seed):
    rng = np.random.default_rng(seed)
    names = [name for name in QUERIES if name != "nothing"]
    options = {
        "batch_size": int(rng.integers(2, 40)),
        "shuffle": [False, True, True][rng.integers(3)],
        "shuffle_buffer_size": [None, 1, 30, 1000][rng.integers(4)],
        "remainder": ["even", "even", "drop", "pad", "uneven"][rng.integers(5)],
        "split_rows": int(rng.integers(1, 90)),
    }
    query = session.sql(QUERIES[names[rng.integers(len(names))]])
    world_size, workers = int(rng.integers(1, 5)), int(rng.integers(0, 4))
    assert check_epoch(query, world_size, workers, **options) > 0


@pytest.mark.slow
@pytest.mark.parametrize("stop", ["first", "all"])
def test_a_mixture(session, stop):
    pairs = [
        (session.sql("SELECT id FROM t WHERE k > 2"), 2),
        (session.sql("SELECT id FROM t WHERE v > 0"), 1),
    ]
    assert check_epoch(tq.mix(pairs, stop=stop), 2, 1, batch_size=9, shuffle=True) > 8


@pytest.mark.slow
def test_partitions(session):
    query = session.sql(QUERIES["left join"])
    assert check_epoch(query, 2, 0, batch_size=16, partitions=4, shuffle=True) > 4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["all", "null and nan", "left join", "unnest"])
def test_a_permutation_of_all_rows(session, name):
    query = session.sql(QUERIES[name])
    assert check_epoch(query, 2, 0, batch_size=32, shuffle="global") > 4


def test_another_epoch(session):
    query = session.sql(QUERIES["pushed down"])
    dataset = make(query, batch_size=16, shuffle=True)
    dataset.set_epoch(3)
    batches = list(dataset)
    other = make(query, batch_size=16, shuffle=True)
    assert [
        ids_behind(other.trace(step=n, epoch=3)) for n in range(len(batches))
    ] == support.ids_of(batches)
    assert ids_behind(other.trace(step=0)) != support.ids_of(batches)[0]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_the_last_batch_received(session, workers):
    loader, dataset = tq.create_dataloader(
        session.sql(QUERIES["left join"]),
        columns=["id"],
        batch_size=32,
        num_workers=workers,
        shuffle=True,
        split_rows=20,
        output_format="arrow",
    )
    with pytest.raises(tq.ConfigError, match="no batch of epoch 0 was received yet"):
        dataset.trace()
    for step, batch in enumerate(loader):
        trace = dataset.trace()
        assert (trace.epoch, trace.rank, trace.step) == (0, 0, step)
        assert ids_behind(trace) == batch["id"].to_pylist()
    # After the epoch's end it is still the one received last.
    assert dataset.trace() == trace
    assert dataset.epoch == 1
    for step, batch in enumerate(loader):
        trace = dataset.trace()
        assert (trace.epoch, trace.step) == (1, step)
        assert ids_behind(trace) == batch["id"].to_pylist()


# --- resumed runs ---


def through_json(state):
    return json.loads(json.dumps(state))


@pytest.mark.slow
def test_a_run_resumed_on_the_same_topology_counts_on(session):
    query = session.sql(QUERIES["left join"])
    options = {"batch_size": 16, "shuffle": True, "shuffle_buffer_size": 40}
    whole = support.ids_of(make(query, **options))
    first = make(query, **options)
    list(itertools.islice(first, 4))
    second = make(query, **options)
    second.load_state_dict(through_json(first.state_dict()))
    # Before it goes on, the last batch received is the one before the state was saved.
    assert ids_behind(second.trace()) == whole[3]
    for step, batch in enumerate(second, start=4):
        assert ids_behind(second.trace()) == batch["id"].to_pylist() == whole[step]
        assert second.trace().step == step
    assert ids_behind(second.trace(step=1, epoch=0)) == whole[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["all", "null and nan", "unnest"])
def test_a_run_resumed_on_another_topology_counts_anew(session, name):
    query = session.sql(QUERIES[name])
    options = {"shuffle": True, "shuffle_buffer_size": 40}
    first = make(query, batch_size=16, **options)
    before = support.flat(support.ids_of(itertools.islice(first, 4)))
    state = through_json(first.state_dict())
    after = []
    for rank in range(2):
        dataset = make(query, rank, 2, batch_size=11, **options)
        dataset.load_state_dict(state)
        traced = ids_behind(dataset.trace(step=0))
        with pytest.raises(tq.ConfigError, match="no batch of epoch 0"):
            dataset.trace()
        for step, batch in enumerate(dataset):
            if step == 0:
                assert traced == batch["id"].to_pylist()
            trace = dataset.trace()
            assert trace.step == step
            assert ids_behind(trace) == batch["id"].to_pylist()
            after += ids_behind(trace)
        with pytest.raises(tq.ConfigError, match="after the resume"):
            dataset.trace(step=step + 1)
    assert Counter(before + after) == Counter(query.to_arrow()["id"].to_pylist())


def test_a_state_loaded_into_the_loader(session):
    def make_loader(batch_size):
        return tq.create_dataloader(
            session.sql(QUERIES["pushed down"]),
            batch_size=batch_size,
            shuffle=True,
            split_rows=20,
            output_format="arrow",
        )

    loader, _ = make_loader(16)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    resumed, dataset = make_loader(9)
    resumed.load_state_dict(through_json(loader.state_dict()))
    traces = [ids_behind(dataset.trace(step=step)) for step in range(3)]
    assert traces == support.ids_of(itertools.islice(resumed, 3))


# --- other formats, hive columns ---


@pytest.mark.parametrize("split_bytes", [200, "1MiB"])
@pytest.mark.parametrize("kind", ["csv", "json"])
def test_text(tmp_path, kind, split_bytes):
    table = pa.table({"id": range(120), "k": [n % 5 for n in range(120)]})
    write = {"csv": support.write_csv, "json": support.write_json}[kind]
    folder = write(tmp_path / "t", table, files=2)
    session = tq.Session()
    getattr(session, f"register_{kind}")("t", folder)
    query = session.sql("SELECT id FROM t WHERE k <> 2")
    dataset = make(query, batch_size=16, shuffle=True, split_bytes=split_bytes, split_rows=None)
    # Rows by split, before any filter.
    every = make(session.sql("SELECT id, k FROM t"), split_bytes=split_bytes, split_rows=None)
    counts = every._plan.epochs.count()
    starts = [0, *itertools.accumulate(counts)]
    units = set()
    for batch in dataset:
        trace = dataset.trace()
        units |= {one.counted_from for one in trace.ranges}
        assert all(one.row_groups == () for one in trace.ranges)
        of_split = {one.split: one for one in trace.ranges}
        ids = []
        for (split, _), row in zip(trace.positions, trace.physical_rows, strict=True):
            assert of_split[split].path.endswith(("000." + kind, "001." + kind))
            # Ids ascend over files, and the first split of a file counts from its start.
            ids.append(row + starts[split])
        assert ids == batch["id"].to_pylist()
    assert units == ({"file"} if split_bytes == "1MiB" else {"file", "split"})


def test_a_table_in_memory():
    session = tq.Session()
    session.register_table("t", pa.table({"id": range(100)}))
    dataset = make(session.sql("SELECT id FROM t WHERE id % 3 = 1"), batch_size=10, split_rows=15)
    for batch in dataset:
        trace = dataset.trace()
        assert list(trace.physical_rows) == batch["id"].to_pylist()
        assert {(one.path, one.counted_from) for one in trace.ranges} == {("memory", "table")}


def test_hive_columns(tmp_path):
    for day in (1, 2, 3):
        table = pa.table({"id": range(day * 100, day * 100 + 60), "k": [n % 4 for n in range(60)]})
        support.write_parquet(tmp_path / f"t/day={day}", table, row_group=13)
    session = tq.Session()
    session.register_parquet("t", tmp_path / "t")
    query = session.sql("SELECT id, day FROM t WHERE day >= 2 AND (k > 1 OR day = 3)")
    assert check_epoch(query, 2, 0, batch_size=10, shuffle=True) > 8


# --- leaving rows out ---


@pytest.mark.parametrize("name", ["all", "pushed down", "null and nan", "left join", "unnest"])
def test_excluded_ranges_are_left_out_and_nothing_else(session, name):
    query = session.sql(QUERIES[name])
    dataset = make(query, batch_size=16, shuffle=True, shuffle_buffer_size=50)
    spikes = [dataset.trace(step=step) for step in (1, 4)]
    exclude = [one for trace in spikes for one in trace.ranges]
    gone = support.flat(map(ids_behind, spikes))
    expected = Counter(query.to_arrow()["id"].to_pylist()) - Counter(gone)
    for world_size, workers in ((1, 0), (2, 0), (3, 2), (4, 1)):
        options = {"batch_size": 7, "shuffle": True, "exclude": exclude}
        ranks = []
        for rank in range(world_size):
            other = make(query, rank, world_size, **options)
            other._state.workers = workers
            batches = epoch_of(other, workers)
            assert len(batches) == len(other)
            assert sum(batch.num_rows for batch in batches) == other.num_rows
            ranks.append(batches)
        found = Counter(support.flat(support.flat([support.ids_of(rank) for rank in ranks])))
        assert found == expected, (world_size, workers)
        assert len({len(rank) for rank in ranks}) == 1


@pytest.mark.slow
def test_a_traced_run_that_leaves_rows_out(session):
    query = session.sql(QUERIES["null and nan"])
    trace = make(query, batch_size=16).trace(step=2)
    assert check_epoch(query, 2, 0, batch_size=8, shuffle=True, exclude=trace) > 5


def test_a_state_names_what_was_left_out(session):
    query = session.sql(QUERIES["all"])
    dataset = make(query, batch_size=16)
    list(itertools.islice(dataset, 2))
    other = make(query, batch_size=16, exclude=dataset.trace().ranges)
    with pytest.raises(tq.CheckpointMismatchError, match="exclude"):
        other.load_state_dict(dataset.state_dict())


def test_ranges_outside_of_their_split(session):
    query = session.sql(QUERIES["all"])
    with pytest.raises(
        tq.ConfigError, match=r"rows 10\.\.900 of split 0, which has \d+ output rows"
    ):
        make(query, exclude=[(0, 10, 900)])
    with pytest.raises(tq.ConfigError, match=r"split 99, which must be in 0\.\.\d+"):
        make(query, exclude=[(99, 0, 1)])
    filtered = make(session.sql(QUERIES["pushed down"]), 0, 2, exclude=[(0, 0, 40)])
    with pytest.raises(tq.ConfigError, match=r"rows 0\.\.40 of split 0"):
        len(filtered)
    # Nobody has counted what a single rank reads.
    alone = make(session.sql(QUERIES["pushed down"]), exclude=[(0, 10, 900)])
    with pytest.raises(
        tq.DataError,
        match=r"split 0 has \d+ rows, where 900 were counted, or are named by exclude=",
    ):
        for _ in alone:
            pass
    for wrong in ([(0, 3, 1)], [(-1, 0, 1)], [(0, 1)], [5], "0", 3, [(0, 0.5, 2)]):
        with pytest.raises(tq.ConfigError, match="exclude"):
            make(query, exclude=wrong)


# --- padding, errors, looks ---


def test_repeated_rows_are_marked(session):
    query = session.sql("SELECT id FROM t WHERE id < 45")
    for rank, fresh in ((0, 4), (1, 3), (2, 3), (3, 3)):
        options = {"batch_size": 8, "remainder": "pad"}
        dataset = make(query, rank, 4, **options)
        batches = list(dataset)
        trace = dataset.trace()
        assert len(batches) == 2
        assert ids_behind(trace) == batches[-1]["id"].to_pylist()
        rows = [one.end - one.start for one in trace.ranges if not one.repeated]
        repeated = [one.end - one.start for one in trace.ranges if one.repeated]
        assert (sum(rows), sum(repeated)) == (fresh, 8 - fresh)
        assert not any(one.repeated for one in dataset.trace(step=0, epoch=0).ranges)
        assert "(repeated)" in repr(trace)


def test_errors_name_the_bounds(session):
    dataset = make(session.sql(QUERIES["all"]), 1, 4, batch_size=10)
    with pytest.raises(tq.ConfigError, match=r"rank 4 must be in 0\.\.4"):
        dataset.trace(4, 0)
    with pytest.raises(
        tq.ConfigError, match=r"step 8 must be in 0\.\.8: rank 2 delivers 8 batches"
    ):
        dataset.trace(2, 8)
    with pytest.raises(tq.ConfigError, match="rank=-1"):
        dataset.trace(-1, 0)
    with pytest.raises(tq.ConfigError, match="step"):
        dataset.trace(0, "3")
    with pytest.raises(tq.ConfigError, match="epoch"):
        dataset.trace(0, 0, epoch=-1)
    with pytest.raises(tq.ConfigError, match="no batch of epoch 2"):
        dataset.trace(epoch=2)


@pytest.mark.slow
def test_workers_out_of_order(session):
    _, dataset = tq.create_dataloader(
        session.sql(QUERIES["all"]), columns=["id"], num_workers=2, in_order=False
    )
    with pytest.raises(tq.ConfigError, match="in_order"):
        dataset.trace(step=0)


def test_a_trace_is_plain_data_and_reads_well(session):
    query = session.sql(QUERIES["pushed down"])
    dataset = make(query, batch_size=20, shuffle=True)
    trace = dataset.trace(step=1)
    data = trace.to_dict()
    assert through_json(data) == data
    assert data["ranges"][0]["path"] == trace.ranges[0].path
    text = repr(trace)
    lines = text.splitlines()
    assert lines[0].startswith("Trace of step 1 of rank 0 in epoch 0 (worker 0): 20 rows in ")
    assert lines[1].split() == [
        *["split", "rows", "row", "groups", "physical", "rows", "of", "path"]
    ]
    assert len(lines) <= 2 + 20 + 1
    assert ".parquet" in text
    # As a plain triple, through JSON: what a notebook or a config file keeps.
    triples = [tuple(one.values())[:3] for one in through_json(data)["ranges"]]
    assert make(query, exclude=triples).num_rows == dataset.num_rows - 20


@pytest.mark.slow
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(
    "name", ["pushed down", "left join on more", "left by inequality", "cross join", "unnest"]
)
def test_splits_of_many_engine_batches(tmp_path, name, shuffle):
    """Operators reorder rows within their batches, so the borders of batches matter, however rows are read."""
    rng = np.random.default_rng(9)
    table = support.random_table(rng, 40_000, ["list"])
    folder = support.write_parquet(tmp_path / "t", table, files=2, row_group=9_000)
    session = tq.Session()
    session.register_parquet("t", folder)
    d = pa.table({"k": [1, 1, 2, 4, 9], "number": [1, 2, 3, 4, 5], "name": list("abcde")})
    session.register_table("d", d)
    query = session.sql(QUERIES[name])
    dataset = make(query, batch_size=3000, shuffle=shuffle, split_rows=20_000)
    checked = 0
    for step, batch in enumerate(dataset):
        if step % 4 == 0:
            assert ids_behind(dataset.trace()) == batch["id"].to_pylist()
            checked += 1
    assert checked > 1
