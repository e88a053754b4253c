"""Any SQL is a training set: a part that cannot run split by split runs once, and its rows are sharded like those of a table."""

import json
import multiprocessing
import os
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import support
import tensorquery as tq
from effort import METHODS

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:the data is sorted by"),
]

ROWS = 5000


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    """Events of 40 users, with keys that have few matches, and users."""
    folder = tmp_path_factory.mktemp("staging")
    rng = np.random.default_rng(5)
    events = pa.table(
        {
            "id": np.arange(ROWS),
            "user": pa.array(rng.integers(0, 40, ROWS), mask=rng.random(ROWS) < 0.02),
            "t": rng.permutation(ROWS),
            "x": rng.normal(size=ROWS),
            "word": pa.array(rng.choice(["a", "b", "größe", ""], ROWS)).dictionary_encode(),
        }
    )
    users = pa.table({"user": np.arange(5, 45), "age": rng.integers(18, 90, 40)})
    support.write_parquet(folder / "events", events, files=5, row_group=300)
    pq.write_table(users, folder / "users.parquet")
    session = tq.Session()
    session.register_parquet("events", folder / "events")
    session.register_parquet("users", folder / "users.parquet")
    return session


QUERIES = {
    "group by": "SELECT user, count(*) AS n, sum(id) AS s FROM events GROUP BY user",
    "having": "SELECT user, count(*) AS n FROM events GROUP BY user HAVING count(*) > 120",
    "one row": "SELECT count(*) AS n, max(x) AS m FROM events",
    "distinct": "SELECT DISTINCT user, word FROM events",
    "window": "SELECT id, row_number() OVER (PARTITION BY user ORDER BY t) AS k, lag(x) OVER (PARTITION BY user ORDER BY t) AS before FROM events",
    "order by": "SELECT id, x FROM events ORDER BY x DESC",
    "limit": "SELECT id FROM events ORDER BY t LIMIT 777 OFFSET 5",
    "full join": "SELECT e.id, u.user AS u, u.age FROM events e FULL JOIN users u ON e.user = u.user",
    "not in": "SELECT id FROM events WHERE user NOT IN (SELECT user FROM users WHERE age > 40)",
    "union": "SELECT user FROM events UNION SELECT user FROM users",
    "union all of both": "SELECT user, 1 AS n FROM events UNION ALL SELECT user, count(*) FROM events GROUP BY user",
    "intersect": "SELECT user FROM events INTERSECT SELECT user FROM users",
    "except": "SELECT user FROM users EXCEPT SELECT user FROM events",
    "unnest above": "SELECT user, unnest(ids) AS id FROM (SELECT user, array_agg(id ORDER BY t) AS ids FROM events GROUP BY user)",
    "sequences": "SELECT user, array_agg(x ORDER BY t) AS xs FROM events GROUP BY user",
    "joined to its mean": "SELECT e.id, e.x - m.mean AS d FROM events e JOIN (SELECT user, avg(x) AS mean FROM events GROUP BY user) m ON e.user = m.user",
    "aggregate joined": "SELECT a.user, a.n, u.age FROM (SELECT user, count(*) AS n FROM events GROUP BY user) a LEFT JOIN users u ON a.user = u.user",
    "two aggregates": "SELECT a.user, a.n, b.m FROM (SELECT user, count(*) AS n FROM events GROUP BY user) a JOIN (SELECT user, max(x) AS m FROM events GROUP BY user) b ON a.user = b.user",
    "correlated": "SELECT id FROM events e WHERE x > (SELECT avg(x) FROM events f WHERE f.user = e.user)",
    "recursive": "WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 500) SELECT i FROM n",
    "values": "SELECT * FROM (VALUES (1, 'a'), (2, 'b'), (3, NULL)) AS v(i, s)",
    "no from": "SELECT 1 AS one, 'x' AS s",
    "no rows": "SELECT user, count(*) AS n FROM events WHERE id < 0 GROUP BY user",
    "dictionaries": "SELECT id, word FROM events ORDER BY id",
    "same names below": "SELECT a.k, b.k AS l FROM (SELECT id AS k, user FROM events ORDER BY t LIMIT 50) a JOIN (SELECT age AS k, user FROM users ORDER BY user LIMIT 20) b ON a.user = b.user",
}  # fmt: skip


