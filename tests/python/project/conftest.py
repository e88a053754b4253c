"""Fixtures of the tests of SQL examples."""

import duckdb
import pytest

from sql_example_runs import FLIGHTS, ROOT, TPCH, Runner, examples


@pytest.fixture
def in_the_root(monkeypatch):
    """Run in the root: one example names files relative to where the job runs."""
    monkeypatch.chdir(ROOT)


@pytest.fixture(scope="session")
def runner():
    """A runner of the examples; missing tables are made first."""
    return Runner(examples.session(FLIGHTS, TPCH))


@pytest.fixture(scope="session")
def duck(runner):
    """A DuckDB connection with the files as views."""
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for folder in (FLIGHTS, TPCH):
            for table in sorted(path for path in folder.iterdir() if path.is_dir()):
                connection.execute(f"CREATE VIEW {table.name} AS FROM '{table}/*.parquet'")
        yield connection


@pytest.fixture(scope="session")
def flights(duck):
    """All flights as pandas has them, with the scheduled departure in seconds."""
    frame = duck.execute(
        "SELECT *, epoch(time_hour)::BIGINT + minute * 60 AS departs FROM flights"
    ).df()
    assert len(frame) == 336_776
    return frame
