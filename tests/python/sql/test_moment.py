"""Promise 6 (docs/promises.md): `now()` and similar functions have one value in all runs of a query, on all ranks,
in workers, and in a resumed epoch."""

import datetime
import json
import time
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
import torch.distributed as dist

import ranks
import tensorquery as tq
from effort import METHODS

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

ROWS = 1000


@pytest.fixture
def session():
    session = tq.Session()
    session.register_table("t", pa.table({"id": np.arange(ROWS), "k": np.arange(ROWS) % 7}))
    return session


def values(query, column="at", **options):
    options = {"batch_size": 64, "output_format": "arrow", **options}
    loader, dataset = tq.create_dataloader(query, **options)
    rows = [value for batch in loader for value in batch[column].to_pylist()]
    return rows, dataset


def test_a_query_has_one_moment_that_all_its_runs_share(session):
    before = datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
    query = session.sql("SELECT id, now() AS at, current_timestamp AS also FROM t")
    after = datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
    rows, dataset = values(query)
    assert len(rows) == ROWS
    (at,) = set(rows)
    assert before <= at.to_pydatetime(warn=False) <= after
    # A row-local query stays one.
    assert dataset.stages == []
    time.sleep(0.002)
    assert set(values(query, "also")[0]) == {at}
    assert set(query.to_arrow()["at"].to_pylist()) == {at}
    assert set(query.head(3)["also"].to_pylist()) == {at}
    assert values(query.select(["at"]))[0] == rows
    assert query.moment.startswith(at.isoformat()[:26])
    # Another query, made later, has another.
    assert set(values(session.sql(query.sql))[0]) != {at}


def test_the_names_of_columns_stay(session):
    query = session.sql(
        "SELECT now(), current_date, count(*) FILTER (WHERE now() > '2020-01-01') FROM t"
    )
    assert query.column_names[0] == "now()"
    assert query.to_arrow().column(2).to_pylist() == [ROWS]


def test_a_filter_and_a_view_have_the_moment_of_their_query(session):
    session.register_view("recent", "SELECT id, now() AS seen FROM t")
    time.sleep(0.002)
    query = session.sql("SELECT id, seen, now() AS at FROM recent")
    table = query.to_arrow()
    assert table["seen"].to_pylist() == table["at"].to_pylist()
    narrowed = query.select(filters="seen = now()")
    assert narrowed.moment == query.moment
    assert narrowed.count() == ROWS


def test_a_day_is_all_that_a_query_of_the_day_depends_on(session, tmp_path):
    """So its stage serves the whole day, unlike the stage of an instant."""
    sql = "SELECT k, count(*) AS n, max(current_date) AS day FROM t GROUP BY k"
    today = datetime.datetime.now(datetime.UTC).date()
    query = session.sql(sql)
    assert query.moment in {str(today), str(today + datetime.timedelta(days=1))}
    values(query, "n", stage_dir=tmp_path)
    _, dataset = values(session.sql(sql), "n", stage_dir=tmp_path)
    if session.sql(sql).moment == query.moment:
        assert dataset.stages[0].seconds is None
    instant = "SELECT k, max(now()) AS at FROM t GROUP BY k"
    assert values(session.sql(instant), stage_dir=tmp_path)[1].stages[0].seconds is not None
    assert values(session.sql(instant), stage_dir=tmp_path)[1].stages[0].seconds is not None


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_workers_have_the_moment_of_the_training_process(session, method):
    query = session.sql("SELECT id, now() AS at FROM t")
    (at,) = set(query.to_arrow()["at"].to_pylist())
    rows, _ = values(query, num_workers=2, multiprocessing_context=method)
    assert len(rows) == ROWS
    assert set(rows) == {at}


SQLS = {
    "row-local": "SELECT id, now() AS at FROM t",
    "staged": "SELECT k AS id, max(now()) AS at, count(*) AS n FROM t GROUP BY k, id",
}


@pytest.mark.parametrize("name", SQLS)
def test_a_resumed_epoch_has_the_moment_of_its_state(session, tmp_path, name):
    def loader():
        query = session.sql(SQLS[name])
        made, _ = tq.create_dataloader(
            query, batch_size=64, shuffle=True, output_format="arrow", stage_dir=tmp_path
        )
        return made, set(query.to_arrow()["at"].to_pylist())

    first, at = loader()
    batches = iter(first)
    seen = [row for _ in range(5) for row in next(batches).to_pylist()]
    state = json.loads(json.dumps(first.state_dict()))
    resumed, later = loader()
    assert later != at
    resumed.load_state_dict(state)
    seen += [row for batch in resumed for row in batch.to_pylist()]
    assert {row["at"] for row in seen} == at
    wanted = session.sql(SQLS[name]).to_arrow()["id"].to_pylist()
    assert Counter(row["id"] for row in seen) == Counter(wanted)
    # The next epoch, too.
    assert {row["at"] for batch in resumed for row in batch.to_pylist()} == at