RANDOM = "SELECT id, random() AS r FROM events WHERE id < 300"


def rows_of(batches):
    """The rows of batches in the dict format, as comparable tuples."""
    rows = []
    for batch in batches:
        columns = [[_key(value) for value in batch[name]] for name in batch]
        rows += list(zip(*columns, strict=True))
    return rows


def _key(value):
    # Sums of floats are the same bits here: stage and query run in one partition.
    return tuple(value) if isinstance(value, list) else value


def shards(sql, session, stage_dir, world_size, **options):
    options = {"batch_size": 64, "output_format": "dict", "remainder": "uneven", **options}
    rows, loaders = [], []
    for rank in range(world_size):
        loader, _ = tq.create_dataloader(
            sql, session=session, stage_dir=stage_dir, rank=rank, world_size=world_size, **options
        )
        rows.append(rows_of(loader))
        loaders.append(loader)
    return rows, loaders


@pytest.mark.parametrize("name", QUERIES)
@pytest.mark.parametrize("world_size", [1, 3])
def test_loaders_deliver_the_rows_of_any_query(session, tmp_path, name, world_size):
    table = session.sql(QUERIES[name]).to_arrow()
    wanted = rows_of([table.to_pydict()])
    got, loaders = shards(QUERIES[name], session, tmp_path, world_size)
    assert Counter(row for rank in got for row in rank) == Counter(wanted)
    if name not in ("joined to its mean", "correlated", "not in"):
        assert loaders[0].dataset.stages
    if name in ("order by", "limit", "dictionaries") and world_size == 1:
        assert got[0] == wanted


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_worker_processes_read_stages(session, tmp_path, method):
    names = ("window", "union all of both", "aggregate joined", "dictionaries")
    for name in names:
        wanted = rows_of([session.sql(QUERIES[name]).to_arrow().to_pydict()])
        got, _ = shards(
            QUERIES[name],
            session,
            tmp_path,
            1,
            num_workers=2,
            multiprocessing_context=method,
            shuffle=True,
        )
        assert Counter(got[0]) == Counter(wanted)


@pytest.mark.slow
def test_equal_steps_and_a_resume_on_another_topology(session, tmp_path):
    sql = QUERIES["window"]
    wanted = Counter(rows_of([session.sql(sql).to_arrow().to_pydict()]))

    def loaders(world_size, workers):
        made = [
            tq.create_dataloader(
                sql,
                session=session,
                stage_dir=tmp_path,
                rank=rank,
                world_size=world_size,
                num_workers=workers,
                batch_size=50,
                shuffle=True,
                output_format="dict",
            )[0]
            for rank in range(world_size)
        ]
        assert len({len(loader) for loader in made}) == 1
        return made

    seen, states = [], []
    for loader in loaders(3, 0):
        batches = iter(loader)
        for _ in range(7):
            seen += rows_of([next(batches)])
        states.append(loader.state_dict())
    assert states[0] == states[1] == states[2]
    for loader in loaders(2, 2):
        loader.load_state_dict(json.loads(json.dumps(states[0])))
        seen += rows_of(loader)
    assert Counter(seen) == wanted


