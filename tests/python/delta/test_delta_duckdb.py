"""DuckDB's reader is a judge of Delta tables beside Spark's and deltalake's: it read every version of the fixtures, and every
predicate over the newest, and a record has the digests of its rows (`make delta-judge` makes it anew)."""

import json

import pytest

import delta_fixtures as fixtures
import tensorquery as tq

RECORD = json.loads((fixtures.FOLDER / "duckdb.json").read_text())["answers"]

# Where DuckDB differs from Spark, and why; each has a program in findings/.
DIFFERS = {
    "mapped_name": "partition columns of mapped tables are NULL",
    "mapped_id": "partition columns of mapped tables are NULL",
    "feed": "partition columns of mapped tables are NULL",
    "clone": "absolute URIs are not read",
}

# DuckDB compares in the types that files had before the column was widened, and reads bounds in the new ones.
WRONG = {("widened", f"12 WHERE {predicate}") for predicate in ("f > 2.9", "i = 16.5", "j > 28.99")}


def test_the_record_is_of_these_tables():
    assert set(RECORD) == set(fixtures.INDEX)
    for name, answers in RECORD.items():
        versions = {int(key.split(" ")[0]) for key in answers}
        assert versions == set(fixtures.versions(name)), name
    assert sum(len(RECORD[name]) for name in set(RECORD) - set(DIFFERS)) > 90


@pytest.mark.parametrize("name", sorted(set(RECORD) - set(DIFFERS) - {"variant"}))
def test_the_rows_are_those_that_duckdb_reads(name):
    session = tq.Session()
    session.register_delta("t", fixtures.open_fixture(name))
    for key, digest in RECORD[name].items():
        version, _, predicate = key.partition(" ")
        query = session.sql(f"SELECT * FROM t FOR VERSION AS OF {version} {predicate}")
        agrees = fixtures.digest(query.to_arrow()) == digest
        assert agrees != ((name, key) in WRONG), key


@pytest.mark.parametrize("name", DIFFERS)
def test_where_duckdb_differs_spark_says_otherwise(name):
    """A new version of DuckDB that agrees ends the exception."""
    key = str(fixtures.versions(name)[-1])
    assert fixtures.digest(fixtures.truth(name)) != RECORD[name][key]