def test_a_mixture_has_one_moment_and_keeps_it(session):
    def loader():
        parts = [(session.sql(SQLS["row-local"] + f" WHERE k = {k}"), 1.0) for k in (1, 2)]
        return tq.create_dataloader(
            tq.mix(parts, stop="all"), batch_size=16, output_format="arrow"
        )[0]

    first = loader()
    batches = iter(first)
    seen = [row for _ in range(3) for row in next(batches).to_pylist()]
    resumed = loader()
    resumed.load_state_dict(first.state_dict())
    seen += [row for batch in resumed for row in batch.to_pylist()]
    assert len({row["at"] for row in seen}) == 1
    assert (
        len(seen) == len({row["id"] for row in seen}) == sum(n % 7 in (1, 2) for n in range(ROWS))
    )


@pytest.mark.parametrize(
    ("call", "literal"), [("now()", "TIMESTAMP '2"), ("current_date", "DATE '2")]
)
def test_ranks_that_cannot_agree_are_refused_with_a_way_out(session, call, literal):
    with pytest.raises(tq.NotShardableError, match="share no process group") as refused:
        tq.create_dataloader(
            f"SELECT id, {call} AS at FROM t", session=session, rank=0, world_size=2
        )
    assert literal in str(refused.value)
    # The literal that the message suggests works.
    written = str(refused.value).split("literal (")[1].split(")")[0]
    loader, _ = tq.create_dataloader(
        f"SELECT id, {written} AS at FROM t",
        session=session,
        rank=0,
        world_size=2,
        output_format="arrow",
    )
    assert sum(batch.num_rows for batch in loader) == ROWS // 2


def one_rank(rank, world_size, folder):
    """One of several ranks; each makes its query at another time."""
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    session = tq.Session()
    session.register_table("t", pa.table({"id": np.arange(ROWS), "k": np.arange(ROWS) % 7}))
    found = {}
    for name, sql in SQLS.items():
        time.sleep(0.05 * rank)
        query = session.sql(sql)
        loader, dataset = tq.create_dataloader(
            query, batch_size=64, output_format="arrow", stage_dir=folder, num_workers=rank
        )
        rows = [row for batch in loader for row in batch.to_pylist()]
        found[name] = [query.moment, [[row["id"], row["at"].isoformat()] for row in rows]]
        if name == "staged":
            found["built"] = dataset.stages[0].seconds is not None
    dist.barrier()
    dist.destroy_process_group()
    return found


@pytest.mark.slow
def test_ranks_of_a_process_group_agree_on_the_moment(tmp_path):
    found = ranks.run(one_rank, 2, str(tmp_path))
    for name in SQLS:
        moments = {each[name][0] for each in found}
        assert len(moments) == 2
        rows = [row for each in found for row in each[name][1]]
        assert len(rows) == ROWS
        assert len({at for _, at in rows}) == 1
    # So they share the stage.
    assert sum(each["built"] for each in found) == 1


def test_a_stable_function_of_ones_own_is_evaluated_once(session, tmp_path):
    """Its value belongs to the stage: another query has another, a resumed one has the old one."""
    calls = []

    def reading(ids):
        calls.append(len(ids))
        return pa.array(np.full(len(ids), len(calls)))

    session.register_udf("reading", reading, ["int64"], "int64", "stable")
    sql = "SELECT id, reading(id) AS at FROM t"

    def loader():
        made, dataset = tq.create_dataloader(
            sql, session=session, batch_size=64, output_format="arrow", stage_dir=tmp_path
        )
        return made, dataset.stages[0]

    first, stage = loader()
    assert "reading() may give another value whenever the query is planned" in stage.why
    batches = iter(first)
    seen = [row for _ in range(5) for row in next(batches).to_pylist()]
    state, many = first.state_dict(), len(calls)
    resumed, again = loader()
    assert again.digest != stage.digest
    assert len(calls) > many
    resumed.load_state_dict(state)
    seen += [row for batch in resumed for row in batch.to_pylist()]
    assert [row["id"] for row in seen] == list(range(ROWS))
    assert {row["at"] for row in seen} == {1}
    with pytest.raises(tq.NotShardableError, match=r"reading\(\) is stable"):
        tq.create_dataloader(sql, session=session, stage="never")


def test_a_state_of_another_query_says_so(session):
    first, _ = tq.create_dataloader("SELECT id, now() AS at FROM t", session=session, batch_size=10)
    other, _ = tq.create_dataloader("SELECT id, id AS at FROM t", session=session, batch_size=10)
    with pytest.raises(tq.CheckpointMismatchError, match="the query"):
        other.load_state_dict(first.state_dict())
    with pytest.raises(tq.CheckpointMismatchError, match="the query"):
        first.load_state_dict(other.state_dict())