def test_modes(session, tmp_path):
    with pytest.raises(tq.NotShardableError, match="aggregate"):
        tq.create_dataloader(QUERIES["group by"], session=session, stage="never")
    loader, dataset = tq.create_dataloader(
        "SELECT id FROM events WHERE x > 0",
        session=session,
        stage="always",
        stage_dir=tmp_path,
        output_format="dict",
    )
    assert [stage.why for stage in dataset.stages] == ['stage="always"']
    wanted = session.sql("SELECT id FROM events WHERE x > 0").to_arrow()["id"].to_pylist()
    assert [row[0] for row in rows_of(loader)] == wanted
    # A row-local query is not staged, and no folder is made for it.
    away = tmp_path / "away"
    _, dataset = tq.create_dataloader(
        "SELECT id FROM events WHERE x > 0", session=session, stage_dir=away
    )
    assert dataset.stages == []
    assert not away.exists()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"stage": "sometimes"}, "stage='sometimes'.*auto"),
        ({"stage_dir": 7}, "stage_dir=7 must be a folder"),
        ({"stage_timeout": 0}, "stage_timeout=0"),
        ({"stage_timeout": "soon"}, "stage_timeout='soon'"),
        ({"stage_from": 3}, "stage_from=3"),
        ({"stage_from": "x.parquet", "stage_dir": "y"}, "do not go with it"),
        ({"stage_dir": "data/*"}, "without wildcards"),
        ({"stage_dir": "http://127.0.0.1/x"}, "HTTP"),
        ({"stage_engine": 7}, 'stage_engine=7 must be .*"ballista://host:port"'),
        ({"stage_engine": "ballista://host:50050"}, "needs stage_dir="),
        ({"stage_engine": "ballista://host", "stage": "never"}, 'with stage="never" none is'),
        ({"stage_engine": "ballista://host", "stage_from": "x"}, "with stage_from= none is"),
        ({"stage_engine": "spark://host", "stage_dir": "y"}, "names no engine.*ballista://"),
    ],
)
def test_mistakes_are_told(session, options, told):
    with pytest.raises(tq.ConfigError, match=told):
        tq.create_dataloader(QUERIES["group by"], session=session, **options)


def test_a_folder_that_cannot_be_written(session, tmp_path):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(tq.StorageError, match="file"):
        tq.create_dataloader(QUERIES["group by"], session=session, stage_dir=tmp_path / "file")


def test_a_build_without_the_client_says_how_to_get_it(session, tmp_path):
    """Only if a stage must be built: reading an existing one, or staging nothing, needs no cluster."""
    options = {"stage_engine": "ballista://127.0.0.1:1", "stage_dir": tmp_path}
    with pytest.raises(tq.ConfigError, match="maturin build --release --features python,ballista"):
        tq.create_dataloader(QUERIES["group by"], session=session, **options)
    assert tq.list_stages(tmp_path) == []
    _, dataset = tq.create_dataloader("SELECT id FROM events", session=session, **options)
    assert dataset.stages == []


def test_explain_shows_the_cut_and_why(session):
    text = session.sql(QUERIES["unnest above"]).explain()
    before, stage, after = text.split("\n\n")
    assert before.startswith("DataFusion's plan:")
    assert "AggregateExec" in before
    assert "UnnestExec" in before
    assert stage.startswith("Stage 1, which runs once: an aggregate")
    assert "AggregateExec" in stage
    assert "UnnestExec" not in stage
    assert after.startswith("By splits:")
    assert "UnnestExec" in after
    assert "AggregateExec" not in after
    assert after.rstrip().endswith("SplitScanExec: stage=1, not built yet")
    never = session.sql(QUERIES["unnest above"]).explain(stage="never")
    assert "not shardable" in never
    assert "not shardable: random()" in session.sql(RANDOM).explain(stage="never")


def test_explain_says_the_size_of_the_stages_that_are_there(session, tmp_path):
    query = session.sql(QUERIES["two aggregates"])
    place = tmp_path / "stages"
    assert query.explain(stage_dir=place).count("not built yet") >= 1
    assert not place.exists()
    _, dataset = tq.create_dataloader(query, stage_dir=place)
    text = query.explain(stage_dir=place)
    used = [stage.used for stage in tq.list_stages(place)]
    for number, stage in enumerate(dataset.stages, 1):
        assert f"SplitScanExec: stage={number}, rows={stage.rows}, bytes={stage.bytes}\n" in text
    assert "not built yet" not in text
    # Looking does not count as using.
    assert [stage.used for stage in tq.list_stages(place)] == used
    with pytest.raises(tq.ConfigError, match="stage_dir=3"):
        query.explain(stage_dir=3)


@pytest.mark.slow
def test_a_folder_without_stages_is_not_made(tmp_path):
    assert tq.list_stages(tmp_path / "none") == []
    assert tq.clear_stages(tmp_path / "none") == 0
    assert not (tmp_path / "none").exists()


def test_only_what_must_is_staged(session, tmp_path):
    """The raw half of a UNION ALL is not staged, nor is the table that an aggregate is joined to."""
    _, dataset = tq.create_dataloader(
        QUERIES["union all of both"], session=session, stage_dir=tmp_path, output_format="dict"
    )
    (stage,) = dataset.stages
    assert stage.rows == 41
    _, dataset = tq.create_dataloader(
        QUERIES["having"], session=session, stage_dir=tmp_path, output_format="dict"
    )
    (stage,) = dataset.stages
    # With its filter, which makes it smaller.
    assert stage.rows == session.sql(QUERIES["having"]).count() < 41


