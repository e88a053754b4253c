"""Promise 6 (docs/promises.md): mixtures, and rows appended to a table, have their snapshots pinned, agreed on by all ranks, and
resumed, like any query over Iceberg tables. The queries of a mixture may read one path or table."""

import itertools

import pyarrow as pa
import pytest
import torch.distributed as dist
from pyiceberg.catalog.sql import SqlCatalog

import ranks
import support
import tensorquery as tq
from stopping import ids, state_of

ROWS = 60
PARTS = ("id < 20", "id >= 20")


class Lake:
    """A table and its catalog, opened anew at each call, as another process would."""

    def __init__(self, folder):
        self.folder = folder
        catalog = self.catalog()
        catalog.create_namespace("ns")
        for name in ("t", "u"):
            catalog.create_table(f"ns.{name}", pa.schema([("id", pa.int64())]))
        self.append(range(ROWS))
        self.append(range(1000, 1030), "u")

    def catalog(self):
        uri = f"sqlite:///{self.folder}/catalog.db"
        return SqlCatalog("lake", uri=uri, warehouse=str(self.folder))

    def append(self, rows, name="t"):
        self.catalog().load_table(f"ns.{name}").append(pa.table({"id": list(rows)}))

    def start(self):
        """The snapshot that is current now."""
        return self.catalog().load_table("ns.t").current_snapshot().snapshot_id

    def session(self):
        session = tq.Session()
        uri = f"sqlite:///{self.folder}/catalog.db"
        session.register_iceberg("lake", {"type": "sql", "uri": uri})
        return session


@pytest.fixture
def lake(tmp_path):
    return Lake(tmp_path)


def queries_of(session):
    return [session.sql(f"SELECT id FROM lake.ns.t WHERE {part}") for part in PARTS]


def mixture_of(queries):
    return tq.mix([(query, 1) for query in queries], stop="all")


def loader_of(queries, **options):
    return tq.create_dataloader(
        mixture_of(queries), **{"batch_size": 8, "output_format": "dict", **options}
    )[0]


def rows_of(loader):
    return sorted(support.flat(ids(loader)))


def test_queries_over_one_path_are_mixed(tmp_path):
    folder = support.write_parquet(tmp_path / "t", pa.table({"id": range(ROWS)}), files=2)

    def parts(session):
        return [session.sql(f"SELECT id FROM '{folder}' WHERE {part}") for part in PARTS]

    session = tq.Session()
    assert rows_of(loader_of(parts(session))) == list(range(ROWS))
    # Each session has listed the files for itself.
    queries = [parts(tq.Session())[0], parts(tq.Session())[1]]
    assert rows_of(loader_of(queries)) == list(range(ROWS))
    support.write_parquet(tmp_path / "t" / "more", pa.table({"id": [ROWS]}))
    with pytest.raises(tq.ConfigError, match="has changed between the queries of a mixture"):
        mixture_of([queries[0], parts(tq.Session())[1]])


def test_queries_over_one_iceberg_table_are_mixed(lake):
    session = lake.session()
    queries = queries_of(session)
    assert rows_of(loader_of(queries)) == list(range(ROWS))
    lake.append([ROWS])
    with pytest.raises(tq.ConfigError, match=r"ns\.t.* has changed .* call refresh\(\) of each"):
        mixture_of([queries[0], queries_of(session)[1]])
    for query in queries:
        query.refresh()
    assert rows_of(loader_of(queries)) == list(range(ROWS + 1))


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [1, 2])
def test_a_resumed_mixture_reads_the_snapshots_of_its_state(lake, world_size):
    def make(**options):
        session = lake.session()
        queries = [*queries_of(session), session.sql("SELECT id FROM lake.ns.u")]
        return loader_of(queries, shuffle=True, **options)

    loader = make(rank=0, world_size=1)
    received = ids(itertools.islice(loader, 3))
    state = state_of(loader)
    lake.append(range(ROWS, ROWS + 20))
    lake.append(range(2000, 2020), "u")
    for rank in range(world_size):
        loader = make(rank=rank, world_size=world_size)
        loader.load_state_dict(state)
        received += ids(loader)
    assert sorted(support.flat(received)) == [*range(ROWS), *range(1000, 1030)]


def test_a_resumed_mixture_keeps_its_moment(lake):
    def make():
        session = lake.session()
        sql = "SELECT id, CAST(now() AS BIGINT) AS at FROM lake.ns.t WHERE "
        return loader_of([session.sql(sql + part) for part in PARTS])

    loader = make()
    first = next(iter(loader))
    state = state_of(loader)
    lake.append([ROWS])
    loader = make()
    loader.load_state_dict(state)
    rest = list(loader)
    assert {at for batch in rest for at in batch["at"]} == set(first["at"])
    assert len(first["id"]) + sum(len(batch["id"]) for batch in rest) == ROWS


def appended_of(session, start):
    return session.incremental("lake.ns.t", start)


def test_resumed_appends_end_at_the_snapshot_of_the_state(lake):
    start = lake.start()
    lake.append(range(ROWS, ROWS + 20))
    loader, _ = tq.create_dataloader(
        appended_of(lake.session(), start), output_format="dict", batch_size=8
    )
    received = ids(itertools.islice(loader, 1))
    state = state_of(loader)
    lake.append(range(2000, 2010))
    resumed, dataset = tq.create_dataloader(
        appended_of(lake.session(), start), output_format="dict", batch_size=8
    )
    resumed.load_state_dict(state)
    received += ids(resumed)
    assert sorted(support.flat(received)) == list(range(ROWS, ROWS + 20))
    # And go on where they are asked to.
    assert len(dataset.refresh()) == 1
    assert rows_of(resumed) == [*range(ROWS, ROWS + 20), *range(2000, 2010)]


def read(rank, world_size, folder, start):
    """Make a loader over a mixture and one over appends, with a commit between any two ranks."""
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    lake = object.__new__(Lake)
    lake.folder = folder
    options = {"output_format": "dict", "batch_size": 4}
    try:
        for turn in range(world_size):
            if turn == rank:
                mixed = loader_of(queries_of(lake.session()), **options)
                appended, _ = tq.create_dataloader(appended_of(lake.session(), start), **options)
                lake.append([1000 + turn])
            dist.barrier()
        return ids(mixed), ids(appended)
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
def test_all_ranks_read_the_snapshots_of_the_first(lake):
    start = lake.start()
    lake.append(range(ROWS, ROWS + 20))
    found = ranks.run(read, 3, lake.folder, start)
    for batches, wanted in zip(
        zip(*found, strict=True), ([*range(ROWS + 20)], [*range(ROWS, ROWS + 20)]), strict=True
    ):
        assert sorted(support.flat(support.flat(batches))) == wanted
        assert len({len(own) for own in batches}) == 1
