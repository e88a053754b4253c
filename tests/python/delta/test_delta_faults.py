"""Promise 1 (docs/promises.md): over a store that fails, a Delta table's log, checkpoints, deletion vectors and data files give each
row once, or one clear error. MinIO behind the proxy of faults; `make test-faults` tries every fault on every table."""

import pyarrow as pa
import pytest

import delta_fixtures as fixtures
import support
import tensorquery as tq
from effort import LONG
from fault_rules import LYING, PASSING, STAYING, is_clear
from iceberg_fixtures import assert_same
from iceberg_servers import fresh
from stores import HASTY, PATIENT

# Commits, deletion vectors in files and classic checkpoints; sidecars; checkpoints in parts.
TABLES = ["dml", "v2_parquet", "parts"]


@pytest.fixture(scope="module")
def places(minio):
    """The URL of each table."""
    prefix = fresh("delta-faults")
    return {
        name: minio.upload(fixtures.open_fixture(name), f"{prefix}/{name}").rstrip("/")
        for name in TABLES
    }


def table_of(faults, place, options):
    """A session with the table at `place`, through the proxy, as t."""
    session = tq.Session()
    session.register_delta("t", place, storage_options={**faults.store.options, **options})
    return session


def rows_of(session):
    """The rows of an epoch of two ranks over small splits."""
    shards = support.read_shards(session.sql("SELECT * FROM t"), 2, 0, batch_size=16, split_rows=40)
    return pa.Table.from_batches(support.flat(shards))


def pairs(names):
    """Pairs of a fault and a table: all, or each fault with one table."""
    if LONG:
        return [(name, table) for name in names for table in TABLES]
    return [(name, TABLES[number % len(TABLES)]) for number, name in enumerate(names)]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "table"), pairs(PASSING))
def test_rows_are_exact_under_faults_that_pass(faults, places, name, table):
    hits = 0
    # A small table takes few requests.
    for seed in range(3):
        faults.set(*PASSING[name], seed=seed)
        session = table_of(faults, places[table], PATIENT)
        assert_same(rows_of(session), fixtures.truth(table))
        hits += sum(faults.figures()["hits"].values())
    assert hits > 0, "the proxy made no fault"


@pytest.mark.parametrize(("name", "table"), pairs(STAYING))
def test_faults_that_stay_end_the_reading_of_the_log_with_an_error(faults, places, name, table):
    rules, told = STAYING[name]
    faults.set(*rules)
    with pytest.raises(tq.StorageError, match=told) as error:
        table_of(faults, places[table], HASTY)
    is_clear(error.value, faults, places[table])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "table"), pairs(LYING))
def test_contradictions_never_change_the_rows(faults, places, name, table):
    faults.set(*LYING[name])
    try:
        found = rows_of(table_of(faults, places[table], HASTY))
    except (tq.StorageError, tq.DataError) as error:
        is_clear(error, faults, places[table])
    else:
        assert_same(found, fixtures.truth(table))
