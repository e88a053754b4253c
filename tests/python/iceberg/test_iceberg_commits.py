"""Promise 6 (docs/promises.md): the snapshot is resolved once, when a query is planned; a commit changes nothing that is delivered.

`Query.refresh` moves it forward, when the user says so.
"""

import pytest
from pyiceberg.types import StringType

import tensorquery as tq
from iceberg_lakes import ids, lake_of, rows, sample
from iceberg_servers import fresh

BEFORE = list(range(60))


def append(table):
    """Rows 60 to 79 come in."""
    table.append(sample(20, start=60))
    return list(range(80))


def delete(table):
    """Rows 0 to 14 go; a file goes, and another is written anew."""
    table.delete("id < 15")
    return list(range(15, 60))


def compact(table):
    """All rows move into one new file."""
    table.overwrite(table.scan().to_arrow())
    return BEFORE


def truncate(table):
    """All rows go."""
    table.delete()
    return []


def evolve(table):
    """A column is renamed and one comes in, then rows do."""
    with table.update_schema() as update:
        update.rename_column("v", "w")
        update.add_column("extra", StringType())
    table.append(
        sample(20, start=60).rename_columns(["id", "s", "price", "day", "moment", "flag", "w"])
    )
    return list(range(80))


COMMITS = [append, delete, compact, truncate, evolve]


@pytest.fixture(params=["sqlite", "rest"])
def lake(request):
    """A catalog of two types: one loads metadata from a file, one from a server."""
    return lake_of(request.param, request)


@pytest.fixture
def name(lake):
    """A table of six files with ten rows each."""
    name = f"{fresh()}.t"
    lake.make(name, sample(), files=6)
    return name


def query_of(lake, name, columns="id, v"):
    """A query that is planned now."""
    session = tq.Session()
    session.register_iceberg("lake", lake.properties)
    return session.sql(f"SELECT {columns} FROM lake.{name}")


@pytest.mark.slow
@pytest.mark.parametrize("commit", COMMITS)
def test_a_commit_between_planning_and_reading_changes_nothing(lake, name, commit):
    query = query_of(lake, name)
    loader, _ = tq.create_dataloader(query, batch_size=8)
    commit(lake.table(name))
    assert query.count() == 60
    assert query.schema.names == ["id", "v"]
    assert sorted(query.to_arrow()["id"].to_pylist()) == BEFORE
    assert ids(loader) == BEFORE
    delivered = []
    for rank in range(2):
        loader, _ = tq.create_dataloader(query, batch_size=8, rank=rank, world_size=2)
        delivered += list(loader)
    assert ids(delivered) == BEFORE


@pytest.mark.slow
@pytest.mark.parametrize("commit", COMMITS)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_commit_in_the_middle_of_an_epoch_and_between_two_changes_nothing(
    lake, name, commit, workers
):
    query = query_of(lake, name)
    loader, dataset = tq.create_dataloader(query, batch_size=8, num_workers=workers, shuffle=True)
    taken = []
    for number, batch in enumerate(loader):
        taken.append(batch)
        if number == 1:
            commit(lake.table(name))
    assert ids(taken) == BEFORE
    dataset.set_epoch(1)
    assert ids(loader) == BEFORE


@pytest.mark.slow
@pytest.mark.parametrize("commit", COMMITS)
def test_a_resumed_run_reads_the_snapshot_of_its_state(lake, name, commit):
    options = {
        "table": name,
        "catalog_config": lake.properties,
        "columns": ["id", "v"],
        "batch_size": 8,
        "shuffle": True,
    }
    loader, _ = tq.create_dataloader(**options)
    batches, taken = iter(loader), []
    for _ in range(3):
        taken.append(next(batches))
    state = loader.state_dict()
    rest_of_it = list(batches)
    commit(lake.table(name))
    # A process that starts anew plans anew: it must name the snapshot that its state was saved with.
    snapshot = lake.table(name).history()[5].snapshot_id
    loader, _ = tq.create_dataloader(snapshot_id=snapshot, **options)
    loader.load_state_dict(state)
    resumed = list(loader)
    assert [batch["id"].tolist() for batch in resumed] == [
        batch["id"].tolist() for batch in rest_of_it
    ]
    assert ids(taken + resumed) == BEFORE