def test_a_stage_is_built_once_and_found_again(session, tmp_path):
    first = tq.create_dataloader(QUERIES["group by"], session=session, stage_dir=tmp_path)[1]
    again = tq.create_dataloader(QUERIES["group by"], session=session, stage_dir=tmp_path)[1]
    assert first.stages[0].seconds is not None
    assert again.stages[0].seconds is None
    assert again.stages[0].path == first.stages[0].path
    (stored,) = tq.list_stages(tmp_path)
    assert (stored.rows, stored.why) == (41, first.stages[0].why)
    assert abs(time.time() - stored.used) < 60
    other = tq.create_dataloader(QUERIES["distinct"], session=session, stage_dir=tmp_path)[1]
    assert other.stages[0].path != first.stages[0].path
    assert len(tq.list_stages(tmp_path)) == 2


def test_other_data_are_another_stage(tmp_path):
    for turn in range(2):
        pq.write_table(pa.table({"x": [turn, turn + 1]}), tmp_path / "t.parquet")
        loader, dataset = tq.create_dataloader(
            f"SELECT sum(x) AS s FROM '{tmp_path}/t.parquet'",
            stage_dir=tmp_path / "stages",
            output_format="dict",
        )
        assert rows_of(loader) == [(2 * turn + 1,)]
        assert dataset.stages[0].seconds is not None


@pytest.mark.slow
def test_a_stage_in_use_is_not_removed(session, tmp_path):
    loader, dataset = tq.create_dataloader(
        QUERIES["window"], session=session, stage_dir=tmp_path, output_format="dict"
    )
    assert tq.clear_stages(tmp_path) == 0
    assert len(rows_of(loader)) == ROWS
    size = dataset.stages[0].bytes
    del loader, dataset
    assert tq.clear_stages(tmp_path, unused_days=1) == 0
    assert tq.clear_stages(tmp_path, unused_days=1, keep_bytes="1GiB") == 0
    # Room alone says what goes, unless a number of days does, too.
    assert tq.clear_stages(tmp_path, keep_bytes="1GiB") == 0
    assert tq.clear_stages(tmp_path, keep_bytes=0) >= size
    assert tq.list_stages(tmp_path) == []
    assert list((tmp_path / "queries").iterdir()) == []


def test_global_shuffles_leave_what_is_not_theirs(session, tmp_path, monkeypatch):
    """Both kinds of stages lie in one place by default; those of queries go by their own rules, and other folders never."""
    monkeypatch.setenv("TENSORQUERY_STAGES", str(tmp_path))
    _, dataset = tq.create_dataloader(QUERIES["group by"], session=session)
    (tmp_path / "forgotten").mkdir()
    long_ago = time.time() - 5 * 24 * 3600
    for folder in tmp_path.iterdir():
        os.utime(folder, (long_ago, long_ago))
    loader, _ = tq.create_dataloader(
        "SELECT id FROM events", session=session, shuffle="global", output_format="dict"
    )
    assert len(rows_of(loader)) == ROWS
    assert (tmp_path / "forgotten").exists()
    assert [stage.rows for stage in tq.list_stages()] == [dataset.stages[0].rows]
    del loader
    again = tq.create_dataloader(QUERIES["group by"], session=session)[1]
    assert again.stages[0].seconds is None


def test_a_stage_that_lost_a_file_is_built_again(session, tmp_path):
    wanted = rows_of([session.sql(QUERIES["group by"]).to_arrow().to_pydict()])
    tq.create_dataloader(QUERIES["group by"], session=session, stage_dir=tmp_path)
    (file,) = tmp_path.rglob("*.arrow")
    file.unlink()
    got, loaders = shards(QUERIES["group by"], session, tmp_path, 1)
    assert loaders[0].dataset.stages[0].seconds is not None
    assert Counter(got[0]) == Counter(wanted)


def _sleep(ready):
    ready.set()
    time.sleep(600)