@pytest.mark.slow
@pytest.mark.parametrize("commit", COMMITS)
def test_refresh_moves_forward(lake, name, commit):
    query = query_of(lake, name, "id")
    before = lake.table(name).current_snapshot().snapshot_id
    assert query.count() == 60
    after_commit = commit(lake.table(name))
    after = lake.table(name).current_snapshot().snapshot_id
    changed = query.refresh()
    assert str(before) in str(changed)
    assert str(after) in str(changed)
    loader, _ = tq.create_dataloader(query, batch_size=8)
    assert ids(loader) == after_commit
    assert sorted(query.to_arrow()["id"].to_pylist()) == after_commit
    # Nothing has changed since.
    assert not query.refresh()


@pytest.mark.slow
def test_two_tables_of_a_query_are_pinned_together(lake, name):
    other = f"{fresh()}.t"
    lake.make(other, sample(), files=2)
    session = tq.Session()
    session.register_iceberg("lake", lake.properties)
    query = session.sql(f"SELECT a.id, b.v FROM lake.{name} a JOIN lake.{other} b ON a.id = b.id")
    delete(lake.table(other))
    append(lake.table(name))
    loader, _ = tq.create_dataloader(query, batch_size=8)
    assert ids(loader) == BEFORE
    query.refresh()
    loader, _ = tq.create_dataloader(query, batch_size=8)
    assert ids(loader) == list(range(15, 60))


def test_a_table_twice_in_a_query_has_one_snapshot(lake, name):
    session = tq.Session()
    session.register_iceberg("lake", lake.properties)
    query = session.sql(f"SELECT a.id FROM lake.{name} a JOIN lake.{name} b ON a.id = b.id")
    append(lake.table(name))
    assert sorted(query.to_arrow()["id"].to_pylist()) == BEFORE


def test_a_vanished_file_is_an_error_that_names_it(request):
    lake = lake_of("sqlite", request)
    name = f"{fresh()}.t"
    made = lake.make(name, sample(), files=6)
    query = query_of(lake, name)
    path = next(iter(made.scan().plan_files())).file.file_path
    made.io.delete(path)
    with pytest.raises(tq.DataError, match=path.rsplit("/", 1)[1]):
        query.to_arrow()
    with pytest.raises(tq.DataError, match=path.rsplit("/", 1)[1]):
        list(tq.create_dataloader(query, batch_size=8)[0])


def test_an_expired_snapshot_is_an_error_that_names_it(request):
    lake = lake_of("sqlite", request)
    name = f"{fresh()}.t"
    made = lake.make(name, sample(), files=3)
    first = made.history()[0].snapshot_id
    made.maintenance.expire_snapshots().by_id(first).commit()
    with pytest.raises(tq.TensorQueryError, match=str(first)):
        tq.create_dataloader(
            table=name, catalog_config=lake.properties, snapshot_id=first, columns=["id"]
        )


def test_a_state_of_an_expired_snapshot_is_a_mismatch_that_names_it(request):
    lake = lake_of("sqlite", request)
    name = f"{fresh()}.t"
    made = lake.make(name, sample(), files=2)
    loader, _ = tq.create_dataloader(query_of(lake, name), batch_size=8)
    next(iter(loader))
    state, first = loader.state_dict(), made.current_snapshot().snapshot_id
    append(made)
    made.maintenance.expire_snapshots().by_id(first).commit()
    loader, _ = tq.create_dataloader(query_of(lake, name), batch_size=8)
    with pytest.raises(tq.CheckpointMismatchError, match=str(first)):
        loader.load_state_dict(state)
    # The refusal left the loader unchanged.
    assert len(ids(loader)) > 60


def test_a_new_session_reads_what_is_current(lake, name):
    query = query_of(lake, name, "*")
    append(lake.table(name))
    assert rows(query_of(lake, name, "*").to_arrow()) == lake.read(name).to_pylist()
    assert query.count() == 60