@pytest.mark.slow
def test_a_stage_whose_file_was_overwritten_is_built_again(session, tmp_path):
    options = {"session": session, "stage_dir": tmp_path, "show_progress": False}
    tq.create_dataloader("SELECT id FROM events ORDER BY id", **options)
    (file,) = tmp_path.rglob("part-*.arrow")
    file.write_bytes(bytes(file.stat().st_size))
    loader, dataset = tq.create_dataloader(
        "SELECT id FROM events ORDER BY id", output_format="dict", **options
    )
    assert dataset.stages[0].seconds is not None
    assert rows_of(loader) == [(number,) for number in range(ROWS)]


@pytest.mark.slow
def test_a_forked_process_keeps_no_lock(session, tmp_path):
    context = multiprocessing.get_context("fork")
    loader, _ = tq.create_dataloader(QUERIES["group by"], session=session, stage_dir=tmp_path)
    ready = context.Event()
    child = context.Process(target=_sleep, args=(ready,))
    child.start()
    try:
        assert ready.wait(60)
        del loader, _
        assert tq.clear_stages(tmp_path) > 0
    finally:
        child.kill()
        child.join()


@pytest.mark.slow
def test_what_is_no_stage_is_left_alone(session, tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("keep")
    (tmp_path / "file").write_text("keep")
    tq.create_dataloader(QUERIES["group by"], session=session, stage_dir=tmp_path)
    tq.clear_stages(tmp_path)
    names = sorted(path.name for path in tmp_path.rglob("*") if path.is_file())
    assert names == ["file", "mine.txt"]


@pytest.mark.slow
def test_random_numbers_are_drawn_once(session, tmp_path):
    sql = RANDOM
    first, loaders = shards(sql, session, tmp_path, 1)
    again, loaders = shards(sql, session, tmp_path, 2)
    assert Counter(first[0]) == Counter(again[0] + again[1])
    assert len({r for _, r in first[0]}) > 290
    del loaders
    tq.clear_stages(tmp_path)
    anew, _ = shards(sql, session, tmp_path, 1)
    assert anew[0] != first[0]


@pytest.mark.slow
def test_a_state_goes_on_over_a_stage_that_was_built_again(session, tmp_path):
    def loader():
        return tq.create_dataloader(
            QUERIES["window"],
            session=session,
            stage_dir=tmp_path,
            batch_size=100,
            shuffle=True,
            output_format="dict",
        )[0]

    first = loader()
    batches = iter(first)
    seen = rows_of([next(batches), next(batches)])
    state = first.state_dict()
    del first, batches
    # Tasks that read ahead let go of it in their own time.
    end = time.monotonic() + 60
    while tq.clear_stages(tmp_path) == 0:
        assert time.monotonic() < end, "the stage is still in use"
        time.sleep(0.01)
    resumed = loader()
    resumed.load_state_dict(state)
    wanted = rows_of([session.sql(QUERIES["window"]).to_arrow().to_pydict()])
    assert Counter(seen + rows_of(resumed)) == Counter(wanted)


def test_a_state_over_other_rows_is_refused(session, tmp_path):
    sql = "SELECT id, random() AS r FROM events"
    loader, _ = tq.create_dataloader(sql, session=session, stage_dir=tmp_path / "a")
    next(iter(loader))
    state = loader.state_dict()
    other, _ = tq.create_dataloader(sql, session=session, stage_dir=tmp_path / "b")
    with pytest.raises(tq.CheckpointMismatchError, match=r"stage \(random\(\)"):
        other.load_state_dict(state)


def test_stages_of_mixtures(session, tmp_path):
    a = session.sql("SELECT user, count(*) AS n FROM events GROUP BY user")
    b = session.sql("SELECT user, id AS n FROM events WHERE id < 41")
    loader, dataset = tq.create_dataloader(
        tq.mix([(a, 0.5), (b, 0.5)], stop="all"), stage_dir=tmp_path, output_format="dict"
    )
    wanted = [row for query in (a, b) for row in rows_of([query.to_arrow().to_pydict()])]
    assert Counter(rows_of(loader)) == Counter(wanted)
    assert len(dataset.stages) == 1


def test_columns_and_filters_are_part_of_what_is_staged(session, tmp_path):
    loader, _ = tq.create_dataloader(
        QUERIES["group by"],
        session=session,
        stage_dir=tmp_path,
        columns=["n"],
        filters="n > 120",
        output_format="dict",
    )
    table = session.sql(QUERIES["group by"]).to_arrow().to_pydict()
    assert Counter(rows_of(loader)) == Counter((n,) for n in table["n"] if n > 120)


def test_global_shuffles_of_stages(session, tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORQUERY_STAGES", str(tmp_path))
    loader, _ = tq.create_dataloader(
        QUERIES["window"], session=session, shuffle="global", output_format="dict"
    )
    got = rows_of(loader)
    wanted = rows_of([session.sql(QUERIES["window"]).to_arrow().to_pydict()])
    assert got != wanted
    assert Counter(got) == Counter(wanted)
    assert len(tq.list_stages()) == 1


def test_shard_plans_of_stages(session, tmp_path):
    plan = session.sql(QUERIES["window"]).plan_shards(
        world_size=2, batch_size=64, stage_dir=tmp_path
    )
    assert sum(shard.rows for shard in plan.shards) == ROWS
    with pytest.raises(tq.NotShardableError):
        session.sql(QUERIES["window"]).plan_shards(world_size=2, stage="never")


# ------------------------------------------------------------------------------------------------
# Rows that another engine has computed.


def test_rows_of_another_engine(session, tmp_path):
    import duckdb

    sql = "SELECT user, count(*) AS n FROM events GROUP BY user"
    events = session.table("events").to_arrow()
    connection = duckdb.connect()
    connection.register("events", events)
    connection.execute(f"COPY ({sql}) TO '{tmp_path}/n.parquet' (FORMAT parquet)")
    wanted = rows_of([session.sql(sql).to_arrow().to_pydict()])
    for source in (f"{tmp_path}/n.parquet", session.sql(f"SELECT * FROM '{tmp_path}/n.parquet'")):
        loader, dataset = tq.create_dataloader(
            sql, session=session, stage_from=source, output_format="dict"
        )
        assert Counter(rows_of(loader)) == Counter(wanted)
        assert dataset.stages == []


def test_rows_of_another_engine_lack_a_column(session, tmp_path):
    pq.write_table(pa.table({"user": [1], "m": [2]}), tmp_path / "n.parquet")
    with pytest.raises(tq.QueryError, match="no column 'n' of the query.*user, m"):
        tq.create_dataloader(
            QUERIES["group by"].replace(", sum(id) AS s", ""),
            session=session,
            stage_from=tmp_path / "n.parquet",
        )


# ------------------------------------------------------------------------------------------------
# Runs that end without a stage, and joins that spill.


def _hold(stages, ready):
    """Hold a stage's lock, like a builder that never ends."""
    import fcntl

    with Path(stages).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        ready.set()
        time.sleep(600)


@pytest.mark.slow
def test_waiting_ends_with_a_clear_error(session, tmp_path):
    """The key of a stage is known from a first build."""
    sql = QUERIES["group by"]
    tq.create_dataloader(sql, session=session, stage_dir=tmp_path)
    (stage,) = tq.list_stages(tmp_path)
    assert tq.clear_stages(tmp_path) > 0
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    holder = context.Process(
        target=_hold, args=(str(tmp_path / "queries" / f"{stage.key}.lock"), ready)
    )
    holder.start()
    try:
        assert ready.wait(60)
        with pytest.raises(tq.StorageError, match="more than 1 seconds.*raise stage_timeout"):
            tq.create_dataloader(sql, session=session, stage_dir=tmp_path, stage_timeout=1)
    finally:
        holder.kill()
        holder.join()
    tq.create_dataloader(sql, session=session, stage_dir=tmp_path, stage_timeout=1)


def test_what_fails_leaves_nothing(session, tmp_path):
    with pytest.raises(tq.DataError, match="[Dd]ivi"):
        tq.create_dataloader(
            "SELECT user, max(id / (id - 4000)) AS m FROM events GROUP BY user",
            session=session,
            stage_dir=tmp_path,
        )
    assert [stage.rows for stage in tq.list_stages(tmp_path) if stage.rows is not None] == []
    assert not list(tmp_path.rglob("*.arrow"))
